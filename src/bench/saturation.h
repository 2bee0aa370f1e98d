// Whether the servers kept up with the arrivals. Where they do not, the queue grows for as long as
// requests come, and every latency is a matter of how long that was: not a figure of the mode.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "bench/request_result.h"

namespace baton::bench {

// Absent where too few requests were answered to say, or all were sent at one moment.
struct Arrivals {
  // From the first request sent to the last, and from the first answer's end to the last's: a
  // system that keeps up ends requests as often as they come, however long each one takes.
  std::optional<double> offered_per_s, answered_per_s;
  std::size_t open_at_last_arrival = 0;  // sent before the last one, and not ended by then
  // Sent to second token (to the first, of answers of one), medians of the first and the last
  // quarter of the requests in the order sent: the second token waits for P's queue and D's,
  // whichever of the two answers the first.
  std::optional<double> first_quarter_ms, last_quarter_ms;
};
Arrivals arrivals_of(std::span<const RequestResult> results);

// Answered clearly slower than offered, and the later ones waited clearly longer than the early
// ones. Both must hold: a burst at the end stretches a short run without any queue before it, and
// waits of a handful of requests vary without any lack of throughput. Absent: not known.
std::optional<bool> is_saturated(const Arrivals& arrivals);

}  // namespace baton::bench
