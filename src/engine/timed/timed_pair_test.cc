// P and D of the timed backend: between fake agents, where a test decides what arrives, and between
// real ones over the same-host fabric.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/factory.h"
#include "engine/testing/rig.h"
#include "engine/timed/byte_tokenizer.h"
#include "engine/timed/testing/small_profile.h"
#include "engine/timed/timed_model.h"

namespace baton::engine::timed {
namespace {

using ::testing::HasSubstr;

struct Instance {
  std::shared_ptr<TimedMetrics> metrics = std::make_shared<TimedMetrics>();
  std::unique_ptr<Engine> engine;
};

Instance start(Role role, const AgentFactory& factory, const EngineOptions& base = {}) {
  EngineOptions options = base;
  options.block_size = 4;
  options.num_blocks = 256;
  options.max_num_seqs = 4;
  options.max_num_batched_tokens = 32;
  if (!options.agent) options.agent.emplace();
  options.agent->engine_id = role == Role::kProducer ? "p" : "d";
  options.agent->role = role;
  Instance instance;
  auto model =
      TimedModel::create(small_profile(), {}, instance.metrics, std::make_unique<MonotonicClock>());
  auto engine = make_engine(std::move(*model), std::make_shared<ByteTokenizer>(), options, factory);
  EXPECT_TRUE(engine) << engine.error().message;
  instance.engine = std::move(*engine);
  return instance;
}

std::vector<TokenId> prompt_of(std::uint32_t length) {
  std::vector<TokenId> prompt;
  for (std::uint32_t i = 0; i < length; ++i) prompt.push_back(static_cast<TokenId>(i * 7 % 200));
  return prompt;
}

// A hand-over of `prompt` from P to D; D gives the first token.
class Handover {
 public:
  Handover(Instance& p, Instance& d, const std::vector<TokenId>& prompt, std::uint32_t tokens)
      : transfer_(TransferId::random()) {
    Request prefill = make_request("p-" + transfer_.to_string(), prompt, 1);
    prefill.remote_decode = RemoteDecode{transfer_, FirstToken::kDecode};
    Request decode = make_request("d-" + transfer_.to_string(), prompt, tokens);
    decode.sampling.ignore_eos = true;
    PeerAddress address{"127.0.0.1", 1, "p", 0};
    if (p.engine->agent() != nullptr) address = p.engine->agent()->control_address();
    decode.remote_prefill = RemotePrefill{transfer_, 0, address, FirstToken::kDecode};
    submit(*p.engine, std::move(prefill), p_);
    submit(*d.engine, std::move(decode), d_);
  }
  TransferId transfer() const { return transfer_; }
  Answer& p() { return p_; }
  Answer& d() { return d_; }

 private:
  TransferId transfer_;
  Answer p_, d_;
};

TEST(TimedPair, HandsOverEveryByteAndChecksIt) {
  EngineOptions options;
  options.agent.emplace().fabric = "shm";
  options.agent->link_bytes_per_second = 100'000'000;
  Instance p = start(Role::kProducer, &Agent::create, options);
  Instance d = start(Role::kConsumer, &Agent::create, options);
  Handover handover(p, d, prompt_of(101), 20);
  handover.d().wait();
  handover.p().wait();
  EXPECT_EQ(handover.d().last.finish, FinishReason::kLength);
  EXPECT_EQ(handover.d().tokens.size(), 20U);
  const std::uint64_t bytes = 26U * 4 * 16 * 4;  // 26 blocks of 4 tokens of 16 bytes in 4 regions
  ASSERT_TRUE(handover.d().last.handover);
  EXPECT_EQ(handover.d().last.handover->bytes, bytes);
  EXPECT_EQ(p.engine->agent()->metrics().bytes_written.value(), bytes);
  EXPECT_EQ(d.engine->agent()->metrics().bytes_received.value(), bytes);
  EXPECT_EQ(p.engine->agent()->link()->busy_nanoseconds.value(), bytes * 10);
  EXPECT_EQ(d.metrics->checked_prompts.value(), 1U);
  EXPECT_EQ(d.metrics->checked_bytes.value(), 100U * 16 * 4);  // D computes the last token again
  EXPECT_EQ(d.metrics->faults.value(), 0U);
  EXPECT_EQ(p.metrics->filled_bytes.value(), 101U * 16 * 4);
}

// What a fabric that loses a byte would do: the request fails aloud, and the error names the block.
TEST(TimedPair, OneWrongByteFailsTheRequestAndNamesTheBlock) {
  FakeHub hub;
  hub.set_automatic(false);
  std::vector<Region> regions;
  const AgentFactory at_p = [&](const AgentOptions& options, const Geometry& geometry) {
    regions = geometry.regions;
    return hub.factory()(options, geometry);
  };
  Instance p = start(Role::kProducer, at_p);
  Instance d = start(Role::kConsumer, hub.factory());
  Handover handover(p, d, prompt_of(41), 5);
  ASSERT_TRUE(hub.wait(handover.transfer(), [](const FakeHub::Transfer& transfer) {
    return transfer.registration && !transfer.pieces.empty() && transfer.pieces.back().last;
  }));
  const FakeHub::Transfer transfer = hub.get(handover.transfer());
  const BlockId block = transfer.pieces.front().block_ids[0][2];
  regions[1].base[block * regions[1].stride_bytes + 20] ^= std::byte{4};
  hub.complete(handover.transfer());
  handover.d().wait();
  EXPECT_EQ(handover.d().last.finish, FinishReason::kError);
  EXPECT_EQ(handover.d().last.error.code, Errc::kCorrupt);
  const BlockId at_d = transfer.registration->block_ids[0][2];
  EXPECT_THAT(
      handover.d().last.error.message,
      HasSubstr(fmt::format("block {} is wrong: layer.0.v, token 9 of the prompt, byte 20", at_d)));
  EXPECT_TRUE(handover.d().tokens.empty());
  EXPECT_EQ(d.metrics->faults.value(), 1U);
  EXPECT_TRUE(all_blocks_free(*d.engine));
}

TEST(TimedPair, AloneGivesTheSameTokens) {
  FakeHub other;
  Instance alone = start(Role::kBoth, other.factory());
  Answer answer;
  submit(*alone.engine, make_request("r", prompt_of(50), 10), answer);
  answer.wait();
  FakeHub hub;
  Instance p = start(Role::kProducer, hub.factory());
  Instance d = start(Role::kConsumer, hub.factory());
  Handover handover(p, d, prompt_of(50), 10);
  handover.d().wait();
  EXPECT_EQ(handover.d().tokens, answer.tokens);
}

}  // namespace
}  // namespace baton::engine::timed
