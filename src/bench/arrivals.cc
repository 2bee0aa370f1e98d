#include "bench/arrivals.h"

#include <cmath>
#include <numbers>

#include "base/random.h"

namespace baton::bench {
namespace {

double uniform_above_0(Rng& rng) {
  return 1 - rng.uniform();
}

double normal(Rng& rng) {
  const double radius = std::sqrt(-2 * std::log(uniform_above_0(rng)));
  return radius * std::cos(2 * std::numbers::pi * rng.uniform());
}

// Of scale 1. Marsaglia and Tsang (2000); shapes below 1 by their boost. The standard library's
// differs from one library to the next.
double gamma(double shape, Rng& rng) {
  if (shape < 1) {
    const double boost = std::pow(uniform_above_0(rng), 1 / shape);
    return gamma(shape + 1, rng) * boost;
  }
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = normal(rng);
    const double v = std::pow(1 + c * x, 3);
    if (v <= 0) continue;
    if (std::log(uniform_above_0(rng)) < x * x / 2 + d - d * v + d * std::log(v)) return d * v;
  }
}

}  // namespace

std::vector<Duration> arrival_times(std::size_t count, const ArrivalOptions& options) {
  std::vector<Duration> out(count, Duration::zero());
  if (std::isinf(options.rate) || count == 0) return out;
  Rng rng(options.seed);
  std::vector<double> at(count);
  double sum = 0;
  for (double& time : at) {
    sum += std::isinf(options.burstiness) ? 1 : gamma(options.burstiness, rng);
    time = sum;
  }
  // Gaps so bursty that all of them are 0, or beyond any number: all at once.
  if (!(sum > 0 && std::isfinite(sum))) return out;
  const double stretch = static_cast<double>(count) / options.rate / sum;
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = Duration(std::llround(at[i] * stretch * 1e9));
  }
  return out;
}

}  // namespace baton::bench
