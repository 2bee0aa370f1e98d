// The way to a peer's memory, at the side that posts (push: P writes, pull: D reads): one outbound
// of the fabric, how far its making is, and whether what is posted through it moves.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "handover/port.h"

namespace baton::handover {

struct Way {
  enum class State : std::uint8_t { kNone, kConnecting, kConnected, kFailed };
  State state = State::kNone;
  Outbound outbound{};
  std::vector<std::byte> offer;
  Time connecting_since = kNever;
  std::uint32_t in_flight = 0;
  Time moved = kNever;  // while something is posted: when the first was, or the last was over

  bool is_open() const { return state == State::kConnecting || state == State::kConnected; }
  bool leads_by(Outbound through) const { return is_open() && outbound == through; }
  bool is_offered(std::span<const std::byte> bytes) const {
    return std::equal(bytes.begin(), bytes.end(), offer.begin(), offer.end());
  }

  void connecting(Outbound through, Time now) {
    state = State::kConnecting;
    outbound = through;
    connecting_since = now;
  }
  void connected(Time now) {
    state = State::kConnected;
    connecting_since = kNever;
    moved = now;  // what was posted through the outbound before may still be on its way back
  }
  void failed() {
    state = State::kFailed;
    connecting_since = kNever;
  }
  // No more posts; what is posted completes or fails on its own.
  void close(Port& port) {
    if (is_open()) port.close_outbound(outbound);
    state = State::kNone;
    connecting_since = kNever;
    offer.clear();
  }

  // When it counts as stuck: not connected, or nothing completed, for so long [I4].
  bool is_stuck(Time now, Duration patience) const {
    return state == State::kConnected && in_flight > 0 && now >= moved + patience;
  }
  bool is_unanswered(Time now, Duration patience) const {
    return connecting_since != kNever && now >= connecting_since + patience;
  }
  Time deadline(Duration patience) const {
    Time at = connecting_since == kNever ? kNever : connecting_since + patience;
    if (state == State::kConnected && in_flight > 0) at = std::min(at, moved + patience);
    return at;
  }
};

}  // namespace baton::handover
