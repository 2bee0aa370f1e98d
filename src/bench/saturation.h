// Whether the servers kept up with the arrivals. Where they do not, the queue grows for as long as
// requests come, and every latency is a matter of how long that was: not a figure of the mode.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "bench/request_result.h"

namespace baton::bench {

// Absent where too few requests were answered to say, or all were sent at one moment.
struct Arrivals {
  // From the first request sent to the last, and from the first answer's end to the last's.
  std::optional<double> offered_per_s, answered_per_s;
  std::size_t requests = 0;              // answered ones, of which all here is said
  std::size_t open_at_last_arrival = 0;  // sent before the last one, and not ended by then
  // The quickest whole answer, sent to last token, among those that are not shorter than the median
  // (prompt and answer in tokens): what a request takes that meets no queue.
  std::optional<double> quickest_ms;
  // How many would have been open at the last arrival, had each taken as long as the quickest:
  // Little's law with the arrivals as they were, so that a burst counts as one.
  std::size_t open_if_quick = 0;
  // Sent to second token (to the first, of answers of one), medians of the first and the last
  // quarter of the requests in the order sent: the second token waits for P's queue and D's,
  // whichever of the two answers the first.
  std::optional<double> first_quarter_ms, last_quarter_ms;
};
Arrivals arrivals_of(std::span<const RequestResult> results);

// Waits grew: the last quarter waited more than 1.5 times as long as the first, and longer by more
// than 7.5 % of the time between them (so far below what is asked is what the servers can do), and
// at the last arrival more were open than quick answers would leave. Or hardly any ended: most
// requests were open then, and twice as many as quick answers would leave. Absent: not known.
std::optional<bool> is_saturated(const Arrivals& arrivals);

// "waits for the second token from 67 ms (first quarter) to 603 ms (last), 11 of 64 requests open
// at the last arrival where 6 would be without a queue": of a saturated run.
std::string saturation_in_words(const Arrivals& arrivals);

}  // namespace baton::bench
