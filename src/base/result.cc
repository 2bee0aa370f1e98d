#include "baton/result.h"

namespace baton {

std::string_view to_string(Errc code) {
  switch (code) {
    case Errc::kInvalidArgument:
      return "invalid_argument";
    case Errc::kNotFound:
      return "not_found";
    case Errc::kAlreadyExists:
      return "already_exists";
    case Errc::kResourceExhausted:
      return "resource_exhausted";
    case Errc::kUnavailable:
      return "unavailable";
    case Errc::kDeadlineExceeded:
      return "deadline_exceeded";
    case Errc::kCancelled:
      return "cancelled";
    case Errc::kMismatch:
      return "mismatch";
    case Errc::kCorrupt:
      return "corrupt";
    case Errc::kUnsupported:
      return "unsupported";
    case Errc::kIo:
      return "io";
    case Errc::kInternal:
      return "internal";
  }
  return "unknown";
}

}  // namespace baton
