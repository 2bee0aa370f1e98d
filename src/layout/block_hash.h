// A fingerprint of one block over all regions of its group, the same on both sides of a hand-over:
// regions are taken in the order of their names, whatever their order in memory.
#pragma once

#include <cstdint>
#include <vector>

#include "baton/geometry.h"

namespace baton::layout {

class BlockHasher {
 public:
  explicit BlockHasher(const Geometry& geometry);  // validated; its memory outlives the hasher
  // `block` is within the group's pool.
  std::uint64_t hash_block(std::uint16_t group, BlockId block) const;
  // Bytes that hash_block() reads.
  std::uint64_t block_bytes(std::uint16_t group) const;

 private:
  std::vector<std::vector<Region>> by_group_;
};

}  // namespace baton::layout
