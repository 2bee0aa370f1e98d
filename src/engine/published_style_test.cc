// TransferStyle::kPublished, step by step: when P tells of a finished prompt, and when D sees that
// its KV is there, beside what Baton's own style does.
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "engine/testing/rig.h"

namespace baton::engine {
namespace {

constexpr std::uint32_t kPrompt =
    21;  // of the request that is handed over; no other chunk is so long

// An engine in which another request goes on decoding, so that steps follow each other. Its first
// step ends when the test has handed in all it has.
struct Busy {
  explicit Busy(TransferStyle style) {
    EngineOptions options = small_options();
    options.transfer_style = style;
    engine = make_fake_engine(options, &hub, "x", Role::kBoth, &model);
  }
  // `before`: each step of the engine, on its thread.
  void start(std::function<void(std::span<const model::SequenceChunk>)> before) {
    model->before_forward = [this, before = std::move(before)](auto chunks) {
      complete.wait(false);
      before(chunks);
    };
    Request request = make_request("other", make_prompt(1, 3), 200);
    request.sampling.ignore_eos = true;
    submit(*engine, std::move(request), other);
  }
  void add(Request request) {
    submit(*engine, std::move(request), answer);
    complete = true;
    complete.notify_all();
  }
  ~Busy() {
    engine->abort("other");
    engine.reset();
  }

  FakeHub hub;
  FakeModel* model = nullptr;
  std::atomic<bool> complete = false;
  Answer other, answer;
  std::unique_ptr<Engine> engine;
};

// The number of steps that begin behind the one that ends the prompt and before P is told.
int steps_before_told(TransferStyle style) {
  std::atomic<int> steps = -1;  // the prompt's own has not come
  std::atomic<bool> told = false;
  const TransferId transfer = TransferId::random();
  Busy busy(style);  // behind what its steps use
  busy.hub.set_automatic(false);
  busy.start([&](std::span<const model::SequenceChunk> chunks) {
    if (steps < 0) {
      for (const auto& chunk : chunks) {
        if (chunk.tokens.size() == kPrompt) steps = 0;
      }
      return;
    }
    told = told || !busy.hub.get(transfer).pieces.empty();
    if (!told) ++steps;
  });
  Request request = make_request("a", make_prompt(2, kPrompt), 1);
  request.remote_decode = RemoteDecode{transfer, FirstToken::kDecode};
  busy.add(std::move(request));
  EXPECT_TRUE(eventually([&] { return told.load(); }));
  return steps;
}

TEST(PublishedStyle, PTellsOfAPromptOneStepLater) {
  EXPECT_EQ(steps_before_told(TransferStyle::kBaton), 0);
  EXPECT_EQ(steps_before_told(TransferStyle::kPublished), 1);
}

// The number of steps that begin behind the one in which the KV arrived and before the one that
// uses it.
int steps_before_used(TransferStyle style) {
  std::atomic<int> steps = -1;
  std::atomic<bool> used = false;
  const TransferId transfer = TransferId::random();
  Answer at_p;
  Busy busy(style);  // behind what its steps use
  busy.hub.set_automatic(false);
  const auto p = make_fake_engine(small_options(), &busy.hub, "p", Role::kProducer);
  Request prefill = make_request("p", make_prompt(2, kPrompt), 1);
  prefill.remote_decode = RemoteDecode{transfer, FirstToken::kDecode};
  submit(*p, std::move(prefill), at_p);
  EXPECT_TRUE(busy.hub.wait(transfer, [](const FakeHub::Transfer& t) {
    return !t.pieces.empty() && t.pieces.back().last;
  }));
  busy.start([&](std::span<const model::SequenceChunk> chunks) {
    if (steps < 0) {
      if (!busy.hub.get(transfer).registration) return;
      busy.hub.complete(transfer);
      steps = 0;
      return;
    }
    for (const auto& chunk : chunks) used = used || chunk.start == kPrompt - 1;
    if (!used) ++steps;
  });
  Request request = make_request("a", make_prompt(2, kPrompt), 1);
  request.remote_prefill =
      RemotePrefill{transfer, 0, PeerAddress{"127.0.0.1", 1, "p", 0}, FirstToken::kDecode};
  busy.add(std::move(request));
  busy.answer.wait();
  at_p.wait();
  return steps;
}

TEST(PublishedStyle, DUsesKvOneStepLater) {
  EXPECT_EQ(steps_before_used(TransferStyle::kBaton), 0);
  EXPECT_EQ(steps_before_used(TransferStyle::kPublished), 1);
}

// Whole prompts only, and without other work nothing waits for a step that would never come.
TEST(PublishedStyle, AnIdlePairHandsOverInOnePiece) {
  for (const TransferStyle style : {TransferStyle::kBaton, TransferStyle::kPublished}) {
    FakeHub hub;
    hub.set_automatic(false);
    EngineOptions options = small_options();
    options.max_num_batched_tokens = 8;
    options.transfer_style = style;
    const auto p = make_fake_engine(options, &hub, "p", Role::kProducer);
    const auto d = make_fake_engine(options, &hub, "d", Role::kConsumer);
    const TransferId transfer = TransferId::random();
    Answer at_p, at_d;
    Request prefill = make_request("a", make_prompt(3, 30), 1);
    prefill.remote_decode = RemoteDecode{transfer, FirstToken::kDecode};
    submit(*p, std::move(prefill), at_p);
    Request decode = make_request("b", make_prompt(3, 30), 4);
    decode.remote_prefill =
        RemotePrefill{transfer, 0, PeerAddress{"127.0.0.1", 1, "p", 0}, FirstToken::kDecode};
    submit(*d, std::move(decode), at_d);
    ASSERT_TRUE(hub.wait(transfer, [](const FakeHub::Transfer& t) {
      return t.registration && !t.pieces.empty() && t.pieces.back().last;
    }));
    EXPECT_EQ(hub.get(transfer).pieces.size() == 1, style == TransferStyle::kPublished);
    hub.complete(transfer);
    at_p.wait();
    at_d.wait();
    EXPECT_EQ(at_p.last.finish, FinishReason::kHandedOver);
    EXPECT_EQ(at_d.last.finish, FinishReason::kLength);
  }
}

}  // namespace
}  // namespace baton::engine
