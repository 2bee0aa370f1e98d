// The exhaustive part: one prefill and one decode process, one request of two blocks in two pieces
// (and a second one where an event brings it), and two events. All positions of both events in the
// run are walked, in both orders, and with each of them every run in which at most `deviations`
// steps take something else than what is due first.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "sim/choices.h"
#include "sim/journal.h"
#include "sim/state_count.h"

namespace baton::sim {

enum class PairEvent : std::uint8_t {
  kHandshake,  // the connection breaks and a new handshake follows
  kRegister,   // D registers another transfer
  kReady,      // P hands in another transfer
  kWithdraw,   // D takes its registration back
  kCancelP,    // P's engine cancels
  kCancelD,    // D's engine cancels
  kCrashP,     // P dies; it comes back when the faults are over
  kCrashD,
  kRestart,        // P dies and is back at once, as another incarnation
  kLeaseExpiry,    // renewals are lost and a lease's time passes
  kLateWrite,      // bytes and immediates stand still until the faults are over
  kLostFin,        // the next Final is lost
  kLostImmediate,  // the next immediate is lost
  kPrefixHit,      // D registers again and wants nothing; the first registration wants a part
  kNewAttempt,     // D registers again at other blocks
  kLateRegister,   // the last Register comes once more
  kRestartD,       // D dies and is back at once
  kCount
};
std::string_view to_string(PairEvent event);
inline constexpr std::size_t kPairEvents = static_cast<std::size_t>(PairEvent::kCount);

// What the fabric promises, as the real ones do.
enum class PairFabric : std::uint8_t {
  kShm,   // completions mean delivery, failed writes are over, only a death fences
  kTcp,   // completions mean delivery, failed writes may land, closing the endpoint fences
  kEfa,   // immediates are counted, failed writes may land, closing the endpoint fences
  kPull,  // D reads; failed reads may land until the way is closed
  kCount
};
std::string_view to_string(PairFabric fabric);
inline constexpr std::size_t kPairFabrics = static_cast<std::size_t>(PairFabric::kCount);

struct PairCase {
  PairEvent first = PairEvent::kHandshake;
  PairEvent second = PairEvent::kHandshake;
  PairFabric fabric = PairFabric::kShm;
  std::uint32_t deviations = 1;
};

// One schedule. Everything in it follows from the answers of `choices`.
void run_pair(const PairCase& pair, Choices& choices, Journal& journal, StateCount* states);

}  // namespace baton::sim
