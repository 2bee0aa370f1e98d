#include "sim/pattern.h"

#include <fmt/format.h>

#include <algorithm>

namespace baton::sim {

Pool::Pool(std::uint32_t layers, std::uint32_t blocks, std::uint32_t block_size,
           std::uint32_t token_bytes, std::uint32_t gap, std::byte value)
    : layers_(layers),
      blocks_(blocks),
      block_size_(block_size),
      token_bytes_(token_bytes),
      stride_(block_size * token_bytes + gap) {
  geometry.model = "pattern";
  geometry.kv_dtype = "bfloat16";
  geometry.num_layers = layers;
  geometry.num_kv_heads = 1;
  geometry.head_dim = token_bytes / 4;
  geometry.block_size = block_size;
  geometry.kernel_family = "none";
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    auto& bytes = memory_.emplace_back(std::size_t{blocks} * stride_, value);
    Region r;
    r.name = fmt::format("layer.{}", layer);
    r.base = bytes.data();
    r.stride_bytes = stride_;
    r.block_bytes = block_size * token_bytes;
    r.num_blocks = blocks;
    geometry.regions.push_back(r);
  }
  for (BlockId block = blocks; block-- > 0;) free_.push_back(block);
}

std::optional<BlockId> Pool::take(std::uint64_t pick) {
  if (free_.empty()) return std::nullopt;
  // Mostly neighbours, so that runs merge; sometimes any.
  if (pick % 4 == 0) std::swap(free_.back(), free_[(pick / 4) % free_.size()]);
  const BlockId block = free_.back();
  free_.pop_back();
  return block;
}

bool Pool::take_these(const std::vector<BlockId>& blocks) {
  for (const BlockId block : blocks) {
    if (std::find(free_.begin(), free_.end(), block) == free_.end()) return false;
  }
  for (const BlockId block : blocks) std::erase(free_, block);
  return true;
}

void Pool::give_back(BlockId block, std::byte value) {
  fill(block, value);
  free_.push_back(block);
}

std::byte* Pool::at(std::uint32_t layer, BlockId block) const {
  return const_cast<std::byte*>(memory_[layer].data()) + std::size_t{block} * stride_;
}

void Pool::fill(BlockId block, std::byte value) {
  for (std::uint32_t layer = 0; layer < layers_; ++layer) {
    std::fill_n(at(layer, block), block_size_ * token_bytes_, value);
  }
}

bool Pool::all(BlockId block, std::byte value) const {
  return first_other_than(block, value).empty();
}

std::string Pool::first_other_than(BlockId block, std::byte value) const {
  for (std::uint32_t layer = 0; layer < layers_; ++layer) {
    for (std::uint32_t i = 0; i < block_size_ * token_bytes_; ++i) {
      const std::byte have = at(layer, block)[i];
      if (have != value) {
        return fmt::format("block {} layer {} byte {}: {:#04x} instead of {:#04x}", block, layer, i,
                           static_cast<int>(have), static_cast<int>(value));
      }
    }
  }
  return {};
}

std::byte Pool::element(TransferId request, std::uint32_t layer, std::uint32_t token,
                        std::uint32_t place) {
  std::uint64_t x = request.low * 0x9E3779B97F4A7C15ULL + request.high;
  x ^= (std::uint64_t{layer} << 40) ^ (std::uint64_t{token} << 16) ^ place;
  x *= 0xBF58476D1CE4E5B9ULL;
  x ^= x >> 29;
  return static_cast<std::byte>(x >> 17);
}

void Pool::write_token(TransferId request, std::uint32_t token, BlockId block) {
  for (std::uint32_t layer = 0; layer < layers_; ++layer) {
    std::byte* bytes = at(layer, block) + (token % block_size_) * token_bytes_;
    for (std::uint32_t i = 0; i < token_bytes_; ++i) bytes[i] = element(request, layer, token, i);
  }
}

std::string Pool::check_token(TransferId request, std::uint32_t token, BlockId block) const {
  for (std::uint32_t layer = 0; layer < layers_; ++layer) {
    const std::byte* bytes = at(layer, block) + (token % block_size_) * token_bytes_;
    for (std::uint32_t i = 0; i < token_bytes_; ++i) {
      const std::byte want = element(request, layer, token, i);
      if (bytes[i] != want) {
        return fmt::format("request {} token {} layer {} byte {} in block {}: {:#04x}, not {:#04x}",
                           request.to_string(), token, layer, i, block, static_cast<int>(bytes[i]),
                           static_cast<int>(want));
      }
    }
  }
  return {};
}

std::uint64_t Pool::digest(const std::vector<BlockId>& blocks) const {
  std::uint64_t out = 0xCBF29CE484222325ULL;
  for (const BlockId block : blocks) {
    for (std::uint32_t layer = 0; layer < layers_; ++layer) {
      const std::byte* bytes = at(layer, block);
      for (std::uint32_t i = 0; i < block_size_ * token_bytes_; ++i) {
        out = (out ^ std::to_integer<std::uint64_t>(bytes[i])) * 0x100000001B3ULL;
      }
    }
  }
  return out;
}

std::uint64_t Pool::bytes_per_block() const {
  return std::uint64_t{layers_} * block_size_ * token_bytes_;
}

}  // namespace baton::sim
