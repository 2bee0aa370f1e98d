// When requests arrive: decided before the first one is sent, so that no server can move them.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace baton::bench {

struct ArrivalOptions {
  double rate = 1;        // requests a second; infinite: all at 0
  double burstiness = 1;  // shape of the gamma distribution of gaps; 1: Poisson; infinite: constant
  std::uint64_t seed = 0;
};

// Ascending times since the start of the run. As with `vllm bench serve` the drawn gaps are
// stretched so that the last of n requests arrives at n / rate: the rate asked for is the rate
// offered, whatever was drawn. The same on every machine.
std::vector<Duration> arrival_times(std::size_t count, const ArrivalOptions& options);

}  // namespace baton::bench
