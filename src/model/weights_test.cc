// Files that are well-formed GGUF and not a model that can run: each is refused with the field and
// the values.

#include "model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "model/gguf_writer.h"
#include "model/kernel_choice.h"
#include "model/random_model.h"

namespace baton::model {
namespace {

using ::testing::HasSubstr;

std::string scratch(const std::string& name) {
  return (std::filesystem::temp_directory_path() /
          ("baton-weights-" + std::to_string(::getpid()) + name))
      .string();
}

struct Change {
  std::string dropped_key;
  std::string dropped_tensor;
  std::function<void(GgufWriter&)> add;
};

// The error of loading a good small model after one change; empty if it loads.
std::string error_after(const Change& change) {
  const std::string good = scratch("good");
  const std::string bad = scratch("bad");
  RandomModelSpec spec;
  spec.layers = 1;
  spec.embedding_size = 32;
  spec.feed_forward_size = 32;
  EXPECT_TRUE(write_random_model(spec, good).has_value());
  const auto file = GgufFile::open(good).value();
  GgufWriter writer;
  for (const std::string_view key : file->keys()) {
    if (key != change.dropped_key) writer.add_value(key, *file->find(key));
  }
  for (const GgufTensor& tensor : file->tensors()) {
    if (tensor.name == change.dropped_tensor) continue;
    writer.add_tensor(tensor.name, tensor.type, std::span(tensor.dims).first(tensor.num_dims),
                      {tensor.bytes.begin(), tensor.bytes.end()});
  }
  if (change.add) change.add(writer);
  EXPECT_TRUE(writer.write(bad).has_value());
  const auto changed = GgufFile::open(bad).value();
  const auto model = Model::load(*changed, {});
  std::filesystem::remove(good);
  std::filesystem::remove(bad);
  return model ? "" : model.error().message;
}

Change number_instead(const std::string& key, std::uint32_t value) {
  return {key, "", [key, value](GgufWriter& writer) { writer.add_uint32(key, value); }};
}

Change tensor_instead(const std::string& name, const std::vector<std::uint64_t>& dims) {
  return {"", name, [name, dims](GgufWriter& writer) {
            std::size_t bytes = sizeof(float);
            for (const std::uint64_t dim : dims) bytes *= dim;
            writer.add_tensor(name, TensorType::kF32, dims, std::vector<std::byte>(bytes));
          }};
}

TEST(Weights, TheUnchangedModelLoads) {
  EXPECT_EQ(error_after({}), "");
}

TEST(Weights, UnusableModelsAreRefusedWithFieldAndValues) {
  struct Case {
    Change change;
    std::string message;
  };
  const auto text_instead = [](const std::string& key, const std::string& value) {
    return Change{key, "", [key, value](GgufWriter& writer) { writer.add_text(key, value); }};
  };
  const std::vector<Case> table = {
      {{"general.architecture", "", {}}, "metadata key 'general.architecture' is missing"},
      {text_instead("general.architecture", "gemma3"),
       "general.architecture is 'gemma3'; read are 'llama' and 'qwen3'"},
      {{"qwen3.block_count", "", {}}, "metadata key 'qwen3.block_count' is missing"},
      {text_instead("qwen3.block_count", "two"),
       "'qwen3.block_count' is of type string, not an integer"},
      {number_instead("qwen3.block_count", 0), "qwen3.block_count is 0, not 1 to"},
      {number_instead("qwen3.block_count", 0xffffffff),
       "qwen3.block_count is 4294967295, not 1 to"},
      {number_instead("qwen3.block_count", 2), "tensor 'blk.1.attn_norm.weight' is missing"},
      {number_instead("qwen3.embedding_length", 40),
       "qwen3.embedding_length is 40, not a multiple of 16"},
      {number_instead("qwen3.embedding_length", 64),
       "tensor 'token_embd.weight' is 32 x 512 x 1 x 1, the metadata ask for 64 x 512"},
      {number_instead("qwen3.attention.head_count", 12),
       "not a multiple of qwen3.attention.head_count_kv, 8"},
      {number_instead("qwen3.attention.key_length", 1U << 20),
       "qwen3.attention.key_length is 1048576, not 1 to 256"},
      {number_instead("qwen3.attention.value_length", 32),
       "qwen3.attention.value_length is 32, the keys' is 16"},
      {number_instead("qwen3.context_length", 0), "qwen3.context_length is 0, not 1 to"},
      {number_instead("qwen3.rope.dimension_count", 8),
       "qwen3.rope.dimension_count is 8, the head dimension is 16"},
      {number_instead("qwen3.expert_count", 4),
       "qwen3.expert_count is 4: mixtures of experts are not read"},
      {text_instead("qwen3.rope.scaling.type", "yarn"),
       "qwen3.rope.scaling.type is 'yarn': only 'none' is read"},
      {{"qwen3.rope.freq_base", "",
        [](GgufWriter& w) { w.add_float32("qwen3.rope.freq_base", -1.0F); }},
       "qwen3.rope.freq_base is -1, not positive"},
      {{"qwen3.attention.layer_norm_rms_epsilon", "", {}}, "layer_norm_rms_epsilon' is missing"},
      {{"", "token_embd.weight", {}}, "tensor 'token_embd.weight' is missing"},
      {{"", "blk.0.ffn_down.weight", {}}, "tensor 'blk.0.ffn_down.weight' is missing"},
      {tensor_instead("blk.0.attn_k.weight", {32, 64}),
       "tensor 'blk.0.attn_k.weight' is 32 x 64 x 1 x 1, the metadata ask for 32 x 128"},
      {tensor_instead("blk.0.attn_q_norm.weight", {16, 2}),
       "'blk.0.attn_q_norm.weight' is 16 x 2 x 1 x 1"},
      {tensor_instead("blk.0.attn_q.bias", {32}),
       "tensor 'blk.0.attn_q.bias' has no place in this architecture"},
  };
  for (const Case& one : table) EXPECT_THAT(error_after(one.change), HasSubstr(one.message));
}

TEST(Weights, KernelNamesAreChecked) {
  EXPECT_EQ(choose_kernels("sse9").error().code, Errc::kInvalidArgument);
  EXPECT_THAT(choose_kernels("sse9").error().message,
              HasSubstr("kernels 'sse9' are unknown: scalar"));
  EXPECT_TRUE(choose_kernels("scalar").has_value());
  EXPECT_TRUE(choose_kernels("").has_value());
  EXPECT_EQ(choose_kernels("").value().family, choose_kernels("").value().family);
}

TEST(RandomModel, TheSameSpecGivesTheSameBytes) {
  const std::string one = scratch("one");
  const std::string two = scratch("two");
  RandomModelSpec spec;
  spec.layers = 1;
  ASSERT_TRUE(write_random_model(spec, one).has_value());
  ASSERT_TRUE(write_random_model(spec, two).has_value());
  // Pinned: weights must not change with the machine, the compiler or the C library.
  const std::string fingerprint = GgufFile::open(one).value()->fingerprint();
  EXPECT_EQ(fingerprint, GgufFile::open(two).value()->fingerprint());
  EXPECT_EQ(fingerprint, "796586fbd5092c08377ad8d25488e4a7");
  spec.seed = 2;
  ASSERT_TRUE(write_random_model(spec, two).has_value());
  EXPECT_NE(fingerprint, GgufFile::open(two).value()->fingerprint());
  spec.kv_heads = 3;
  EXPECT_THAT(write_random_model(spec, two).error().message,
              HasSubstr("heads is 16, not a multiple of kv_heads, 3"));
  std::filesystem::remove(one);
  std::filesystem::remove(two);
}

}  // namespace
}  // namespace baton::model
