// The contract under every kind of trouble, by seeds. BATON_WORLD_SEED=n replays one;
// BATON_WORLD_TRACE=1 prints it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <ostream>

#include "handover/testing/world.h"

namespace baton::handover::testing {
namespace {

struct Case {
  const char* name;
  WorldOptions options;
  int seeds;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

class WorldTest : public ::testing::TestWithParam<Case> {};

TEST_P(WorldTest, HoldsTheContract) {
  const Case& c = GetParam();
  const char* only = std::getenv("BATON_WORLD_SEED");
  const bool trace = std::getenv("BATON_WORLD_TRACE") != nullptr;
  std::map<std::string, std::uint64_t> counts;
  int bad = 0;
  for (int i = 0; i < c.seeds && bad < 5; ++i) {
    const std::uint64_t seed = only != nullptr ? std::strtoull(only, nullptr, 10) : 1000U + i;
    const WorldReport report = run_world(seed, c.options, trace);
    for (const auto& [what, n] : report.counts) counts[what] += n;
    if (!report.faults.empty()) {
      ++bad;
      ADD_FAILURE() << c.name << ", seed " << seed << ": " << report.faults.front() << " (and "
                    << report.faults.size() - 1 << " more)";
    }
    if (only != nullptr) break;
  }
  for (const auto& [what, n] : counts) fmt::print("{:>14} {:>6} {}\n", c.name, n, what);
  EXPECT_GT(counts["decode done(none)"], 0U);
}

WorldOptions plain() {
  return {};
}

WorldOptions noisy() {
  WorldOptions o;
  o.drop_per_1000 = 50;
  o.duplicate_per_1000 = 100;
  o.message_delay_max = std::chrono::milliseconds(8);
  o.cancels_per_1000 = 300;
  return o;
}

WorldOptions counting() {
  WorldOptions o = noisy();
  o.delivery_complete = false;
  return o;
}

WorldOptions cuts() {
  WorldOptions o = noisy();
  o.cuts = 6;
  return o;
}

WorldOptions crashes() {
  WorldOptions o = noisy();
  o.crashes = 4;
  o.cuts = 2;
  return o;
}

WorldOptions crashes_without_a_fence_on_request() {
  WorldOptions o = crashes();
  o.fence_on_request = false;
  return o;
}

WorldOptions stalls() {
  WorldOptions o = noisy();
  o.stalls = 3;
  o.fence_on_request = false;
  return o;
}

WorldOptions failing_writes() {
  WorldOptions o = counting();
  o.write_failures_per_1000 = 20;
  return o;
}

WorldOptions failing_writes_delivery() {
  WorldOptions o = noisy();
  o.write_failures_per_1000 = 20;
  return o;
}

WorldOptions forgetful() {
  WorldOptions o = noisy();
  o.ends_remembered_max = 2;
  o.requests = 30;
  return o;
}

WorldOptions verified() {
  WorldOptions o = noisy();
  o.verify = true;
  return o;
}

WorldOptions everything() {
  WorldOptions o = failing_writes();
  o.crashes = 3;
  o.cuts = 3;
  o.stalls = 2;
  o.verify = true;
  o.ends_remembered_max = 4;
  return o;
}

INSTANTIATE_TEST_SUITE_P(
    Seeds, WorldTest,
    ::testing::Values(Case{"plain", plain(), 20}, Case{"noisy", noisy(), 60},
                      Case{"counting", counting(), 60}, Case{"cuts", cuts(), 60},
                      Case{"crashes", crashes(), 60},
                      Case{"unfenced", crashes_without_a_fence_on_request(), 40},
                      Case{"stalls", stalls(), 60}, Case{"failing", failing_writes(), 40},
                      Case{"failing_dc", failing_writes_delivery(), 40},
                      Case{"forgetful", forgetful(), 40}, Case{"verified", verified(), 30},
                      Case{"everything", everything(), 80}),
    [](const auto& param) { return param.param.name; });

TEST(World, TheSameSeedGivesTheSameRun) {
  const WorldReport a = run_world(7, everything());
  const WorldReport b = run_world(7, everything());
  EXPECT_EQ(a.trace_hash, b.trace_hash);
  EXPECT_NE(a.trace_hash, run_world(8, everything()).trace_hash);
}

}  // namespace
}  // namespace baton::handover::testing
