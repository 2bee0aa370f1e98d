#include "model/dequantize.h"

#include <cstring>

#include "base/check.h"
#include "model/numbers.h"

namespace baton::model {
namespace {

constexpr std::size_t kBlock = 32;

std::uint16_t load_u16(const std::byte* from) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof(bits));
  return bits;
}

// Low nibbles are the first half of a block, high nibbles the second.
void unpack_nibbles(const std::byte* from, float* out, float scale, float offset) {
  for (std::size_t i = 0; i < kBlock / 2; ++i) {
    const auto both = std::to_integer<unsigned>(from[i]);
    out[i] = static_cast<float>(both & 0xfU) * scale + offset;
    out[i + kBlock / 2] = static_cast<float>(both >> 4) * scale + offset;
  }
}

void block_q4_0(const std::byte* from, float* out) {
  const float scale = f16_to_float(load_u16(from));
  unpack_nibbles(from + 2, out, scale, -8.0F * scale);
}

void block_q4_1(const std::byte* from, float* out) {
  unpack_nibbles(from + 4, out, f16_to_float(load_u16(from)), f16_to_float(load_u16(from + 2)));
}

void block_q8_0(const std::byte* from, float* out) {
  const float scale = f16_to_float(load_u16(from));
  for (std::size_t i = 0; i < kBlock; ++i) {
    out[i] = static_cast<float>(static_cast<std::int8_t>(from[2 + i])) * scale;
  }
}

}  // namespace

void dequantize(TensorType type, std::span<const std::byte> bytes, std::span<float> out) {
  const std::size_t per_block = elements_per_block(type);
  const std::size_t block_bytes = bytes_per_block(type);
  BATON_CHECK(
      bytes.size() / block_bytes * per_block == out.size() && bytes.size() % block_bytes == 0,
      "{} bytes of {} are not {} elements", bytes.size(), to_string(type), out.size());
  const std::byte* from = bytes.data();
  float* to = out.data();
  for (std::size_t i = 0; i < out.size(); i += per_block, from += block_bytes, to += per_block) {
    switch (type) {
      case TensorType::kF32:
        std::memcpy(to, from, sizeof(float));
        break;
      case TensorType::kF16:
        *to = f16_to_float(load_u16(from));
        break;
      case TensorType::kBF16:
        *to = bf16_to_float(load_u16(from));
        break;
      case TensorType::kQ4_0:
        block_q4_0(from, to);
        break;
      case TensorType::kQ4_1:
        block_q4_1(from, to);
        break;
      case TensorType::kQ8_0:
        block_q8_0(from, to);
        break;
    }
  }
}

void dequantize_row(const GgufTensor& tensor, std::uint64_t row, std::span<float> out) {
  const std::size_t row_bytes =
      tensor.dims[0] / elements_per_block(tensor.type) * bytes_per_block(tensor.type);
  dequantize(tensor.type, tensor.bytes.subspan(row * row_bytes, row_bytes), out);
}

}  // namespace baton::model
