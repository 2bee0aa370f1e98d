// The claim that everything rests on: P and D with the KV cache pushed between them answer token
// for token what one engine answers. Real models, real agents, the same-host fabric; both engines
// in this process, so that both sides' counters can be held against each other.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "base/random.h"
#include "engine/testing/rig.h"
#include "model/gguf.h"
#include "model/random_model.h"

namespace baton::engine {
namespace {

constexpr std::uint32_t kBlockSize = 16;

// One set of weights for several engines; forward() is for one thread at a time.
class SharedModel final : public model::Model {
 public:
  struct Weights {
    std::unique_ptr<model::Model> model;
    std::mutex mutex;
  };
  explicit SharedModel(std::shared_ptr<Weights> weights) : weights_(std::move(weights)) {}

  const model::ModelConfig& config() const override { return weights_->model->config(); }
  const std::string& kernel_family() const override { return weights_->model->kernel_family(); }
  void forward(std::span<const model::SequenceChunk> chunks, const model::KvPool& pool,
               std::span<float> logits) override {
    const std::lock_guard lock(weights_->mutex);
    weights_->model->forward(chunks, pool, logits);
  }

 private:
  std::shared_ptr<Weights> weights_;
};

struct Loaded {
  std::shared_ptr<SharedModel::Weights> weights;
  std::shared_ptr<const model::Tokenizer> tokenizer;
};

Loaded load(const std::string& path) {
  auto file = model::GgufFile::open(path);
  EXPECT_TRUE(file.has_value()) << file.error().message;
  auto weights = std::make_shared<SharedModel::Weights>();
  auto loaded = model::Model::load(**file, {});
  EXPECT_TRUE(loaded.has_value()) << loaded.error().message;
  weights->model = std::move(*loaded);
  auto tokenizer = model::Tokenizer::load(**file);
  EXPECT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
  return {weights, std::move(*tokenizer)};
}

std::unique_ptr<Engine> make(const Loaded& loaded, EngineOptions options,
                             std::optional<Role> role = std::nullopt) {
  options.block_size = kBlockSize;
  if (role) {
    options.agent = AgentOptions{};
    options.agent->engine_id = *role == Role::kProducer ? "p" : "d";
    options.agent->role = *role;
    options.agent->verify_blocks = true;
    options.poison_blocks = true;
  }
  auto engine =
      Engine::create(std::make_unique<SharedModel>(loaded.weights), loaded.tokenizer, options);
  EXPECT_TRUE(engine.has_value()) << engine.error().message;
  return engine ? std::move(*engine) : nullptr;
}

class Pair {
 public:
  Pair(const Loaded& loaded, const EngineOptions& p, const EngineOptions& d)
      : config_(loaded.weights->model->config()),
        prefill_(make(loaded, p, Role::kProducer)),
        decode_(make(loaded, d, Role::kConsumer)) {}

  Engine& prefill() { return *prefill_; }
  Engine& decode() { return *decode_; }

  // `at_once` requests at a time through both; every answer must be the expected one.
  void run(const std::vector<Request>& requests, const std::vector<Seen>& expected,
           std::size_t at_once, FirstToken first) {
    for (std::size_t begin = 0; begin < requests.size(); begin += at_once) {
      const std::size_t count = std::min(at_once, requests.size() - begin);
      run_together(std::span(requests).subspan(begin, count),
                   std::span(expected).subspan(begin, count), first);
    }
    EXPECT_TRUE(all_blocks_free(*prefill_));
    EXPECT_TRUE(all_blocks_free(*decode_));
    EXPECT_EQ(decode_->metrics().preemptions.value(), 0U);
  }

  // Both sides' counters agree with each other and with the blocks of all prompts.
  void expect_bytes() {
    const std::uint64_t block_bytes =
        model::kv_block_bytes(config_, model::KvDtype::kBfloat16, kBlockSize);
    const std::uint64_t expected = blocks_ * block_bytes * config_.num_layers;
    EXPECT_GT(expected, 0U);
    EXPECT_EQ(prefill_->agent()->metrics().bytes_written.value(), expected);
    EXPECT_EQ(decode_->agent()->metrics().bytes_received.value(), expected);
    EXPECT_EQ(decode_->agent()->metrics().blocks_corrupt.value(), 0U);
  }

 private:
  struct Legs {
    Answer prefill, decode;
  };

  void run_together(std::span<const Request> requests, std::span<const Seen> expected,
                    FirstToken first) {
    std::vector<std::unique_ptr<Legs>> legs;
    for (const Request& request : requests) {
      legs.push_back(std::make_unique<Legs>());
      const TransferId transfer = TransferId::random();
      Request d = request;
      d.remote_prefill = RemotePrefill{.transfer = transfer,
                                       .binding = 0,
                                       .peer = prefill_->agent()->control_address(),
                                       .first_token = first};
      Request p = request;
      p.remote_decode = RemoteDecode{.transfer = transfer, .first_token = first};
      if (legs.size() % 2 == 0) {  // either side may be first
        submit(*prefill_, std::move(p), legs.back()->prefill);
        submit(*decode_, std::move(d), legs.back()->decode);
      } else {
        submit(*decode_, std::move(d), legs.back()->decode);
        submit(*prefill_, std::move(p), legs.back()->prefill);
      }
    }
    for (std::size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(fmt::format("request {} of {} tokens, {} together", requests[i].id,
                               requests[i].prompt.size(), requests.size()));
      expect_one(requests[i], expected[i], *legs[i], first);
    }
  }

  void expect_one(const Request& request, const Seen& expected, Legs& legs, FirstToken first) {
    legs.prefill.wait();
    legs.decode.wait();
    EXPECT_EQ(seen(legs.decode), expected) << legs.decode.last.error.message;
    EXPECT_EQ(legs.prefill.last.finish, FinishReason::kHandedOver)
        << legs.prefill.last.error.message;
    const std::uint32_t most = first == FirstToken::kPrefill ? 0 : 1;
    EXPECT_EQ(legs.decode.last.computed_prompt_tokens, most);
    const auto size = static_cast<std::uint32_t>(request.prompt.size());
    const std::uint32_t cached = legs.decode.last.cached_prompt_tokens;
    const std::uint32_t blocks = (size + kBlockSize - 1) / kBlockSize - cached / kBlockSize;
    blocks_ += blocks;
    ASSERT_TRUE(legs.decode.last.handover.has_value());
    const Event& told = *legs.decode.last.handover;
    EXPECT_EQ(told.outcome, Outcome::kDone);
    EXPECT_EQ(told.bytes, told.bytes_planned);
    EXPECT_EQ(told.range, (TokenRange{cached, size}));
    EXPECT_GE(told.blocks_verified, blocks);
  }

  model::ModelConfig config_;
  std::unique_ptr<Engine> prefill_, decode_;
  std::uint64_t blocks_ = 0;
};

std::vector<Seen> answers_of_one(const Loaded& loaded, const EngineOptions& options,
                                 const std::vector<Request>& requests) {
  const auto engine = make(loaded, options);
  std::vector<Seen> result;
  for (const Request& request : requests) {
    Answer answer;
    submit(*engine, request, answer);
    answer.wait();
    EXPECT_NE(answer.last.finish, FinishReason::kError);
    result.push_back(seen(answer));
  }
  return result;
}

Request request_of(std::size_t number, std::vector<TokenId> prompt, std::uint32_t max_tokens) {
  Request request = make_request(fmt::format("r{}", number), std::move(prompt), max_tokens);
  if (number % 2 == 1) request.sampling = seeded(max_tokens, number);
  return request;
}

std::vector<TokenId> chat(const model::Tokenizer& tokenizer, std::size_t turns) {
  std::string text = "<|im_start|>system\nYou answer in a few words.<|im_end|>\n";
  static constexpr const char* kTurns[] = {"What is a relay race?", "Four runners, one baton.",
                                           "Who hands it over?", "The one who arrives.",
                                           "And who receives it?"};
  for (std::size_t i = 0; i < turns; ++i) {
    text += fmt::format("<|im_start|>{}\n{}<|im_end|>\n", i % 2 == 0 ? "user" : "assistant",
                        kTurns[i % std::size(kTurns)]);
  }
  return tokenizer.encode(text + "<|im_start|>assistant\n", true);
}

// On the small random model.
class ExactnessTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kMaxModelLen = 512;
  static constexpr std::uint32_t kChunk = 96;
  static constexpr std::uint32_t kMaxTokens = 12;

  static void SetUpTestSuite() {
    const auto path =
        std::filesystem::temp_directory_path() / fmt::format("baton-exactness-{}.gguf", ::getpid());
    const Status written = model::write_random_model({}, path.string());
    ASSERT_TRUE(written.has_value()) << written.error().message;
    loaded_ = new Loaded(load(path.string()));
    std::filesystem::remove(path);
    requests_ = new std::vector<Request>(make_requests());
    EngineOptions options;
    options.max_model_len = kMaxModelLen;
    options.max_num_seqs = 1;
    expected_ = new std::vector<Seen>(answers_of_one(*loaded_, options, *requests_));
  }
  static void TearDownTestSuite() {
    delete expected_;
    delete requests_;
    delete loaded_;
  }

  static std::vector<Request> make_requests() {
    std::vector<std::uint32_t> lengths{
        1,          kBlockSize - 1, kBlockSize, kBlockSize + 1, 2 * kBlockSize,
        kChunk - 1, kChunk,         kChunk + 1, 3 * kChunk + 5, kMaxModelLen - kMaxTokens};
    Rng rng(7);
    while (lengths.size() < 19) lengths.push_back(static_cast<std::uint32_t>(rng.below(200) + 1));
    const auto vocab = loaded_->weights->model->config().vocab_size;
    std::vector<Request> requests;
    // Each length once greedy and once seeded.
    for (const std::uint32_t length : lengths) {
      for (int twice = 0; twice < 2; ++twice) {
        std::vector<TokenId> prompt(length);
        for (TokenId& token : prompt) token = static_cast<TokenId>(rng.below(vocab));
        requests.push_back(request_of(requests.size(), std::move(prompt), kMaxTokens));
      }
    }
    for (std::size_t turns = 1; turns <= 5; turns += 2) {
      for (int twice = 0; twice < 2; ++twice) {
        requests.push_back(
            request_of(requests.size(), chat(*loaded_->tokenizer, turns), kMaxTokens));
      }
    }
    requests[20].sampling.ignore_eos = true;
    requests[21].sampling.stop = {"e", "th", "\n"};
    return requests;
  }

  // Unlike each other, and unlike the one engine's.
  static Pair make_pair(bool enable_prefix_caching = false) {
    EngineOptions p;
    p.enable_prefix_caching = enable_prefix_caching;
    p.max_model_len = kMaxModelLen;
    p.max_num_seqs = 16;
    p.max_num_batched_tokens = kChunk;
    p.num_blocks = 200;
    EngineOptions d = p;
    d.max_num_batched_tokens = 40;
    // Room for all 32 and their growth: a preempted sequence computes its prompt again, and then
    // the count of computed prompt tokens says nothing about what crossed.
    d.num_blocks = 800;
    return {*loaded_, p, d};
  }

  static Loaded* loaded_;
  static std::vector<Request>* requests_;
  static std::vector<Seen>* expected_;
};
Loaded* ExactnessTest::loaded_ = nullptr;
std::vector<Request>* ExactnessTest::requests_ = nullptr;
std::vector<Seen>* ExactnessTest::expected_ = nullptr;

TEST_F(ExactnessTest, ThePromptsCoverTheEdges) {
  EXPECT_GE(requests_->size(), 40U);
  std::size_t tokens = 0;
  for (const Seen& answer : *expected_) tokens += answer.tokens.size();
  EXPECT_GT(tokens, requests_->size() * 6);  // answers of some length
}

TEST_F(ExactnessTest, FirstTokenFromPrefill) {
  Pair pair = make_pair();
  for (const std::size_t at_once : {1, 8, 32}) {
    pair.run(*requests_, *expected_, at_once, FirstToken::kPrefill);
  }
  pair.expect_bytes();
}

TEST_F(ExactnessTest, FirstTokenFromDecode) {
  Pair pair = make_pair();
  for (const std::size_t at_once : {1, 8, 32}) {
    pair.run(*requests_, *expected_, at_once, FirstToken::kDecode);
  }
  pair.expect_bytes();
}

// All of it again and again: most of what D needs is there; P's pool is too small to keep it all.
TEST_F(ExactnessTest, WithPrefixCachesOnBothSides) {
  Pair pair = make_pair(true);
  for (const std::size_t at_once : {32, 8, 1}) {
    pair.run(*requests_, *expected_, at_once, FirstToken::kPrefill);
    pair.run(*requests_, *expected_, at_once, FirstToken::kDecode);
  }
  pair.expect_bytes();
  EXPECT_GT(pair.prefill().metrics().prefix_cache_hits.value(), 0U);
  const EngineMetrics& d = pair.decode().metrics();
  EXPECT_GT(d.prefix_cache_hits.value(), d.prefix_cache_queries.value() / 3);
}

std::string smollm2_path() {
  if (const char* path = std::getenv("BATON_SMOLLM2")) return path;
  return std::string(BATON_SOURCE_DIR) + "/build/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

TEST(ExactnessOnTheRealModel, ThePairAnswersAsOneEngine) {
  const std::string path = smollm2_path();
  ASSERT_TRUE(std::filesystem::exists(path)) << path << " is missing: run tools/setup";
  const Loaded loaded = load(path);
  std::vector<Request> requests;
  for (const std::size_t turns : {1, 3, 5, 1}) {
    requests.push_back(request_of(requests.size(), chat(*loaded.tokenizer, turns), 8));
  }
  for (const char* text : {"The", "Once upon a time", "A relay race is run by four runners who"}) {
    requests.push_back(request_of(requests.size(), loaded.tokenizer->encode(text, false), 8));
  }
  EngineOptions options;
  options.max_model_len = 512;
  options.max_num_seqs = 8;
  options.num_blocks = 64;
  const std::vector<Seen> expected = answers_of_one(loaded, options, requests);
  EngineOptions p = options;
  p.max_num_batched_tokens = 48;
  Pair pair(loaded, p, options);
  pair.run(requests, expected, 8, FirstToken::kPrefill);
  pair.run(requests, expected, 8, FirstToken::kDecode);
  pair.expect_bytes();
}

}  // namespace
}  // namespace baton::engine
