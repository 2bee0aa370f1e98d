// `baton bench serve`.
#pragma once

#include "bench/options.h"
#include "serving/process.h"

namespace baton::bench {

// Exit codes: 0 at least one request was answered; 1 none was, or the server is not there; 2 a
// value is wrong.
serving::Exit run_bench_serve(const BenchOptions& options);

}  // namespace baton::bench
