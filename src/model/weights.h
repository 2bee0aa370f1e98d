// The weights of a model as the forward pass uses them, and their reading out of a GGUF file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "baton/result.h"
#include "model/gguf.h"
#include "model/kernels.h"
#include "model/linear.h"
#include "model/model.h"

namespace baton::model {

// Which implementation multiplies matrices: the family's name is what Geometry::kernel_family
// carries.
struct KernelChoice {
  const KernelTable* kernels = nullptr;
  enum class Product : std::uint8_t {
    kPacked,
    kOneDnnFloat32,
    kOneDnnBfloat16
  } product = Product::kPacked;
  std::string family;
};

struct LayerWeights {
  std::vector<float> attention_norm;
  std::vector<float> feed_forward_norm;
  std::vector<float> q_norm;  // empty unless qwen3
  std::vector<float> k_norm;
  std::unique_ptr<Linear> q;
  std::unique_ptr<Linear> k;
  std::unique_ptr<Linear> v;
  std::unique_ptr<Linear> attention_output;
  std::unique_ptr<Linear> gate;
  std::unique_ptr<Linear> up;
  std::unique_ptr<Linear> down;
};

struct Weights {
  std::vector<std::uint16_t> embedding;  // bfloat16, a row of embedding_size for each token
  std::vector<LayerWeights> layers;
  std::vector<float> output_norm;
  std::unique_ptr<Linear> output;
  std::vector<float> rope_factors;  // empty, or what divides each pair's frequency
};

Result<ModelConfig> read_config(const GgufFile& file);
Result<Weights> read_weights(const GgufFile& file, const ModelConfig& config,
                             const KernelChoice& choice);

}  // namespace baton::model
