#include "layout/block_hash.h"

#include <gtest/gtest.h>

#include "layout/test_geometry.h"

namespace baton::layout {
namespace {

TEST(BlockHash, EqualBytesHashEqualWhateverTheOrderAndStrideOfRegions) {
  TestPool a = make_pool(2, 4), b = make_pool(2, 4, 64, 32);
  for (std::size_t layer = 0; layer < 2; ++layer) {
    for (std::size_t i = 0; i < 64; ++i) {
      a.memory[layer][64 + i] = static_cast<std::byte>(layer * 100 + i);
      b.memory[layer][3 * 96 + i] = static_cast<std::byte>(layer * 100 + i);
    }
  }
  std::swap(b.geometry.regions[0], b.geometry.regions[1]);
  const BlockHasher ha(a.geometry), hb(b.geometry);
  EXPECT_EQ(ha.hash_block(0, 1), hb.hash_block(0, 3));
  EXPECT_NE(ha.hash_block(0, 1), hb.hash_block(0, 2));
  EXPECT_EQ(ha.block_bytes(0), 128U);
  b.memory[1][3 * 96 + 63] ^= std::byte{1};
  EXPECT_NE(ha.hash_block(0, 1), hb.hash_block(0, 3));
}

}  // namespace
}  // namespace baton::layout
