// The reference: one number after the other, in exactly the order that kernels.h states.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "model/kernel_math.h"
#include "model/kernels.h"
#include "model/numbers.h"

namespace baton::model {
namespace {

constexpr std::size_t kPanel = 16;

float weight_at(const std::uint32_t* panel, std::size_t k, std::size_t column) {
  const std::uint32_t word = panel[k / 2 * kPanel + column];
  return bf16_to_float(static_cast<std::uint16_t>(k % 2 == 0 ? word : word >> 16));
}

void multiply(const std::uint32_t* panels, std::size_t pairs, std::size_t columns, const float* x,
              std::size_t x_stride, std::size_t rows, float* y, std::size_t y_stride) {
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) {
      const std::uint32_t* panel = panels + c / kPanel * pairs * kPanel;
      float sum = 0.0F;
      for (std::size_t k = 0; k < 2 * pairs; ++k) {
        sum = std::fma(x[r * x_stride + k], weight_at(panel, k, c % kPanel), sum);
      }
      y[r * y_stride + c] = sum;
    }
  }
}

void rms_norm(const float* x, const float* weight, std::size_t n, float epsilon, float* out) {
  float partial[kPartials] = {};
  for (std::size_t i = 0; i < n; ++i)
    partial[i % kPartials] = std::fma(x[i], x[i], partial[i % kPartials]);
  const float mean = tree_sum(partial) / static_cast<float>(n);
  const float inverse = 1.0F / std::sqrt(mean + epsilon);
  for (std::size_t i = 0; i < n; ++i) out[i] = (x[i] * inverse) * weight[i];
}

float exp_clamped(float x) {
  x = std::min(std::max(x, kExpLow), kExpHigh);
  const float n = std::nearbyint(x * kLog2E);
  float r = std::fma(n, kMinusLn2High, x);
  r = std::fma(n, kMinusLn2Low, r);
  float p = kExpC0;
  for (const float c : {kExpC1, kExpC2, kExpC3, kExpC4, kExpC5}) p = std::fma(p, r, c);
  p = std::fma(p, r * r, r) + 1.0F;
  const auto scale = static_cast<std::uint32_t>(static_cast<std::int32_t>(n) + 127) << 23;
  return p * std::bit_cast<float>(scale);
}

void silu_multiply(float* gate, const float* up, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    gate[i] = (gate[i] / (1.0F + exp_clamped(-gate[i]))) * up[i];
  }
}

float element(const std::byte* row, std::size_t d, bool bf16) {
  if (bf16) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, row + d * sizeof(bits), sizeof(bits));
    return bf16_to_float(bits);
  }
  float value = 0.0F;
  std::memcpy(&value, row + d * sizeof(value), sizeof(value));
  return value;
}

void attend(const AttentionJob& job, std::size_t row, std::size_t head) {
  const std::size_t tokens = job.start + row + 1;
  const float* q = job.q + row * job.q_stride + head * job.head_dim;
  float* out = job.out + row * job.out_stride + head * job.head_dim;
  float* scores = job.scratch;
  for (std::size_t t = 0; t < tokens; ++t) {
    float sum = 0.0F;
    for (std::size_t d = 0; d < job.head_dim; ++d) {
      sum = std::fma(q[d] * job.scale, element(job.kv.key(t), d, job.kv.bf16), sum);
    }
    scores[t] = sum;
  }
  const float max = *std::max_element(scores, scores + tokens);
  float partial[kPartials] = {};
  for (std::size_t t = 0; t < tokens; ++t) {
    scores[t] = exp_clamped(scores[t] - max);
    partial[t % kPartials] += scores[t];
  }
  const float inverse = 1.0F / tree_sum(partial);
  for (std::size_t d = 0; d < job.head_dim; ++d) {
    float sum = 0.0F;
    for (std::size_t t = 0; t < tokens; ++t) {
      sum = std::fma(scores[t], element(job.kv.value(t), d, job.kv.bf16), sum);
    }
    out[d] = sum * inverse;
  }
}

void attention(const AttentionJob& job) {
  for (std::size_t row = 0; row < job.rows; ++row) {
    for (std::size_t head = 0; head < job.group; ++head) attend(job, row, head);
  }
}

}  // namespace

const KernelTable& scalar_kernels() {
  static constexpr KernelTable table = {"scalar",  kPanel,         &multiply,
                                        &rms_norm, &silu_multiply, &attention};
  return table;
}

}  // namespace baton::model
