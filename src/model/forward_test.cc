// The forward pass on a small random model: right against a plain computation in double precision,
// and the same bits however the work is cut.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <numeric>

#include "base/random.h"
#include "model/dequantize.h"
#include "model/gguf.h"
#include "model/model.h"
#include "model/naive_model.h"
#include "model/random_model.h"

namespace baton::model {
namespace {

constexpr std::uint32_t kPoolTokens = 4096;

std::string random_model_path(const RandomModelSpec& spec) {
  const auto path =
      std::filesystem::temp_directory_path() /
      ("baton-forward-" + std::to_string(::getpid()) + "-" + std::to_string(spec.seed) + ".gguf");
  EXPECT_TRUE(write_random_model(spec, path.string()).has_value());
  return path.string();
}

// The file that all tests here share.
const GgufFile& shared_file() {
  static const std::unique_ptr<GgufFile> file = [] {
    const std::string path = random_model_path(RandomModelSpec{});
    auto opened = GgufFile::open(path).value();
    std::filesystem::remove(path);
    return opened;
  }();
  return *file;
}

std::unique_ptr<Model> load(const ModelOptions& options = {}) {
  auto loaded = Model::load(shared_file(), options);
  EXPECT_TRUE(loaded.has_value()) << loaded.error().message;
  return std::move(*loaded);
}

// Memory for kPoolTokens tokens in blocks of `block_size`, poisoned; hands out blocks in a shuffled
// order.
class TestPool {
 public:
  TestPool(const ModelConfig& config, KvDtype dtype, std::uint32_t block_size,
           std::uint64_t seed = 1) {
    pool_.block_size = block_size;
    pool_.num_blocks = kPoolTokens / block_size;
    pool_.stride_bytes = kv_block_bytes(config, dtype, block_size) + 64;
    memory_.resize(config.num_layers * pool_.num_blocks * pool_.stride_bytes, std::byte{0xff});
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
      pool_.layers.push_back(memory_.data() + layer * pool_.num_blocks * pool_.stride_bytes);
    }
    free_.resize(pool_.num_blocks);
    std::iota(free_.begin(), free_.end(), 0U);
    Rng rng(seed);
    for (std::size_t i = free_.size() - 1; i > 0; --i) std::swap(free_[i], free_[rng.below(i + 1)]);
  }

  const KvPool& pool() const { return pool_; }
  std::vector<BlockId> blocks_for(std::size_t tokens) {
    std::vector<BlockId> table;
    for (std::size_t i = 0; i < (tokens + pool_.block_size - 1) / pool_.block_size; ++i) {
      table.push_back(free_.back());
      free_.pop_back();
    }
    return table;
  }

 private:
  KvPool pool_;
  std::vector<std::byte> memory_;
  std::vector<BlockId> free_;
};

std::vector<TokenId> random_tokens(std::size_t count, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(rng.below(500));
  return tokens;
}

// The logits after each chunk when `tokens` are computed in chunks of `chunk_size`, alone.
std::vector<std::vector<float>> in_chunks(Model& model, TestPool& pool,
                                          const std::vector<TokenId>& tokens,
                                          std::size_t chunk_size) {
  const std::vector<BlockId> table = pool.blocks_for(tokens.size());
  std::vector<std::vector<float>> all;
  for (std::size_t at = 0; at < tokens.size(); at += chunk_size) {
    const std::size_t some = std::min(chunk_size, tokens.size() - at);
    const SequenceChunk chunk = {std::span(tokens).subspan(at, some),
                                 static_cast<std::uint32_t>(at), table, true};
    all.emplace_back(model.config().vocab_size);
    model.forward({&chunk, 1}, pool.pool(), all.back());
  }
  return all;
}

std::vector<float> last_logits(Model& model, const std::vector<TokenId>& tokens,
                               std::size_t chunk_size, std::uint32_t block_size = 16,
                               std::uint64_t pool_seed = 1, KvDtype dtype = KvDtype::kBfloat16) {
  TestPool pool(model.config(), dtype, block_size, pool_seed);
  return in_chunks(model, pool, tokens, chunk_size).back();
}

// Bits, not values: -0.0 and 0.0 differ, and so would two NaNs.
::testing::AssertionResult same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size())
    return ::testing::AssertionFailure() << a.size() << " against " << b.size();
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) {
      return ::testing::AssertionFailure()
             << "element " << i << ": " << a[i] << " against " << b[i];
    }
    if (!std::isfinite(a[i]))
      return ::testing::AssertionFailure() << "element " << i << " is " << a[i];
  }
  return ::testing::AssertionSuccess();
}

TEST(Forward, AgreesWithThePlainComputation) {
  const std::vector<TokenId> tokens = random_tokens(37, 3);
  const NaiveModel naive(shared_file());
  for (const KvDtype dtype : {KvDtype::kFloat32, KvDtype::kBfloat16}) {
    ModelOptions options;
    options.kv_dtype = dtype;
    const auto model = load(options);
    TestPool pool(model->config(), dtype, 16);
    const auto logits = in_chunks(*model, pool, tokens, 1);
    const auto expected = naive.logits(tokens, dtype == KvDtype::kBfloat16);
    double worst = 0.0;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      for (std::size_t i = 0; i < logits[t].size(); ++i) {
        worst = std::max(worst, std::abs(static_cast<double>(logits[t][i]) - expected[t][i]));
      }
    }
    // Float32 sums of some hundred terms against double: about 1e-5 of logits up to 12. A bfloat16
    // K or V may round the other way where the two differ in the last bit, which moves a logit by
    // less than a hundredth.
    EXPECT_LT(worst, dtype == KvDtype::kFloat32 ? 2e-4 : 5e-2);
    EXPECT_GT(worst, 0.0);
  }
}

// Three query heads to a KV head, and neither vocabulary nor widths are multiples of what the
// kernels compute together.
TEST(Forward, OddShapesAgreeWithThePlainComputationAndKeepTheirBits) {
  RandomModelSpec spec;
  spec.seed = 2;
  spec.embedding_size = 48;
  spec.feed_forward_size = 112;
  spec.heads = 9;
  spec.kv_heads = 3;
  spec.head_dim = 32;
  spec.vocab_size = 331;
  const std::string path = random_model_path(spec);
  const auto file = GgufFile::open(path).value();
  std::filesystem::remove(path);
  std::vector<TokenId> tokens = random_tokens(70, 9);
  for (TokenId& token : tokens) token %= 331;
  const auto expected = NaiveModel(*file).logits(tokens, false).back();
  ModelOptions options;
  options.kv_dtype = KvDtype::kFloat32;
  for (const std::string kernels : {"", "scalar", "onednn-f32"}) {
    options.kernels = kernels;
    const auto model = Model::load(*file, options).value();
    const auto whole = last_logits(*model, tokens, 70, 16, 1, options.kv_dtype);
    for (std::size_t i = 0; i < whole.size(); ++i)
      EXPECT_NEAR(whole[i], expected[i], 2e-4) << kernels;
    for (const std::size_t chunk : {1U, 3U, 19U}) {
      EXPECT_TRUE(same_bits(whole, last_logits(*model, tokens, chunk, 8, 2, options.kv_dtype)))
          << kernels << ", chunks of " << chunk;
    }
  }
}

TEST(Forward, ChunksOfAnySizeGiveTheSameBits) {
  const auto model = load();
  const std::vector<TokenId> tokens = random_tokens(600, 4);
  const std::vector<float> whole = last_logits(*model, tokens, tokens.size());
  for (const std::size_t chunk : {1U, 7U, 16U, 255U, 512U}) {
    EXPECT_TRUE(same_bits(whole, last_logits(*model, tokens, chunk))) << "chunks of " << chunk;
  }
}

TEST(Forward, ThreadsDoNotMatter) {
  const std::vector<TokenId> tokens = random_tokens(150, 5);
  const std::vector<float> one = last_logits(*load(), tokens, 64);
  for (const int threads : {2, 3}) {
    ModelOptions options;
    options.threads = threads;
    const auto model = load(options);
    EXPECT_TRUE(same_bits(one, last_logits(*model, tokens, 64))) << threads << " threads";
    EXPECT_TRUE(same_bits(one, last_logits(*model, tokens, 1)))
        << threads << " threads, token by token";
  }
}

TEST(Forward, BlockSizeAndOrderDoNotMatter) {
  const auto model = load();
  const std::vector<TokenId> tokens = random_tokens(150, 6);
  const std::vector<float> first = last_logits(*model, tokens, 64);
  for (const std::uint32_t block_size : {1U, 2U, 8U, 64U, 256U}) {
    EXPECT_TRUE(same_bits(first, last_logits(*model, tokens, 64, block_size)))
        << "blocks of " << block_size;
  }
  for (const std::uint64_t seed : {2U, 3U}) {
    EXPECT_TRUE(same_bits(first, last_logits(*model, tokens, 64, 16, seed))) << "order " << seed;
  }
}

struct Running {
  std::vector<TokenId> tokens;
  std::vector<BlockId> table;
  std::size_t done = 0;
};

// All sequences side by side, each cut at random: one may decode while another has a long chunk.
void run_together(Model& model, std::vector<Running>& all, const KvPool& pool, Rng& rng,
                  const std::function<void(std::size_t, std::span<const float>)>& finished) {
  for (;;) {
    std::vector<SequenceChunk> chunks;
    std::vector<std::size_t> who;
    for (std::size_t i = 0; i < all.size(); ++i) {
      Running& one = all[i];
      const std::size_t left = one.tokens.size() - one.done;
      if (left == 0 || rng.chance(1, 4)) continue;
      const std::size_t some = 1 + rng.below(rng.chance(1, 2) ? 1 : left);
      const bool last = some == left;
      chunks.push_back({std::span(one.tokens).subspan(one.done, some),
                        static_cast<std::uint32_t>(one.done), one.table, last});
      if (last) who.push_back(i);
      one.done += some;
    }
    std::vector<float> logits(who.size() * model.config().vocab_size);
    if (!chunks.empty()) model.forward(chunks, pool, logits);
    for (std::size_t i = 0; i < who.size(); ++i) {
      finished(who[i],
               std::span(logits).subspan(i * model.config().vocab_size, model.config().vocab_size));
    }
    if (std::all_of(all.begin(), all.end(),
                    [](const Running& one) { return one.done == one.tokens.size(); }))
      return;
  }
}

class ForwardTogether : public ::testing::TestWithParam<std::string> {};

TEST_P(ForwardTogether, WhatSharesTheBatchDoesNotMatter) {
  ModelOptions options;
  options.threads = 2;
  options.kernels = GetParam();
  const auto model = load(options);
  for (const std::size_t count : {1U, 2U, 8U, 32U}) {
    TestPool pool(model->config(), options.kv_dtype, 16, count);
    Rng rng(count);
    std::vector<Running> all(count);
    for (std::size_t i = 0; i < count; ++i) {
      all[i].tokens = random_tokens(1 + rng.below(90), 100 + i);
      all[i].table = pool.blocks_for(all[i].tokens.size());
    }
    run_together(*model, all, pool.pool(), rng, [&](std::size_t i, std::span<const float> logits) {
      const std::vector<float> alone = last_logits(*model, all[i].tokens, all[i].tokens.size());
      EXPECT_TRUE(same_bits(alone, {logits.begin(), logits.end()}))
          << "sequence " << i << " of " << count;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, ForwardTogether, ::testing::Values("", "onednn-f32"),
                         [](const auto& info) {
                           return info.param.empty() ? std::string("chosen") : "onednn";
                         });

TEST(Forward, ScalarAndVectorKernelsGiveTheSameBits) {
  ModelOptions options;
  options.kernels = "scalar";
  const auto scalar = load(options);
  EXPECT_EQ(scalar->kernel_family(), "scalar-f32");
  const std::vector<TokenId> tokens = random_tokens(75, 8);
  const std::vector<float> expected = last_logits(*scalar, tokens, 33);
  for (const std::string name : {"avx2", "avx512"}) {
    options.kernels = name;
    const auto loaded = Model::load(shared_file(), options);
    if (!loaded) {
      EXPECT_EQ(loaded.error().code, Errc::kUnsupported);
      continue;
    }
    EXPECT_EQ((*loaded)->kernel_family(), name + "-f32");
    EXPECT_TRUE(same_bits(expected, last_logits(**loaded, tokens, 33))) << name;
  }
}

TEST(Forward, KernelFamiliesAgreeClosely) {
  const std::vector<TokenId> tokens = random_tokens(75, 8);
  ModelOptions options;
  const std::vector<float> own = last_logits(*load(options), tokens, 75);
  options.kernels = "onednn-f32";
  const std::vector<float> other = last_logits(*load(options), tokens, 75);
  for (std::size_t i = 0; i < own.size(); ++i) EXPECT_NEAR(own[i], other[i], 5e-2) << i;
}

TEST(Forward, GreedyTextDependsOnTheContext) {
  const auto model = load();
  std::vector<std::vector<TokenId>> answers;
  for (const std::uint64_t seed : {11U, 12U}) {
    TestPool pool(model->config(), KvDtype::kBfloat16, 16);
    std::vector<TokenId> tokens = random_tokens(20, seed);
    const std::vector<BlockId> table = pool.blocks_for(100);
    std::size_t done = 0;
    std::vector<float> logits(model->config().vocab_size);
    while (tokens.size() < 60) {
      const SequenceChunk chunk = {std::span(tokens).subspan(done),
                                   static_cast<std::uint32_t>(done), table, true};
      model->forward({&chunk, 1}, pool.pool(), logits);
      done = tokens.size();
      tokens.push_back(
          static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
      EXPECT_LT(tokens.back(), 509) << "a control token";
    }
    answers.emplace_back(tokens.begin() + 20, tokens.end());
    std::vector<TokenId> unlike = answers.back();
    std::sort(unlike.begin(), unlike.end());
    unlike.erase(std::unique(unlike.begin(), unlike.end()), unlike.end());
    EXPECT_GE(unlike.size(), 20U) << "of 40 tokens";
  }
  EXPECT_NE(answers[0], answers[1]);
}

TEST(Forward, BrokenCallsAreChecked) {
  const auto model = load();
  TestPool pool(model->config(), KvDtype::kBfloat16, 16);
  const std::vector<TokenId> tokens = {1, 600};
  const std::vector<BlockId> table = pool.blocks_for(2);
  std::vector<float> logits(model->config().vocab_size);
  const SequenceChunk chunk = {tokens, 0, table, true};
  EXPECT_DEATH(model->forward({&chunk, 1}, pool.pool(), logits), "token 600 of 512");
  const SequenceChunk beyond = {std::span(tokens).first(1), 16, table, true};
  EXPECT_DEATH(model->forward({&beyond, 1}, pool.pool(), logits), "17 tokens, 1 blocks of 16");
}

}  // namespace
}  // namespace baton::model
