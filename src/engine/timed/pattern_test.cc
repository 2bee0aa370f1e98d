#include "engine/timed/pattern.h"

#include <gtest/gtest.h>

#include <numeric>

namespace baton::engine::timed {
namespace {

constexpr std::uint32_t kBlockSize = 4;
constexpr std::uint32_t kTokenBytes = 16;
constexpr std::size_t kRegions = 3;
constexpr std::uint32_t kBlocks = 8;
constexpr std::size_t kBlockBytes = kBlockSize * kTokenBytes;

struct PatternTest : ::testing::Test {
  PatternTest() {
    for (auto& region : memory) {
      region.resize(kBlocks * kBlockBytes);
      pool.layers.push_back(region.data());
    }
    pool.stride_bytes = kBlockBytes;
    pool.num_blocks = kBlocks;
    pool.block_size = kBlockSize;
    std::iota(prompt.begin(), prompt.end(), 100);
  }
  std::optional<Difference> check(const std::vector<TokenId>& tokens) {
    return pattern.check(pool, table, 0, static_cast<std::uint32_t>(tokens.size()),
                         PromptNumbers(tokens));
  }

  std::vector<std::byte> memory[kRegions];
  model::KvPool pool;
  Pattern pattern{kRegions, kTokenBytes};
  std::vector<TokenId> prompt = std::vector<TokenId>(22);
  std::vector<BlockId> table{6, 0, 3, 2, 7, 1};
};

TEST_F(PatternTest, WhatWasFilledInPiecesIsRight) {
  pattern.fill(pool, table, 0, 5, PromptNumbers(prompt));
  pattern.fill(pool, table, 5, 6, PromptNumbers(prompt));
  pattern.fill(pool, table, 6, 22, PromptNumbers(prompt));
  EXPECT_FALSE(check(prompt));
}

// Each byte of each block in turn: the check misses none, and says which one it was.
TEST_F(PatternTest, OneFlippedByteIsFoundAnywhere) {
  pattern.fill(pool, table, 0, 22, PromptNumbers(prompt));
  for (std::size_t region = 0; region < kRegions; ++region) {
    for (std::uint32_t position = 0; position < 22; ++position) {
      for (std::size_t byte = 0; byte < kTokenBytes; ++byte) {
        const std::size_t within = position % kBlockSize * kTokenBytes + byte;
        const BlockId block = table[position / kBlockSize];
        std::byte& place = memory[region][block * kBlockBytes + within];
        place ^= std::byte{1};
        const auto difference = check(prompt);
        ASSERT_TRUE(difference);
        EXPECT_EQ(difference->region, region);
        EXPECT_EQ(difference->position, position);
        EXPECT_EQ(difference->block, block);
        EXPECT_EQ(difference->byte, within);
        EXPECT_EQ(difference->expected ^ difference->found, 1);
        place ^= std::byte{1};
      }
    }
  }
  EXPECT_FALSE(check(prompt));
}

TEST_F(PatternTest, ABlockInAnothersPlaceIsFound) {
  pattern.fill(pool, table, 0, 22, PromptNumbers(prompt));
  std::swap(table[3], table[4]);
  const auto difference = check(prompt);
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->position, 12U);
  EXPECT_EQ(difference->block, 7U);
}

TEST_F(PatternTest, ARegionInAnothersPlaceIsFound) {
  pattern.fill(pool, table, 0, 22, PromptNumbers(prompt));
  std::swap(pool.layers[0], pool.layers[1]);
  EXPECT_TRUE(check(prompt));
}

TEST_F(PatternTest, AnotherPromptsKvIsFound) {
  pattern.fill(pool, table, 0, 22, PromptNumbers(prompt));
  std::vector<TokenId> other = prompt;
  other[1] += 1;
  const auto difference = check(other);
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->position, 1U) << "before that the prompts are alike";
  other = prompt;
  other[20] += 1;
  ASSERT_TRUE(check(other));
  EXPECT_EQ(check(other)->position, 20U);
}

TEST_F(PatternTest, WhatLiesBehindTheLastTokenIsNobodys) {
  pattern.fill(pool, table, 0, 22, PromptNumbers(prompt));
  memory[2][table[5] * kBlockBytes + 2 * kTokenBytes] ^= std::byte{1};
  EXPECT_FALSE(check(prompt));
}

}  // namespace
}  // namespace baton::engine::timed
