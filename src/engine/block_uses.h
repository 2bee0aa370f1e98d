// Which blocks some sequences hold, and how many of them hold each: sequences that began alike
// share blocks, and a block is one block however many hold it.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>

#include "base/check.h"
#include "baton/ids.h"

namespace baton::engine {

class BlockUses {
 public:
  void add(std::span<const BlockId> blocks) {
    for (const BlockId block : blocks) ++uses_[block];
  }
  void remove(std::span<const BlockId> blocks) {
    for (const BlockId block : blocks) {
      const auto at = uses_.find(block);
      BATON_CHECK(at != uses_.end(), "block {} is not held", block);
      if (--at->second == 0) uses_.erase(at);
    }
  }
  // How many hold it.
  std::uint32_t of(BlockId block) const {
    const auto at = uses_.find(block);
    return at == uses_.end() ? 0 : at->second;
  }
  // Blocks, each counted once.
  std::uint32_t blocks() const { return static_cast<std::uint32_t>(uses_.size()); }
  auto begin() const { return uses_.begin(); }
  auto end() const { return uses_.end(); }

 private:
  std::unordered_map<BlockId, std::uint32_t> uses_;
};

}  // namespace baton::engine
