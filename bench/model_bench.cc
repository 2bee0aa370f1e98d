// How fast the model computes: prompt tokens a second of one prompt of 1,024 tokens, and generated
// tokens a second of eight sequences that decode together. JSON lines for bench/run.py.
//
//   model_bench MODEL.gguf [--threads N] [--rounds N]

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "model/gguf.h"
#include "model/model.h"

namespace {

using baton::BlockId;
using baton::TokenId;
using baton::model::KvDtype;
using baton::model::Model;
using baton::model::SequenceChunk;

constexpr std::uint32_t kBlockSize = 16;
constexpr std::uint32_t kPrompt = 1024;
constexpr std::uint32_t kChunk = 512;  // --max-num-batched-tokens of the server by default
constexpr std::uint32_t kSequences = 8;
constexpr std::uint32_t kContext = 128;  // of each sequence before it decodes
constexpr std::uint32_t kSteps = 32;

double seconds_since(baton::Time begin) {
  return std::chrono::duration<double>(baton::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The KV memory of some sequences, and the forward pass over it.
class Bench {
 public:
  explicit Bench(Model& model) : model_(&model) {
    constexpr std::uint32_t kBlocks =
        std::max(kPrompt, kSequences * (kContext + kSteps)) / kBlockSize;
    const auto stride =
        baton::model::kv_block_bytes(model.config(), KvDtype::kBfloat16, kBlockSize);
    memory_.resize(model.config().num_layers);
    for (auto& layer : memory_) {
      layer.resize(stride * kBlocks);
      pool_.layers.push_back(layer.data());
    }
    pool_.stride_bytes = stride;
    pool_.num_blocks = kBlocks;
    pool_.block_size = kBlockSize;
    blocks_.resize(kBlocks);
    std::iota(blocks_.begin(), blocks_.end(), BlockId{0});
    logits_.resize(std::size_t{kSequences} * model.config().vocab_size);
    tokens_.resize(kPrompt);
    for (std::uint32_t i = 0; i < kPrompt; ++i) {
      tokens_[i] = static_cast<TokenId>((i * 7919 + 13) % model.config().vocab_size);
    }
  }

  double prefill_seconds() {
    const baton::Time begin = baton::now();
    for (std::uint32_t start = 0; start < kPrompt; start += kChunk) {
      SequenceChunk chunk;
      chunk.tokens = std::span(tokens_).subspan(start, kChunk);
      chunk.start = start;
      chunk.block_table = blocks_;
      chunk.want_logits = start + kChunk == kPrompt;
      forward({chunk});
    }
    return seconds_since(begin);
  }

  double decode_seconds() {
    for (std::uint32_t i = 0; i < kSequences; ++i) {
      SequenceChunk chunk = chunk_of(i, 0, kContext);
      chunk.want_logits = false;
      forward({chunk});
    }
    const baton::Time begin = baton::now();
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      std::vector<SequenceChunk> batch;
      for (std::uint32_t i = 0; i < kSequences; ++i)
        batch.push_back(chunk_of(i, kContext + step, 1));
      forward(batch);
    }
    return seconds_since(begin);
  }

 private:
  SequenceChunk chunk_of(std::uint32_t sequence, std::uint32_t start, std::uint32_t count) {
    constexpr std::uint32_t kBlocksEach = (kContext + kSteps) / kBlockSize;
    SequenceChunk chunk;
    chunk.tokens = std::span(tokens_).subspan((sequence * 31 + start) % (kPrompt - count), count);
    chunk.start = start;
    chunk.block_table =
        std::span(blocks_).subspan(std::size_t{sequence} * kBlocksEach, kBlocksEach);
    chunk.want_logits = true;
    return chunk;
  }

  void forward(const std::vector<SequenceChunk>& batch) {
    const auto rows = std::count_if(batch.begin(), batch.end(),
                                    [](const SequenceChunk& c) { return c.want_logits; });
    model_->forward(
        batch, pool_,
        std::span(logits_).first(static_cast<std::size_t>(rows) * model_->config().vocab_size));
  }

  Model* model_;
  std::vector<std::vector<std::byte>> memory_;
  baton::model::KvPool pool_;
  std::vector<BlockId> blocks_;
  std::vector<TokenId> tokens_;
  std::vector<float> logits_;
};

void print(const char* name, double tokens_per_second, const Model& model, int threads) {
  fmt::print(R"({{"name":"{}","value":{:.2f},"unit":"tokens/s","note":"{}, {} threads"}})"
             "\n",
             name, tokens_per_second, model.kernel_family(), threads);
}

int run(const std::string& path, int threads, int rounds) {
  const auto file = baton::model::GgufFile::open(path);
  if (!file) {
    fmt::print(stderr, "model_bench: {}\n", file.error().message);
    return EXIT_FAILURE;
  }
  baton::model::ModelOptions options;
  options.threads = threads;
  auto model = Model::load(**file, options);
  if (!model) {
    fmt::print(stderr, "model_bench: {}\n", model.error().message);
    return EXIT_FAILURE;
  }
  Bench bench(**model);
  bench.prefill_seconds();  // pages, caches, clocks
  std::vector<double> prefill;
  std::vector<double> decode;
  for (int i = 0; i < rounds; ++i) {
    prefill.push_back(bench.prefill_seconds());
    decode.push_back(bench.decode_seconds());
  }
  print("prefill_1k", kPrompt / median(prefill), **model, threads);
  print("decode_8", kSequences * kSteps / median(decode), **model, threads);
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Rates of the model's forward pass, as JSON lines.");
  std::string path;
  int threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  int rounds = 5;
  app.add_option("model", path, "a GGUF file")->required();
  app.add_option("--threads", threads)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--rounds", rounds)->check(CLI::PositiveNumber)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  return run(path, threads, rounds);
}
