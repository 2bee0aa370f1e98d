// Engines with a prefix cache: what an earlier request left behind is neither computed nor handed
// over again, and every answer is that of an engine that has never seen anything.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "engine/testing/rig.h"

namespace baton::engine {
namespace {

constexpr std::uint32_t kBlockBytes = 2 * 2 * 2 * 4 * 4 * 2;  // of all layers, as in handover_test

EngineOptions caching() {
  EngineOptions options = small_options();
  options.enable_prefix_caching = true;
  options.poison_blocks = true;
  return options;
}

// `shared` tokens of one beginning, then `own` tokens that `seed` draws.
std::vector<TokenId> prompt_of(std::uint32_t shared, std::uint64_t seed, std::uint32_t own) {
  std::vector<TokenId> prompt = make_prompt(99, shared);
  const std::vector<TokenId> rest = make_prompt(1000 + seed, own);
  prompt.insert(prompt.end(), rest.begin(), rest.end());
  return prompt;
}

TEST(PrefixCaching, ARepeatedPromptIsComputedFromItsLastBlockOn) {
  const auto engine = make_fake_engine(caching());
  const Request request = make_request("r", make_prompt(1, 21), 10);
  Answer first, second;
  submit(*engine, request, first);
  first.wait();
  EXPECT_TRUE(all_blocks_free(*engine));
  submit(*engine, request, second);
  second.wait();
  EXPECT_EQ(seen(first), answer_alone(request));
  EXPECT_EQ(seen(second), answer_alone(request));
  EXPECT_EQ(first.last.computed_prompt_tokens, 21U);
  EXPECT_EQ(first.last.cached_prompt_tokens, 0U);
  EXPECT_EQ(second.last.computed_prompt_tokens, 1U);
  EXPECT_EQ(second.last.cached_prompt_tokens, 20U);
  const EngineMetrics& metrics = engine->metrics();
  EXPECT_EQ(metrics.prefix_cache_queries.value(), 42U);
  EXPECT_EQ(metrics.prefix_cache_hits.value(), 20U);
  EXPECT_EQ(metrics.prompt_tokens_computed.value(), 22U);
  EXPECT_EQ(metrics.prompt_tokens_cached.value(), 20U);
  EXPECT_EQ(metrics.prompt_tokens_received.value(), 0U);
}

TEST(PrefixCaching, ARequestOfAnotherSaltComputesTheSamePromptItself) {
  const auto engine = make_fake_engine(caching());
  Request request = make_request("r", make_prompt(1, 21), 10);
  for (const auto& [salt, cached] :
       {std::pair{"one", 0U}, {"one", 20U}, {"other", 0U}, {"", 0U}, {"", 20U}}) {
    SCOPED_TRACE(salt);
    request.cache_salt = salt;
    Answer answer;
    submit(*engine, request, answer);
    answer.wait();
    EXPECT_EQ(seen(answer), answer_alone(request));
    EXPECT_EQ(answer.last.cached_prompt_tokens, cached);
  }
}

TEST(PrefixCaching, WhatWasGeneratedIsThereForTheNextTurn) {
  const auto engine = make_fake_engine(caching());
  Request turn = make_request("r", make_prompt(1, 14), 9);
  turn.sampling.ignore_eos = true;
  Answer first, second;
  submit(*engine, turn, first);
  first.wait();
  turn.prompt.insert(turn.prompt.end(), first.tokens.begin(), first.tokens.end());
  turn.prompt.push_back(7);
  submit(*engine, turn, second);
  second.wait();
  EXPECT_EQ(seen(second), answer_alone(turn));
  EXPECT_EQ(second.last.cached_prompt_tokens, 20U);  // 14 and 8: the last token has no KV
}

// Many that begin alike, at once, in a pool that has to preempt and to forget.
TEST(PrefixCaching, AFullPoolForgetsAndAnswersAsBefore) {
  EngineOptions options = caching();
  options.num_blocks = 20;
  FakeModel* model = nullptr;
  const auto engine = make_fake_engine(options, nullptr, "", Role::kBoth, &model);
  StepGate gate;
  gate.hold(*model);
  std::vector<Request> requests;
  std::vector<std::unique_ptr<Answer>> answers;
  for (std::uint32_t i = 0; i < 40; ++i) {
    requests.push_back(
        make_request(fmt::format("r{}", i), prompt_of(i % 3 * 9, i % 7, 1 + i % 13), 12));
    if (i % 2 == 1) requests.back().sampling = seeded(12, i);
    answers.push_back(std::make_unique<Answer>());
    submit(*engine, requests.back(), *answers.back());
  }
  gate.open();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(i);
    answers[i]->wait();
    EXPECT_EQ(seen(*answers[i]), answer_alone(requests[i]));
  }
  EXPECT_GT(engine->metrics().preemptions.value(), 0U);
  EXPECT_GT(engine->metrics().prefix_cache_hits.value(), 0U);
  EXPECT_TRUE(all_blocks_free(*engine));
}

class PrefixPairTest : public ::testing::Test {
 protected:
  void start(EngineOptions p, EngineOptions d) {
    prefill_ = make_fake_engine(p, &hub_, "p", Role::kProducer, &prefill_model_);
    decode_ = make_fake_engine(d, &hub_, "d", Role::kConsumer);
  }
  Request prefill_leg(const Request& request, TransferId transfer) {
    Request leg = request;
    leg.remote_decode = RemoteDecode{.transfer = transfer};
    return leg;
  }
  Request decode_leg(const Request& request, TransferId transfer) {
    Request leg = request;
    leg.remote_prefill = RemotePrefill{.transfer = transfer, .peer = {"127.0.0.1", 1, "p", 0}};
    return leg;
  }
  struct Legs {
    Answer prefill, decode;
  };
  // Both legs, to their ends; D's answer must be that of one engine.
  std::unique_ptr<Legs> run(const Request& request) {
    auto legs = std::make_unique<Legs>();
    const TransferId transfer{1, ++transfers_};
    submit(*decode_, decode_leg(request, transfer), legs->decode);
    submit(*prefill_, prefill_leg(request, transfer), legs->prefill);
    legs->decode.wait();
    legs->prefill.wait();
    EXPECT_EQ(seen(legs->decode), answer_alone(request));
    return legs;
  }
  void expect_whole() {
    EXPECT_TRUE(all_blocks_free(*prefill_));
    EXPECT_TRUE(all_blocks_free(*decode_));
  }

  FakeHub hub_;
  std::uint64_t transfers_ = 0;
  FakeModel* prefill_model_ = nullptr;
  std::unique_ptr<Engine> prefill_, decode_;
};

// vllm#48758: the blocks behind a hit landed one block off.
TEST_F(PrefixPairTest, B15_APartialPrefixHitMovesTheMissingBlocksToTheirPlaces) {
  start(small_options(), caching());
  for (const std::uint32_t shared : {0U, 3U, 4U, 10U, 16U, 17U}) {
    SCOPED_TRACE(shared);
    const std::uint64_t before = hub_.bytes_moved();
    const auto legs = run(make_request("r", prompt_of(shared, shared, 11), 8));
    const std::uint32_t cached = legs->decode.last.cached_prompt_tokens;
    EXPECT_EQ(cached % 4, 0U);
    EXPECT_EQ(hub_.bytes_moved() - before, ((shared + 11 + 3) / 4 - cached / 4) * kBlockBytes);
    EXPECT_EQ(legs->decode.last.computed_prompt_tokens, 0U);
    EXPECT_EQ(legs->prefill.last.computed_prompt_tokens, shared + 11);
  }
  EXPECT_GT(decode_->metrics().prefix_cache_hits.value(), 0U);
  expect_whole();
}

TEST_F(PrefixPairTest, WhatWasReceivedIsCachedForTheNextAndCountsAsReceivedOnce) {
  start(caching(), caching());
  const Request request = make_request("r", make_prompt(3, 22), 6);
  const auto first = run(request);
  const auto second = run(request);
  EXPECT_EQ(first->decode.last.cached_prompt_tokens, 0U);
  EXPECT_EQ(second->decode.last.cached_prompt_tokens, 20U);
  EXPECT_EQ(second->prefill.last.computed_prompt_tokens, 2U);
  EXPECT_EQ(hub_.bytes_moved(), (6 + 1) * kBlockBytes);
  const EngineMetrics& d = decode_->metrics();
  EXPECT_EQ(d.prompt_tokens_received.value(), 22U + 2U);
  EXPECT_EQ(d.prompt_tokens_cached.value(), 20U);
  EXPECT_EQ(d.prompt_tokens_computed.value(), 0U);
  expect_whole();
}

TEST_F(PrefixPairTest, PTellsOfWhatItHadBeforeItComputesTheRest) {
  start(caching(), small_options());
  (void)run(make_request("a", prompt_of(16, 1, 2), 4));
  std::size_t told_before_computing = 0;
  prefill_model_->before_forward = [&](auto) {
    if (told_before_computing == 0) told_before_computing = hub_.get({1, 2}).pieces.size();
  };
  (void)run(make_request("b", prompt_of(16, 2, 9), 4));
  EXPECT_EQ(told_before_computing, 1U);
  const auto pieces = hub_.get({1, 2}).pieces;
  EXPECT_EQ(pieces.front().range, TokenRange({0, 16}));
  EXPECT_EQ(pieces.back().range, TokenRange({16, 25}));
  expect_whole();
}

TEST_F(PrefixPairTest, OnlyWhatPMayWriteIntoIsQuarantined) {
  start(caching(), caching());
  (void)run(make_request("a", prompt_of(16, 1, 2), 4));
  hub_.set_automatic(false);
  Answer d;
  const Request request = make_request("b", prompt_of(16, 2, 9), 4);
  const TransferId transfer{1, 77};
  submit(*decode_, decode_leg(request, transfer), d);
  ASSERT_TRUE(hub_.wait(transfer, [](const auto& t) { return t.registration.has_value(); }));
  EXPECT_EQ(hub_.get(transfer).registration->range, TokenRange({16, 25}));
  EXPECT_EQ(decode_->blocks().used, 7U);
  decode_->abort("b");
  d.wait();
  EXPECT_EQ(decode_->blocks().quarantined, 3U);
  EXPECT_EQ(decode_->blocks().used, 0U);
  hub_.release(transfer);
  EXPECT_TRUE(all_blocks_free(*decode_));
  hub_.set_automatic(true);
  EXPECT_EQ(run(make_request("c", prompt_of(16, 3, 9), 4))->decode.last.cached_prompt_tokens, 16U);
}

TEST_F(PrefixPairTest, AFailedHandOverIsComputedFromWhatWasThere) {
  EngineOptions d_options = caching();
  d_options.load_failure_policy = LoadFailurePolicy::kRecompute;
  start(caching(), d_options);
  (void)run(make_request("a", prompt_of(16, 1, 2), 4));
  hub_.set_automatic(false);
  for (const bool released : {true, false}) {
    SCOPED_TRACE(released);
    const TransferId transfer{2, released ? 1U : 2U};
    const Request request = make_request("b", prompt_of(16, released ? 5 : 6, 9), 4);
    Answer d;
    submit(*decode_, decode_leg(request, transfer), d);
    ASSERT_TRUE(hub_.wait(transfer, [](const auto& t) { return t.registration.has_value(); }));
    hub_.fail(transfer, Cause::kPeerDied, released);
    d.wait();
    EXPECT_EQ(seen(d), answer_alone(request));
    EXPECT_EQ(d.last.computed_prompt_tokens, 9U);
    if (!released) hub_.release(transfer);
    EXPECT_TRUE(all_blocks_free(*decode_));
  }
}

}  // namespace
}  // namespace baton::engine
