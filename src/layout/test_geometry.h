// A small valid geometry for tests.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <vector>

#include "baton/geometry.h"

namespace baton::layout {

struct TestPool {
  Geometry geometry;
  std::vector<std::vector<std::byte>> memory;  // one for each region
};

inline TestPool make_pool(std::uint32_t layers = 2, std::uint32_t blocks = 8,
                          std::uint64_t block_bytes = 64, std::uint64_t gap = 0,
                          std::uint16_t groups = 1) {
  TestPool pool;
  Geometry& g = pool.geometry;
  g.model = "test-model";
  g.kv_dtype = "bfloat16";
  g.num_layers = layers;
  g.num_kv_heads = 2;
  g.head_dim = 4;
  g.block_size = 4;
  g.num_groups = groups;
  g.kernel_family = "plain";
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    auto& bytes = pool.memory.emplace_back(blocks * (block_bytes + gap), std::byte{0});
    Region r;
    r.name = fmt::format("layer.{}", layer);
    r.base = bytes.data();
    r.stride_bytes = block_bytes + gap;
    r.block_bytes = block_bytes;
    r.num_blocks = blocks;
    r.group = static_cast<std::uint16_t>(layer % groups);
    g.regions.push_back(r);
  }
  return pool;
}

}  // namespace baton::layout
