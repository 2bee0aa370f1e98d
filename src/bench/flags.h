// The flags of `baton bench serve` and `baton sweep`, for the command line.
#pragma once

#include "bench/options.h"
#include "bench/sweep_options.h"

namespace CLI {
class App;
}

namespace baton::bench {

// Adds `bench` with its command `serve`; parsed() of the returned one says whether it was asked.
CLI::App* add_bench(CLI::App& app, BenchOptions& options);
CLI::App* add_sweep(CLI::App& app, SweepOptions& options);

}  // namespace baton::bench
