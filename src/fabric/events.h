// Makers of events, for adapters.
#pragma once

#include <string>
#include <utility>

#include "fabric/fabric.h"

namespace baton::fabric {

inline FabricEvent outbound_event(FabricEvent::Kind kind, OutboundId outbound,
                                  std::string error = {}) {
  FabricEvent event;
  event.kind = kind;
  event.outbound = outbound;
  event.error = std::move(error);
  return event;
}

inline FabricEvent write_event(FabricEvent::Kind kind, OutboundId outbound, std::uint64_t context,
                               std::string error = {}) {
  FabricEvent event = outbound_event(kind, outbound, std::move(error));
  event.context = context;
  return event;
}

// A read of `access` kRead, or a write, that came to its end. A failed read is `over`: it is told
// by adapters that have stopped reading before they say so.
inline FabricEvent done_event(Access access, OutboundId outbound, std::uint64_t context) {
  return write_event(
      access == Access::kWrite ? FabricEvent::Kind::kWriteDone : FabricEvent::Kind::kReadDone,
      outbound, context);
}
inline FabricEvent failed_event(Access access, OutboundId outbound, std::uint64_t context,
                                std::string error) {
  const bool reads = access == Access::kRead;
  FabricEvent event =
      write_event(reads ? FabricEvent::Kind::kReadFailed : FabricEvent::Kind::kWriteFailed,
                  outbound, context, std::move(error));
  event.over = reads;
  return event;
}

inline FabricEvent inbound_event(FabricEvent::Kind kind, InboundId inbound,
                                 std::uint32_t immediate = 0) {
  FabricEvent event;
  event.kind = kind;
  event.inbound = inbound;
  event.immediate = immediate;
  return event;
}

}  // namespace baton::fabric
