// `baton sweep`.
#pragma once

#include "bench/sweep_options.h"
#include "serving/process.h"

namespace baton::bench {

// Exit codes: 0 every point has a result; 1 a point could not be run, or is void
// (and --allow-void was not given); 2 a value is
// wrong. What is done stays: the same command goes on where it was stopped.
serving::Exit run_sweep(const SweepOptions& options);

}  // namespace baton::bench
