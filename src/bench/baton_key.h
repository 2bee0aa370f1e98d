// What a result file says below the key `baton`: what `vllm bench serve` has no key for.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "bench/bench_run.h"
#include "bench/result_file.h"

namespace baton::bench {

nlohmann::ordered_json baton_key(const PointInfo& point, const BenchOptions& options,
                                 const BenchRun& run);

// Payload that crossed, and what the full prompts of the requests that were answered amount to;
// absent where nothing was recorded. `missing`: answered requests with a transfer but no record of
// it at D. `unlike`: hand-overs that did not move exactly their full prompt. `not_handed_over`:
// answered requests of which no transfer is told.
struct MovedBytes {
  std::optional<std::uint64_t> moved, expected;
  std::size_t missing = 0, unlike = 0, not_handed_over = 0;
  std::uint64_t cached_at_prefill = 0, cached_at_decode = 0;  // prompt tokens of these requests
};
MovedBytes moved_bytes(const BenchRun& run);

}  // namespace baton::bench
