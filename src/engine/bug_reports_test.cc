// Trials made of public bug reports (docs/testing.md lists them by number): what lies between "the
// prompt is computed" and "its last write is done", with real agents over the same-host fabric. The
// model's answer depends on every byte of the cache, so a torn or reused block shows in the tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "agent/fault_fabric.h"
#include "agent/make_agent.h"
#include "base/check.h"
#include "base/random.h"
#include "engine/testing/rig.h"
#include "fabric/shm/shm_fabric.h"

namespace baton::engine {
namespace {

// Which blocks the model computes at this moment, and which it never touched.
class ComputedBlocks {
 public:
  ComputedBlocks(std::uint32_t blocks, std::uint32_t block_size)
      : block_size_(block_size), touched_(blocks), computing_(blocks) {}

  void begin(std::span<const model::SequenceChunk> chunks) { mark(chunks, true); }
  void end(std::span<const model::SequenceChunk> chunks) { mark(chunks, false); }
  bool is_done(BlockId block) const { return touched_[block] && !computing_[block]; }

 private:
  void mark(std::span<const model::SequenceChunk> chunks, bool computing) {
    for (const model::SequenceChunk& chunk : chunks) {
      const auto size = static_cast<std::uint32_t>(chunk.tokens.size());
      for (std::uint32_t position = chunk.start; position < chunk.start + size; ++position) {
        const BlockId block = chunk.block_table[position / block_size_];
        computing_[block] = computing;
        touched_[block] = true;
      }
    }
  }

  const std::uint32_t block_size_;
  std::vector<std::atomic<bool>> touched_, computing_;
};

// In front of P's fabric: looks at each data write before it goes, and may refuse one.
class WatchedFabric final : public fabric::Fabric {
 public:
  struct Watch {
    std::function<void(const fabric::Write&, std::uint64_t stride)> on_write;
    std::atomic<int> refuse{0};  // that many writes fail when they are posted
  };
  WatchedFabric(std::unique_ptr<fabric::Fabric> real, Watch& watch)
      : real_(std::move(real)), watch_(watch) {}

  const fabric::Capabilities& capabilities() const override { return real_->capabilities(); }
  Status register_regions(std::span<const Region> regions) override {
    stride_ = regions.front().stride_bytes;
    return real_->register_regions(regions);
  }
  Result<Inbound> open_inbound(const PeerId& peer, fabric::Access access) override {
    return real_->open_inbound(peer, access);
  }
  void fence_inbound(fabric::InboundId inbound) override { real_->fence_inbound(inbound); }
  std::string_view carrier_of(fabric::InboundId inbound) const override {
    return real_->carrier_of(inbound);
  }
  Result<fabric::OutboundId> connect(const PeerId& receiver, std::span<const std::byte> offer,
                                     std::span<const Region> regions) override {
    return real_->connect(receiver, offer, regions);
  }
  void close_outbound(fabric::OutboundId outbound) override { real_->close_outbound(outbound); }
  Status post(const fabric::Write& write) override {
    if (write.length > 0 && watch_.refuse > 0) {
      --watch_.refuse;
      return fail(Errc::kIo, "refused by the test");
    }
    if (write.length > 0 && watch_.on_write) watch_.on_write(write, stride_);
    return real_->post(write);
  }
  Status post_read(const fabric::Read& read) override { return real_->post_read(read); }
  std::size_t poll(std::span<fabric::FabricEvent> out) override { return real_->poll(out); }
  bool busy() const override { return real_->busy(); }
  int wait_fd() const override { return real_->wait_fd(); }

 private:
  std::unique_ptr<fabric::Fabric> real_;
  Watch& watch_;
  std::uint64_t stride_ = 1;
};

std::unique_ptr<fabric::Fabric> shared_memory() {
  auto made = fabric::shm::make_shm_fabric();
  BATON_CHECK(made.has_value(), "no fabric");
  return std::move(*made);
}

// While the file `hold` exists, what P posted does not move.
class HoldFile {
 public:
  HoldFile()
      : path_(std::filesystem::temp_directory_path() /
              ("baton-hold-" + TransferId::random().to_string())) {}
  ~HoldFile() { release(); }
  void hold() const { std::ofstream(path_) << "held"; }
  void release() const { std::filesystem::remove(path_); }
  Fault fault() const { return {Fault::Kind::kHoldWrites, 1, path_.string()}; }

 private:
  const std::filesystem::path path_;
};

std::unique_ptr<Engine> make_real(EngineOptions options, const std::string& id, Role role,
                                  const std::function<std::unique_ptr<fabric::Fabric>()>& fabric,
                                  FakeModel** model) {
  options.agent = AgentOptions{};
  options.agent->engine_id = id;
  options.agent->role = role;
  options.poison_blocks = true;
  auto fake = std::make_unique<FakeModel>();
  *model = fake.get();
  auto engine = make_engine(std::move(fake), std::make_shared<FakeTokenizer>(), options,
                            [&](const AgentOptions& agent, const Geometry& geometry) {
                              return make_agent(agent, geometry, make_peer_id(agent), fabric());
                            });
  BATON_CHECK(engine.has_value(), "no engine");
  return std::move(*engine);
}

class EngineBugReports : public ::testing::Test {
 protected:
  struct Legs {
    Answer prefill, decode;
  };

  void start(std::uint32_t prefill_blocks, bool caching = false) {
    EngineOptions options = small_options();
    options.enable_prefix_caching = caching;
    decode_ = make_real(options, "d", Role::kConsumer, shared_memory, &decode_model_);
    options.num_blocks = prefill_blocks;
    const auto watched = [this] {
      auto held = std::make_unique<FaultFabric>(shared_memory(), hold_.fault());
      return std::make_unique<WatchedFabric>(std::move(held), watch_);
    };
    prefill_ = make_real(options, "p", Role::kProducer, watched, &prefill_model_);
  }

  std::unique_ptr<Legs> ask(const Request& request) {
    auto legs = std::make_unique<Legs>();
    const TransferId transfer = TransferId::random();
    Request d = request;
    d.id += transfer.to_string();
    d.remote_prefill = RemotePrefill{.transfer = transfer,
                                     .binding = 0,
                                     .peer = prefill_->agent()->control_address(),
                                     .first_token = FirstToken::kPrefill};
    Request p = request;
    p.id = d.id;
    p.remote_decode = RemoteDecode{.transfer = transfer, .first_token = FirstToken::kPrefill};
    submit(*decode_, std::move(d), legs->decode);
    submit(*prefill_, std::move(p), legs->prefill);
    return legs;
  }

  static void expect_answer(Legs& legs, const Seen& expected) {
    legs.decode.wait();
    legs.prefill.wait();
    EXPECT_EQ(seen(legs.decode), expected) << legs.decode.last.error.message;
    EXPECT_EQ(legs.decode.last.computed_prompt_tokens, 0U);
    EXPECT_EQ(legs.prefill.last.finish, FinishReason::kHandedOver)
        << legs.prefill.last.error.message;
  }

  void expect_settled() {
    EXPECT_TRUE(all_blocks_free(*prefill_));
    EXPECT_TRUE(all_blocks_free(*decode_));
  }

  WatchedFabric::Watch watch_;
  HoldFile hold_;
  FakeModel* prefill_model_ = nullptr;
  FakeModel* decode_model_ = nullptr;
  std::unique_ptr<Engine> prefill_, decode_;
};

// A thousand prompts in chunks, each chunk computed after a random while and several prompts at
// once: no write of a block is posted before the chunk that fills it is computed, and no answer is
// made from a torn one.
TEST_F(EngineBugReports, B22_AChunkIsNeverWrittenBeforeItIsComputed) {
  constexpr std::uint32_t kBlocks = 256;
  constexpr int kRuns = 1000;
  constexpr std::size_t kAtOnce = 10;
  ComputedBlocks computed(kBlocks, small_options().block_size);
  std::atomic<int> early{0}, writes{0};
  watch_.on_write = [&](const fabric::Write& write, std::uint64_t stride) {
    ++writes;
    const std::uint64_t last = (write.local_offset + write.length - 1) / stride;
    for (std::uint64_t block = write.local_offset / stride; block <= last; ++block) {
      if (!computed.is_done(static_cast<BlockId>(block))) ++early;
    }
  };
  start(kBlocks);
  Rng rng(22);
  prefill_model_->before_forward = [&](std::span<const model::SequenceChunk> chunks) {
    computed.begin(chunks);
    std::this_thread::sleep_for(std::chrono::microseconds(rng.below(500)));
  };
  prefill_model_->after_forward = [&](std::span<const model::SequenceChunk> chunks) {
    computed.end(chunks);
  };
  std::vector<Request> requests;
  std::vector<Seen> expected;
  for (std::uint32_t i = 0; i < 20; ++i) {
    requests.push_back(make_request("r", make_prompt(i, 30 + 4 * i), 3));
    expected.push_back(answer_alone(requests.back()));
  }
  for (int run = 0; run < kRuns; run += kAtOnce) {
    std::vector<std::unique_ptr<Legs>> legs;
    for (std::size_t i = 0; i < kAtOnce; ++i) legs.push_back(ask(requests[(run + i) % 20]));
    for (std::size_t i = 0; i < kAtOnce; ++i) expect_answer(*legs[i], expected[(run + i) % 20]);
    if (HasFailure()) return;
  }
  EXPECT_EQ(early, 0) << "of " << writes << " writes";
  EXPECT_GT(writes, 2 * kRuns) << "prompts were not written chunk by chunk";
  expect_settled();
}

class EngineBugReportsWithCache : public EngineBugReports,
                                  public ::testing::WithParamInterface<bool> {};

INSTANTIATE_TEST_SUITE_P(PrefixCaching, EngineBugReportsWithCache, ::testing::Bool(),
                         [](const auto& tested) { return tested.param ? "on" : "off"; });

// P's pool is small and its last write is held back while twenty others want its blocks. All begin
// with the same sixteen tokens: with the cache on, blocks of the held prompt are theirs too, and
// none of them may be given to somebody else.
TEST_P(EngineBugReportsWithCache, B27_BlocksStayPinnedUntilTheLastWriteIsDone) {
  start(40, GetParam());
  const std::vector<TokenId> beginning = make_prompt(1, 16);
  const auto prompt = [&](std::uint64_t seed, std::uint32_t more) {
    std::vector<TokenId> tokens = beginning;
    for (const TokenId token : make_prompt(seed, more)) tokens.push_back(token);
    return tokens;
  };
  const Request first = make_request("a", prompt(2, 48), 4);  // 16 blocks of P's 40
  hold_.hold();
  const auto held = ask(first);
  ASSERT_TRUE(eventually([&] { return prefill_->agent()->metrics().writes_posted.value() > 0; }));
  std::vector<Request> others;
  std::vector<std::unique_ptr<Legs>> legs;
  for (std::uint32_t i = 0; i < 20; ++i) {
    others.push_back(make_request("b", prompt(100 + i, 16), 4));  // 8 blocks, 4 of them shared
    legs.push_back(ask(others.back()));
  }
  ASSERT_TRUE(eventually([&] { return prefill_->blocks().free < 8; }));
  EXPECT_TRUE(eventually([&] { return prefill_->metrics().requests_waiting.value() > 0; }));
  EXPECT_EQ(decode_->metrics().finished_length.value(), 0U);
  hold_.release();
  expect_answer(*held, answer_alone(first));
  for (std::size_t i = 0; i < legs.size(); ++i) expect_answer(*legs[i], answer_alone(others[i]));
  EXPECT_EQ(prefill_->metrics().prefix_cache_hits.value() > 0, GetParam());
  expect_settled();
}

// Eight samples of one prompt, as a client that wants several asks for them today, twice: those of
// the second time find most of the prompt in D's cache, so that D wants little or nothing of P. P's
// blocks are back after each round, whoever needed them.
TEST_P(EngineBugReportsWithCache, B10_EqualRequestsAtOnceLeaveNothingAtP) {
  start(96, GetParam());
  for (std::uint32_t round = 0; round < 20; ++round) {
    const Request request = make_request("n", make_prompt(round, 30), 4);
    const Seen expected = answer_alone(request);
    for (int time = 0; time < 2; ++time) {
      std::vector<std::unique_ptr<Legs>> samples;
      for (int i = 0; i < 8; ++i) samples.push_back(ask(request));
      for (const auto& sample : samples) expect_answer(*sample, expected);
    }
    expect_settled();
    if (HasFailure()) return;
  }
  EXPECT_EQ(decode_->metrics().prefix_cache_hits.value() > 0, GetParam());
  // The agent counts it when the event that freed the blocks is out.
  EXPECT_TRUE(eventually([&] { return prefill_->agent()->metrics().leases_held.value() == 0; }));
}

// The token that P hands over is the end of the text already, or the last one allowed: the answer
// is that of one engine, and both sides are done.
TEST_F(EngineBugReports, B24_AFirstTokenThatEndsTheTextEndsTheRequest) {
  start(40);
  std::uint32_t seed = 0;
  const auto first_token = [](const Request& request) {
    Request one = request;
    one.sampling.max_tokens = 1;
    one.sampling.ignore_eos = true;
    return answer_alone(one).tokens.at(0);
  };
  while (first_token(make_request("e", make_prompt(seed, 21), 1)) != 0) ++seed;
  for (const bool ignore_eos : {false, true}) {
    for (const std::uint32_t max_tokens : {1U, 2U, 8U}) {
      Request request = make_request("e", make_prompt(seed, 21), max_tokens);
      request.sampling.ignore_eos = ignore_eos;
      const Seen expected = answer_alone(request);
      ASSERT_EQ(expected.tokens.front(), 0U);
      if (!ignore_eos) {
        EXPECT_EQ(expected.finish, FinishReason::kStop);
      }
      SCOPED_TRACE(max_tokens);
      expect_answer(*ask(request), expected);
    }
  }
  expect_settled();
}

// The fabric refuses one write: that request fails on both sides with the reason, and the owner
// thread goes on with the others.
TEST_F(EngineBugReports, B27_AWriteThatCannotBePostedFailsItsRequestOnBothSides) {
  start(40);
  const Request request = make_request("a", make_prompt(1, 32), 4);
  const Seen expected = answer_alone(request);
  for (int round = 0; round < 3; ++round) {
    watch_.refuse = 1;
    const auto failing = ask(request);
    failing->decode.wait();
    failing->prefill.wait();
    EXPECT_EQ(failing->decode.last.finish, FinishReason::kError);
    ASSERT_TRUE(failing->decode.last.handover && failing->prefill.last.handover);
    EXPECT_EQ(failing->decode.last.handover->cause, Cause::kFabric);
    EXPECT_EQ(failing->prefill.last.handover->cause, Cause::kFabric);
    EXPECT_THAT(failing->decode.last.error.message, ::testing::HasSubstr("refused by the test"));
    expect_answer(*ask(request), expected);
  }
  expect_settled();
}

}  // namespace
}  // namespace baton::engine
