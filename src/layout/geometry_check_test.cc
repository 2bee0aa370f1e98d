#include "layout/geometry_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "layout/test_geometry.h"

namespace baton::layout {
namespace {

using testing::HasSubstr;

TEST(GeometryCheck, AcceptsAPlainPool) {
  const TestPool pool = make_pool();
  EXPECT_TRUE(validate(pool.geometry, Whose::kOurs));
  EXPECT_FALSE(find_mismatch(pool.geometry, pool.geometry));
}

struct Fault {
  const char* text;
  std::function<void(Geometry&)> make;
};

TEST(GeometryCheck, NamesTheBadField) {
  const std::vector<Fault> faults{
      {"model", [](Geometry& g) { g.model.clear(); }},
      {"kv_dtype", [](Geometry& g) { g.kv_dtype.assign(300, 'x'); }},
      {"num_layers", [](Geometry& g) { g.num_layers = 0; }},
      {"block_size", [](Geometry& g) { g.block_size = 0; }},
      {"num_groups", [](Geometry& g) { g.num_groups = 17; }},
      {"rank.tp", [](Geometry& g) { g.rank.tp = 1; }},
      {"regions", [](Geometry& g) { g.regions.clear(); }},
      {"group is 1", [](Geometry& g) { g.regions[1].group = 1; }},
      {"group 1 has no region", [](Geometry& g) { g.num_groups = 2; }},
      {"num_blocks", [](Geometry& g) { g.regions[1].num_blocks = 3; }},
      {"block_bytes", [](Geometry& g) { g.regions[0].block_bytes = 65; }},
      {"address space",
       [](Geometry& g) { g.regions[0].stride_bytes = std::numeric_limits<std::uint64_t>::max(); }},
      {"twice", [](Geometry& g) { g.regions[1].name = g.regions[0].name; }},
      {"kind", [](Geometry& g) { g.regions[0].kind = MemoryKind::kCuda; }},
      {"base", [](Geometry& g) { g.regions[0].base = nullptr; }},
  };
  for (const Fault& fault : faults) {
    TestPool pool = make_pool();
    fault.make(pool.geometry);
    const Status status = validate(pool.geometry, Whose::kOurs);
    ASSERT_FALSE(status) << fault.text;
    EXPECT_THAT(status.error().message, HasSubstr(fault.text));
  }
}

TEST(GeometryCheck, APeersPoolNeedsNoPointers) {
  TestPool pool = make_pool();
  for (Region& r : pool.geometry.regions) r.base = nullptr;
  EXPECT_TRUE(validate(pool.geometry, Whose::kTheirs));
}

TEST(GeometryCheck, MismatchNamesFieldAndBothValues) {
  const std::vector<Fault> faults{
      {"model: ours is test-model, theirs is other", [](Geometry& g) { g.model = "other"; }},
      {"kv_dtype: ours is bfloat16, theirs is float32",
       [](Geometry& g) { g.kv_dtype = "float32"; }},
      {"num_layers: ours is 2, theirs is 3", [](Geometry& g) { g.num_layers = 3; }},
      {"num_kv_heads: ours is 2, theirs is 8", [](Geometry& g) { g.num_kv_heads = 8; }},
      {"head_dim: ours is 4, theirs is 5", [](Geometry& g) { g.head_dim = 5; }},
      {"block_size: ours is 4, theirs is 16", [](Geometry& g) { g.block_size = 16; }},
      {"layout: ours is heads-first, theirs is tokens-first",
       [](Geometry& g) { g.layout = BlockLayout::kTokensFirst; }},
      {"tp_size: ours is 1, theirs is 2", [](Geometry& g) { g.tp_size = 2; }},
      {"pp_size: ours is 1, theirs is 2", [](Geometry& g) { g.pp_size = 2; }},
      {"region layer.1: ours is present, theirs is missing",
       [](Geometry& g) { g.regions.pop_back(); }},
      {"region extra: ours is missing, theirs is present",
       [](Geometry& g) {
         g.regions.push_back(g.regions[0]);
         g.regions.back().name = "extra";
       }},
      {"block_bytes: ours is 64, theirs is 32", [](Geometry& g) { g.regions[0].block_bytes = 32; }},
  };
  const TestPool ours = make_pool();
  for (const Fault& fault : faults) {
    TestPool theirs = make_pool();
    fault.make(theirs.geometry);
    const auto mismatch = find_mismatch(ours.geometry, theirs.geometry);
    ASSERT_TRUE(mismatch) << fault.text;
    EXPECT_THAT(mismatch->to_string(), HasSubstr(fault.text));
  }
}

TEST(GeometryCheck, PoolSizeStrideAndKernelMayDiffer) {
  const TestPool ours = make_pool(2, 8, 64, 0);
  TestPool theirs = make_pool(2, 100, 64, 32);
  theirs.geometry.kernel_family = "avx512";
  EXPECT_FALSE(find_mismatch(ours.geometry, theirs.geometry));
  const auto warning = find_warning(ours.geometry, theirs.geometry);
  ASSERT_TRUE(warning);
  EXPECT_EQ(warning->to_string(), "kernel_family: ours is plain, theirs is avx512");
}

TEST(GeometryCheck, BlocksOfARange) {
  EXPECT_EQ(blocks_of({0, 0}, 4).size(), 0U);
  EXPECT_EQ(blocks_of({8, 8}, 4).size(), 0U);
  EXPECT_EQ(blocks_of({0, 1}, 4).size(), 1U);
  EXPECT_EQ(blocks_of({0, 4}, 4).size(), 1U);
  EXPECT_EQ(blocks_of({4, 9}, 4).begin, 1U);
  EXPECT_EQ(blocks_of({4, 9}, 4).end, 3U);
}

}  // namespace
}  // namespace baton::layout
