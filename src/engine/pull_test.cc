// Pull over the fakes: P tells which blocks hold a finished prompt, D registers with them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>

#include "engine/testing/rig.h"

namespace baton::engine {
namespace {

using ::testing::HasSubstr;

const TransferId kPulled{0xABCD, 1};

EngineOptions pulling(EngineOptions options, PullLoop loop = PullLoop::kThreaded) {
  options.agent.emplace();
  options.agent->mode = Mode::kPull;
  options.pull_loop = loop;
  return options;
}

// D's leg, from what P announced.
Request decode_leg(const Request& request, TransferId transfer, FirstToken first,
                   const Output& announced) {
  Request leg = request;
  leg.remote_prefill = RemotePrefill{.transfer = transfer,
                                     .peer = {"127.0.0.1", 1, "p", 0},
                                     .first_token = first,
                                     .source = announced.source};
  if (!announced.tokens.empty()) leg.remote_prefill->announced_token = announced.tokens.front();
  return leg;
}

class PullTest : public ::testing::Test {
 protected:
  void start(EngineOptions d) {
    prefill_ = make_fake_engine(pulling(small_options()), &hub_, "p", Role::kProducer);
    decode_ = make_fake_engine(std::move(d), &hub_, "d", Role::kConsumer, &decode_model_);
  }
  // What P announces once the prompt is computed.
  static Output announcement(Answer& p) {
    Output told;
    EXPECT_TRUE(p.wait_for([&told](const Answer& answer) {
      if (answer.outputs.empty()) return false;
      told = answer.outputs.front();
      return true;
    }));
    EXPECT_TRUE(told.prefilled);
    return told;
  }
  bool waited(TransferId transfer) {
    return hub_.wait(transfer, [](const auto& t) { return t.waited; });
  }
  void expect_whole() {
    EXPECT_TRUE(all_blocks_free(*prefill_));
    EXPECT_TRUE(all_blocks_free(*decode_));
  }

  FakeHub hub_;
  FakeModel* decode_model_ = nullptr;
  std::unique_ptr<Engine> prefill_, decode_;
};

class PullLoopTest : public PullTest,
                     public ::testing::WithParamInterface<std::tuple<PullLoop, FirstToken>> {};

TEST_P(PullLoopTest, ThePairAnswersAsOneProcess) {
  const auto [loop, first] = GetParam();
  EngineOptions d = pulling(small_options(), loop);
  d.poison_blocks = true;
  d.num_blocks = 40;  // some are preempted
  start(d);
  constexpr std::uint32_t kRequests = 16;
  std::vector<Request> requests;
  std::vector<std::unique_ptr<Answer>> p_answers, d_answers;
  for (std::uint32_t i = 0; i < kRequests; ++i) {
    requests.push_back(make_request(fmt::format("r{}", i), make_prompt(i + 1, 1 + i * 7 % 50), 20));
    if (i % 2 == 1) requests.back().sampling = seeded(20, i);
    p_answers.push_back(std::make_unique<Answer>());
    d_answers.push_back(std::make_unique<Answer>());
    submit(*prefill_, prefill_leg(requests[i], {1, i + 1}, first), *p_answers[i]);
  }
  for (std::uint32_t i = 0; i < kRequests; ++i) {
    const Output told = announcement(*p_answers[i]);
    submit(*decode_, decode_leg(requests[i], {1, i + 1}, first, told), *d_answers[i]);
  }
  for (std::uint32_t i = 0; i < kRequests; ++i) {
    SCOPED_TRACE(i);
    p_answers[i]->wait();
    d_answers[i]->wait();
    EXPECT_EQ(seen(*d_answers[i]), answer_alone(requests[i]));
    EXPECT_EQ(p_answers[i]->last.finish, FinishReason::kHandedOver);
    EXPECT_EQ(d_answers[i]->last.registrations, 1U);
    EXPECT_EQ(hub_.get({1, i + 1}).waited, loop == PullLoop::kEngine);
  }
  EXPECT_EQ(decode_->metrics().registrations_withdrawn.value(), 0U);
  EXPECT_EQ(hub_.open_transfers(), 0U);
  expect_whole();
}

INSTANTIATE_TEST_SUITE_P(
    , PullLoopTest,
    ::testing::Combine(::testing::Values(PullLoop::kThreaded, PullLoop::kEngine),
                       ::testing::Values(FirstToken::kPrefill, FirstToken::kDecode)),
    [](const auto& info) {
      return fmt::format("{}{}",
                         std::get<0>(info.param) == PullLoop::kEngine ? "Engine" : "Threaded",
                         std::get<1>(info.param) == FirstToken::kPrefill ? "Prefill" : "Decode");
    });

TEST_F(PullTest, PAnnouncesTheBlocksOfTheWholePromptAndHoldsThem) {
  hub_.set_automatic(false);
  start(pulling(small_options()));
  Answer p;
  const Request request = make_request("r", make_prompt(1, 14), 6);
  submit(*prefill_, prefill_leg(request, kPulled, FirstToken::kPrefill), p);
  const Output told = announcement(p);
  ASSERT_TRUE(told.source.has_value());
  EXPECT_EQ(told.source->range, TokenRange({0, 14}));
  ASSERT_EQ(told.source->block_ids.size(), 1U);
  EXPECT_EQ(told.source->block_ids[0].size(), 4U);
  EXPECT_EQ(prefill_->blocks().used, 4U);
  Answer d;
  submit(*decode_, decode_leg(request, kPulled, FirstToken::kPrefill, told), d);
  ASSERT_TRUE(hub_.wait(kPulled, [](const auto& t) { return t.registration.has_value(); }));
  EXPECT_EQ(hub_.get(kPulled).registration->source->block_ids, told.source->block_ids);
  EXPECT_EQ(prefill_->blocks().used, 4U);
  hub_.complete(kPulled);
  d.wait();
  EXPECT_EQ(seen(d), answer_alone(request));
  p.wait();
  expect_whole();
}

TEST_F(PullTest, TheAnnouncedFirstTokenCountsWhereTheEndCarriesNone) {
  hub_.keep_first_token();
  start(pulling(small_options()));
  Answer p, d;
  const Request request = make_request("r", make_prompt(1, 14), 6);
  submit(*prefill_, prefill_leg(request, kPulled, FirstToken::kPrefill), p);
  submit(*decode_, decode_leg(request, kPulled, FirstToken::kPrefill, announcement(p)), d);
  d.wait();
  EXPECT_EQ(seen(d), answer_alone(request));
  EXPECT_EQ(d.last.computed_prompt_tokens, 0U);
  p.wait();
}

// As published: whoever decodes waits, too.
TEST_F(PullTest, TheEngineLoopStandsStillUntilTheReadsArePosted) {
  hub_.set_automatic(false);
  start(pulling(small_options(), PullLoop::kEngine));
  Answer p, d, other;
  const Request request = make_request("r", make_prompt(1, 14), 6);
  const Request local = make_request("local", make_prompt(2, 9), 6);
  submit(*prefill_, prefill_leg(request, kPulled, FirstToken::kPrefill), p);
  const Output told = announcement(p);
  submit(*decode_, decode_leg(request, kPulled, FirstToken::kPrefill, told), d);
  ASSERT_TRUE(waited(kPulled));
  submit(*decode_, local, other);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // a loop that goes on has gone on
  EXPECT_TRUE(hub_.get(kPulled).waiting);
  EXPECT_EQ(decode_->metrics().steps.value(), 0U);
  hub_.post(kPulled);
  other.wait();  // posted, and not read yet
  EXPECT_EQ(d.finishes, 0);
  EXPECT_GT(decode_->metrics().pull_posting_seconds.sum(), 0.0);
  EXPECT_EQ(decode_->metrics().pull_posting_timeouts.value(), 0U);
  hub_.complete(kPulled);
  d.wait();
  EXPECT_EQ(seen(d), answer_alone(request));
  p.wait();
  expect_whole();
}

TEST_F(PullTest, TheEngineLoopGoesOnWhereNothingIsPosted) {
  hub_.set_automatic(false);
  start(pulling(small_options(), PullLoop::kEngine));
  Answer p, d, other;
  const Request request = make_request("r", make_prompt(1, 14), 6);
  submit(*prefill_, prefill_leg(request, kPulled, FirstToken::kPrefill), p);
  submit(*decode_, decode_leg(request, kPulled, FirstToken::kPrefill, announcement(p)), d);
  ASSERT_TRUE(waited(kPulled));
  submit(*decode_, make_request("local", make_prompt(2, 9), 6), other);
  other.wait();
  EXPECT_FALSE(hub_.get(kPulled).posted);
  EXPECT_EQ(decode_->metrics().pull_posting_timeouts.value(), 1U);
  hub_.fail(kPulled, Cause::kPeerSilent, true);
  d.wait();
  EXPECT_EQ(d.last.finish, FinishReason::kError);
  p.wait();
  expect_whole();
}

// No event follows it that would wake the engine: whoever waits for its blocks has them at once.
TEST_F(PullTest, ARefusedRegistrationLeavesItsBlocksToTheNext) {
  EngineOptions options = pulling(small_options());
  options.num_blocks = 6;
  start(options);
  StepGate gate;
  gate.hold(*decode_model_);
  Answer warm, p, d, other;
  submit(*decode_, make_request("warm", make_prompt(3, 3), 1), warm);
  const Request request = make_request("r", make_prompt(1, 14), 6);  // 4 blocks
  const Request next = make_request("next", make_prompt(2, 9), 6);   // 3 blocks
  submit(*prefill_, prefill_leg(request, kPulled, FirstToken::kPrefill), p);
  submit(*decode_, decode_leg(request, kPulled, FirstToken::kPrefill, announcement(p)), d);
  submit(*decode_, next, other);
  hub_.refuse(FakeHub::Call::kRegister, 1, Errc::kInvalidArgument);
  gate.open();
  d.wait();
  EXPECT_EQ(d.last.error.code, Errc::kInvalidArgument);
  other.wait();
  EXPECT_EQ(seen(other), answer_alone(next));
  p.wait();
  expect_whole();
}

TEST_F(PullTest, AFailedReadEndsTheRequestOrIsComputedHere) {
  for (const LoadFailurePolicy policy : {LoadFailurePolicy::kFail, LoadFailurePolicy::kRecompute}) {
    SCOPED_TRACE(static_cast<int>(policy));
    hub_.set_automatic(false);
    EngineOptions options = pulling(small_options());
    options.load_failure_policy = policy;
    start(options);
    Answer p, d;
    const TransferId transfer{2, 1 + static_cast<std::uint64_t>(policy)};
    const Request request = make_request("r", make_prompt(1, 14), 6);
    submit(*prefill_, prefill_leg(request, transfer, FirstToken::kPrefill), p);
    submit(*decode_, decode_leg(request, transfer, FirstToken::kPrefill, announcement(p)), d);
    ASSERT_TRUE(hub_.wait(transfer, [](const auto& t) { return t.registration.has_value(); }));
    hub_.fail(transfer, Cause::kLeaseExpired, true);
    d.wait();
    p.wait();
    if (policy == LoadFailurePolicy::kRecompute) {
      EXPECT_EQ(seen(d), answer_alone(request));
    } else {
      EXPECT_EQ(d.last.error.code, Errc::kDeadlineExceeded);
      EXPECT_THAT(d.last.error.message, HasSubstr(transfer.to_string()));
    }
    expect_whole();
  }
}

// D's blocks may be read into until the agent says otherwise [I1]; P's are freed at once.
TEST_F(PullTest, AnAbortedReaderKeepsItsBlocksInQuarantineAndFreesP) {
  hub_.set_automatic(false);
  start(pulling(small_options()));
  Answer p, d;
  const Request request = make_request("r", make_prompt(1, 14), 6);
  submit(*prefill_, prefill_leg(request, kPulled, FirstToken::kPrefill), p);
  submit(*decode_, decode_leg(request, kPulled, FirstToken::kPrefill, announcement(p)), d);
  ASSERT_TRUE(hub_.wait(kPulled, [](const auto& t) { return t.registration.has_value(); }));
  decode_->abort("r");
  d.wait();
  EXPECT_EQ(decode_->blocks().quarantined, 4U);
  hub_.drain(kPulled);
  p.wait();
  EXPECT_TRUE(all_blocks_free(*prefill_));
  hub_.release(kPulled);
  expect_whole();
}

}  // namespace
}  // namespace baton::engine
