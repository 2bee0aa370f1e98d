// What a GGUF file says about its model, checked.

#include <fmt/format.h>

#include <cmath>

#include "model/weights.h"

namespace baton::model {
namespace {

// Bounds that keep products of two of these within 64 bits and tables within memory; real models
// stay far below.
constexpr std::uint64_t kMaxLayers = 1024;
constexpr std::uint64_t kMaxHeads = 1024;
constexpr std::uint64_t kMaxWidth = 1 << 18;
constexpr std::uint64_t kMaxVocab = 1 << 22;
constexpr std::uint64_t kMaxContext = 1 << 20;
constexpr std::uint64_t kMaxHeadDim = 256;
constexpr std::uint64_t kWidthStep = 16;  // what the kernels step by

// Reads "<architecture>.<name>" fields; after the first bad one it keeps that error and reads no
// more.
class Fields {
 public:
  Fields(const GgufFile& file, std::string architecture)
      : file_(file), architecture_(std::move(architecture)) {}

  std::string key(std::string_view name) const { return fmt::format("{}.{}", architecture_, name); }

  std::uint32_t count(std::string_view name, std::uint64_t max, std::uint64_t step = 1) {
    return checked(name, file_.uint(key(name)), max, step);
  }
  std::uint32_t count_or(std::string_view name, std::uint64_t fallback, std::uint64_t max,
                         std::uint64_t step = 1) {
    return checked(name, file_.uint_or(key(name), fallback), max, step);
  }
  float positive(std::string_view name, const Result<double>& value) {
    if (!value) keep(value.error());
    if (error_.message.empty() && !(*value > 0.0 && std::isfinite(*value))) {
      refuse(Errc::kCorrupt, fmt::format("metadata {} is {}, not positive", key(name), *value));
    }
    return error_.message.empty() ? static_cast<float>(*value) : 1.0F;
  }
  void refuse(Errc code, const std::string& what) {
    keep({code, fmt::format("{}: {}", file_.path(), what)});
  }
  const Error& error() const { return error_; }
  bool failed() const { return !error_.message.empty(); }

 private:
  void keep(const Error& error) {
    if (error_.message.empty()) error_ = error;
  }
  std::uint32_t checked(std::string_view name, const Result<std::uint64_t>& value,
                        std::uint64_t max, std::uint64_t step) {
    if (!value) {
      keep(value.error());
    } else if (*value == 0 || *value > max) {
      refuse(Errc::kCorrupt, fmt::format("metadata {} is {}, not 1 to {}", key(name), *value, max));
    } else if (*value % step != 0) {
      refuse(Errc::kUnsupported,
             fmt::format("metadata {} is {}, not a multiple of {}", key(name), *value, step));
    } else {
      return static_cast<std::uint32_t>(*value);
    }
    return 1;
  }

  const GgufFile& file_;
  std::string architecture_;
  Error error_;
};

// Variants of these architectures that the forward pass does not have.
void refuse_variants(const GgufFile& file, Fields& fields, const ModelConfig& config) {
  const Result<std::uint64_t> experts = file.uint_or(fields.key("expert_count"), 0);
  if (experts && *experts != 0) {
    fields.refuse(Errc::kUnsupported, fmt::format("{} is {}: mixtures of experts are not read",
                                                  fields.key("expert_count"), *experts));
  }
  const std::string scaling = fields.key("rope.scaling.type");
  if (file.has(scaling)) {
    const Result<std::string_view> kind = file.text(scaling);
    if (!kind || *kind != "none") {
      fields.refuse(Errc::kUnsupported,
                    fmt::format("{} is '{}': only 'none' is read", scaling, kind.value_or("?")));
    }
  }
  const Result<std::uint64_t> rope_dims =
      file.uint_or(fields.key("rope.dimension_count"), config.head_dim);
  if (!rope_dims || *rope_dims != config.head_dim) {
    fields.refuse(
        Errc::kUnsupported,
        fmt::format("{} is {}, the head dimension is {}: partial rotation is not read",
                    fields.key("rope.dimension_count"), rope_dims.value_or(0), config.head_dim));
  }
  const Result<std::uint64_t> value_dims =
      file.uint_or(fields.key("attention.value_length"), config.head_dim);
  if (!value_dims || *value_dims != config.head_dim) {
    fields.refuse(
        Errc::kUnsupported,
        fmt::format("{} is {}, the keys' is {}: unlike lengths are not read",
                    fields.key("attention.value_length"), value_dims.value_or(0), config.head_dim));
  }
  if (config.num_heads % config.num_kv_heads != 0) {
    fields.refuse(
        Errc::kCorrupt,
        fmt::format("{} is {}, not a multiple of {}, {}", fields.key("attention.head_count"),
                    config.num_heads, fields.key("attention.head_count_kv"), config.num_kv_heads));
  }
}

}  // namespace

Result<ModelConfig> read_config(const GgufFile& file) {
  ModelConfig config;
  const Result<std::string_view> architecture = file.text("general.architecture");
  if (!architecture) return tl::unexpected<Error>(architecture.error());
  config.architecture = *architecture;
  if (config.architecture != "llama" && config.architecture != "qwen3") {
    return fail(Errc::kUnsupported,
                fmt::format("{}: general.architecture is '{}'; read are 'llama' and 'qwen3'",
                            file.path(), config.architecture));
  }
  config.name = file.has("general.name") ? file.text("general.name").value_or("") : "";

  Fields fields(file, config.architecture);
  config.num_layers = fields.count("block_count", kMaxLayers);
  config.embedding_size = fields.count("embedding_length", kMaxWidth, kWidthStep);
  config.feed_forward_size = fields.count("feed_forward_length", kMaxWidth, kWidthStep);
  config.num_heads = fields.count("attention.head_count", kMaxHeads);
  config.num_kv_heads = fields.count_or("attention.head_count_kv", config.num_heads, kMaxHeads);
  config.head_dim = fields.count_or(
      "attention.key_length", config.embedding_size / config.num_heads, kMaxHeadDim, kWidthStep);
  config.context_length = fields.count("context_length", kMaxContext);
  config.rope_base =
      fields.positive("rope.freq_base", file.real_or(fields.key("rope.freq_base"), 10000.0));
  config.norm_epsilon = fields.positive("attention.layer_norm_rms_epsilon",
                                        file.real(fields.key("attention.layer_norm_rms_epsilon")));
  if (!fields.failed()) refuse_variants(file, fields, config);
  const GgufTensor* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr) {
    fields.refuse(Errc::kCorrupt, "tensor 'token_embd.weight' is missing");
  } else if (embedding->dims[1] > kMaxVocab) {
    fields.refuse(Errc::kCorrupt,
                  fmt::format("tensor 'token_embd.weight' has {} rows, at most {} are allowed",
                              embedding->dims[1], kMaxVocab));
  } else {
    config.vocab_size = static_cast<std::uint32_t>(embedding->dims[1]);
  }
  if (fields.failed()) return tl::unexpected<Error>(fields.error());
  config.fingerprint = file.fingerprint();
  return config;
}

}  // namespace baton::model
