#include "model/random_model.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstring>
#include <span>

#include "base/random.h"
#include "model/byte_alphabet.h"
#include "model/chat_template.h"
#include "model/dequantize.h"
#include "model/gguf_writer.h"
#include "model/numbers.h"

namespace baton::model {
namespace {

constexpr std::string_view kSpace = "\xc4\xa0";  // how byte-level vocabularies write a space

// Merges of common English pieces, in order of rank; each makes one token. ~ stands for the space.
constexpr std::array<std::pair<std::string_view, std::string_view>, 40> kMerges = {{
    {"~", "t"},  {"~", "a"},  {"h", "e"},  {"i", "n"},  {"r", "e"},  {"o", "n"}, {"~t", "he"},
    {"e", "r"},  {"~", "s"},  {"a", "t"},  {"~", "w"},  {"~", "o"},  {"e", "n"}, {"~", "c"},
    {"i", "t"},  {"i", "s"},  {"a", "n"},  {"o", "r"},  {"e", "s"},  {"~", "b"}, {"e", "d"},
    {"~", "f"},  {"in", "g"}, {"~", "p"},  {"o", "u"},  {"~a", "n"}, {"a", "l"}, {"a", "r"},
    {"~t", "o"}, {"~", "m"},  {"~o", "f"}, {"~", "in"}, {"~", "d"},  {"~", "h"}, {"~an", "d"},
    {"i", "c"},  {"a", "s"},  {"l", "e"},  {"~t", "h"}, {"i", "on"},
}};
constexpr std::array<std::string_view, 3> kControl = {"<|endoftext|>", "<|im_start|>",
                                                      "<|im_end|>"};

std::string with_space(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '~' ? std::string(kSpace) : std::string(1, c);
  return out;
}

struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<std::int32_t> types;  // 1 normal, 3 control
  std::vector<std::string> merges;
  std::uint32_t first_control = 0;
};

Vocabulary make_vocabulary(std::uint32_t size) {
  Vocabulary vocabulary;
  for (unsigned byte = 0; byte < 256; ++byte) {
    vocabulary.tokens.emplace_back(byte_to_character(static_cast<unsigned char>(byte)));
  }
  for (const auto& [left, right] : kMerges) {
    vocabulary.merges.push_back(with_space(left) + " " + with_space(right));
    vocabulary.tokens.push_back(with_space(left) + with_space(right));
  }
  // Words that no merge leads to: the model says them, no text becomes them.
  while (vocabulary.tokens.size() + kControl.size() < size) {
    vocabulary.tokens.push_back(fmt::format("{}w{}", kSpace, vocabulary.tokens.size()));
  }
  vocabulary.types.assign(size, 1);
  vocabulary.first_control = static_cast<std::uint32_t>(vocabulary.tokens.size());
  for (const std::string_view control : kControl) {
    vocabulary.types[vocabulary.tokens.size()] = 3;
    vocabulary.tokens.emplace_back(control);
  }
  return vocabulary;
}

void add_tokenizer(GgufWriter& writer, const Vocabulary& vocabulary) {
  writer.add_text("tokenizer.ggml.model", "gpt2");
  writer.add_text("tokenizer.ggml.pre", "qwen2");
  writer.add_texts("tokenizer.ggml.tokens", vocabulary.tokens);
  writer.add_int32s("tokenizer.ggml.token_type", vocabulary.types);
  writer.add_texts("tokenizer.ggml.merges", vocabulary.merges);
  writer.add_uint32("tokenizer.ggml.bos_token_id", vocabulary.first_control);
  writer.add_uint32("tokenizer.ggml.eos_token_id", vocabulary.first_control + 2);
  writer.add_bool("tokenizer.ggml.add_bos_token", false);
  writer.add_text("tokenizer.chat_template", smollm2_template_text());
}

void add_shape(GgufWriter& writer, const RandomModelSpec& spec) {
  writer.add_text("general.architecture", "qwen3");
  writer.add_text("general.name", fmt::format("random-qwen3-{}x{}-seed{}", spec.layers,
                                              spec.embedding_size, spec.seed));
  writer.add_uint32("qwen3.block_count", spec.layers);
  writer.add_uint32("qwen3.context_length", spec.context_length);
  writer.add_uint32("qwen3.embedding_length", spec.embedding_size);
  writer.add_uint32("qwen3.feed_forward_length", spec.feed_forward_size);
  writer.add_uint32("qwen3.attention.head_count", spec.heads);
  writer.add_uint32("qwen3.attention.head_count_kv", spec.kv_heads);
  writer.add_uint32("qwen3.attention.key_length", spec.head_dim);
  writer.add_uint32("qwen3.attention.value_length", spec.head_dim);
  writer.add_float32("qwen3.attention.layer_norm_rms_epsilon", 1e-6F);
  writer.add_float32("qwen3.rope.freq_base", 10000.0F);
}

// Random tensors, one after the other out of one generator.
class TensorMaker {
 public:
  TensorMaker(GgufWriter& writer, std::uint64_t seed) : writer_(writer), rng_(seed) {}

  void matrix(const std::string& name, std::uint64_t inputs, std::uint64_t outputs,
              double deviation, std::uint64_t zero_from = ~std::uint64_t{0}) {
    std::vector<std::byte> bytes(inputs * outputs * sizeof(std::uint16_t));
    for (std::uint64_t i = 0; i < inputs * outputs; ++i) {
      const double value = i / inputs < zero_from ? normal() * deviation : 0.0;
      const std::uint16_t bits = float_to_bf16(static_cast<float>(value));
      std::memcpy(bytes.data() + i * sizeof(bits), &bits, sizeof(bits));
    }
    const std::array dims = {inputs, outputs};
    writer_.add_tensor(name, TensorType::kBF16, dims, std::move(bytes));
  }

  void norm(const std::string& name, std::uint64_t size, double mean) {
    std::vector<std::byte> bytes(size * sizeof(float));
    for (std::uint64_t i = 0; i < size; ++i) {
      const auto value = static_cast<float>(mean + 0.1 * normal());
      std::memcpy(bytes.data() + i * sizeof(value), &value, sizeof(value));
    }
    const std::array dims = {size};
    writer_.add_tensor(name, TensorType::kF32, dims, std::move(bytes));
  }

 private:
  // Nearly normal, deviation 1: a sum of twelve uniform numbers needs no function of the C library.
  double normal() {
    double sum = -6.0;
    for (int i = 0; i < 12; ++i) sum += rng_.uniform();
    return sum;
  }

  GgufWriter& writer_;
  Rng rng_;
};

void add_layer(TensorMaker& make, const RandomModelSpec& spec, std::uint32_t index) {
  const auto name = [index](std::string_view part) {
    return fmt::format("blk.{}.{}.weight", index, part);
  };
  const std::uint64_t width = spec.embedding_size;
  const std::uint64_t q_width = std::uint64_t{spec.heads} * spec.head_dim;
  const std::uint64_t kv_width = std::uint64_t{spec.kv_heads} * spec.head_dim;
  const double unit = 1.0 / std::sqrt(static_cast<double>(width));
  make.norm(name("attn_norm"), width, 1.0);
  make.matrix(name("attn_q"), width, q_width, unit);
  make.matrix(name("attn_k"), width, kv_width, unit);
  make.matrix(name("attn_v"), width, kv_width, unit);
  make.norm(name("attn_q_norm"), spec.head_dim,
            1.5);  // attention that prefers some tokens to others
  make.norm(name("attn_k_norm"), spec.head_dim, 1.0);
  make.matrix(name("attn_output"), q_width, width, 2.0 / std::sqrt(static_cast<double>(q_width)));
  make.norm(name("ffn_norm"), width, 1.0);
  make.matrix(name("ffn_gate"), width, spec.feed_forward_size, unit);
  make.matrix(name("ffn_up"), width, spec.feed_forward_size, unit);
  make.matrix(name("ffn_down"), spec.feed_forward_size, width,
              2.0 / std::sqrt(static_cast<double>(spec.feed_forward_size)));
}

Status check_spec(const RandomModelSpec& spec) {
  const auto refuse = [](std::string_view what, std::uint64_t value, std::string_view rule) {
    return fail(Errc::kInvalidArgument,
                fmt::format("random model: {} is {}, {}", what, value, rule));
  };
  if (spec.layers == 0) return refuse("layers", 0, "not 1 or more");
  for (const auto& [what, value] :
       {std::pair<std::string_view, std::uint32_t>{"embedding_size", spec.embedding_size},
        {"feed_forward_size", spec.feed_forward_size},
        {"head_dim", spec.head_dim}}) {
    if (value == 0 || value % 16 != 0) return refuse(what, value, "not a multiple of 16");
  }
  if (spec.kv_heads == 0 || spec.heads == 0 || spec.heads % spec.kv_heads != 0) {
    return refuse("heads", spec.heads,
                  fmt::format("not a multiple of kv_heads, {}", spec.kv_heads));
  }
  if (spec.vocab_size < RandomModelSpec::kMinVocab) {
    return refuse("vocab_size", spec.vocab_size,
                  fmt::format("less than {}", RandomModelSpec::kMinVocab));
  }
  if (spec.context_length == 0) return refuse("context_length", 0, "not 1 or more");
  return {};
}

}  // namespace

Status write_random_model(const RandomModelSpec& spec, const std::string& path) {
  if (Status checked = check_spec(spec); !checked) return checked;
  GgufWriter writer;
  const Vocabulary vocabulary = make_vocabulary(spec.vocab_size);
  add_shape(writer, spec);
  add_tokenizer(writer, vocabulary);
  TensorMaker make(writer, spec.seed);
  const std::uint64_t width = spec.embedding_size;
  make.matrix("token_embd.weight", width, spec.vocab_size, 1.0);
  for (std::uint32_t i = 0; i < spec.layers; ++i) add_layer(make, spec, i);
  make.norm("output_norm.weight", width, 1.0);
  make.matrix("output.weight", width, spec.vocab_size, 3.0 / std::sqrt(static_cast<double>(width)),
              vocabulary.first_control);
  return writer.write(path);
}

Status write_bf16_copy(const GgufFile& file, const std::string& path) {
  GgufWriter writer;
  for (const std::string_view key : file.keys()) {
    if (key == "general.file_type") {
      constexpr std::uint32_t kMostlyBf16 = 32;
      writer.add_uint32(key, kMostlyBf16);
    } else if (key != "general.quantization_version" && key != "general.alignment") {
      writer.add_value(key, *file.find(key));
    }
  }
  for (const GgufTensor& tensor : file.tensors()) {
    const std::span<const std::uint64_t> dims(tensor.dims.data(), tensor.num_dims);
    if (tensor.num_dims == 1) {
      writer.add_tensor(tensor.name, tensor.type, dims, {tensor.bytes.begin(), tensor.bytes.end()});
      continue;
    }
    std::vector<float> values(tensor.num_elements);
    dequantize(tensor.type, tensor.bytes, values);
    std::vector<std::byte> bytes(values.size() * sizeof(std::uint16_t));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::uint16_t bits = float_to_bf16(values[i]);
      std::memcpy(bytes.data() + i * sizeof(bits), &bits, sizeof(bits));
    }
    writer.add_tensor(tensor.name, TensorType::kBF16, dims, std::move(bytes));
  }
  return writer.write(path);
}

}  // namespace baton::model
