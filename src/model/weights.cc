#include "model/weights.h"

#include <fmt/format.h>

#include <unordered_set>

#include "model/dequantize.h"
#include "model/numbers.h"

namespace baton::model {
namespace {

// Takes tensors by name and shape, and knows at the end which were never taken: a bias that is
// silently left out would be a wrong model.
class TensorReader {
 public:
  TensorReader(const GgufFile& file, const KernelChoice& choice) : file_(file), choice_(choice) {}

  const Error& error() const { return error_; }
  bool failed() const { return !error_.message.empty(); }

  const GgufTensor* take(const std::string& name, std::uint64_t inputs, std::uint64_t outputs) {
    taken_.insert(name);
    const GgufTensor* tensor = file_.find_tensor(name);
    if (tensor == nullptr) {
      refuse(Errc::kCorrupt, fmt::format("tensor '{}' is missing", name));
      return nullptr;
    }
    if (tensor->dims[0] != inputs || tensor->dims[1] != outputs || tensor->dims[2] != 1 ||
        tensor->dims[3] != 1) {
      refuse(Errc::kCorrupt,
             fmt::format("tensor '{}' is {} x {} x {} x {}, the metadata ask for {} x {}", name,
                         tensor->dims[0], tensor->dims[1], tensor->dims[2], tensor->dims[3], inputs,
                         outputs));
      return nullptr;
    }
    return tensor;
  }

  std::vector<float> vector(const std::string& name, std::uint64_t size) {
    std::vector<float> values;
    if (const GgufTensor* tensor = take(name, size, 1)) {
      values.resize(size);
      dequantize(tensor->type, tensor->bytes, values);
    }
    return values;
  }

  std::unique_ptr<Linear> linear(const std::string& name, std::uint64_t inputs,
                                 std::uint64_t outputs) {
    const GgufTensor* tensor = take(name, inputs, outputs);
    if (tensor == nullptr) return nullptr;
    const RowReader row = [tensor](std::size_t index, std::span<float> out) {
      dequantize_row(*tensor, index, out);
    };
    switch (choice_.product) {
      case KernelChoice::Product::kOneDnnFloat32:
        return make_onednn_linear(false, inputs, outputs, row);
      case KernelChoice::Product::kOneDnnBfloat16:
        return make_onednn_linear(true, inputs, outputs, row);
      case KernelChoice::Product::kPacked:
        break;
    }
    return make_packed_linear(*choice_.kernels, inputs, outputs, row);
  }

  void refuse_untaken() {
    for (const GgufTensor& tensor : file_.tensors()) {
      if (!taken_.contains(std::string(tensor.name))) {
        refuse(Errc::kUnsupported,
               fmt::format("tensor '{}' has no place in this architecture", tensor.name));
        return;
      }
    }
  }

 private:
  void refuse(Errc code, const std::string& what) {
    if (error_.message.empty()) error_ = {code, fmt::format("{}: {}", file_.path(), what)};
  }

  const GgufFile& file_;
  const KernelChoice& choice_;
  std::unordered_set<std::string> taken_;
  Error error_;
};

LayerWeights read_layer(TensorReader& reader, const ModelConfig& config, std::uint32_t index) {
  const auto name = [index](std::string_view part) {
    return fmt::format("blk.{}.{}.weight", index, part);
  };
  const std::uint64_t width = config.embedding_size;
  const std::uint64_t q_width = std::uint64_t{config.num_heads} * config.head_dim;
  const std::uint64_t kv_width = std::uint64_t{config.num_kv_heads} * config.head_dim;
  LayerWeights layer;
  layer.attention_norm = reader.vector(name("attn_norm"), width);
  layer.feed_forward_norm = reader.vector(name("ffn_norm"), width);
  if (config.architecture == "qwen3") {
    layer.q_norm = reader.vector(name("attn_q_norm"), config.head_dim);
    layer.k_norm = reader.vector(name("attn_k_norm"), config.head_dim);
  }
  layer.q = reader.linear(name("attn_q"), width, q_width);
  layer.k = reader.linear(name("attn_k"), width, kv_width);
  layer.v = reader.linear(name("attn_v"), width, kv_width);
  layer.attention_output = reader.linear(name("attn_output"), q_width, width);
  layer.gate = reader.linear(name("ffn_gate"), width, config.feed_forward_size);
  layer.up = reader.linear(name("ffn_up"), width, config.feed_forward_size);
  layer.down = reader.linear(name("ffn_down"), config.feed_forward_size, width);
  return layer;
}

std::vector<std::uint16_t> read_embedding(TensorReader& reader, const ModelConfig& config) {
  std::vector<std::uint16_t> table;
  const std::size_t width = config.embedding_size;
  const GgufTensor* tensor = reader.take("token_embd.weight", width, config.vocab_size);
  if (tensor == nullptr) return table;
  table.resize(width * config.vocab_size);
  std::vector<float> row(width);
  for (std::size_t token = 0; token < config.vocab_size; ++token) {
    dequantize_row(*tensor, token, row);
    for (std::size_t i = 0; i < width; ++i) table[token * width + i] = float_to_bf16(row[i]);
  }
  return table;
}

}  // namespace

Result<Weights> read_weights(const GgufFile& file, const ModelConfig& config,
                             const KernelChoice& choice) {
  TensorReader reader(file, choice);
  Weights weights;
  weights.embedding = read_embedding(reader, config);
  for (std::uint32_t i = 0; i < config.num_layers && !reader.failed(); ++i) {
    weights.layers.push_back(read_layer(reader, config, i));
  }
  if (reader.failed()) return tl::unexpected<Error>(reader.error());
  weights.output_norm = reader.vector("output_norm.weight", config.embedding_size);
  const bool tied = file.find_tensor("output.weight") == nullptr;
  weights.output = reader.linear(tied ? "token_embd.weight" : "output.weight",
                                 config.embedding_size, config.vocab_size);
  if (file.find_tensor("rope_freqs.weight") != nullptr) {
    weights.rope_factors = reader.vector("rope_freqs.weight", config.head_dim / 2);
  }
  reader.refuse_untaken();
  if (reader.failed()) return tl::unexpected<Error>(reader.error());
  return weights;
}

}  // namespace baton::model
