#include "baton/event.h"

namespace baton {

std::string_view to_string(Outcome outcome) {
  switch (outcome) {
    case Outcome::kDone:
      return "done";
    case Outcome::kFailed:
      return "failed";
    case Outcome::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

std::string_view to_string(Cause cause) {
  switch (cause) {
    case Cause::kNone:
      return "none";
    case Cause::kCancelledHere:
      return "cancelled_here";
    case Cause::kCancelledByPeer:
      return "cancelled_by_peer";
    case Cause::kSuperseded:
      return "superseded";
    case Cause::kPeerUnreachable:
      return "peer_unreachable";
    case Cause::kPeerDied:
      return "peer_died";
    case Cause::kPeerSilent:
      return "peer_silent";
    case Cause::kPeerRestarted:
      return "peer_restarted";
    case Cause::kRefused:
      return "refused";
    case Cause::kUnknownTransfer:
      return "unknown_transfer";
    case Cause::kDeadline:
      return "deadline";
    case Cause::kLeaseExpired:
      return "lease_expired";
    case Cause::kFabric:
      return "fabric";
    case Cause::kCorrupt:
      return "corrupt";
    case Cause::kShutdown:
      return "shutdown";
  }
  return "unknown";
}

}  // namespace baton
