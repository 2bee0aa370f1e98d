#include "layout/block_hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "base/check.h"

namespace baton::layout {

BlockHasher::BlockHasher(const Geometry& geometry) : by_group_(geometry.num_groups) {
  for (const Region& r : geometry.regions) by_group_[r.group].push_back(r);
  for (auto& regions : by_group_) {
    std::sort(regions.begin(), regions.end(),
              [](const Region& a, const Region& b) { return a.name < b.name; });
  }
}

std::uint64_t BlockHasher::hash_block(std::uint16_t group, BlockId block) const {
  BATON_CHECK(group < by_group_.size());
  std::uint64_t hash = 0;
  for (const Region& r : by_group_[group]) {
    BATON_CHECK(block < r.num_blocks);
    hash = XXH3_64bits_withSeed(r.base + block * r.stride_bytes, r.block_bytes, hash);
  }
  return hash;
}

std::uint64_t BlockHasher::block_bytes(std::uint16_t group) const {
  std::uint64_t bytes = 0;
  for (const Region& r : by_group_[group]) bytes += r.block_bytes;
  return bytes;
}

}  // namespace baton::layout
