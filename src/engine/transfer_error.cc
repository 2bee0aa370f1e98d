#include "engine/transfer_error.h"

#include <fmt/format.h>

namespace baton::engine {

namespace {

Errc code_of(Cause cause) {
  switch (cause) {
    case Cause::kCancelledHere:
    case Cause::kCancelledByPeer:
    case Cause::kSuperseded:
      return Errc::kCancelled;
    case Cause::kPeerUnreachable:
    case Cause::kPeerDied:
    case Cause::kPeerSilent:
    case Cause::kPeerRestarted:
    case Cause::kFabric:
    case Cause::kShutdown:
      return Errc::kUnavailable;
    case Cause::kRefused:
      return Errc::kMismatch;
    case Cause::kUnknownTransfer:
      return Errc::kNotFound;
    case Cause::kDeadline:
    case Cause::kLeaseExpired:
      return Errc::kDeadlineExceeded;
    case Cause::kCorrupt:
      return Errc::kCorrupt;
    case Cause::kNone:
      break;
  }
  return Errc::kInternal;
}

}  // namespace

Error transfer_error(const Event& event, const std::string& own_engine_id,
                     const std::string& peer) {
  const std::string other = event.peer.empty() ? peer : event.peer;
  const bool decode = event.side == Side::kDecode;
  const std::string unknown = "(unknown)";
  const std::string& prefill_id = decode ? other : own_engine_id;
  const std::string& decode_id = decode ? own_engine_id : other;
  std::string message = fmt::format(
      "hand-over {} from prefill instance '{}' to decode instance '{}' {}: {}",
      event.transfer.to_string(), prefill_id.empty() ? unknown : prefill_id,
      decode_id.empty() ? unknown : decode_id, to_string(event.outcome), to_string(event.cause));
  if (!event.text.empty()) message += fmt::format(" ({})", event.text);
  return {code_of(event.cause), std::move(message)};
}

}  // namespace baton::engine
