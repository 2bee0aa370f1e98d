#include "fabric/region_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace baton::fabric {
namespace {

using ::testing::HasSubstr;

Region region(std::uint64_t stride, std::uint64_t block, std::uint32_t blocks) {
  Region region;
  region.name = "layer.7";
  region.stride_bytes = stride;
  region.block_bytes = block;
  region.num_blocks = blocks;
  return region;
}

std::string refusal(const Region& region) {
  const auto table = RegionTable::make(std::vector{region});
  return table ? "" : table.error().message;
}

TEST(RegionTable, RefusesShapesThatCannotBeAndNamesThem) {
  EXPECT_THAT(refusal(region(64, 64, 0)), HasSubstr("region 0 (layer.7): num_blocks is 0"));
  EXPECT_THAT(refusal(region(64, 0, 1)), HasSubstr("block_bytes is 0"));
  EXPECT_THAT(refusal(region(63, 64, 1)), HasSubstr("stride_bytes 63 is below block_bytes 64"));
  EXPECT_THAT(refusal(region(1ULL << 40, 64, 1U << 31)), HasSubstr("do not fit"));
  EXPECT_THAT(refusal(region(~0ULL, ~0ULL, 1)), HasSubstr("do not fit"));
  Region cuda = region(64, 64, 1);
  cuda.kind = MemoryKind::kCuda;
  EXPECT_THAT(refusal(cuda), HasSubstr("only host memory"));
  EXPECT_FALSE(RegionTable::make(std::vector(RegionTable::kRegionsMax + 1, region(64, 64, 1))));
}

TEST(RegionTable, LengthEndsWithTheLastBlockNotItsGap) {
  const RegionTable table = RegionTable::make(std::vector{region(100, 64, 3)}).value();
  EXPECT_EQ(table.length(0), 264U);
  EXPECT_TRUE(table.check("local", 0, 200, 64));
  EXPECT_FALSE(table.check("local", 0, 200, 65));
  EXPECT_TRUE(table.check("local", 0, 0, 0));
  EXPECT_TRUE(table.check("local", 9, ~0ULL, 0));
}

TEST(RegionTable, TheGapBetweenBlocksIsOutside) {
  const RegionTable table =
      RegionTable::make(std::vector{region(100, 64, 3), region(64, 64, 3)}).value();
  EXPECT_TRUE(table.check("remote", 0, 136, 28));
  EXPECT_THAT(table.check("remote", 0, 136, 29).error().message,
              HasSubstr("remote_offset 136 + length 29 runs over the end of a block of 64 bytes"));
  EXPECT_FALSE(table.check("remote", 0, 70, 1));
  EXPECT_TRUE(table.check("remote", 1, 60, 100));
}

TEST(RegionTable, OffsetsNearTheEndOfTheNumbersDoNotWrapAround) {
  const RegionTable table = RegionTable::make(std::vector{region(64, 64, 3)}).value();
  EXPECT_FALSE(table.check("local", 0, ~0ULL, 1));
  EXPECT_FALSE(table.check("local", 0, ~0ULL - 62, 64));
  EXPECT_FALSE(table.check("local", 0, 1, ~0ULL));
  EXPECT_FALSE(table.check("local", 1, 0, 1));
}

}  // namespace
}  // namespace baton::fabric
