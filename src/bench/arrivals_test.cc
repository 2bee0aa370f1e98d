#include "bench/arrivals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace baton::bench {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

std::vector<double> gaps(const std::vector<Duration>& times) {
  std::vector<double> out;
  Duration last = Duration::zero();
  for (const Duration at : times) {
    out.push_back(std::chrono::duration<double>(at - last).count());
    last = at;
  }
  return out;
}

// Standard deviation over mean.
double variation(const std::vector<double>& values) {
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  const double mean = sum / static_cast<double>(values.size());
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / static_cast<double>(values.size())) / mean;
}

TEST(Arrivals, follow_from_the_seed_alone) {
  const ArrivalOptions options = {4, 1, 7};
  EXPECT_EQ(arrival_times(50, options), arrival_times(50, options));
  EXPECT_NE(arrival_times(50, options), arrival_times(50, {4, 1, 8}));
}

TEST(Arrivals, keep_the_rate_asked_for_and_ascend) {
  const auto times = arrival_times(200, {8, 1, 1});
  EXPECT_NEAR(std::chrono::duration<double>(times.back()).count(), 25, 1e-6);
  EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
}

// Gaps of a gamma distribution of shape b vary by 1 / sqrt(b); 1 is Poisson.
TEST(Arrivals, vary_as_the_burstiness_says) {
  for (const double burstiness : {0.25, 1.0, 4.0, 25.0}) {
    const auto times = arrival_times(50'000, {10, burstiness, 3});
    EXPECT_NEAR(variation(gaps(times)) * std::sqrt(burstiness), 1, 0.05) << burstiness;
  }
}

// A third fact of Poisson arrivals, which gaps of the right mean and spread need not have: as many
// gaps as e^-1 says are longer than the mean.
TEST(Arrivals, are_exponential_for_poisson) {
  const auto all = gaps(arrival_times(50'000, {10, 1, 5}));
  const auto longer = std::count_if(all.begin(), all.end(), [](double gap) { return gap > 0.1; });
  EXPECT_NEAR(static_cast<double>(longer) / 50'000, std::exp(-1), 0.01);
}

TEST(Arrivals, are_even_for_infinite_burstiness) {
  for (const double gap : gaps(arrival_times(20, {4, kInf, 1}))) EXPECT_NEAR(gap, 0.25, 1e-6);
}

TEST(Arrivals, are_times_whatever_the_burstiness) {
  for (const double burstiness : {1e-300, 1e-3, 1e300, 1e308}) {
    for (const Duration at : arrival_times(100, {10, burstiness, 3})) {
      EXPECT_GE(at, Duration::zero()) << burstiness;
      EXPECT_LE(at, std::chrono::seconds(11)) << burstiness;
    }
  }
}

TEST(Arrivals, come_all_at_once_for_an_infinite_rate) {
  EXPECT_EQ(arrival_times(3, {kInf, 1, 1}), std::vector<Duration>(3, Duration::zero()));
  EXPECT_TRUE(arrival_times(0, {4, 1, 1}).empty());
}

}  // namespace
}  // namespace baton::bench
