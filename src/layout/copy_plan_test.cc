#include "layout/copy_plan.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "base/random.h"
#include "layout/test_geometry.h"

namespace baton::layout {
namespace {

std::vector<Run> expand(const CopyPlan& plan, const std::vector<std::vector<BlockId>>& local,
                        const std::vector<std::vector<BlockId>>& remote, std::uint64_t max) {
  BlockLists lists;
  for (std::size_t g = 0; g < local.size(); ++g) {
    lists.local[g] = local[g];
    lists.remote[g] = remote[g];
  }
  std::vector<Run> runs;
  RunCursor cursor(plan, max);
  for (Run run; cursor.next(lists, run);) runs.push_back(run);
  return runs;
}

TEST(CopyPlan, MergesNeighboursOnBothSides) {
  const TestPool a = make_pool(1, 16), b = make_pool(1, 16);
  const CopyPlan plan = CopyPlan::compile(a.geometry, b.geometry).value();
  const auto runs = expand(plan, {{0, 1, 2, 5, 6}}, {{8, 9, 10, 11, 13}}, 1 << 20);
  ASSERT_EQ(runs.size(), 3U);
  EXPECT_EQ(runs[0].length, 3 * 64U);
  EXPECT_EQ(runs[0].remote_offset, 8 * 64U);
  EXPECT_EQ(runs[1].local_offset, 5 * 64U);
  EXPECT_EQ(runs[1].length, 64U);
  EXPECT_EQ(runs[2].remote_offset, 13 * 64U);
}

TEST(CopyPlan, ARunStaysWithinTheLargestWrite) {
  const TestPool a = make_pool(1, 16), b = make_pool(1, 16);
  const CopyPlan plan = CopyPlan::compile(a.geometry, b.geometry).value();
  const auto merged = expand(plan, {{0, 1, 2, 3, 4}}, {{0, 1, 2, 3, 4}}, 130);
  ASSERT_EQ(merged.size(), 3U);
  EXPECT_EQ(merged[0].length, 128U);
  const auto split = expand(plan, {{3}}, {{4}}, 40);
  ASSERT_EQ(split.size(), 2U);
  EXPECT_EQ(split[0].length, 40U);
  EXPECT_EQ(split[1].length, 24U);
  EXPECT_EQ(split[1].local_offset, 3 * 64U + 40U);
  EXPECT_EQ(split[1].remote_offset, 4 * 64U + 40U);
}

TEST(CopyPlan, APieceContinuesARunWhereItIsANeighbourOnBothSides) {
  const TestPool a = make_pool(1, 16), b = make_pool(1, 16);
  const CopyPlan plan = CopyPlan::compile(a.geometry, b.geometry).value();
  const auto cut = expand(plan, {{0, 1, 2, 5}}, {{0, 1, 2, 3}}, 130);
  ASSERT_EQ(cut.size(), 3U);
  EXPECT_TRUE(continues(cut[0], cut[1])) << "cut at the largest write";
  EXPECT_FALSE(continues(cut[1], cut[2])) << "a gap here";
  EXPECT_FALSE(continues(cut[2], cut[0]));
  EXPECT_FALSE(continues(layout::Run{}, cut[0])) << "nothing was posted yet";
}

TEST(CopyPlan, AGapBetweenBlocksIsNeverTouched) {
  const TestPool a = make_pool(1, 16), b = make_pool(1, 16, 64, 32);
  const CopyPlan plan = CopyPlan::compile(a.geometry, b.geometry).value();
  const auto runs = expand(plan, {{0, 1}}, {{0, 1}}, 1 << 20);
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[1].remote_offset, 96U);
}

TEST(CopyPlan, KeepsBlocksApartWhenTold) {
  const TestPool a = make_pool(2, 16), b = make_pool(2, 16);
  CopyPlan plan = CopyPlan::compile(a.geometry, b.geometry).value();
  EXPECT_EQ(expand(plan, {{0, 1, 2}}, {{8, 9, 10}}, 1 << 20).size(), 2U);
  plan.keep_blocks_apart();
  const auto runs = expand(plan, {{0, 1, 2}}, {{8, 9, 10}}, 1 << 20);
  ASSERT_EQ(runs.size(), 6U);
  EXPECT_EQ(runs[1].length, 64U);
  EXPECT_EQ(runs[1].remote_offset, 9 * 64U);
}

TEST(CopyPlan, PairsRegionsByName) {
  const TestPool a = make_pool(3, 8);
  TestPool b = make_pool(3, 8);
  std::swap(b.geometry.regions[0], b.geometry.regions[2]);
  const CopyPlan plan = CopyPlan::compile(a.geometry, b.geometry).value();
  const auto runs = expand(plan, {{1}}, {{2}}, 1 << 20);
  ASSERT_EQ(runs.size(), 3U);
  EXPECT_EQ(runs[0].local_region, 0U);
  EXPECT_EQ(runs[0].remote_region, 2U);
  EXPECT_EQ(plan.bytes_per_block(0), 3 * 64U);
}

TEST(CopyPlan, RefusesUnlikeGeometries) {
  const TestPool a = make_pool(2), b = make_pool(3);
  const auto plan = CopyPlan::compile(a.geometry, b.geometry);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, Errc::kMismatch);
}

// Every byte of every listed block arrives, once, and nothing else is touched.
TEST(CopyPlan, RandomListsCopyExactlyTheBlocksNamed) {
  Rng rng(7);
  for (int round = 0; round < 200; ++round) {
    const auto groups = static_cast<std::uint16_t>(1 + rng.below(2));
    const std::uint64_t gap = rng.below(2) * 16;
    TestPool a = make_pool(4, 12, 48, gap, groups);
    TestPool b = make_pool(4, 20, 48, 0, groups);
    for (auto& memory : a.memory) {
      for (auto& byte : memory) byte = static_cast<std::byte>(1 + rng.below(255));
    }
    std::vector<std::vector<BlockId>> local(groups), remote(groups);
    for (std::size_t g = 0; g < groups; ++g) {
      const std::size_t n = rng.below(9);
      std::vector<BlockId> ids(20);
      std::iota(ids.begin(), ids.end(), 0U);
      const std::size_t start = rng.below(4);
      for (std::size_t i = 0; i < n; ++i) {
        local[g].push_back(static_cast<BlockId>((start + i) % 12));
        if (rng.chance(1, 3)) std::swap(ids[i], ids[i + rng.below(20 - i)]);
        remote[g].push_back(ids[i]);
      }
    }
    const CopyPlan plan = CopyPlan::compile(a.geometry, b.geometry).value();
    auto expected = b.memory;
    std::uint64_t planned = 0;
    for (std::size_t layer = 0; layer < 4; ++layer) {
      const std::size_t g = layer % groups;
      for (std::size_t i = 0; i < local[g].size(); ++i) {
        std::memcpy(expected[layer].data() + remote[g][i] * 48,
                    a.memory[layer].data() + local[g][i] * (48 + gap), 48);
        planned += 48;
      }
    }
    std::uint64_t moved = 0;
    for (const layout::Run& run : expand(plan, local, remote, 1 + rng.below(200))) {
      std::memcpy(b.memory[run.remote_region].data() + run.remote_offset,
                  a.memory[run.local_region].data() + run.local_offset, run.length);
      moved += run.length;
    }
    EXPECT_EQ(moved, planned);
    EXPECT_EQ(b.memory, expected) << "round " << round;
  }
}

}  // namespace
}  // namespace baton::layout
