// The single requests of a result file, checked and made short for the page. Heavy (nlohmann): for
// .cc files only.
#pragma once

#include <cstddef>

#include "bench/plot/json_fields.h"

namespace baton::bench::plot {

// A list of {"id", "arrival", "ttft", "tpot", "e2el", "second", "error", "spans": [[side, name,
// start, end]]}, times in ms, null where not measured or not ended. At most `requests_max`: failed
// ones first, then evenly over the order of TTFT, the fastest and the slowest always among them.
// Faults go to the complaint of `baton`.
Json read_requests(Fields& baton, std::size_t requests_max, std::string& complaint);

}  // namespace baton::bench::plot
