// The load itself: open loop. Each request is sent at its planned time whatever became of the ones
// before it; its answer is read as it streams, beside all others, on the HTTP client's one thread.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "bench/options.h"
#include "bench/plan.h"
#include "bench/request_result.h"

namespace baton::bench {

struct LoadTarget {
  std::string url;    // of the completions endpoint
  std::string model;  // as it is asked for
  std::uint32_t vocab_size = 0;
};

struct LoadRun {
  std::vector<RequestResult> results;    // in the order of the plan
  Time start;                            // of the run, on this host's monotonic clock
  Duration duration = Duration::zero();  // until the last answer ended
  std::size_t most_open = 0;             // requests that were open at once
};

// Blocks until every request has ended; each ends within options.request_timeout. With
// --max-concurrency an arrival waits until fewer are open, as with `vllm bench serve`: the load is
// then no longer open-loop, and RequestResult::sent - due says by how much.
LoadRun run_load(const std::vector<PlannedRequest>& plan, const BenchOptions& options,
                 const LoadTarget& target);

}  // namespace baton::bench
