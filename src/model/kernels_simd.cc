// The kernels for AVX2 and AVX-512, written once with Highway and compiled for each. The
// instruction set is chosen at run time; the order of every sum is the one of kernels_scalar.cc.

// Below AVX2 there is no fused multiply-add: such machines run the scalar reference. The later
// AVX-512 levels bring nothing that is used here.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/kernels_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>

#include "model/kernel_math.h"
#include "model/kernels.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace baton::model {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Wide = hn::ScalableTag<float>;  // matrix products
using WideU = hn::RebindToUnsigned<Wide>;
using Eight = hn::CappedTag<float, 8>;  // everything else: eight lanes are the eight partial sums
using EightU = hn::RebindToUnsigned<Eight>;

// ---- packed matrix product ----

constexpr std::size_t kLanes = HWY_LANES(float);
constexpr std::size_t kPanel = 2 * kLanes;

// The sums of six rows fill the registers of AVX2. Left alone, g++ mixes the rows' steps and spills
// some of them, which puts a store and a load into each chain of additions; this keeps their order.
template <typename Vector>
HWY_INLINE void done_here(Vector& sum) {
  asm volatile("" : "+v"(sum.raw));
}

// kRows rows by kPanels panels: all sums in registers, the weights read once.
template <std::size_t kRows, std::size_t kPanels>
HWY_INLINE void multiply_tile(const std::uint32_t* HWY_RESTRICT panels, std::size_t pairs,
                              const float* HWY_RESTRICT x, std::size_t x_stride,
                              float* HWY_RESTRICT y, std::size_t y_stride) {
  constexpr std::size_t kVectors = 2 * kPanels;
  const Wide d;
  const WideU du;
  const auto high_half = hn::Set(du, 0xffff0000U);
  hn::Vec<Wide> sum[kRows][kVectors];
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  for (std::size_t p = 0; p < pairs; ++p) {
    const auto words = [&](std::size_t v) {
      return hn::LoadU(du, panels + (v / 2 * pairs + p) * kPanel + v % 2 * kLanes);
    };
    hn::Vec<Wide> weight[kVectors];
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) {
      weight[v] = hn::BitCast(d, hn::ShiftLeft<16>(words(v)));
    }
#pragma GCC unroll 8
    for (std::size_t r = 0; r < kRows; ++r) {
      const auto value = hn::Set(d, x[r * x_stride + 2 * p]);
#pragma GCC unroll 8
      for (std::size_t v = 0; v < kVectors; ++v) {
        sum[r][v] = hn::MulAdd(value, weight[v], sum[r][v]);
        done_here(sum[r][v]);
      }
    }
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) {
      weight[v] = hn::BitCast(d, hn::And(words(v), high_half));
    }
#pragma GCC unroll 8
    for (std::size_t r = 0; r < kRows; ++r) {
      const auto value = hn::Set(d, x[r * x_stride + 2 * p + 1]);
#pragma GCC unroll 8
      for (std::size_t v = 0; v < kVectors; ++v) {
        sum[r][v] = hn::MulAdd(value, weight[v], sum[r][v]);
        done_here(sum[r][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) {
      hn::StoreU(sum[r][v], d, y + r * y_stride + v * kLanes);
    }
  }
}

constexpr std::size_t kMostRows = 6;

template <std::size_t kPanels>
void multiply_group(const std::uint32_t* panels, std::size_t pairs, const float* x,
                    std::size_t x_stride, std::size_t rows, float* y, std::size_t y_stride) {
  switch (rows) {
    case 1:
      return multiply_tile<1, kPanels>(panels, pairs, x, x_stride, y, y_stride);
    case 2:
      return multiply_tile<2, kPanels>(panels, pairs, x, x_stride, y, y_stride);
    case 3:
      return multiply_tile<3, kPanels>(panels, pairs, x, x_stride, y, y_stride);
    case 4:
      return multiply_tile<4, kPanels>(panels, pairs, x, x_stride, y, y_stride);
    case 5:
      return multiply_tile<5, kPanels>(panels, pairs, x, x_stride, y, y_stride);
    default:
      return multiply_tile<6, kPanels>(panels, pairs, x, x_stride, y, y_stride);
  }
}

// A panel of which only some columns exist: computed whole beside, copied in part.
void multiply_partly(const std::uint32_t* panel, std::size_t pairs, std::size_t columns,
                     const float* x, std::size_t x_stride, std::size_t rows, float* y,
                     std::size_t y_stride) {
  float whole[kMostRows * kPanel];
  multiply_group<1>(panel, pairs, x, x_stride, rows, whole, kPanel);
  for (std::size_t r = 0; r < rows; ++r) {
    std::copy_n(whole + r * kPanel, columns, y + r * y_stride);
  }
}

// How many panels to compute together: one or two rows alone leave registers free for several,
// which hides the latency of the sums.
std::size_t panels_together(std::size_t rows, std::size_t columns) {
  if (rows == 1 && columns >= 4 * kPanel) return 4;
  if (rows <= 2 && columns >= 2 * kPanel) return 2;
  return 1;
}

void multiply(const std::uint32_t* panels, std::size_t pairs, std::size_t columns, const float* x,
              std::size_t x_stride, std::size_t rows, float* y, std::size_t y_stride) {
  std::size_t column = 0;
  while (column < columns) {
    const std::uint32_t* panel = panels + column * pairs;
    const std::size_t together = panels_together(rows, columns - column);
    for (std::size_t r = 0; r < rows;) {
      const std::size_t group = balanced_group(rows - r, kMostRows);
      const float* from = x + r * x_stride;
      float* to = y + r * y_stride + column;
      if (columns - column < kPanel) {
        multiply_partly(panel, pairs, columns - column, from, x_stride, group, to, y_stride);
      } else if (together == 4) {
        multiply_tile<1, 4>(panel, pairs, from, x_stride, to, y_stride);
      } else if (together == 2) {
        multiply_group<2>(panel, pairs, from, x_stride, group, to, y_stride);
      } else {
        multiply_group<1>(panel, pairs, from, x_stride, group, to, y_stride);
      }
      r += group;
    }
    column += together * kPanel;
  }
}

// ---- rows ----

HWY_INLINE float sum_of(hn::Vec<Eight> partial) {
  HWY_ALIGN float lanes[kPartials];
  hn::Store(partial, Eight(), lanes);
  return tree_sum(lanes);
}

void rms_norm(const float* x, const float* weight, std::size_t n, float epsilon, float* out) {
  const Eight d;
  auto partial = hn::Zero(d);
  for (std::size_t i = 0; i < n; i += kPartials) {
    const auto v = hn::LoadU(d, x + i);
    partial = hn::MulAdd(v, v, partial);
  }
  const float mean = sum_of(partial) / static_cast<float>(n);
  const float inverse = 1.0F / hn::GetLane(hn::Sqrt(hn::Set(d, mean + epsilon)));
  const auto factor = hn::Set(d, inverse);
  for (std::size_t i = 0; i < n; i += kPartials) {
    const auto scaled = hn::Mul(hn::LoadU(d, x + i), factor);
    hn::StoreU(hn::Mul(scaled, hn::LoadU(d, weight + i)), d, out + i);
  }
}

HWY_INLINE hn::Vec<Eight> exp_clamped(hn::Vec<Eight> x) {
  const Eight d;
  const hn::RebindToSigned<Eight> di;
  x = hn::Min(hn::Max(x, hn::Set(d, kExpLow)), hn::Set(d, kExpHigh));
  const auto n = hn::Round(hn::Mul(x, hn::Set(d, kLog2E)));
  auto r = hn::MulAdd(n, hn::Set(d, kMinusLn2High), x);
  r = hn::MulAdd(n, hn::Set(d, kMinusLn2Low), r);
  auto p = hn::Set(d, kExpC0);
  p = hn::MulAdd(p, r, hn::Set(d, kExpC1));
  p = hn::MulAdd(p, r, hn::Set(d, kExpC2));
  p = hn::MulAdd(p, r, hn::Set(d, kExpC3));
  p = hn::MulAdd(p, r, hn::Set(d, kExpC4));
  p = hn::MulAdd(p, r, hn::Set(d, kExpC5));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(d, 1.0F));
  const auto exponent = hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127));
  return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(exponent)));
}

void silu_multiply(float* gate, const float* up, std::size_t n) {
  const Eight d;
  const auto one = hn::Set(d, 1.0F);
  for (std::size_t i = 0; i < n; i += kPartials) {
    const auto g = hn::LoadU(d, gate + i);
    const auto silu = hn::Div(g, hn::Add(one, exp_clamped(hn::Neg(g))));
    hn::StoreU(hn::Mul(silu, hn::LoadU(d, up + i)), d, gate + i);
  }
}

// ---- attention ----

// c[r][0..16) = (carry on from c, or from zero) sum over k of a[r][k] * b[k][0..16).
template <std::size_t kRows>
HWY_INLINE void small_tile(const float* HWY_RESTRICT a, std::size_t a_stride,
                           const float* HWY_RESTRICT b, std::size_t b_stride, std::size_t inner,
                           float* HWY_RESTRICT c, std::size_t c_stride, bool carry) {
  const Eight d;
  hn::Vec<Eight> sum[kRows][2];
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kRows; ++r) {
    sum[r][0] = carry ? hn::LoadU(d, c + r * c_stride) : hn::Zero(d);
    sum[r][1] = carry ? hn::LoadU(d, c + r * c_stride + 8) : hn::Zero(d);
  }
  for (std::size_t k = 0; k < inner; ++k) {
    const auto low = hn::LoadU(d, b + k * b_stride);
    const auto high = hn::LoadU(d, b + k * b_stride + 8);
#pragma GCC unroll 8
    for (std::size_t r = 0; r < kRows; ++r) {
      const auto value = hn::Set(d, a[r * a_stride + k]);
      sum[r][0] = hn::MulAdd(value, low, sum[r][0]);
      sum[r][1] = hn::MulAdd(value, high, sum[r][1]);
      done_here(sum[r][0]);
      done_here(sum[r][1]);
    }
  }
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kRows; ++r) {
    hn::StoreU(sum[r][0], d, c + r * c_stride);
    hn::StoreU(sum[r][1], d, c + r * c_stride + 8);
  }
}

// The same for `rows` rows and `columns` (a multiple of 16) columns.
void small_multiply(const float* a, std::size_t a_stride, std::size_t rows, const float* b,
                    std::size_t b_stride, std::size_t inner, std::size_t columns, float* c,
                    std::size_t c_stride, bool carry) {
  for (std::size_t r = 0; r < rows;) {
    const std::size_t group = balanced_group(rows - r, kMostRows);
    for (std::size_t column = 0; column < columns; column += 16) {
      const float* from = a + r * a_stride;
      float* to = c + r * c_stride + column;
      const float* right = b + column;
      switch (group) {
        case 1:
          small_tile<1>(from, a_stride, right, b_stride, inner, to, c_stride, carry);
          break;
        case 2:
          small_tile<2>(from, a_stride, right, b_stride, inner, to, c_stride, carry);
          break;
        case 3:
          small_tile<3>(from, a_stride, right, b_stride, inner, to, c_stride, carry);
          break;
        case 4:
          small_tile<4>(from, a_stride, right, b_stride, inner, to, c_stride, carry);
          break;
        case 5:
          small_tile<5>(from, a_stride, right, b_stride, inner, to, c_stride, carry);
          break;
        default:
          small_tile<6>(from, a_stride, right, b_stride, inner, to, c_stride, carry);
          break;
      }
    }
    r += group;
  }
}

HWY_INLINE hn::Vec<EightU> load_two_quarters(const std::byte* low, const std::byte* high) {
  const hn::Half<EightU> quarter;
  const EightU whole;
  return hn::Combine(whole, hn::LoadU(quarter, reinterpret_cast<const std::uint32_t*>(high)),
                     hn::LoadU(quarter, reinterpret_cast<const std::uint32_t*>(low)));
}

// Four 32-bit words of eight tokens' rows, turned: word w of token t goes to lane t of out[w].
HWY_INLINE void turn(const std::byte* const (&row)[8], std::size_t offset,
                     hn::Vec<EightU> (&out)[4]) {
  const EightU d;
  const hn::Repartition<std::uint64_t, EightU> d64;
  const auto r0 = load_two_quarters(row[0] + offset, row[4] + offset);
  const auto r1 = load_two_quarters(row[1] + offset, row[5] + offset);
  const auto r2 = load_two_quarters(row[2] + offset, row[6] + offset);
  const auto r3 = load_two_quarters(row[3] + offset, row[7] + offset);
  const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d, r0, r1));
  const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(d, r0, r1));
  const auto low23 = hn::BitCast(d64, hn::InterleaveLower(d, r2, r3));
  const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(d, r2, r3));
  out[0] = hn::BitCast(d, hn::InterleaveLower(d64, low01, low23));
  out[1] = hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23));
  out[2] = hn::BitCast(d, hn::InterleaveLower(d64, high01, high23));
  out[3] = hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23));
}

// K of `columns` tokens from `first`, turned to [dim][token]. Tokens from `end` on repeat the last
// one: their scores are never looked at, and nothing behind the sequence is read.
void unpack_keys(const KvView& kv, std::size_t first, std::size_t columns, std::size_t end,
                 std::size_t head_dim, float* out) {
  const Eight d;
  const EightU du;
  const auto high_half = hn::Set(du, 0xffff0000U);
  for (std::size_t t = 0; t < columns; t += 8) {
    const std::byte* row[8];
    for (std::size_t i = 0; i < 8; ++i) row[i] = kv.key(std::min(first + t + i, end - 1));
    hn::Vec<EightU> words[4];
    if (kv.bf16) {
      for (std::size_t dim = 0; dim < head_dim; dim += 8) {
        turn(row, dim * 2, words);
        float* to = out + dim * kAttentionTile + t;
#pragma GCC unroll 4
        for (std::size_t w = 0; w < 4; ++w) {
          hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(words[w])), d, to + 2 * w * kAttentionTile);
          hn::StoreU(hn::BitCast(d, hn::And(words[w], high_half)), d,
                     to + (2 * w + 1) * kAttentionTile);
        }
      }
    } else {
      for (std::size_t dim = 0; dim < head_dim; dim += 4) {
        turn(row, dim * 4, words);
        float* to = out + dim * kAttentionTile + t;
        for (std::size_t w = 0; w < 4; ++w) {
          hn::StoreU(hn::BitCast(d, words[w]), d, to + w * kAttentionTile);
        }
      }
    }
  }
}

// V of tokens [first, end) as floats, [token][dim].
void unpack_values(const KvView& kv, std::size_t first, std::size_t end, std::size_t head_dim,
                   float* out) {
  const Eight d;
  const EightU du;
  const hn::Rebind<std::uint16_t, Eight> du16;
  for (std::size_t t = first; t < end; ++t, out += head_dim) {
    const std::byte* row = kv.value(t);
    for (std::size_t dim = 0; dim < head_dim; dim += 8) {
      if (kv.bf16) {
        const auto bits = hn::LoadU(du16, reinterpret_cast<const std::uint16_t*>(row) + dim);
        const auto wide = hn::ShiftLeft<16>(hn::PromoteTo(du, bits));
        hn::StoreU(hn::BitCast(d, wide), d, out + dim);
      } else {
        hn::StoreU(hn::LoadU(d, reinterpret_cast<const float*>(row) + dim), d, out + dim);
      }
    }
  }
}

// scores = exp(scores - max) over [0, tokens), zero up to `padded`; answers 1 / sum.
float softmax(float* scores, std::size_t tokens, std::size_t padded) {
  const Eight d;
  const std::size_t whole = tokens / kPartials * kPartials;
  float max = scores[0];
  if (whole != 0) {
    auto most = hn::LoadU(d, scores);
    for (std::size_t t = kPartials; t < whole; t += kPartials)
      most = hn::Max(most, hn::LoadU(d, scores + t));
    max = hn::GetLane(hn::MaxOfLanes(d, most));
  }
  for (std::size_t t = whole; t < tokens; ++t) max = std::max(max, scores[t]);

  const auto shift = hn::Set(d, max);
  auto partial = hn::Zero(d);
  for (std::size_t t = 0; t < whole; t += kPartials) {
    const auto e = exp_clamped(hn::Sub(hn::LoadU(d, scores + t), shift));
    partial = hn::Add(partial, e);
    hn::StoreU(e, d, scores + t);
  }
  if (whole < tokens) {
    const auto e = exp_clamped(hn::Sub(hn::LoadU(d, scores + whole), shift));
    const auto kept = hn::IfThenElseZero(hn::FirstN(d, tokens - whole), e);
    partial = hn::Add(partial, kept);
    hn::StoreU(kept, d, scores + whole);
  }
  for (std::size_t t = (tokens + kPartials - 1) / kPartials * kPartials; t < padded; ++t)
    scores[t] = 0.0F;
  return 1.0F / sum_of(partial);
}

void attention(const AttentionJob& job) {
  const std::size_t dim = job.head_dim;
  const std::size_t queries = job.rows * job.group;
  const std::size_t end = job.start + job.rows;  // tokens that the last row sees
  const std::size_t stride = padded_tokens(end);
  float* tile = job.scratch;
  float* q = tile + kAttentionTile * dim;
  float* sum = q + queries * dim;
  float* scores = sum + queries * dim;
  float* inverse = scores + queries * stride;

  const Eight d;
  for (std::size_t i = 0; i < queries; ++i) {
    const float* from = job.q + i / job.group * job.q_stride + i % job.group * dim;
    for (std::size_t k = 0; k < dim; k += kPartials) {
      hn::StoreU(hn::Mul(hn::LoadU(d, from + k), hn::Set(d, job.scale)), d, q + i * dim + k);
    }
  }
  for (std::size_t first = 0; first < end; first += kAttentionTile) {
    const std::size_t columns = std::min(kAttentionTile, (end - first + 15) / 16 * 16);
    unpack_keys(job.kv, first, columns, end, dim, tile);
    small_multiply(q, dim, queries, tile, kAttentionTile, dim, columns, scores + first, stride,
                   false);
  }
  for (std::size_t i = 0; i < queries; ++i) {
    inverse[i] = softmax(scores + i * stride, job.start + i / job.group + 1, stride);
  }
  for (std::size_t first = 0; first < end; first += kAttentionTile) {
    const std::size_t last = std::min(first + kAttentionTile, end);
    unpack_values(job.kv, first, last, dim, tile);
    small_multiply(scores + first, stride, queries, tile, dim, last - first, dim, sum, dim,
                   first != 0);
  }
  for (std::size_t i = 0; i < queries; ++i) {
    float* to = job.out + i / job.group * job.out_stride + i % job.group * dim;
    for (std::size_t k = 0; k < dim; k += kPartials) {
      hn::StoreU(hn::Mul(hn::LoadU(d, sum + i * dim + k), hn::Set(d, inverse[i])), d, to + k);
    }
  }
}

const KernelTable& table() {
  static constexpr KernelTable kTable = {HWY_TARGET == HWY_AVX2 ? "avx2" : "avx512",
                                         kPanel,
                                         &multiply,
                                         &rms_norm,
                                         &silu_multiply,
                                         &attention};
  return kTable;
}

}  // namespace HWY_NAMESPACE
}  // namespace baton::model
HWY_AFTER_NAMESPACE();

#endif  // AVX2 or AVX3

#if HWY_ONCE

namespace baton::model {

const KernelTable* find_kernels(std::string_view name) {
  if (name == "scalar") return &scalar_kernels();
#if HWY_TARGETS & HWY_AVX2
  if (name == "avx2" && (hwy::SupportedTargets() & HWY_AVX2) != 0) return &N_AVX2::table();
#endif
#if HWY_TARGETS & HWY_AVX3
  if (name == "avx512" && (hwy::SupportedTargets() & HWY_AVX3) != 0) return &N_AVX3::table();
#endif
  return nullptr;
}

const KernelTable& best_kernels() {
  for (const std::string_view name : {"avx512", "avx2"}) {
    if (const KernelTable* found = find_kernels(name)) return *found;
  }
  return scalar_kernels();
}

}  // namespace baton::model

#endif  // HWY_ONCE
