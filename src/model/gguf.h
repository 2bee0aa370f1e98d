// A GGUF file (version 2 or 3, little-endian), mapped read-only: metadata and tensors. Opening
// checks every length, count, type and offset against the file's size, so that nothing here reads
// outside the mapping or allocates more than a small multiple of the file. A malformed file is an
// Error that names the field and the values. Immutable after open; any thread. Every string_view
// and span points into the mapping and lives as long as the GgufFile.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "baton/result.h"

namespace baton::model {

enum class GgufType : std::uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

std::string_view to_string(GgufType type);

// The tensor types that this build reads. Others (k-quants and their like) are refused when the
// file is opened.
enum class TensorType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ8_0 = 8,
  kBF16 = 30,
};

std::string_view to_string(TensorType type);
std::uint32_t elements_per_block(TensorType type);  // 32 for the quantised types, else 1
std::uint32_t bytes_per_block(TensorType type);

// One metadata value. Which members are filled follows from `type` and, for an array, from
// `element_type`.
struct GgufValue {
  GgufType type = GgufType::kUint8;
  GgufType element_type = GgufType::kUint8;  // of an array
  std::uint64_t bits = 0;                    // a number or bool: its bytes, zero-extended
  std::string_view text;                     // kString; not necessarily valid UTF-8
  std::uint64_t count = 0;                   // elements of an array
  std::span<const std::byte> raw;            // an array of numbers: its elements, packed
  std::vector<std::string_view> texts;       // an array of strings
};

struct GgufTensor {
  std::string_view name;
  TensorType type = TensorType::kF32;
  std::uint32_t num_dims = 0;
  // dims[0] is the contiguous one (ggml's order): a matrix that maps `in` to `out` values has dims
  // {in, out}. Unused ones are 1.
  std::array<std::uint64_t, 4> dims = {1, 1, 1, 1};
  std::uint64_t num_elements = 0;
  std::span<const std::byte> bytes;
};

class GgufFile {
 public:
  // Maps and checks the file. kNotFound or kIo if it cannot be read, kCorrupt if it is malformed,
  // kUnsupported for what is well-formed and not read by this build (big-endian, version 1, other
  // tensor types, arrays of arrays).
  static Result<std::unique_ptr<GgufFile>> open(const std::string& path);
  ~GgufFile();
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const std::string& path() const { return path_; }
  std::uint32_t version() const { return version_; }

  // Metadata. The getters answer kNotFound for an absent key and kCorrupt for one of another type
  // or an integer that is negative; the message names file and key. The *_or ones answer the
  // default for an absent key only.
  const GgufValue* find(std::string_view key) const;  // nullptr if absent
  bool has(std::string_view key) const { return find(key) != nullptr; }
  Result<std::uint64_t> uint(std::string_view key) const;  // from any integer type
  Result<std::uint64_t> uint_or(std::string_view key, std::uint64_t fallback) const;
  Result<double> real(std::string_view key) const;  // from float32 or float64
  Result<double> real_or(std::string_view key, double fallback) const;
  Result<bool> flag_or(std::string_view key, bool fallback) const;
  Result<std::string_view> text(std::string_view key) const;
  Result<std::span<const std::string_view>> texts(std::string_view key) const;  // array of strings
  Result<std::vector<std::int64_t>> integers(
      std::string_view key) const;                               // array of any integer type
  Result<std::vector<float>> reals(std::string_view key) const;  // array of float32 or float64

  // Keys in the order of the file.
  const std::vector<std::string_view>& keys() const { return keys_; }

  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* find_tensor(std::string_view name) const;  // nullptr if absent

  // XXH3-128 of all bytes of the file, 32 hex digits. Reads the whole file.
  std::string fingerprint() const;

 private:
  friend class GgufParser;
  GgufFile() = default;

  std::string path_;
  std::span<const std::byte> mapping_;
  std::uint32_t version_ = 0;
  std::vector<std::string_view> keys_;
  std::unordered_map<std::string_view, GgufValue> values_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string_view, std::size_t> tensor_index_;
};

}  // namespace baton::model
