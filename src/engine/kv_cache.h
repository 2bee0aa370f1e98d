// The KV cache of this instance: one sealed memfd with one region a layer (or what the model's own
// layout says), said once to the model
// (KvPool) and once to the hand-over (Geometry).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "baton/geometry.h"
#include "baton/pool.h"
#include "baton/result.h"
#include "model/model.h"

namespace baton::engine {

struct KvCacheShape {
  std::uint32_t block_size = 16;
  std::uint32_t num_blocks = 0;  // > 0
  model::KvDtype dtype = model::KvDtype::kBfloat16;
  std::optional<model::KvLayout> layout{};  // unset: one region a layer
};

// What `shape` means for a model: its own layout, or the usual one.
model::KvLayout kv_layout_of(const model::ModelConfig& config, const KvCacheShape& shape);

class KvCache {
 public:
  static Result<KvCache> create(const model::ModelConfig& config, const std::string& kernel_family,
                                const KvCacheShape& shape);

  const model::KvPool& pool() const { return pool_; }
  const Geometry& geometry() const { return geometry_; }
  // Debugging: fills blocks with numbers far out of any model's range (and finite, so that nothing
  // but a read of them shows).
  void poison(std::span<const BlockId> blocks) const;

 private:
  KvCache(PoolMemory memory, std::size_t block_bytes)
      : memory_(std::move(memory)), block_bytes_(block_bytes) {}

  PoolMemory memory_;
  std::size_t block_bytes_;
  model::KvPool pool_;
  Geometry geometry_;
};

}  // namespace baton::engine
