// The inner loops of the forward pass, once per instruction set behind one table of functions.
//
// Every sum has one fixed order that depends neither on the vector length nor on how many rows or
// columns are computed together: a matrix product adds along its inner dimension from first to last
// with one fused multiply-add each; a sum over a row keeps eight partial sums (element i goes to
// partial i % 8) and adds those as a fixed tree. So the tables "scalar", "avx2" and "avx512" give
// the same bits; "sse2" has no fused multiply-add and gives others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "baton/ids.h"

namespace baton::model {

// One KV head of one sequence in the pool, for one layer. Token t's K row starts at
// base + table[t / block_size] * stride + k_offset + (t % block_size) * row_bytes; V likewise with
// v_offset.
struct KvView {
  const std::byte* base = nullptr;
  std::size_t stride = 0;
  const BlockId* table = nullptr;
  unsigned block_shift = 0;  // log2 of the tokens a block
  std::size_t k_offset = 0;
  std::size_t v_offset = 0;
  std::size_t row_bytes = 0;
  bool bf16 = true;  // else float32

  const std::byte* block(std::size_t token) const {
    return base + table[token >> block_shift] * stride;
  }
  std::size_t in_block(std::size_t token) const {
    return (token & ((std::size_t{1} << block_shift) - 1)) * row_bytes;
  }
  const std::byte* key(std::size_t token) const {
    return block(token) + k_offset + in_block(token);
  }
  const std::byte* value(std::size_t token) const {
    return block(token) + v_offset + in_block(token);
  }
};

// Causal attention of some neighbouring tokens of one sequence over the query heads that share a KV
// head. Row r stands at position `start + r` and sees [0, start + r].
struct AttentionJob {
  KvView kv;
  std::size_t start = 0;
  std::size_t rows = 0;      // at most kAttentionRows
  std::size_t group = 0;     // query heads
  std::size_t head_dim = 0;  // a multiple of 16
  float scale = 1.0F;
  const float* q = nullptr;  // row r, head h: q + r * q_stride + h * head_dim
  std::size_t q_stride = 0;
  float* out = nullptr;  // likewise
  std::size_t out_stride = 0;
  float* scratch = nullptr;  // attention_scratch() floats, 64-byte aligned
};

inline constexpr std::size_t kAttentionRows = 16;
inline constexpr std::size_t kAttentionTile = 64;  // tokens of K or V unpacked at a time

inline std::size_t padded_tokens(std::size_t tokens) {
  return (tokens + kAttentionTile - 1) / kAttentionTile * kAttentionTile;
}
inline std::size_t attention_scratch(std::size_t rows, std::size_t group, std::size_t head_dim,
                                     std::size_t tokens) {
  const std::size_t queries = rows * group;
  return kAttentionTile * head_dim + queries * (2 * head_dim + padded_tokens(tokens) + 1);
}

struct KernelTable {
  std::string_view name;
  // Columns of a packed panel. A panel holds, for each pair of inner indices (2i, 2i + 1), one
  // 32-bit word a column: the even weight's bf16 bits low, the odd one's high.
  std::size_t panel_columns = 0;

  // y[r][c] = sum over k of x[r][k] * w[k][c] for `columns` columns in neighbouring panels, the
  // last perhaps partly used.
  void (*multiply)(const std::uint32_t* panels, std::size_t pairs, std::size_t columns,
                   const float* x, std::size_t x_stride, std::size_t rows, float* y,
                   std::size_t y_stride) = nullptr;
  // out = x / sqrt(mean(x^2) + epsilon) * weight; n a multiple of 8; out may be x.
  void (*rms_norm)(const float* x, const float* weight, std::size_t n, float epsilon,
                   float* out) = nullptr;
  // gate = silu(gate) * up; n a multiple of 8.
  void (*silu_multiply)(float* gate, const float* up, std::size_t n) = nullptr;
  void (*attention)(const AttentionJob& job) = nullptr;
};

// nullptr if this machine or build does not have it. Names: "scalar", "sse2", "avx2", "avx512".
const KernelTable* find_kernels(std::string_view name);
const KernelTable& best_kernels();
const KernelTable& scalar_kernels();  // the plain reference; slow

}  // namespace baton::model
