#include "engine/kv_cache.h"

#include <fmt/format.h>

#include <cstring>

#include "base/check.h"

namespace baton::engine {

namespace {

constexpr std::size_t kAlignment = 64;  // a cache line, and what the widest vector load wants
constexpr int kPoison = 0x5A;           // as bfloat16 or float32: about 1.5e16

const char* dtype_name(model::KvDtype dtype) {
  return dtype == model::KvDtype::kBfloat16 ? "bfloat16" : "float32";
}

}  // namespace

model::KvLayout kv_layout_of(const model::ModelConfig& config, const KvCacheShape& shape) {
  if (shape.layout) return *shape.layout;
  model::KvLayout layout;
  layout.block_bytes = model::kv_block_bytes(config, shape.dtype, shape.block_size);
  for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
    layout.regions.push_back(fmt::format("layer.{}", layer));
  }
  return layout;
}

Result<KvCache> KvCache::create(const model::ModelConfig& config, const std::string& kernel_family,
                                const KvCacheShape& shape) {
  BATON_CHECK(shape.block_size > 0 && shape.num_blocks > 0);
  const model::KvLayout layout = kv_layout_of(config, shape);
  const std::size_t block_bytes = layout.block_bytes;
  const std::size_t stride = (block_bytes + kAlignment - 1) / kAlignment * kAlignment;
  const std::uint64_t region_bytes = static_cast<std::uint64_t>(stride) * shape.num_blocks;
  auto memory = PoolMemory::create("baton-kv", region_bytes * layout.regions.size());
  if (!memory) return tl::unexpected(memory.error());

  KvCache cache(std::move(*memory), block_bytes);
  cache.pool_ = {.layers = {},
                 .stride_bytes = stride,
                 .num_blocks = shape.num_blocks,
                 .block_size = shape.block_size};
  Geometry& geometry = cache.geometry_;
  geometry.model = config.fingerprint;
  geometry.kv_dtype = dtype_name(shape.dtype);
  geometry.num_layers = config.num_layers;
  geometry.num_kv_heads = config.num_kv_heads;
  geometry.head_dim = config.head_dim;
  geometry.block_size = shape.block_size;
  geometry.layout = BlockLayout::kHeadsFirst;
  geometry.kernel_family = kernel_family;
  for (std::size_t i = 0; i < layout.regions.size(); ++i) {
    const std::uint64_t offset = i * region_bytes;
    std::byte* base = cache.memory_.data() + offset;
    cache.pool_.layers.push_back(base);
    geometry.regions.push_back({.name = layout.regions[i],
                                .base = base,
                                .stride_bytes = stride,
                                .block_bytes = block_bytes,
                                .num_blocks = shape.num_blocks,
                                .memfd = cache.memory_.memfd(),
                                .memfd_offset = offset});
  }
  return cache;
}

void KvCache::poison(std::span<const BlockId> blocks) const {
  for (std::byte* layer : pool_.layers) {
    for (const BlockId block : blocks) {
      std::memset(layer + block * pool_.stride_bytes, kPoison, block_bytes_);
    }
  }
}

}  // namespace baton::engine
