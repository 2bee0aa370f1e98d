// Tensor bytes to floats.
#pragma once

#include <cstddef>
#include <span>

#include "model/gguf.h"

namespace baton::model {

// `bytes` holds whole blocks of `type`; `out` as many elements as they do.
void dequantize(TensorType type, std::span<const std::byte> bytes, std::span<float> out);

// Row `row` (dims[0] elements) of a tensor.
void dequantize_row(const GgufTensor& tensor, std::uint64_t row, std::span<float> out);

}  // namespace baton::model
