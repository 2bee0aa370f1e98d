// Within what time the router ends what an instance, its network or the router itself left open
// [I4]: the second table of bounds in docs/protocol.md, as code. route_bounds_test.cc keeps the
// page and this table alike, and every row names the test that tries it.
//
// The router looks at its clock every kRouteTick while requests run: each bound is met with the
// tick after it. Silence is of time in which the router itself ran (UpstreamPool::tick).
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "handover/config.h"
#include "serving/router.h"

namespace baton::serving {

// Deadlines of requests are seconds; a tick this long after one is soon enough.
inline constexpr Duration kRouteTick = std::chrono::milliseconds(50);
// How long P's record may come after D's last token where the client asked for it.
inline constexpr Duration kPrefillGrace = std::chrono::seconds(1);
// How long D may take to say what it makes of P's end, before its silence counts as an end too.
inline constexpr Duration kVerdictGrace = std::chrono::milliseconds(500);

// Pull: how long a request may wait for a free D, holding P's blocks. Then it is placed in any
// case: nobody but a decode instance renews P's lease.
constexpr Duration place_within(Duration lease_of_prefill) {
  return lease_of_prefill / 2;
}

struct RouteBound {
  std::string_view side;     // whose state
  std::string_view state;    // of the request there
  std::string_view lost;     // which party or message
  std::string_view knows;    // who learns it
  std::string_view how;      // by what
  std::string_view formula;  // of `within`, in the words of the flags
  // `prefill`: what P's instance runs with. Zero: one message.
  Duration (*within)(const RouterOptions& router, const handover::Config& prefill);
  std::string_view tried_by;  // "program Suite.Test"
};

inline constexpr std::size_t kRouteBoundsCount = 10;
extern const std::array<RouteBound, kRouteBoundsCount> kRouteBounds;

// The lines of that table, figures for the defaults.
std::string route_bounds_markdown();

}  // namespace baton::serving
