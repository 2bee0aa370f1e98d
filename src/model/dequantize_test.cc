#include "model/dequantize.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <vector>

#include "base/random.h"
#include "model/gguf_writer.h"
#include "model/numbers.h"
#include "model/random_model.h"

namespace baton::model {
namespace {

constexpr std::size_t kBlocks = 64;

// A half's value by its definition.
double half(std::uint16_t bits) {
  const double sign = (bits & 0x8000U) != 0 ? -1.0 : 1.0;
  const int exponent = (bits >> 10) & 31;
  const double mantissa = bits & 1023;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  if (exponent == 31) return mantissa == 0.0 ? sign * HUGE_VAL : std::nan("");
  return sign * std::ldexp(1024.0 + mantissa, exponent - 25);
}

std::vector<std::byte> random_bytes(std::size_t count) {
  Rng rng(7);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.next());
  return bytes;
}

// Random blocks of a quantised type with scales of a usual size: their halves' exponents are kept
// small.
std::vector<std::byte> random_blocks(TensorType type, std::size_t scales) {
  const std::size_t block = bytes_per_block(type);
  std::vector<std::byte> bytes = random_bytes(kBlocks * block);
  for (std::size_t b = 0; b < kBlocks; ++b) {
    for (std::size_t s = 0; s < scales; ++s) bytes[b * block + 2 * s + 1] &= std::byte{0xbf};
  }
  return bytes;
}

unsigned at(const std::vector<std::byte>& bytes, std::size_t i) {
  return std::to_integer<unsigned>(bytes[i]);
}
double half_at(const std::vector<std::byte>& bytes, std::size_t i) {
  return half(static_cast<std::uint16_t>(at(bytes, i) | (at(bytes, i + 1) << 8)));
}
// Element e of 32 in a block whose nibbles begin at `first`: the low ones first.
unsigned nibble(const std::vector<std::byte>& bytes, std::size_t first, std::size_t e) {
  return e < 16 ? at(bytes, first + e) & 15U : at(bytes, first + e - 16) >> 4;
}

std::vector<float> dequantized(TensorType type, const std::vector<std::byte>& bytes) {
  std::vector<float> out(bytes.size() / bytes_per_block(type) * elements_per_block(type));
  dequantize(type, bytes, out);
  return out;
}

TEST(Dequantize, Q4_0IsScaleTimesNibbleLessEight) {
  const auto bytes = random_blocks(TensorType::kQ4_0, 1);
  const auto out = dequantized(TensorType::kQ4_0, bytes);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t block = i / 32 * 18;
    const double expected =
        half_at(bytes, block) * (static_cast<double>(nibble(bytes, block + 2, i % 32)) - 8.0);
    ASSERT_EQ(out[i], static_cast<float>(expected)) << i;
  }
}

TEST(Dequantize, Q4_1IsScaleTimesNibblePlusMinimum) {
  const auto bytes = random_blocks(TensorType::kQ4_1, 2);
  const auto out = dequantized(TensorType::kQ4_1, bytes);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t block = i / 32 * 20;
    const double expected =
        half_at(bytes, block) * nibble(bytes, block + 4, i % 32) + half_at(bytes, block + 2);
    ASSERT_EQ(out[i], static_cast<float>(expected)) << i;
  }
}

TEST(Dequantize, Q8_0IsScaleTimesSignedByte) {
  const auto bytes = random_blocks(TensorType::kQ8_0, 1);
  const auto out = dequantized(TensorType::kQ8_0, bytes);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t block = i / 32 * 34;
    const double expected =
        half_at(bytes, block) * static_cast<std::int8_t>(at(bytes, block + 2 + i % 32));
    ASSERT_EQ(out[i], static_cast<float>(expected)) << i;
  }
}

TEST(Dequantize, EveryHalfIsExact) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const double expected = half(static_cast<std::uint16_t>(bits));
    const float got = f16_to_float(static_cast<std::uint16_t>(bits));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(got)) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(got), expected) << bits;
      ASSERT_EQ(std::signbit(got), std::signbit(expected)) << bits;
    }
  }
}

TEST(Dequantize, Bfloat16RoundsToNearestEven) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float exact = bf16_to_float(static_cast<std::uint16_t>(bits));
    if (!std::isnan(exact)) {
      ASSERT_EQ(float_to_bf16(exact), bits);
    }
  }
  const float one = 1.0F;
  const float step = 0x1.0p-7F;                                  // between bfloat16 numbers at 1
  EXPECT_EQ(bf16_to_float(float_to_bf16(one + step / 2)), one);  // a tie, to the even one below
  EXPECT_EQ(bf16_to_float(float_to_bf16(one + 3 * step / 2)),
            one + 2 * step);  // a tie, to the even one above
  EXPECT_EQ(bf16_to_float(float_to_bf16(std::nextafter(one + step / 2, 2.0F))), one + step);
  EXPECT_EQ(bf16_to_float(float_to_bf16(std::numeric_limits<float>::max())), HUGE_VALF);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::nanf("")))));
}

TEST(Dequantize, PlainTypesAreReadAsTheyAre) {
  const auto bytes = random_bytes(256);
  const auto bf16 = dequantized(TensorType::kBF16, bytes);
  const auto f32 = dequantized(TensorType::kF32, bytes);
  for (std::size_t i = 0; i < bf16.size(); ++i) {
    const std::uint32_t bits = (at(bytes, 2 * i) | (at(bytes, 2 * i + 1) << 8)) << 16;
    EXPECT_EQ(std::memcmp(&bf16[i], &bits, sizeof(bits)), 0) << i;
  }
  EXPECT_EQ(std::memcmp(f32.data(), bytes.data(), bytes.size()), 0);
}

TEST(Bf16Copy, HoldsTheRoundedWeightsAndTheSameMetadata) {
  const auto folder = std::filesystem::temp_directory_path();
  const std::string from = (folder / ("baton-from-" + std::to_string(::getpid()))).string();
  const std::string to = (folder / ("baton-to-" + std::to_string(::getpid()))).string();
  GgufWriter writer;
  writer.add_text("general.name", "small");
  writer.add_texts("words", std::vector<std::string>{"a", "b"});
  writer.add_int32s("numbers", std::vector<std::int32_t>{-5, 6});
  const std::array<std::uint64_t, 2> matrix = {32, kBlocks};
  const std::array<std::uint64_t, 1> row = {32};
  const auto blocks = random_blocks(TensorType::kQ4_1, 2);
  writer.add_tensor("matrix", TensorType::kQ4_1, matrix, blocks);
  writer.add_tensor("norm", TensorType::kF32, row, random_bytes(32 * sizeof(float)));
  ASSERT_TRUE(writer.write(from).has_value());
  const auto original = GgufFile::open(from).value();
  ASSERT_TRUE(write_bf16_copy(*original, to).has_value());
  const auto copy = GgufFile::open(to).value();

  EXPECT_EQ(copy->text("general.name").value(), "small");
  EXPECT_EQ(copy->texts("words").value().size(), 2U);
  EXPECT_EQ(copy->integers("numbers").value(), (std::vector<std::int64_t>{-5, 6}));
  const auto values = dequantized(TensorType::kQ4_1, blocks);
  const GgufTensor* copied = copy->find_tensor("matrix");
  ASSERT_EQ(copied->type, TensorType::kBF16);
  std::vector<float> row_values(32);
  for (std::size_t r = 0; r < kBlocks; ++r) {
    dequantize_row(*copied, r, row_values);
    for (std::size_t i = 0; i < 32; ++i) {
      ASSERT_EQ(row_values[i], bf16_to_float(float_to_bf16(values[r * 32 + i]))) << r << ", " << i;
    }
  }
  EXPECT_EQ(copy->find_tensor("norm")->type, TensorType::kF32);
  std::filesystem::remove(from);
  std::filesystem::remove(to);
}

}  // namespace
}  // namespace baton::model
