#include "engine/timed/timed_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/kv_cache.h"
#include "engine/timed/byte_tokenizer.h"
#include "engine/timed/testing/small_profile.h"

namespace baton::engine::timed {
namespace {

using std::chrono::microseconds;
using ::testing::HasSubstr;

class TimedModelTest : public ::testing::Test {
 protected:
  void start(TimedOptions options = {}) {
    auto clock = std::make_unique<FakeClock>();
    clock_ = clock.get();
    model_ = TimedModel::create(small_profile(), options, metrics_, std::move(clock)).value();
    cache_ = std::make_unique<KvCache>(
        KvCache::create(model_->config(), model_->kernel_family(),
                        {.block_size = 4, .num_blocks = 16, .layout = model_->kv_layout(4)})
            .value());
  }
  // Computes tokens [begin, end) of the sequence; returns the token chosen behind them.
  TokenId step(std::uint32_t begin, std::uint32_t end, std::uint32_t received = 0) {
    std::vector<float> logits(model_->config().vocab_size);
    const model::SequenceChunk chunk{.tokens = std::span(tokens_).subspan(begin, end - begin),
                                     .start = begin,
                                     .block_table = table_,
                                     .want_logits = true,
                                     .before = std::span(tokens_).first(begin),
                                     .received = received};
    model_->forward(std::span(&chunk, 1), cache_->pool(), logits);
    return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }

  std::shared_ptr<TimedMetrics> metrics_ = std::make_shared<TimedMetrics>();
  FakeClock* clock_ = nullptr;
  std::unique_ptr<TimedModel> model_;
  std::unique_ptr<KvCache> cache_;
  std::vector<TokenId> tokens_ = {'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j'};
  std::vector<BlockId> table_{9, 4, 5};
};

TEST_F(TimedModelTest, SaysThatItIsEmulatedAndOnWhat) {
  start({.kv_bytes_scale = 2});
  EXPECT_THAT(model_->config().fingerprint, HasSubstr("emulated:small"));
  EXPECT_THAT(model_->kernel_family(), HasSubstr("emulated: small, KV bytes / 2"));
}

TEST_F(TimedModelTest, TheKvHasTheShapeOfOneRankWithItsBytesDivided) {
  start();
  EXPECT_EQ(model_->kv_layout(4)->regions,
            (std::vector<std::string>{"layer.0.k", "layer.0.v", "layer.1.k", "layer.1.v"}));
  EXPECT_EQ(model_->kv_layout(4)->block_bytes, 64U);
  EXPECT_EQ(cache_->geometry().regions.size(), 4U);
  EXPECT_EQ(cache_->geometry().num_kv_heads, 2U);
  start({.kv_bytes_scale = 2});
  EXPECT_EQ(model_->kv_layout(4)->block_bytes, 32U);
  const auto refused =
      TimedModel::create(small_profile(), {.kv_bytes_scale = 3}, metrics_, nullptr);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("kv_bytes_scale is 3"));
}

TEST_F(TimedModelTest, AStepTakesTheProfilesTime) {
  start();
  step(0, 9);
  EXPECT_EQ(clock_->slept, microseconds(900));
  step(9, 10);
  EXPECT_EQ(clock_->slept, microseconds(900 + 3500 + 90));
  EXPECT_EQ(metrics_->steps.value(), 2U);
  EXPECT_EQ(metrics_->step_nanoseconds.value(), 4'490'000U);
  EXPECT_EQ(metrics_->overrun_steps.value(), 0U);
}

TEST_F(TimedModelTest, WorkCountsIntoTheTimeAndMoreThanThatIsOverrun) {
  start();
  clock_->work =
      microseconds(100);  // at each of the looks at the clock: begin, checked, filled, done
  step(0, 9);
  EXPECT_EQ(clock_->slept, microseconds(600));
  EXPECT_EQ(metrics_->overrun_steps.value(), 0U);
  clock_->slept = Duration(0);
  clock_->work = microseconds(400);
  step(0, 9);
  EXPECT_EQ(clock_->slept, Duration(0));
  EXPECT_EQ(metrics_->overrun_steps.value(), 1U);
  EXPECT_EQ(metrics_->overrun_nanoseconds.value(), 300'000U);
}

TEST_F(TimedModelTest, TokensAreAFunctionOfWhatCameBeforeAndNeverTheEnd) {
  start();
  const TokenId first = step(0, 10);
  EXPECT_EQ(step(0, 10), first);
  step(0, 6);
  EXPECT_EQ(step(6, 10), first) << "however it was cut";
  std::vector<TokenId> chosen;
  const ByteTokenizer tokenizer;
  for (tokens_.resize(100, 'x'); chosen.size() < 12;) {
    tokens_[9] = static_cast<TokenId>(chosen.size());
    chosen.push_back(step(0, 10));
    EXPECT_FALSE(tokenizer.is_end_of_generation(chosen.back()));
  }
  EXPECT_GT(std::set(chosen.begin(), chosen.end()).size(), 4U);
}

TEST_F(TimedModelTest, ReceivedKvThatIsRightPasses) {
  start();
  step(0, 9);  // as P would have written it
  step(9, 10, 9);
  EXPECT_TRUE(model_->faults().empty());
  EXPECT_EQ(metrics_->checked_prompts.value(), 1U);
  EXPECT_EQ(metrics_->checked_bytes.value(), 9U * 16 * 4);
}

TEST_F(TimedModelTest, OneWrongByteOfReceivedKvIsAFaultThatNamesIt) {
  start();
  step(0, 9);
  cache_->pool().layers[3][4 * 64 + 17] ^= std::byte{0x80};
  step(9, 10);
  EXPECT_TRUE(model_->faults().empty()) << "nothing was received";
  step(9, 10, 9);
  ASSERT_EQ(model_->faults().size(), 1U);
  EXPECT_EQ(model_->faults()[0].chunk, 0U);
  EXPECT_THAT(model_->faults()[0].text,
              HasSubstr("block 4 is wrong: layer.1.v, token 5 of the prompt, byte 17"));
  EXPECT_EQ(metrics_->faults.value(), 1U);
  step(9, 10);
  EXPECT_TRUE(model_->faults().empty());
}

TEST(ByteTokenizer, TextIsItsBytesAndComesBack) {
  const ByteTokenizer tokenizer;
  std::string back;
  for (const TokenId token : tokenizer.encode("grüße\n", true)) {
    back += tokenizer.piece(token, false);
  }
  EXPECT_EQ(back, "grüße\n");
  EXPECT_EQ(tokenizer.piece(300, false), " <300>");
  EXPECT_EQ(tokenizer.piece(ByteTokenizer::kEnd, false), "");
  EXPECT_EQ(tokenizer.piece(-1, false), "");
}

}  // namespace
}  // namespace baton::engine::timed
