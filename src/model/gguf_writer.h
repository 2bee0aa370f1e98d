// Writes a GGUF version 3 file: metadata and tensors, in the order they were added. For the random
// test model and for the BF16 copy of a model; not for untrusted input. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "baton/result.h"
#include "model/gguf.h"

namespace baton::model {

class GgufWriter {
 public:
  void add_uint32(std::string_view key, std::uint32_t value);
  void add_float32(std::string_view key, float value);
  void add_bool(std::string_view key, bool value);
  void add_text(std::string_view key, std::string_view value);
  void add_texts(std::string_view key, std::span<const std::string> values);
  void add_int32s(std::string_view key, std::span<const std::int32_t> values);
  void add_value(std::string_view key, const GgufValue& value);  // as read from another file

  // `dims` in ggml's order (the contiguous one first); `bytes` as the type lays them out.
  void add_tensor(std::string_view name, TensorType type, std::span<const std::uint64_t> dims,
                  std::vector<std::byte> bytes);

  // Writes beside `path` and renames, so that a reader sees the whole file or none.
  Status write(const std::string& path) const;

 private:
  struct Tensor {
    std::string name;
    TensorType type = TensorType::kF32;
    std::vector<std::uint64_t> dims;
    std::vector<std::byte> bytes;
  };
  void key_and_type(std::string_view key, GgufType type);

  std::uint64_t num_values_ = 0;
  std::string metadata_;
  std::vector<Tensor> tensors_;
};

}  // namespace baton::model
