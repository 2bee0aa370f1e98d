// Patterned KV: every byte is a function of (request, layer, token, place in the token), so that a
// byte in the wrong place names itself. Knows element coordinates only and nothing of the product's
// layout code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "baton/geometry.h"
#include "baton/ids.h"

namespace baton::sim {

inline constexpr std::byte kPoison{0xDB};  // a free block at D
inline constexpr std::byte kGarbage{
    0x5A};  // a block at P that is not computed yet, or not any more

// One instance's pool: `layers` regions of `blocks` blocks; a token has `token_bytes` in each
// layer.
class Pool {
 public:
  Pool(std::uint32_t layers, std::uint32_t blocks, std::uint32_t block_size,
       std::uint32_t token_bytes, std::uint32_t gap, std::byte fill);

  Geometry geometry;

  std::optional<BlockId> take(std::uint64_t pick);      // some free block
  bool take_these(const std::vector<BlockId>& blocks);  // false: one of them is not free
  void give_back(BlockId block, std::byte fill);
  std::size_t free_blocks() const { return free_.size(); }
  std::uint32_t blocks() const { return blocks_; }

  void fill(BlockId block, std::byte value);
  bool all(BlockId block, std::byte value) const;
  // The first byte that is not what it should be, in words; empty: all are right.
  std::string first_other_than(BlockId block, std::byte value) const;
  void write_token(TransferId request, std::uint32_t token, BlockId block);
  std::string check_token(TransferId request, std::uint32_t token, BlockId block) const;
  std::uint64_t bytes_per_block() const;
  std::uint64_t digest(const std::vector<BlockId>& blocks) const;  // of what is in them now

 private:
  static std::byte element(TransferId request, std::uint32_t layer, std::uint32_t token,
                           std::uint32_t place);
  std::byte* at(std::uint32_t layer, BlockId block) const;

  std::uint32_t layers_, blocks_, block_size_, token_bytes_, stride_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<BlockId> free_;
};

}  // namespace baton::sim
