// What a call of Baton answers: a value, or an Error that says what was wrong in words for a
// person.
//
// Three kinds of trouble are kept apart. A fault of the program itself is a BATON_CHECK
// (base/check.h) and ends it. An expected failure of a call is a Result. Trouble after a request
// was accepted is an Event (baton/event.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace baton {

enum class Errc : std::uint8_t {
  kInvalidArgument,    // the caller's value breaks a documented rule
  kNotFound,           // a name, id or file does not exist
  kAlreadyExists,      // the id is in use
  kResourceExhausted,  // a bound (queue, quota, pool) is reached; trying later can help
  kUnavailable,        // the peer or service cannot be reached now
  kDeadlineExceeded,   // a bound of time passed
  kCancelled,          // somebody asked for the end
  kMismatch,           // two sides that must agree do not
  kCorrupt,            // bytes that cannot be what they claim to be
  kUnsupported,        // understood, and not offered by this build
  kIo,                 // the operating system refused
  kInternal,           // a bug that was contained
};

std::string_view to_string(Errc code);

// `message` is one sentence without a final dot; where values disagree it names the field and both
// values.
struct Error {
  Errc code = Errc::kInternal;
  std::string message;
};

template <typename T>
using Result = tl::expected<T, Error>;

using Status = Result<void>;

inline tl::unexpected<Error> fail(Errc code, std::string message) {
  return tl::unexpected<Error>(Error{code, std::move(message)});
}

}  // namespace baton
