// P and D engines over the fakes: the answer of the pair is the answer of one process, and blocks
// stay with the transfer for as long as a peer may touch them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>

#include "engine/testing/rig.h"

namespace baton::engine {
namespace {

using ::testing::HasSubstr;

TransferId transfer_number(std::uint64_t n) {
  return {0xABCD, n};
}

Request decode_leg(const Request& request, TransferId transfer, FirstToken first) {
  Request leg = request;
  leg.remote_prefill = RemotePrefill{
      .transfer = transfer, .binding = 0, .peer = {"127.0.0.1", 1, "p", 0}, .first_token = first};
  return leg;
}

class HandoverTest : public ::testing::Test {
 protected:
  void start(EngineOptions p, EngineOptions d) {
    prefill_ = make_fake_engine(p, &hub_, "p", Role::kProducer, &prefill_model_);
    decode_ = make_fake_engine(d, &hub_, "d", Role::kConsumer, &decode_model_);
  }
  void start() { start(small_options(), small_options()); }
  void start_with(LoadFailurePolicy policy) {
    EngineOptions options = small_options();
    options.load_failure_policy = policy;
    start(small_options(), options);
  }
  void expect_whole() {
    EXPECT_TRUE(all_blocks_free(*prefill_));
    EXPECT_TRUE(all_blocks_free(*decode_));
  }
  // Both legs of one request; the D leg is left waiting for its KV.
  void submit_both(const Request& request, TransferId transfer, FirstToken first, Answer& p,
                   Answer& d) {
    submit(*decode_, decode_leg(request, transfer, first), d);
    submit(*prefill_, prefill_leg(request, transfer, first), p);
  }
  bool registered(TransferId transfer) {
    return hub_.wait(transfer, [](const auto& t) { return t.registration.has_value(); });
  }
  bool all_ready(TransferId transfer) {
    return hub_.wait(transfer,
                     [](const auto& t) { return !t.pieces.empty() && t.pieces.back().last; });
  }

  FakeHub hub_;
  FakeModel* prefill_model_ = nullptr;
  FakeModel* decode_model_ = nullptr;
  std::unique_ptr<Engine> prefill_, decode_;
};

const TransferId kTransfer = transfer_number(1);

// Each pool holds one prompt. D registers A while P has finished B and has no blocks for A.
TEST_F(HandoverTest, UnlikeOrdersInFullPoolsDoNotStandStillForEver) {
  EngineOptions options = small_options();
  options.num_blocks = 6;
  start(options, options);
  const Request a = make_request("a", make_prompt(1, 16), 4);
  const Request b = make_request("b", make_prompt(2, 16), 4);
  const TransferId of_a = transfer_number(21);
  const TransferId of_b = transfer_number(22);
  Answer p_a, p_b, d_a, d_b;
  submit(*decode_, decode_leg(a, of_a, FirstToken::kPrefill), d_a);
  ASSERT_TRUE(registered(of_a));
  submit(*prefill_, prefill_leg(b, of_b, FirstToken::kPrefill), p_b);
  ASSERT_TRUE(all_ready(of_b));
  submit(*decode_, decode_leg(b, of_b, FirstToken::kPrefill), d_b);
  submit(*prefill_, prefill_leg(a, of_a, FirstToken::kPrefill), p_a);
  for (Answer* answer : {&p_a, &p_b, &d_a, &d_b}) answer->wait();
  EXPECT_EQ(seen(d_a), answer_alone(a));
  EXPECT_EQ(seen(d_b), answer_alone(b));
  EXPECT_EQ(d_a.last.computed_prompt_tokens + d_b.last.computed_prompt_tokens, 0U);
  EXPECT_GE(decode_->metrics().registrations_withdrawn.value(), 1U);
  expect_whole();
}

class FirstTokenTest : public HandoverTest, public ::testing::WithParamInterface<FirstToken> {};

TEST_P(FirstTokenTest, ThePairAnswersAsOneProcess) {
  EngineOptions p = small_options();
  EngineOptions d = small_options();
  p.max_num_batched_tokens = 10;  // several chunks, several pieces
  d.poison_blocks = true;
  d.num_blocks = 40;  // and some are preempted
  start(p, d);
  StepGate gate;
  gate.hold(*decode_model_);
  std::vector<Request> requests;
  for (std::uint32_t i = 0; i < 24; ++i) {
    const std::uint32_t length = i < 6 ? i + 1 : 1 + (i * 7) % 50;
    requests.push_back(make_request(fmt::format("r{}", i), make_prompt(i + 1, length), 20));
    if (i % 2 == 1) requests.back().sampling = seeded(20, i);
    if (i % 4 == 2) requests.back().sampling.stop = {"aba", "stop", "\xE2\x82\xAC"};
  }
  std::vector<std::unique_ptr<Answer>> p_answers;
  std::vector<std::unique_ptr<Answer>> d_answers;
  for (std::uint32_t i = 0; i < requests.size(); ++i) {
    p_answers.push_back(std::make_unique<Answer>());
    d_answers.push_back(std::make_unique<Answer>());
    const TransferId transfer = transfer_number(i + 1);
    if (i % 2 == 0) {
      submit(*prefill_, prefill_leg(requests[i], transfer, GetParam()), *p_answers[i]);
      submit(*decode_, decode_leg(requests[i], transfer, GetParam()), *d_answers[i]);
    } else {
      submit_both(requests[i], transfer, GetParam(), *p_answers[i], *d_answers[i]);
    }
  }
  for (std::uint32_t i = 0; i < requests.size(); ++i)
    ASSERT_TRUE(all_ready(transfer_number(i + 1)));
  gate.open();
  std::uint64_t blocks = 0;
  for (std::uint32_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(i);
    p_answers[i]->wait();
    d_answers[i]->wait();
    EXPECT_EQ(seen(*d_answers[i]), answer_alone(requests[i]));
    EXPECT_EQ(p_answers[i]->last.finish, FinishReason::kHandedOver);
    EXPECT_EQ(p_answers[i]->last.computed_prompt_tokens, requests[i].prompt.size());
    ASSERT_TRUE(d_answers[i]->last.handover.has_value());
    EXPECT_EQ(d_answers[i]->last.handover->outcome, Outcome::kDone);
    blocks += (requests[i].prompt.size() + 3) / 4;
    // P's first token is D's first token, with the same text.
    const Output& from_p = p_answers[i]->outputs[0];
    EXPECT_TRUE(from_p.prefilled);
    if (GetParam() == FirstToken::kPrefill) {
      EXPECT_TRUE(from_p.is_first_token);
      EXPECT_EQ(from_p.tokens, d_answers[i]->outputs[0].tokens);
      EXPECT_EQ(from_p.text, d_answers[i]->outputs[0].text);
    } else {
      EXPECT_TRUE(from_p.tokens.empty());
    }
  }
  // 2 layers of K and V, 2 heads, 4 tokens, 4 values of 2 bytes.
  EXPECT_EQ(hub_.bytes_moved(), blocks * 2 * 2 * 2 * 4 * 4 * 2);
  EXPECT_GT(decode_->metrics().preemptions.value(), 0U);
  EXPECT_EQ(hub_.open_transfers(), 0U);
  expect_whole();
}

TEST_P(FirstTokenTest, DecodeComputesOnePromptTokenAtMost) {
  start();
  Answer p;
  Answer d;
  submit_both(make_request("r", make_prompt(5, 22), 8), kTransfer, GetParam(), p, d);
  d.wait();
  EXPECT_EQ(d.last.computed_prompt_tokens, GetParam() == FirstToken::kPrefill ? 0U : 1U);
  EXPECT_EQ(d.last.prompt_tokens, 22U);
  EXPECT_TRUE(d.outputs[0].is_first_token);
  EXPECT_EQ(d.outputs[0].tokens.size(), 1U);
  p.wait();
  expect_whole();
}

TEST_P(FirstTokenTest, TheFirstTokenMayBeTheLast) {
  start();
  std::map<std::string, Request> requests;
  for (std::uint64_t seed = 1; requests.size() < 3 && seed < 3000; ++seed) {
    Request request = make_request("r", make_prompt(seed, 6), 1);
    const TokenId token = answer_alone(request).tokens.at(0);
    if (token == 0 && !requests.contains("end of generation")) {
      request.sampling.max_tokens = 5;
      requests["end of generation"] = request;
    } else if (token == 1 && !requests.contains("a part of a character")) {
      requests["a part of a character"] = request;
    } else if (token % 16 == 8 && !requests.contains("stop string")) {  // "stop"
      request.sampling.max_tokens = 5;
      request.sampling.stop = {"top"};
      requests["stop string"] = request;
    }
  }
  ASSERT_EQ(requests.size(), 3U);
  requests["max_tokens"] = make_request("r", make_prompt(4, 9), 1);
  std::uint64_t number = 0;
  for (const auto& [name, request] : requests) {
    SCOPED_TRACE(name);
    Answer p;
    Answer d;
    submit_both(request, transfer_number(++number), GetParam(), p, d);
    p.wait();
    d.wait();
    const Seen alone = answer_alone(request);
    EXPECT_EQ(alone.completion_tokens, 1U);
    EXPECT_EQ(seen(d), alone);
    if (GetParam() == FirstToken::kPrefill) {
      EXPECT_EQ(p.outputs[0].text, alone.text);
    }
  }
  expect_whole();
}

INSTANTIATE_TEST_SUITE_P(, FirstTokenTest,
                         ::testing::Values(FirstToken::kPrefill, FirstToken::kDecode),
                         [](const auto& info) {
                           return info.param == FirstToken::kPrefill ? "Prefill" : "Decode";
                         });

TEST_F(HandoverTest, TellsFinishedBlocksPieceByPiece) {
  EngineOptions options = small_options();
  options.max_num_batched_tokens = 10;
  start(options, small_options());
  Answer p;
  submit(*prefill_,
         prefill_leg(make_request("r", make_prompt(1, 31), 4), kTransfer, FirstToken::kPrefill), p);
  ASSERT_TRUE(all_ready(kTransfer));
  std::vector<std::pair<std::uint32_t, std::uint32_t>> ranges;
  for (const ReadyPiece& piece : hub_.get(kTransfer).pieces) {
    ranges.emplace_back(piece.range.begin, piece.range.end);
    EXPECT_EQ(piece.last, piece.range.end == 31);
    EXPECT_EQ(piece.first_token.has_value(), piece.last);
    EXPECT_EQ(piece.block_ids.at(0).size(), (piece.range.size() + 3) / 4);
  }
  EXPECT_THAT(ranges, ::testing::ElementsAre(std::pair(0, 8), std::pair(8, 20), std::pair(20, 28),
                                             std::pair(28, 31)));
  // Nobody has taken them: they stay [I2].
  ASSERT_TRUE(p.wait_for([](const Answer& a) { return !a.outputs.empty(); }));
  EXPECT_EQ(prefill_->blocks().used, 8U);
  prefill_->abort("r");
  p.wait();
  EXPECT_TRUE(all_blocks_free(*prefill_));
}

TEST_F(HandoverTest, PrefillKeepsItsBlocksUntilTheEnd) {
  hub_.set_automatic(false);
  start();
  Answer p;
  Answer d;
  const Request request = make_request("r", make_prompt(1, 12), 6);
  submit_both(request, kTransfer, FirstToken::kPrefill, p, d);
  ASSERT_TRUE(all_ready(kTransfer));
  ASSERT_TRUE(registered(kTransfer));
  ASSERT_TRUE(p.wait_for([](const Answer& a) { return !a.outputs.empty(); }));
  EXPECT_EQ(prefill_->blocks().used, 3U);
  EXPECT_EQ(decode_->blocks().used, 3U);
  EXPECT_EQ(p.finishes, 0);
  prefill_->abort("r");  // a write was posted: neither its blocks nor its end
  d.wait();
  EXPECT_EQ(p.finishes, 0);
  EXPECT_EQ(d.last.finish, FinishReason::kError);
  EXPECT_EQ(d.last.error.code, Errc::kCancelled);
  EXPECT_EQ(prefill_->blocks().used, 3U);
  Answer again;
  EXPECT_EQ(
      prefill_->submit(prefill_leg(request, kTransfer, FirstToken::kPrefill), again.callback())
          .error()
          .code,
      Errc::kAlreadyExists);
  hub_.drain(kTransfer);
  p.wait();
  EXPECT_EQ(p.last.finish, FinishReason::kAborted);
  ASSERT_TRUE(p.last.handover.has_value());
  EXPECT_EQ(p.last.handover->outcome, Outcome::kCancelled);
  EXPECT_TRUE(all_blocks_free(*prefill_));
  EXPECT_EQ(decode_->blocks().quarantined, 3U);  // nobody said yet that P has stopped writing
  hub_.release(kTransfer);
  expect_whole();
}

TEST_F(HandoverTest, AFailedTransferEndsTheRequestOrIsComputedHere) {
  for (const LoadFailurePolicy policy : {LoadFailurePolicy::kFail, LoadFailurePolicy::kRecompute}) {
    for (const bool released : {true, false}) {
      SCOPED_TRACE(fmt::format("policy {} released {}", static_cast<int>(policy), released));
      FakeHub hub;
      hub.set_automatic(false);
      EngineOptions options = small_options();
      options.load_failure_policy = policy;
      const auto engine = make_fake_engine(options, &hub, "d", Role::kConsumer);
      Answer d;
      const Request request = make_request("r", make_prompt(1, 12), 6);
      submit(*engine, decode_leg(request, kTransfer, FirstToken::kPrefill), d);
      ASSERT_TRUE(hub.wait(kTransfer, [](const auto& t) { return t.registration.has_value(); }));
      hub.fail(kTransfer, Cause::kPeerDied, released);
      d.wait();
      if (policy == LoadFailurePolicy::kFail) {
        EXPECT_EQ(d.last.finish, FinishReason::kError);
        EXPECT_EQ(d.last.error.code, Errc::kUnavailable);
        for (const std::string& part :
             {kTransfer.to_string(), std::string("instance 'p'"), std::string("instance 'd'"),
              std::string("said the test"), std::string(to_string(Cause::kPeerDied))}) {
          EXPECT_THAT(d.last.error.message, HasSubstr(part));
        }
        EXPECT_EQ(d.last.completion_tokens, 0U);
      } else {
        EXPECT_EQ(seen(d), answer_alone(request));
        EXPECT_EQ(d.last.computed_prompt_tokens, 12U);
        EXPECT_EQ(engine->metrics().kv_load_recomputed.value(), 1U);
      }
      EXPECT_EQ(engine->metrics().kv_load_failures.value(), 1U);
      EXPECT_TRUE(eventually([&] { return engine->blocks().used == 0; }));
      EXPECT_EQ(engine->blocks().quarantined, released ? 0U : 3U);
      if (!released) hub.release(kTransfer);
      EXPECT_TRUE(all_blocks_free(*engine));
    }
  }
}

TEST_F(HandoverTest, AQuarantinedPoolIsWaitedFor) {
  hub_.set_automatic(false);
  EngineOptions options = small_options();
  options.num_blocks = 5;
  start(small_options(), options);
  Answer first;
  Answer second;
  const Request request = make_request("a", make_prompt(1, 12), 6);
  submit(*decode_, decode_leg(request, kTransfer, FirstToken::kPrefill), first);
  ASSERT_TRUE(registered(kTransfer));
  decode_->abort("a");
  first.wait();
  EXPECT_EQ(first.last.finish, FinishReason::kAborted);
  EXPECT_TRUE(eventually([&] { return decode_->blocks().quarantined == 3; }));
  submit(*decode_, make_request("b", make_prompt(2, 12), 6), second);
  EXPECT_TRUE(eventually([&] { return decode_->metrics().requests_waiting.value() == 1; }));
  EXPECT_EQ(decode_->blocks().used, 0U);
  hub_.release(kTransfer);
  second.wait();
  EXPECT_EQ(seen(second), answer_alone(make_request("b", make_prompt(2, 12), 6)));
  EXPECT_TRUE(all_blocks_free(*decode_));
}

TEST_F(HandoverTest, WhoGetsNoBlocksEndsAtTheDeadline) {
  hub_.set_automatic(false);
  EngineOptions options = small_options();
  options.num_blocks = 5;
  options.agent.emplace();
  options.agent->transfer_total = std::chrono::milliseconds(20);
  start(small_options(), options);
  Answer first, second;
  const Request request = make_request("a", make_prompt(1, 12), 6);
  submit(*decode_, decode_leg(request, kTransfer, FirstToken::kPrefill), first);
  ASSERT_TRUE(registered(kTransfer));
  decode_->abort("a");
  first.wait();
  const TransferId other = transfer_number(9);
  submit(*decode_,
         decode_leg(make_request("b", make_prompt(2, 12), 6), other, FirstToken::kPrefill), second);
  second.wait();
  EXPECT_EQ(second.last.finish, FinishReason::kError);
  EXPECT_THAT(second.last.error.message, HasSubstr("no blocks for its 12 prompt tokens"));
  EXPECT_TRUE(hub_.wait(other, [](const auto& t) { return t.cancelled; }));
  hub_.release(kTransfer);
  EXPECT_TRUE(all_blocks_free(*decode_));
}

TEST_F(HandoverTest, AbortsDecodeInEachPhase) {
  hub_.set_automatic(false);
  EngineOptions options = small_options();
  options.num_blocks = 12;
  start(small_options(), options);
  Answer waiting_for_kv;
  Answer queued;
  const Request long_one = make_request("kv", make_prompt(1, 40), 4);
  submit(*decode_, decode_leg(long_one, transfer_number(1), FirstToken::kPrefill), waiting_for_kv);
  ASSERT_TRUE(registered(transfer_number(1)));
  Request other = make_request("queued", make_prompt(2, 40), 4);
  submit(*decode_, decode_leg(other, transfer_number(2), FirstToken::kPrefill), queued);
  EXPECT_TRUE(hub_.get(transfer_number(2)).claimed);  // at once, though it queues
  decode_->abort("queued");
  queued.wait();
  ASSERT_TRUE(hub_.wait(transfer_number(2), [](const auto& t) { return t.cancelled; }));
  EXPECT_FALSE(hub_.get(transfer_number(2)).registration.has_value());
  decode_->abort("kv");
  waiting_for_kv.wait();
  EXPECT_EQ(decode_->blocks().quarantined, 10U);
  hub_.release(transfer_number(1));
  EXPECT_TRUE(all_blocks_free(*decode_));

  Answer p;
  Answer decoding;
  Request third = make_request("decoding", make_prompt(3, 8), 30);
  third.sampling.ignore_eos = true;
  submit_both(third, transfer_number(3), FirstToken::kDecode, p, decoding);
  ASSERT_TRUE(all_ready(transfer_number(3)));
  ASSERT_TRUE(registered(transfer_number(3)));
  decode_model_->before_forward = [&](auto) { decode_->abort("decoding"); };
  hub_.complete(transfer_number(3));
  decoding.wait();
  EXPECT_EQ(decoding.last.finish, FinishReason::kAborted);
  p.wait();
  EXPECT_EQ(p.last.finish, FinishReason::kHandedOver);
  for (const Answer* answer : {&waiting_for_kv, &queued, &decoding}) {
    EXPECT_EQ(answer->finishes, 1);
    EXPECT_FALSE(answer->told_after_finish);
  }
  expect_whole();
}

TEST_F(HandoverTest, AbortsPrefillInEachPhase) {
  EngineOptions options = small_options();
  options.max_num_batched_tokens = 8;
  start(options, small_options());
  // After `pieces` steps, from the engine thread itself, so that the phase is certain.
  for (const std::uint32_t steps : {1U, 2U, 3U}) {
    SCOPED_TRACE(steps);
    const TransferId transfer = transfer_number(steps);
    Answer p;
    std::uint32_t seen_steps = 0;
    prefill_model_->before_forward = [&](auto) {
      if (++seen_steps == steps) prefill_->abort("r");
    };
    submit(*prefill_,
           prefill_leg(make_request("r", make_prompt(1, 30), 4), transfer, FirstToken::kPrefill),
           p);
    p.wait();
    EXPECT_EQ(p.last.finish, FinishReason::kAborted);
    EXPECT_EQ(hub_.get(transfer).pieces.size(), steps);
    EXPECT_TRUE(hub_.wait(transfer, [](const auto& t) { return t.cancelled; }));
    EXPECT_TRUE(all_blocks_free(*prefill_));
  }
}

// A busy P takes the abort of a leg and the end of its transfer in one look: everything crossed,
// and what is told of the request says so.
TEST_F(HandoverTest, AnAbortDoesNotHideTheEndThatOvertookIt) {
  start();
  const Request request = make_request("r", make_prompt(1, 12), 6);
  Answer p, d, busy;
  submit(*prefill_, prefill_leg(request, kTransfer, FirstToken::kPrefill), p);
  ASSERT_TRUE(all_ready(kTransfer));
  std::promise<void> go_on;
  std::promise<void> in_step;
  prefill_model_->before_forward = [&, first = true](auto) mutable {
    if (!std::exchange(first, false)) return;
    in_step.set_value();
    go_on.get_future().wait();
  };
  submit(*prefill_,
         prefill_leg(make_request("busy", make_prompt(2, 12), 6), transfer_number(2),
                     FirstToken::kPrefill),
         busy);
  in_step.get_future().wait();
  submit(*decode_, decode_leg(request, kTransfer, FirstToken::kPrefill), d);
  d.wait();
  prefill_->abort("r");
  go_on.set_value();
  p.wait();
  EXPECT_EQ(p.last.finish, FinishReason::kHandedOver);
  ASSERT_TRUE(p.last.handover.has_value());
  EXPECT_EQ(p.last.handover->outcome, Outcome::kDone);
  EXPECT_EQ(p.last.handover->range, (TokenRange{0, 12}));
  prefill_->abort("busy");
  busy.wait();
  expect_whole();
}

TEST_F(HandoverTest, PrefillHearsWhyItsTransferFailed) {
  hub_.set_automatic(false);
  start();
  Answer p;
  submit(*prefill_,
         prefill_leg(make_request("r", make_prompt(1, 12), 6), kTransfer, FirstToken::kDecode), p);
  ASSERT_TRUE(all_ready(kTransfer));
  hub_.fail(kTransfer, Cause::kLeaseExpired, true);
  p.wait();
  EXPECT_EQ(p.last.finish, FinishReason::kError);
  EXPECT_EQ(p.last.error.code, Errc::kDeadlineExceeded);
  EXPECT_THAT(p.last.error.message, HasSubstr(kTransfer.to_string()));
  EXPECT_THAT(p.last.error.message, HasSubstr("prefill instance 'p'"));
  EXPECT_TRUE(all_blocks_free(*prefill_));
}

TEST_F(HandoverTest, AFullQueueOfTheAgentOnlyDelays) {
  start();
  hub_.refuse(FakeHub::Call::kRegister, 3);
  hub_.refuse(FakeHub::Call::kReady, 3);
  Answer p;
  Answer d;
  const Request request = make_request("r", make_prompt(1, 12), 6);
  submit_both(request, kTransfer, FirstToken::kPrefill, p, d);
  p.wait();
  d.wait();
  EXPECT_EQ(seen(d), answer_alone(request));
  expect_whole();

  hub_.refuse(FakeHub::Call::kClaim, 1);
  Answer refused;
  const Status status = decode_->submit(
      decode_leg(request, transfer_number(2), FirstToken::kPrefill), refused.callback());
  EXPECT_EQ(status.error().code, Errc::kResourceExhausted);
  hub_.set_automatic(false);
  submit(*decode_, decode_leg(request, transfer_number(2), FirstToken::kPrefill), refused);
  ASSERT_TRUE(registered(transfer_number(2)));
  hub_.set_automatic(true);
  hub_.refuse(FakeHub::Call::kCancel, 3);
  decode_->abort("r");
  refused.wait();
  EXPECT_TRUE(hub_.wait(transfer_number(2), [](const auto& t) { return t.cancelled; }));
  expect_whole();
}

TEST_F(HandoverTest, ATransferIsUsedByOneRequestAtATime) {
  hub_.set_automatic(false);
  start();
  Answer p;
  Request request = make_request("r", make_prompt(1, 12), 6);
  submit(*prefill_, prefill_leg(request, kTransfer, FirstToken::kPrefill), p);
  request.id = "s";
  const Status status =
      prefill_->submit(prefill_leg(request, kTransfer, FirstToken::kPrefill), OutputCallback());
  EXPECT_EQ(status.error().code, Errc::kAlreadyExists);
  EXPECT_THAT(status.error().message, HasSubstr(kTransfer.to_string()));
  ASSERT_TRUE(all_ready(kTransfer));
  prefill_->abort("r");
  ASSERT_TRUE(hub_.wait(kTransfer, [](const auto& t) { return t.held.has_value(); }));
  hub_.drain(kTransfer);
  p.wait();
}

TEST_F(HandoverTest, PoisonsBlocksBeforeTheyAreGranted) {
  hub_.set_automatic(false);
  EngineOptions options = small_options();
  options.poison_blocks = true;
  start(small_options(), options);
  Answer d;
  submit(*decode_,
         decode_leg(make_request("r", make_prompt(1, 7), 6), kTransfer, FirstToken::kPrefill), d);
  ASSERT_TRUE(hub_.wait(kTransfer, [](const auto& t) {
    if (!t.registration) return false;
    for (const Region& region : t.decode->geometry().regions) {
      for (const BlockId block : t.registration->block_ids[0]) {
        const std::byte* bytes = region.base + block * region.stride_bytes;
        for (std::size_t i = 0; i < region.block_bytes; ++i) {
          if (bytes[i] != std::byte{0x5A}) ADD_FAILURE() << "byte " << i << " of block " << block;
        }
      }
    }
    return true;
  }));
  decode_.reset();  // before the answer that it tells
}

TEST_F(HandoverTest, EndsWithTransfersOpen) {
  hub_.set_automatic(false);
  start();
  Answer p;
  Answer d;
  submit_both(make_request("r", make_prompt(1, 12), 6), kTransfer, FirstToken::kPrefill, p, d);
  ASSERT_TRUE(registered(kTransfer));
  decode_.reset();
  prefill_.reset();
  EXPECT_EQ(d.finishes, 1);
  EXPECT_EQ(d.last.finish, FinishReason::kAborted);
  EXPECT_EQ(p.finishes, 1);
}

TEST_F(HandoverTest, AStrangeFirstTokenIsComputedHere) {
  hub_.set_automatic(false);
  start();
  Answer p;
  Answer d;
  const Request request = make_request("r", make_prompt(1, 12), 6);
  submit_both(request, kTransfer, FirstToken::kPrefill, p, d);
  ASSERT_TRUE(all_ready(kTransfer));
  ASSERT_TRUE(registered(kTransfer));
  hub_.change_first_token(kTransfer, static_cast<TokenId>(kFakeVocab));
  hub_.complete(kTransfer);
  d.wait();
  EXPECT_EQ(seen(d), answer_alone(request));
  EXPECT_EQ(d.last.computed_prompt_tokens, 1U);
  p.wait();
}

}  // namespace
}  // namespace baton::engine
