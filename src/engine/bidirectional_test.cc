// Bidirectional pull over the fakes: what D generated is read back as the beginning of the next
// prompt.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "engine/testing/rig.h"

namespace baton::engine {
namespace {

using ::testing::HasSubstr;

EngineOptions both_ways(EngineOptions options = small_options()) {
  options.agent.emplace();
  options.agent->mode = Mode::kPull;
  options.bidirectional = true;
  return options;
}

// 31 tokens in the end, of which the last one has no KV: 7 whole blocks of 4.
Request first_request(std::uint64_t seed = 1) {
  Request request = make_request("r", make_prompt(seed, 21), 10);
  request.sampling.ignore_eos = true;
  return request;
}

class BidirectionalTest : public ::testing::Test {
 protected:
  void start(const EngineOptions& d = both_ways(), const EngineOptions& p = both_ways()) {
    first_.high = ++second_.high;
    prefill_ = make_fake_engine(p, &hub_, "p", Role::kBoth);
    decode_ = make_fake_engine(d, &hub_, "d", Role::kBoth);
  }
  static Output first_output(Answer& answer) {
    Output told;
    EXPECT_TRUE(answer.wait_for([&told](const Answer& a) {
      if (a.outputs.empty()) return false;
      told = a.outputs.front();
      return true;
    }));
    return told;
  }
  // P, then D; D keeps what it has at the end.
  void turn(Request request, TransferId transfer, Answer& p, Answer& d) {
    Request leg = request;
    leg.remote_decode = RemoteDecode{transfer, FirstToken::kPrefill};
    submit(*prefill_, leg, p);
    leg = request;
    leg.remote_prefill = RemotePrefill{.transfer = transfer, .peer = {"127.0.0.1", 1, "p", 0}};
    leg.remote_prefill->source = first_output(p).source;
    leg.keep_blocks = true;
    submit(*decode_, leg, d);
  }
  Output::Kept first_turn(const Request& request) {
    Answer p, d;
    turn(request, first_, p, d);
    d.wait();
    p.wait();
    EXPECT_EQ(seen(d), answer_alone(request));
    EXPECT_TRUE(d.last.kept.has_value());
    said_ = d.tokens;
    return d.last.kept.value_or(Output::Kept{});
  }
  // The first prompt, the answer, and what the user says then.
  Request next(const Request& request, std::uint32_t more) const {
    Request second = request;
    second.id = "second";
    second.prompt.insert(second.prompt.end(), said_.begin(), said_.end());
    for (const TokenId token : make_prompt(99, more)) second.prompt.push_back(token);
    return second;
  }
  Request reading(Request request, const Output::Kept& kept) const {
    request.remote_decode = RemoteDecode{second_, FirstToken::kPrefill};
    request.remote_prefill = RemotePrefill{.transfer = kept.transfer,
                                           .peer = {"127.0.0.1", 1, "d", 0},
                                           .source = kept.source,
                                           .kept_tokens = kept.tokens};
    return request;
  }
  void hand_over(const Request& request, Answer& p, Answer& d) {
    Request leg = request;
    leg.remote_prefill = RemotePrefill{.transfer = second_, .peer = {"127.0.0.1", 1, "p", 0}};
    leg.remote_prefill->source = first_output(p).source;
    submit(*decode_, leg, d);
    d.wait();
    p.wait();
  }
  // Each of 7 blocks; the oldest goes for the third.
  void expect_two_of_three_answers_kept() {
    for (const std::uint32_t turn : {1U, 2U, 3U}) {
      Request request = first_request(turn);
      first_turn(request);
      first_.high = ++second_.high;
      EXPECT_TRUE(eventually([&] { return decode_->blocks().used == std::min(turn, 2U) * 7; }));
    }
  }
  void expect_whole() {
    EXPECT_TRUE(all_blocks_free(*prefill_));
    EXPECT_TRUE(all_blocks_free(*decode_));
  }

  FakeHub hub_;
  TransferId first_{0, 1}, second_{0, 2};  // new at each start()
  std::vector<TokenId> said_;
  std::unique_ptr<Engine> prefill_, decode_;
};

TEST_F(BidirectionalTest, TheSecondTurnComputesOnlyWhatIsNew) {
  start();
  Request request = first_request();
  const Output::Kept kept = first_turn(request);
  // 21 and 10, of which the last token has no KV: 7 whole blocks of 4.
  EXPECT_EQ(kept.source.range, TokenRange({0, 28}));
  EXPECT_EQ(decode_->blocks().used, 7U);
  const Request second = next(request, 9);
  Answer p, d;
  submit(*prefill_, reading(second, kept), p);
  hand_over(second, p, d);
  EXPECT_EQ(seen(d), answer_alone(second));
  EXPECT_EQ(p.last.computed_prompt_tokens, 21U + 10U + 9U - 28U);
  EXPECT_EQ(d.last.computed_prompt_tokens, 0U);
  EXPECT_EQ(prefill_->metrics().prefix_tokens_read.value(), 28U);
  EXPECT_EQ(prefill_->metrics().prompt_tokens_received.value(), 28U);
  expect_whole();
}

// P has the first prompt itself, D the answer: P reads the answer, and D gets back what it lacks.
TEST_F(BidirectionalTest, WithPrefixCachesOnlyWhatTheOtherLacksMoves) {
  EngineOptions caching = both_ways();
  caching.enable_prefix_caching = true;
  caching.poison_blocks = true;
  start(caching, caching);
  Request request = first_request();
  const Output::Kept kept = first_turn(request);
  const std::uint64_t first = hub_.bytes_moved();
  const std::uint64_t block_bytes = first / 6;
  const Request second = next(request, 9);
  Answer p, d;
  submit(*prefill_, reading(second, kept), p);
  hand_over(second, p, d);
  EXPECT_EQ(seen(d), answer_alone(second));
  EXPECT_EQ(first_output(p).cached_prompt_tokens, 20U);
  EXPECT_EQ(p.last.cached_prompt_tokens, 20U);
  EXPECT_EQ(prefill_->metrics().prefix_tokens_read.value(), 8U);
  EXPECT_EQ(p.last.computed_prompt_tokens, 40U - 28U);
  EXPECT_EQ(d.last.cached_prompt_tokens, 28U);
  EXPECT_EQ(hub_.bytes_moved() - first, (2U + 3U) * block_bytes);
  expect_whole();
}

// It has computed the same prompt meanwhile: the keeper is told, and keeps it no longer.
TEST_F(BidirectionalTest, NothingIsReadOfWhatPHasItself) {
  EngineOptions caching = both_ways();
  caching.enable_prefix_caching = true;
  start(both_ways(), caching);
  Request request = first_request();
  const Output::Kept kept = first_turn(request);
  const Request second = next(request, 9);
  Answer before;
  submit(*prefill_, second, before);
  before.wait();
  Answer p, d;
  submit(*prefill_, reading(second, kept), p);
  hand_over(second, p, d);
  EXPECT_EQ(seen(d), answer_alone(second));
  EXPECT_EQ(p.last.cached_prompt_tokens, 36U);
  EXPECT_EQ(p.last.computed_prompt_tokens, 4U);
  EXPECT_EQ(prefill_->metrics().prefix_tokens_read.value(), 0U);
  expect_whole();
}

// The template, or the tokenizer, may have made another beginning of it.
TEST_F(BidirectionalTest, AsMuchIsReadAsIsTheSame) {
  for (const std::uint32_t same : {0U, 3U, 4U, 15U, 28U}) {
    SCOPED_TRACE(same);
    start();
    Request request = first_request();
    const Output::Kept kept = first_turn(request);
    Request second = next(request, 9);
    if (same < 28) second.prompt[same] = (second.prompt[same] + 1) % 64;
    Answer p, d;
    submit(*prefill_, reading(second, kept), p);
    hand_over(second, p, d);
    EXPECT_EQ(seen(d), answer_alone(second));
    EXPECT_EQ(p.last.computed_prompt_tokens, second.prompt.size() - same / 4 * 4);
    EXPECT_TRUE(all_blocks_free(*prefill_));
    decode_.reset();
    prefill_.reset();
  }
}

// The same question again, or an earlier turn. Of the last token the logits are wanted.
TEST_F(BidirectionalTest, OfAShorterPromptAllButTheLastTokenIsRead) {
  for (const std::uint32_t size : {10U, 28U, 29U}) {
    SCOPED_TRACE(size);
    start();
    const Request request = first_request();
    const Output::Kept kept = first_turn(request);
    Request second = next(request, 0);
    second.prompt.resize(size);
    Answer p, d;
    submit(*prefill_, reading(second, kept), p);
    hand_over(second, p, d);
    EXPECT_EQ(seen(d), answer_alone(second));
    EXPECT_EQ(p.last.computed_prompt_tokens, size - (size - 1) / 4 * 4);
    expect_whole();
    decode_.reset();
    prefill_.reset();
  }
}

// An address that the agent may not connect to, say: no event follows that would wake the engine.
TEST_F(BidirectionalTest, AReadThatTheAgentRefusesIsComputedAtOnce) {
  start();
  const Request request = first_request();
  const Output::Kept kept = first_turn(request);
  const Request second = next(request, 9);
  hub_.refuse(FakeHub::Call::kRegister, 1, Errc::kInvalidArgument);
  Answer p, d;
  submit(*prefill_, reading(second, kept), p);
  hand_over(second, p, d);
  EXPECT_EQ(seen(d), answer_alone(second));
  EXPECT_EQ(p.last.computed_prompt_tokens, second.prompt.size());
  EXPECT_EQ(prefill_->metrics().prefix_reads_failed.value(), 1U);
  expect_whole();
}

TEST_F(BidirectionalTest, AFailedReadIsComputedWhateverThePolicy) {
  start();
  Request request = first_request();
  const Output::Kept kept = first_turn(request);
  const Request second = next(request, 9);
  for (const bool released : {true, false}) {
    hub_.set_automatic(false);
    Answer p, d;
    Output::Kept gone = kept;
    gone.transfer.low += released ? 1 : 2;
    Request leg = reading(second, gone);
    leg.remote_decode->transfer = {7, gone.transfer.low};
    submit(*prefill_, leg, p);
    ASSERT_TRUE(hub_.wait(gone.transfer, [](const auto& t) { return t.registration.has_value(); }));
    hub_.fail(gone.transfer, Cause::kUnknownTransfer, released);
    EXPECT_TRUE(first_output(p).prefilled);
    hub_.set_automatic(true);
    prefill_->abort("second");
    p.wait();
    EXPECT_EQ(p.last.computed_prompt_tokens, second.prompt.size());
    if (!released) hub_.release(gone.transfer);
    EXPECT_TRUE(all_blocks_free(*prefill_));
  }
  EXPECT_EQ(prefill_->metrics().prefix_reads_failed.value(), 2U);
}

TEST_F(BidirectionalTest, AnAbortWhileItReadsKeepsItsBlocksInQuarantine) {
  start();
  Request request = first_request();
  const Output::Kept kept = first_turn(request);
  hub_.set_automatic(false);
  Answer p;
  Output::Kept other = kept;
  other.transfer.low += 1;
  submit(*prefill_, reading(next(request, 9), other), p);
  ASSERT_TRUE(hub_.wait(other.transfer, [](const auto& t) { return t.registration.has_value(); }));
  prefill_->abort("second");
  p.wait();
  EXPECT_EQ(prefill_->blocks().quarantined, 10U);
  EXPECT_EQ(prefill_->blocks().used, 0U);
  hub_.release(other.transfer);
  EXPECT_TRUE(all_blocks_free(*prefill_));
}

// Kept blocks are worth less than a request.
TEST_F(BidirectionalTest, WhatIsKeptGivesWay) {
  EngineOptions d = both_ways();
  d.num_blocks = 16;
  start(d);
  Request request = first_request();
  first_turn(request);
  EXPECT_EQ(decode_->blocks().used, 7U);
  Answer other;
  const Request large = make_request("large", make_prompt(5, 48), 8);
  submit(*decode_, large, other);
  other.wait();
  EXPECT_EQ(seen(other), answer_alone(large));
  expect_whole();
}

TEST_F(BidirectionalTest, NoMoreIsKeptThanMayBeAndTheOldestGoes) {
  EngineOptions d = both_ways();
  d.kept_blocks_max = 15;  // of answers of 7 blocks, two
  start(d);
  expect_two_of_three_answers_kept();
  EXPECT_EQ(decode_->metrics().blocks_kept.value(), 14);
  Request large = make_request("r", make_prompt(4, 60), 10);
  large.keep_blocks = true;
  large.sampling.ignore_eos = true;
  Answer answer;
  submit(*decode_, large, answer);
  answer.wait();
  EXPECT_FALSE(answer.last.kept.has_value());
}

// Each takes a row of the agent's transfers, and hand-overs need rows as well.
TEST_F(BidirectionalTest, NoMoreAnswersAreKeptThanHalfOfTheTransfers) {
  EngineOptions d = both_ways();
  d.agent->transfers_max = 4;
  start(d);
  expect_two_of_three_answers_kept();
}

// A block that several answers begin with is one block.
TEST_F(BidirectionalTest, WhatAnswersShareIsKeptOnce) {
  EngineOptions d = both_ways();
  d.enable_prefix_caching = true;
  d.kept_blocks_max = 9;  // two answers of 7 blocks, of which 5 are of the prompt of both
  start(d);
  Request request = make_request("r", make_prompt(1, 21), 10);
  request.keep_blocks = request.sampling.ignore_eos = true;
  for (const std::uint32_t blocks : {7U, 9U}) {
    Answer answer;
    submit(*decode_, request, answer);
    answer.wait();
    EXPECT_TRUE(answer.last.kept.has_value());
    EXPECT_TRUE(eventually([&] { return decode_->blocks().used == blocks; }));
    EXPECT_EQ(decode_->metrics().blocks_kept.value(), blocks);
  }
  Answer third;  // now the oldest goes, and with it only what is its own
  submit(*decode_, request, third);
  third.wait();
  EXPECT_TRUE(eventually([&] { return decode_->blocks().used == 9U; }));
  EXPECT_EQ(decode_->metrics().blocks_kept.value(), 9);
}

// Blocks that come back are those that nobody else uses: as many answers go as the room needs.
TEST_F(BidirectionalTest, WhatAnswersShareGivesWayWithTheLastOfThem) {
  EngineOptions d = both_ways();
  d.enable_prefix_caching = true;
  d.num_blocks = 20;
  d.kept_blocks_max = 20;
  start(d);
  Request request = make_request("r", make_prompt(1, 21), 10);
  request.keep_blocks = request.sampling.ignore_eos = true;
  for (int i = 0; i < 3; ++i) {
    Answer answer;
    submit(*decode_, request, answer);
    answer.wait();
    EXPECT_TRUE(answer.last.kept.has_value());
  }
  EXPECT_EQ(decode_->metrics().blocks_kept.value(), 11);
  Answer other;
  const Request large = make_request("large", make_prompt(5, 64), 8);
  submit(*decode_, large, other);
  other.wait();
  EXPECT_EQ(seen(other), answer_alone(large));
  expect_whole();
  EXPECT_TRUE(eventually([&] { return decode_->metrics().blocks_kept.value() == 0; }));
}

TEST_F(BidirectionalTest, OfFewTokensThePromptIsComputed) {
  EngineOptions p = both_ways();
  for (const auto& [threshold, read] : {std::pair{28U, 28U}, {29U, 0U}}) {
    SCOPED_TRACE(threshold);
    p.kv_recompute_threshold = threshold;
    start(both_ways(), p);
    Request request = first_request();
    const Output::Kept kept = first_turn(request);
    const Request second = next(request, 9);
    Answer answer, d;
    submit(*prefill_, reading(second, kept), answer);
    hand_over(second, answer, d);
    EXPECT_EQ(seen(d), answer_alone(second));
    EXPECT_EQ(prefill_->metrics().prefix_tokens_read.value(), read);
    EXPECT_EQ(answer.last.computed_prompt_tokens, 40U - read);
    EXPECT_TRUE(eventually([&] { return decode_->metrics().blocks_kept.value() == 0; }));
  }
}

// The client of a request never hears of what could not be read for it.
TEST_F(BidirectionalTest, WhatCannotBeClaimedOrIsBeingReadIsComputed) {
  start();
  Request request = first_request();
  const Output::Kept kept = first_turn(request);
  hub_.set_automatic(false);
  hub_.refuse(FakeHub::Call::kClaim, 1);
  Answer reads, computes, d;
  submit(*prefill_, reading(next(request, 9), kept), reads);
  ASSERT_TRUE(hub_.wait(kept.transfer, [](const auto& t) { return t.registration.has_value(); }));
  Request other = reading(next(request, 9), kept);
  other.id = "other";
  other.remote_decode->transfer.low += 1;
  submit(*prefill_, other, computes);
  EXPECT_TRUE(first_output(computes).prefilled);
  prefill_->abort("other");
  prefill_->abort("second");
  const TransferId ours = other.remote_decode->transfer;
  ASSERT_TRUE(hub_.wait(ours, [](const auto& t) { return t.cancelled && t.held.has_value(); }));
  hub_.drain(ours);
  computes.wait();
  reads.wait();
  EXPECT_EQ(computes.last.computed_prompt_tokens, other.prompt.size());
}

// D goes while P still reads the beginning: P's blocks are being read into, and nobody else's yet.
TEST_F(BidirectionalTest, AHandOverThatEndsBeforeTheReadLeavesItsBlocksInQuarantine) {
  for (const bool caching : {false, true}) {
    SCOPED_TRACE(caching);
    EngineOptions p_options = both_ways();
    p_options.enable_prefix_caching = caching;
    hub_.set_automatic(true);
    start(both_ways(), p_options);
    Request request = first_request();
    const Output::Kept kept = first_turn(request);
    hub_.set_automatic(false);
    Answer p;
    submit(*prefill_, reading(next(request, 9), kept), p);
    ASSERT_TRUE(hub_.wait(kept.transfer, [](const auto& t) { return t.registration.has_value(); }));
    hub_.end_prefill(second_, Cause::kCancelledByPeer);
    p.wait();
    EXPECT_EQ(p.last.finish, FinishReason::kError);
    EXPECT_EQ(prefill_->blocks().used, 0U);
    EXPECT_EQ(prefill_->blocks().quarantined, caching ? 5U : 10U);
    hub_.release(kept.transfer);
    hub_.drain(kept.transfer);  // the keeper
    expect_whole();
  }
}

TEST_F(BidirectionalTest, NothingIsKeptOnceItDrains) {
  start();
  decode_->drain();
  const Request request = make_request("r", make_prompt(1, 21), 10);
  Request keeping = request;
  keeping.keep_blocks = true;
  Answer answer;
  submit(*decode_, keeping, answer);
  answer.wait();
  EXPECT_EQ(seen(answer), answer_alone(request));
  EXPECT_FALSE(answer.last.kept.has_value());
}

TEST_F(BidirectionalTest, IsRefusedWhereItCannotBe) {
  start();
  Request keep = make_request("r", make_prompt(1, 21), 10);
  keep.keep_blocks = true;
  FakeHub hub;
  EngineOptions off = both_ways();
  off.bidirectional = false;
  const auto without = make_fake_engine(off, &hub, "d", Role::kBoth);
  EXPECT_THAT(without->submit(keep, OutputCallback()).error().message,
              HasSubstr("keep_blocks), and bidirectional_kv_xfer is off on this instance"));
  const std::vector<TokenId> tokens = make_prompt(1, 8);
  Output::Kept kept{{5, 5}, {{0, 8}, {{1, 2}}}, tokens};
  const auto message = [&](const Output::Kept& k) {
    return prefill_->submit(reading(keep, k), OutputCallback()).error().message;
  };
  keep.keep_blocks = false;
  Output::Kept wrong = kept;
  wrong.source.range.end = 7;
  EXPECT_THAT(message(wrong), HasSubstr("hold tokens [0, 7), and whole blocks of 4"));
  wrong = kept;
  wrong.tokens.pop_back();
  EXPECT_THAT(message(wrong), HasSubstr("(remote_token_ids) are 7, and their blocks hold 8"));
  wrong = kept;
  wrong.source.block_ids = {{1}};
  EXPECT_THAT(message(wrong), HasSubstr("are 1, and 8 tokens in blocks of 4 need 2"));
  EXPECT_THAT(without->submit(reading(keep, kept), OutputCallback()).error().message,
              HasSubstr("to be read (kept), and bidirectional_kv_xfer is off on this instance"));
}

}  // namespace
}  // namespace baton::engine
