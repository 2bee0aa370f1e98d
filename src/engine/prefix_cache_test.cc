#include "engine/prefix_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace baton::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Tokens = std::vector<TokenId>;

class PrefixCacheTest : public ::testing::Test {
 protected:
  // Indexes the full blocks of `tokens` in `blocks`; those that are new in the index.
  std::vector<BlockId> insert(const Tokens& tokens, const std::vector<BlockId>& blocks) {
    std::vector<BlockId> added;
    PrefixCache::Node node = PrefixCache::kRoot;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const auto [next, indexed] =
          cache_.insert(node, std::span(tokens).subspan(4 * i, 4), blocks[i]);
      if (indexed) added.push_back(blocks[i]);
      node = next;
    }
    return added;
  }
  std::vector<BlockId> match(const Tokens& tokens) { return cache_.match(tokens).blocks; }

  PrefixCache cache_{4, 16};
};

TEST_F(PrefixCacheTest, FindsTheLongestBeginningInWholeBlocks) {
  insert({1, 2, 3, 4, 5, 6, 7, 8}, {3, 9});
  EXPECT_THAT(match({1, 2, 3, 4, 5, 6, 7, 8, 9}), ElementsAre(3, 9));
  EXPECT_THAT(match({1, 2, 3, 4, 5, 6, 7, 0, 9}), ElementsAre(3));
  EXPECT_THAT(match({1, 2, 3, 0, 5, 6, 7, 8, 9}), IsEmpty());
  EXPECT_THAT(match({1, 2, 3}), IsEmpty());
}

TEST_F(PrefixCacheTest, LeavesTheLastTokenToBeComputed) {
  insert({1, 2, 3, 4, 5, 6, 7, 8}, {0, 1});
  EXPECT_THAT(match({1, 2, 3, 4, 5, 6, 7, 8}), ElementsAre(0));
  EXPECT_THAT(match({1, 2, 3, 4}), IsEmpty());
  EXPECT_THAT(match({}), IsEmpty());
}

TEST_F(PrefixCacheTest, TheSameTokensBehindOtherTokensAreNotTheSame) {
  insert({1, 1, 1, 1, 5, 5, 5, 5}, {0, 1});
  insert({2, 2, 2, 2}, {2});
  EXPECT_THAT(match({2, 2, 2, 2, 5, 5, 5, 5, 6}), ElementsAre(2));
  EXPECT_THAT(match({5, 5, 5, 5, 6}), IsEmpty());
}

TEST_F(PrefixCacheTest, TheFirstBlockThatIsKnownStaysTheOne) {
  EXPECT_THAT(insert({1, 1, 1, 1}, {0}), ElementsAre(0));
  EXPECT_THAT(insert({1, 1, 1, 1, 2, 2, 2, 2}, {5, 6}), ElementsAre(6));
  EXPECT_THAT(match({1, 1, 1, 1, 2, 2, 2, 2, 3}), ElementsAre(0, 6));
}

// What stands behind a forgotten block must not be found again through a new block that happens to
// be in the same place.
TEST_F(PrefixCacheTest, WhatIsBehindAForgottenBlockIsNotFound) {
  insert({1, 1, 1, 1, 2, 2, 2, 2}, {0, 1});
  cache_.forget(0);
  EXPECT_THAT(match({1, 1, 1, 1, 2, 2, 2, 2, 3}), IsEmpty());
  insert({7, 7, 7, 7}, {0});
  EXPECT_THAT(match({7, 7, 7, 7, 2, 2, 2, 2, 3}), ElementsAre(0));
  insert({1, 1, 1, 1}, {4});
  EXPECT_THAT(match({1, 1, 1, 1, 2, 2, 2, 2, 3}), ElementsAre(4));
  cache_.forget(1);
  EXPECT_EQ(cache_.size(), 2U);
}

TEST_F(PrefixCacheTest, ASaltSeesItsOwnChainsAlone) {
  const Tokens tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const std::span<const TokenId> all = tokens;
  const auto index = [&](std::string_view salt, BlockId first, BlockId second) {
    const auto begin = cache_.insert(PrefixCache::kRoot, all.first(4), first, salt);
    return begin.indexed && cache_.insert(begin.node, all.subspan(4, 4), second, salt).indexed;
  };
  EXPECT_TRUE(index("a", 1, 2));
  EXPECT_THAT(match(tokens), IsEmpty());
  EXPECT_THAT(cache_.match(tokens, "b").blocks, IsEmpty());
  EXPECT_TRUE(index("", 3, 4)) << "of nobody else's";
  EXPECT_TRUE(index("b", 5, 6));
  EXPECT_THAT(cache_.match(tokens, "a").blocks, ElementsAre(1, 2));
  EXPECT_THAT(cache_.match(tokens, "b").blocks, ElementsAre(5, 6));
  EXPECT_THAT(match(tokens), ElementsAre(3, 4));
  cache_.forget(1);
  EXPECT_THAT(cache_.match(tokens, "a").blocks, IsEmpty());
  EXPECT_THAT(match(tokens), ElementsAre(3, 4));
}

}  // namespace
}  // namespace baton::engine
