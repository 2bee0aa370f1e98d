#include "engine/block_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/random.h"

namespace baton::engine {
namespace {

using ::testing::ElementsAre;

std::vector<BlockId> take(BlockPool& pool, std::uint32_t n,
                          std::optional<BlockId> after = std::nullopt) {
  std::vector<BlockId> out;
  EXPECT_TRUE(pool.allocate(n, out, after));
  return out;
}

TEST(BlockPool, GivesARunOfNeighboursWhereOneIsFree) {
  BlockPool pool(10);
  EXPECT_THAT(take(pool, 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(take(pool, 4), ElementsAre(3, 4, 5, 6));
  pool.free(std::vector<BlockId>{0, 1, 2});
  // The smallest run that holds two is {7, 8, 9} or {0, 1, 2}: equal, so the lower one.
  EXPECT_THAT(take(pool, 2), ElementsAre(0, 1));
  EXPECT_THAT(take(pool, 3), ElementsAre(7, 8, 9));
  EXPECT_THAT(take(pool, 1), ElementsAre(2));
  EXPECT_EQ(pool.counts().free, 0U);
}

TEST(BlockPool, TakesTheSmallestRunThatFits) {
  BlockPool pool(12);
  (void)take(pool, 12);
  pool.free(std::vector<BlockId>{0, 1, 2, 3, 6, 7, 10});
  EXPECT_THAT(take(pool, 2), ElementsAre(6, 7));
  EXPECT_THAT(take(pool, 1), ElementsAre(10));
}

TEST(BlockPool, FallsBackToScatteredBlocks) {
  BlockPool pool(9);
  (void)take(pool, 9);
  pool.free(std::vector<BlockId>{8, 0, 4, 3, 6});
  EXPECT_THAT(take(pool, 4), ElementsAre(3, 4, 8, 0));
  std::vector<BlockId> out;
  EXPECT_FALSE(pool.allocate(2, out));
  EXPECT_TRUE(out.empty());
  EXPECT_EQ(pool.counts().free, 1U);
}

TEST(BlockPool, GrowsBehindTheLastBlock) {
  BlockPool pool(8);
  const auto first = take(pool, 2);
  const auto second = take(pool, 2);
  pool.free(second);
  EXPECT_THAT(take(pool, 1, first.back()), ElementsAre(2));
  EXPECT_THAT(take(pool, 1, 7), ElementsAre(3));  // there is no block 8
}

TEST(BlockPool, QuarantinedBlocksAreNotGranted) {
  BlockPool pool(4);
  const auto blocks = take(pool, 3);
  pool.quarantine(blocks);
  EXPECT_EQ(pool.counts().quarantined, 3U);
  std::vector<BlockId> out;
  EXPECT_FALSE(pool.allocate(2, out));
  pool.release_quarantined(blocks);
  EXPECT_THAT(take(pool, 4), ElementsAre(0, 1, 2, 3));
}

TEST(BlockPoolDeathTest, GivingBackTwiceIsABug) {
  BlockPool pool(4);
  const auto blocks = take(pool, 2);
  pool.free(blocks);
  EXPECT_DEATH(pool.free(blocks), "block 1 is freed, and not used");
  const auto again = take(pool, 1);
  EXPECT_DEATH(pool.release_quarantined(again), "block 0 is in state");
  pool.quarantine(again);
  EXPECT_DEATH(pool.free(again), "block 0 is freed, and not used");
  EXPECT_DEATH(pool.free(std::vector<BlockId>{4}), "block 4 of a pool of 4");
}

// A second, plain account of the same blocks: who holds each one.
struct Model {
  explicit Model(std::uint32_t total) : owner(total, 0) {}
  std::vector<int> owner;  // 0 free, otherwise the holding's number

  std::uint32_t longest_run() const {
    std::uint32_t best = 0;
    std::uint32_t now = 0;
    for (const int who : owner) {
      now = who == 0 ? now + 1 : 0;
      best = std::max(best, now);
    }
    return best;
  }
};

struct Holding {
  int number = 0;
  bool quarantined = false;
  std::vector<BlockId> blocks;
};

TEST(BlockPool, KeepsItsAccountsWhateverIsAsked) {
  constexpr std::uint32_t kTotal = 97;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    BlockPool pool(kTotal);
    Model model(kTotal);
    std::vector<Holding> holdings;
    int numbers = 0;
    for (int step = 0; step < 2000; ++step) {
      if (holdings.empty() || rng.chance(1, 2)) {
        const auto n = static_cast<std::uint32_t>(rng.below(20) + 1);
        Holding holding{++numbers, false, {}};
        const std::uint32_t longest = model.longest_run();
        if (!pool.allocate(n, holding.blocks)) {
          ASSERT_LT(pool.counts().free, n);
          continue;
        }
        ASSERT_EQ(holding.blocks.size(), n);
        for (std::size_t i = 0; i < n; ++i) {
          ASSERT_EQ(model.owner[holding.blocks[i]], 0);  // nobody else holds it
          model.owner[holding.blocks[i]] = holding.number;
          if (longest >= n && i > 0) {
            ASSERT_EQ(holding.blocks[i], holding.blocks[i - 1] + 1);
          }
        }
        holdings.push_back(std::move(holding));
      } else {
        const std::size_t i = rng.below(holdings.size());
        if (holdings[i].quarantined) {
          pool.release_quarantined(holdings[i].blocks);
        } else if (rng.chance(1, 3)) {
          pool.quarantine(holdings[i].blocks);
          holdings[i].quarantined = true;
          continue;
        } else {
          pool.free(holdings[i].blocks);
        }
        for (const BlockId block : holdings[i].blocks) model.owner[block] = 0;
        holdings.erase(holdings.begin() + static_cast<std::ptrdiff_t>(i));
      }
      const auto counts = pool.counts();
      ASSERT_EQ(counts.free, std::count(model.owner.begin(), model.owner.end(), 0));
      ASSERT_EQ(counts.free + counts.used + counts.quarantined, kTotal);
    }
  }
}

TEST(BlockPool, ABlockIsFreeWhenItsLastUserGivesItBack) {
  BlockPool pool(4);
  const auto blocks = take(pool, 2);
  for (const BlockId block : blocks) pool.mark_cached(block);
  pool.share(blocks);
  pool.free(blocks);
  EXPECT_EQ(pool.counts().used, 2U);
  pool.free(blocks);
  EXPECT_EQ(pool.counts().free, 4U);
  EXPECT_DEATH(pool.free(blocks), "freed, and not used");
}

TEST(BlockPool, WhatIsKeptIsHandedOutLastAndTheEndOfTheOldestFirst) {
  std::vector<BlockId> lost;
  BlockPool pool(6, [&lost](BlockId block) { lost.push_back(block); });
  const auto old = take(pool, 2);
  const auto young = take(pool, 2);
  for (const auto& blocks : {old, young}) {
    for (const BlockId block : blocks) pool.mark_cached(block);
    pool.free(blocks);
  }
  EXPECT_EQ(pool.counts().free, 6U);
  EXPECT_THAT(take(pool, 2), ElementsAre(4, 5));
  EXPECT_THAT(lost, ElementsAre());
  EXPECT_THAT(take(pool, 1), ElementsAre(1));
  EXPECT_THAT(lost, ElementsAre(1));
  pool.share(std::vector<BlockId>{0});  // used again: the young ones are older now
  EXPECT_THAT(take(pool, 2), ElementsAre(2, 3));
  EXPECT_THAT(lost, ElementsAre(1, 3, 2));
  std::vector<BlockId> out;
  EXPECT_FALSE(pool.allocate(1, out));
  EXPECT_DEATH(pool.share(std::vector<BlockId>{6}), "block 6 of a pool of 6");
}

TEST(BlockPool, NothingThatAPeerMayWriteIntoIsSharedOrKept) {
  BlockPool pool(4);
  const auto blocks = take(pool, 2);
  pool.mark_cached(blocks[0]);
  EXPECT_DEATH(pool.quarantine(std::vector{blocks[0]}), "may still be written into");
  pool.quarantine(std::vector{blocks[1]});
  EXPECT_DEATH(pool.share(std::vector{blocks[1]}), "nothing is cached");
  EXPECT_DEATH(pool.mark_cached(blocks[1]), "not used");
}

}  // namespace
}  // namespace baton::engine
