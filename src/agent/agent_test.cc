// Two agents in one process, over the same-host fabric and real sockets: prefill (P) and decode
// (D).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "agent/testing/instance.h"
#include "fabric/shm/shm_fabric.h"

namespace baton {
namespace {

using namespace std::chrono_literals;
using testing::Instance;
using testing::options_of;
using testing::Shape;

// Voluntary sleeps of all owner threads of this process so far.
long wakeups() {
  long sum = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream name(entry.path() / "comm");
    std::string text;
    std::getline(name, text);
    if (text != "baton-owner") continue;
    std::ifstream status(entry.path() / "status");
    while (std::getline(status, text)) {
      if (text.rfind("voluntary_ctxt_switches:", 0) == 0) sum += std::stol(text.substr(24));
    }
  }
  return sum;
}

class AgentTest : public ::testing::Test {
 protected:
  void start(const std::function<void(AgentOptions&)>& change = {}, const Shape& shape = {}) {
    AgentOptions p = options_of("prefill-1", Role::kProducer);
    AgentOptions d = options_of("decode-1", Role::kConsumer);
    if (change) {
      change(p);
      change(d);
    }
    p_ = std::make_unique<Instance>(p, shape);
    d_ = std::make_unique<Instance>(d, shape);
    total_ = shape.blocks;
  }
  // What must hold after any test: everybody's blocks are back, nobody was told twice.
  void expect_all_returned() {
    EXPECT_TRUE(p_->wait_until([&] { return p_->free_blocks() == total_; })) << p_->free_blocks();
    EXPECT_TRUE(d_->wait_until([&] { return d_->free_blocks() == total_; })) << d_->free_blocks();
    EXPECT_THAT(p_->faults(), ::testing::IsEmpty());
    EXPECT_THAT(d_->faults(), ::testing::IsEmpty());
  }
  // The end of `transfer` on both sides was one, and done, and the bytes are right.
  void expect_done(TransferId transfer, std::uint64_t seed, std::uint32_t first_block = 0) {
    ASSERT_TRUE(d_->wait_end(transfer, Side::kDecode));
    ASSERT_TRUE(p_->wait_end(transfer, Side::kPrefill));
    const Event d_end = d_->ends(transfer, Side::kDecode).at(0);
    const Event p_end = p_->ends(transfer, Side::kPrefill).at(0);
    EXPECT_EQ(d_end.outcome, Outcome::kDone) << d_end.text;
    EXPECT_EQ(p_end.outcome, Outcome::kDone) << p_end.text;
    EXPECT_EQ(p_end.bytes, p_end.bytes_planned);
    EXPECT_EQ(d_end.bytes, p_end.bytes);
    EXPECT_EQ(d_end.peer, "prefill-1");
    EXPECT_EQ(p_end.peer, "decode-1");
    EXPECT_EQ(d_end.first_token, static_cast<TokenId>(seed));
    EXPECT_EQ(d_->difference(seed, first_block, d_->registered_blocks(transfer)), "");
  }

  std::unique_ptr<Instance> p_, d_;
  std::size_t total_ = 0;
};

TEST_F(AgentTest, ReadyFirstThenRegistration) {
  start();
  d_->keep_decoded_blocks(true);
  const auto t = TransferId::random();
  ASSERT_TRUE(p_->ready(t, 11, 30));
  ASSERT_TRUE(d_->register_blocks(t, p_->address(), 30));
  expect_done(t, 11);
}

TEST_F(AgentTest, RegistrationFirstThenReady) {
  start();
  d_->keep_decoded_blocks(true);
  const auto t = TransferId::random();
  ASSERT_TRUE(p_->agent().expect(t, 30));
  ASSERT_TRUE(d_->register_blocks(t, p_->address(), 30));
  ASSERT_TRUE(p_->ready(t, 12, 30));
  expect_done(t, 12);
  const Event d_end = d_->ends(t, Side::kDecode).at(0);
  EXPECT_GT(d_end.times.registered, 0);
  EXPECT_GE(d_end.times.last_byte, d_end.times.registered);
  EXPECT_GE(d_end.times.told, d_end.times.last_byte);
}

TEST_F(AgentTest, MemoryThatAnEngineAllocatedItself) {
  Shape shape;
  shape.sealed_memory = false;
  start({}, shape);
  d_->keep_decoded_blocks(true);
  const auto t = TransferId::random();
  ASSERT_TRUE(p_->ready(t, 13, 50));
  ASSERT_TRUE(d_->register_blocks(t, p_->address(), 50));
  expect_done(t, 13);
}

TEST_F(AgentTest, PiecesAndOneEnd) {
  start();
  d_->keep_decoded_blocks(true);
  const auto t = TransferId::random();
  ASSERT_TRUE(p_->agent().expect(t, 42));
  ASSERT_TRUE(p_->ready_piece(t, 14, {0, 8}, false));
  ASSERT_TRUE(d_->register_blocks(t, p_->address(), 42));
  ASSERT_TRUE(p_->ready_piece(t, 14, {8, 20}, false));
  ASSERT_TRUE(p_->ready_piece(t, 14, {20, 42}, true));
  expect_done(t, 14);
}

TEST_F(AgentTest, OnlyTheMissingSuffixMoves) {
  start();
  d_->keep_decoded_blocks(true);
  const auto t = TransferId::random();
  ASSERT_TRUE(p_->ready(t, 15, 40));
  ASSERT_TRUE(d_->register_blocks(t, p_->address(), 40, 1, 16));
  expect_done(t, 15, 4);
  EXPECT_EQ(d_->ends(t, Side::kDecode).at(0).range, (TokenRange{16, 40}));
}

// The emulated link counts the very bytes that the hand-over moved, and a poster that goes block by
// block pays for each block of each region.
TEST_F(AgentTest, AnEmulatedLinkTakesItsTimeForEveryByteAndPost) {
  start([](AgentOptions& options) {
    options.link_bytes_per_second = 10'000'000;
    options.post_cost = 5us;
    options.merge_runs = false;
  });
  d_->keep_decoded_blocks(true);
  const auto t = TransferId::random();
  ASSERT_TRUE(p_->ready(t, 18, 30));
  ASSERT_TRUE(d_->register_blocks(t, p_->address(), 30));
  expect_done(t, 18);
  const Event end = p_->ends(t, Side::kPrefill).at(0);
  ASSERT_NE(p_->agent().link(), nullptr);
  const LinkMetrics& link = *p_->agent().link();
  EXPECT_EQ(link.busy_nanoseconds.value(), end.bytes * 100);
  EXPECT_EQ(link.posting_nanoseconds.value(), end.writes * 5000);
  EXPECT_LT(end.runs, end.writes) << "neighbours are one run, whether they are merged or not";
  EXPECT_EQ(p_->agent().metrics().runs_merged.value(), 0U);
  EXPECT_EQ(d_->agent().link()->busy_nanoseconds.value(), 0U);
}

TEST_F(AgentTest, WithoutALinkNothingIsCounted) {
  start();
  EXPECT_EQ(p_->agent().link(), nullptr);
}

TEST_F(AgentTest, VerifiedBlocks) {
  start([](AgentOptions& options) { options.verify_blocks = true; });
  d_->keep_decoded_blocks(true);
  const auto t = TransferId::random();
  ASSERT_TRUE(p_->ready(t, 16, 30));
  ASSERT_TRUE(d_->register_blocks(t, p_->address(), 30));
  expect_done(t, 16);
  EXPECT_EQ(d_->ends(t, Side::kDecode).at(0).blocks_verified, 8U);
}

TEST_F(AgentTest, ManyAtOnceInBothOrders) {
  Shape shape;
  shape.blocks = 2048;
  start([](AgentOptions& options) { options.verify_blocks = true; }, shape);
  d_->keep_decoded_blocks(true);
  std::vector<TransferId> transfers;
  for (std::uint64_t i = 0; i < 200; ++i) {
    const auto t = transfers.emplace_back(TransferId::random());
    const auto tokens = static_cast<std::uint32_t>(1 + (i * 7) % 37);
    ASSERT_TRUE(p_->agent().expect(t, tokens));
    const bool ready_first = i % 2 == 0;
    EXPECT_TRUE(!ready_first || p_->ready(t, 1000 + i, tokens));
    ASSERT_TRUE(d_->register_blocks(t, p_->address(), tokens));
    EXPECT_TRUE(ready_first || p_->ready(t, 1000 + i, tokens));
  }
  for (std::uint64_t i = 0; i < transfers.size(); ++i) expect_done(transfers[i], 1000 + i);
  EXPECT_EQ(p_->agent().metrics().prefill_done.value(), 200U);
  EXPECT_EQ(d_->agent().metrics().decode_done.value(), 200U);
  EXPECT_EQ(d_->agent().metrics().bytes_received.value(),
            p_->agent().metrics().bytes_written.value());
  EXPECT_THAT(d_->faults(), ::testing::IsEmpty());
}

TEST_F(AgentTest, BlocksAreUsedAgainAndAgain) {
  start();
  for (std::uint64_t i = 0; i < 50; ++i) {
    const auto t = TransferId::random();
    ASSERT_TRUE(d_->register_blocks(t, p_->address(), 100));
    ASSERT_TRUE(p_->ready(t, i, 100));
    ASSERT_TRUE(d_->wait_end(t, Side::kDecode));
    ASSERT_TRUE(p_->wait_end(t, Side::kPrefill));
    EXPECT_EQ(d_->ends(t, Side::kDecode).at(0).outcome, Outcome::kDone);
  }
  expect_all_returned();
}

TEST_F(AgentTest, DecodeCancelsBeforeReady) {
  start();
  const auto t = TransferId::random();
  ASSERT_TRUE(p_->agent().expect(t, 30));
  ASSERT_TRUE(d_->register_blocks(t, p_->address(), 30));
  ASSERT_TRUE(d_->agent().cancel(t));
  ASSERT_TRUE(d_->wait_end(t, Side::kDecode));
  EXPECT_EQ(d_->ends(t, Side::kDecode).at(0).outcome, Outcome::kCancelled);
  EXPECT_EQ(d_->ends(t, Side::kDecode).at(0).cause, Cause::kCancelledHere);
  expect_all_returned();
}

TEST_F(AgentTest, PrefillCancelsAndDecodeLearnsOfIt) {
  start();
  const auto t = TransferId::random();
  ASSERT_TRUE(p_->agent().expect(t, 30));
  ASSERT_TRUE(d_->register_blocks(t, p_->address(), 30));
  ASSERT_TRUE(p_->agent().cancel(t));
  ASSERT_TRUE(d_->wait_end(t, Side::kDecode));
  EXPECT_EQ(d_->ends(t, Side::kDecode).at(0).cause, Cause::kCancelledByPeer);
  expect_all_returned();
}

TEST_F(AgentTest, DecodeCancelFreesPrefillAtOnce) {
  start();
  const auto t = TransferId::random();
  ASSERT_TRUE(d_->agent().claim(t, p_->address()));
  ASSERT_TRUE(d_->wait_until([&] { return d_->agent().metrics().peers_connected.value() == 1; }));
  ASSERT_TRUE(p_->ready(t, 1, 30));
  ASSERT_TRUE(d_->agent().cancel(t));
  ASSERT_TRUE(p_->wait_end(t, Side::kPrefill));
  expect_all_returned();
}

TEST_F(AgentTest, WithdrawnAndRegisteredAgain) {
  start();
  d_->keep_decoded_blocks(true);
  const auto t = TransferId::random();
  ASSERT_TRUE(p_->agent().expect(t, 30));
  ASSERT_TRUE(d_->register_blocks(t, p_->address(), 30, 1));
  ASSERT_TRUE(d_->agent().withdraw(t));
  ASSERT_TRUE(d_->wait_end(t, Side::kDecode));
  ASSERT_TRUE(d_->register_blocks(t, p_->address(), 30, 2));
  ASSERT_TRUE(p_->ready(t, 17, 30));
  ASSERT_TRUE(d_->wait_end(t, Side::kDecode, 2));
  const auto ends = d_->ends(t, Side::kDecode);
  EXPECT_EQ(ends.at(0).outcome, Outcome::kCancelled);
  EXPECT_EQ(ends.at(1).outcome, Outcome::kDone) << ends.at(1).text;
  EXPECT_EQ(d_->difference(17, 0, d_->registered_blocks(t, 2)), "");
  EXPECT_TRUE(d_->is_poison(d_->registered_blocks(t, 1)));
  ASSERT_TRUE(p_->wait_end(t, Side::kPrefill));
  EXPECT_EQ(p_->ends(t, Side::kPrefill).at(0).outcome, Outcome::kDone);
}

TEST_F(AgentTest, LeaseOfBlocksThatNobodyWantsExpires) {
  start([](AgentOptions& options) {
    options.lease = 200ms;
    options.lease_renewal = 50ms;
  });
  const auto t = TransferId::random();
  ASSERT_TRUE(p_->ready(t, 1, 30));
  ASSERT_TRUE(p_->wait_end(t, Side::kPrefill));
  EXPECT_EQ(p_->ends(t, Side::kPrefill).at(0).cause, Cause::kLeaseExpired);
  EXPECT_EQ(p_->agent().metrics().leases_expired.value(), 1U);
  expect_all_returned();
}

TEST_F(AgentTest, ClaimKeepsALeaseAlive) {
  start([](AgentOptions& options) {
    options.lease = 2s;
    options.lease_renewal = 100ms;
  });
  const auto t = TransferId::random();
  ASSERT_TRUE(d_->agent().claim(t, p_->address()));
  ASSERT_TRUE(p_->ready(t, 1, 30));
  // Renewals do not come closer than that: longer than the lease.
  ASSERT_TRUE(p_->wait_until([&] { return p_->agent().metrics().leases_renewed.value() >= 25; }));
  EXPECT_TRUE(p_->ends(t, Side::kPrefill).empty());
  ASSERT_TRUE(d_->register_blocks(t, p_->address(), 30));
  ASSERT_TRUE(d_->wait_end(t, Side::kDecode));
  EXPECT_EQ(d_->ends(t, Side::kDecode).at(0).outcome, Outcome::kDone);
  expect_all_returned();
}

TEST_F(AgentTest, RegistrationThatNobodyMatchesMeetsItsDeadline) {
  start();
  const auto t = TransferId::random();
  ASSERT_TRUE(d_->register_blocks(t, p_->address(), 30, 1, 0, 200ms));
  ASSERT_TRUE(d_->wait_end(t, Side::kDecode));
  const Event end = d_->ends(t, Side::kDecode).at(0);
  EXPECT_EQ(end.outcome, Outcome::kFailed);
  EXPECT_THAT(end.cause, ::testing::AnyOf(Cause::kDeadline, Cause::kUnknownTransfer));
  expect_all_returned();
}

TEST_F(AgentTest, NobodyAnswersAtTheAddress) {
  start();
  auto nowhere = p_->address();
  nowhere.port = 1;
  const auto t = TransferId::random();
  ASSERT_TRUE(d_->register_blocks(t, nowhere, 30));
  ASSERT_TRUE(d_->wait_end(t, Side::kDecode));
  EXPECT_EQ(d_->ends(t, Side::kDecode).at(0).cause, Cause::kPeerUnreachable);
  expect_all_returned();
}

TEST_F(AgentTest, AnotherIncarnationThanAskedFor) {
  start();
  auto old = p_->address();
  old.incarnation ^= 1;
  const auto t = TransferId::random();
  ASSERT_TRUE(d_->register_blocks(t, old, 30));
  ASSERT_TRUE(d_->wait_end(t, Side::kDecode));
  EXPECT_EQ(d_->ends(t, Side::kDecode).at(0).cause, Cause::kPeerRestarted);
  expect_all_returned();
}

TEST_F(AgentTest, AnAgentThatEndsTellsItsPeers) {
  start();
  const auto t = TransferId::random();
  ASSERT_TRUE(p_->agent().expect(t, 30));
  ASSERT_TRUE(d_->register_blocks(t, p_->address(), 30));
  ASSERT_TRUE(p_->wait_until([&] { return p_->agent().metrics().peers_connected.value() > 0; }));
  p_->stop();
  ASSERT_TRUE(d_->wait_end(t, Side::kDecode));
  const Event end = d_->ends(t, Side::kDecode).at(0);
  EXPECT_EQ(end.outcome, Outcome::kFailed);
  EXPECT_THAT(end.cause,
              ::testing::AnyOf(Cause::kShutdown, Cause::kPeerDied, Cause::kCancelledByPeer));
}

TEST_F(AgentTest, EventDescriptorIsReadableWhileEventsWait) {
  start();
  const auto readable = [&](std::chrono::milliseconds within = 0ms) {
    pollfd fd{d_->agent().event_fd(), POLLIN, 0};
    return ::poll(&fd, 1, static_cast<int>(within.count())) == 1;
  };
  EXPECT_FALSE(readable());
  auto nowhere = p_->address();
  nowhere.port = 1;
  const auto a = TransferId::random();
  const auto b = TransferId::random();
  ASSERT_TRUE(d_->register_blocks(a, nowhere, 4));
  ASSERT_TRUE(d_->register_blocks(b, nowhere, 4));
  while (d_->agent().metrics().decode_failed.value() < 2) std::this_thread::sleep_for(1ms);
  std::vector<Event> one(1);
  ASSERT_EQ(d_->agent().poll_events(one), 1U);
  EXPECT_TRUE(readable(20s));  // it was counted a moment before it can be taken
  std::size_t rest = 0;
  while (d_->agent().poll_events(one) == 1) ++rest;
  EXPECT_GE(rest, 1U);
  EXPECT_FALSE(readable());
}

TEST_F(AgentTest, TransfersMaxIsKeptAndTakenEventsMakeRoom) {
  start([](AgentOptions& options) { options.transfers_max = 4; });
  std::vector<TransferId> transfers;
  for (int i = 0; i < 4; ++i) {
    transfers.push_back(TransferId::random());
    ASSERT_TRUE(p_->agent().expect(transfers.back(), 4));
    ASSERT_TRUE(d_->register_blocks(transfers.back(), p_->address(), 4));
  }
  const auto one_more = TransferId::random();
  const auto refused = d_->register_blocks(one_more, p_->address(), 4);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kResourceExhausted);
  EXPECT_NE(refused.error().message.find("transfers_max"), std::string::npos);
  // Ended and not taken: still no room.
  for (const auto t : transfers) ASSERT_TRUE(d_->agent().cancel(t));
  while (d_->agent().metrics().decode_cancelled.value() < 4) std::this_thread::sleep_for(1ms);
  EXPECT_FALSE(d_->register_blocks(one_more, p_->address(), 4));
  // The counter is raised a moment before the event can be taken.
  EXPECT_TRUE(
      d_->wait_until([&] { return d_->register_blocks(one_more, p_->address(), 4).has_value(); }));
}

TEST_F(AgentTest, CallersMistakesAreNamedBeforeAcceptance) {
  start();
  const auto t = TransferId::random();
  Registration good;
  good.transfer = t;
  good.attempt = 1;
  good.peer = p_->address();
  good.range = {0, 8};
  good.prompt_tokens = 8;
  good.block_ids = {{1, 2}};
  const auto refused = [&](const std::function<void(Registration&)>& spoil) {
    Registration bad = good;
    spoil(bad);
    const auto answer = d_->agent().register_blocks(bad);
    EXPECT_FALSE(answer);
    EXPECT_EQ(answer ? Errc::kInternal : answer.error().code, Errc::kInvalidArgument);
    return answer ? std::string() : answer.error().message;
  };
  EXPECT_NE(refused([](Registration& r) { r.block_ids = {{1, 64}}; }).find("64"),
            std::string::npos);
  EXPECT_NE(refused([](Registration& r) { r.block_ids = {{1, 2, 3}}; }).find("3"),
            std::string::npos);
  refused([](Registration& r) { r.block_ids = {}; });
  refused([](Registration& r) { r.range = {2, 8}; });
  refused([](Registration& r) { r.range = {8, 4}; });
  refused([](Registration& r) { r.transfer = {}; });
  refused([](Registration& r) { r.peer.host.clear(); });
  refused([](Registration& r) { r.peer.port = 0; });
  refused([](Registration& r) { r.peer.engine_id.clear(); });

  ReadyPiece piece;
  piece.transfer = t;
  piece.range = {0, 8};
  piece.block_ids = {{1, 64}};
  EXPECT_FALSE(p_->agent().ready(piece));
  piece.block_ids = {{1}};
  EXPECT_FALSE(p_->agent().ready(piece));
  // Roles.
  EXPECT_EQ(d_->agent().ready(piece).error().code, Errc::kUnsupported);
  EXPECT_EQ(p_->agent().register_blocks(good).error().code, Errc::kUnsupported);
  // Unknown ids are fine.
  EXPECT_TRUE(p_->agent().cancel(t));
  EXPECT_TRUE(d_->agent().withdraw(t));
}

TEST_F(AgentTest, ABlockListedTwiceEndsTheAttempt) {
  start();
  Registration twice;
  twice.transfer = TransferId::random();
  twice.attempt = 1;
  twice.peer = p_->address();
  twice.range = {0, 8};
  twice.prompt_tokens = 8;
  twice.block_ids = {{5, 5}};
  ASSERT_TRUE(d_->agent().register_blocks(twice));
  ASSERT_TRUE(d_->wait_end(twice.transfer, Side::kDecode));
  const Event end = d_->ends(twice.transfer, Side::kDecode).at(0);
  EXPECT_EQ(end.cause, Cause::kRefused);
  EXPECT_THAT(end.text, ::testing::HasSubstr("block 5 twice"));
  EXPECT_TRUE(end.blocks_released);
}

// A decode agent that ends waits for its writers to stop, so that its memory may be used again.
TEST_F(AgentTest, EndingUnderWritesLeavesNoWriterBehind) {
  Shape shape;
  shape.blocks = 640;
  shape.head_dim = 64;
  shape.block_size = 16;
  start({}, shape);
  for (std::uint64_t i = 0; i < 3; ++i) {
    const auto t = TransferId::random();
    const auto posted = p_->agent().metrics().writes_posted.value();
    ASSERT_TRUE(p_->agent().expect(t, 10000));
    ASSERT_TRUE(d_->register_blocks(t, p_->address(), 10000));
    ASSERT_TRUE(p_->ready(t, i, 10000));
    while (p_->agent().metrics().writes_posted.value() == posted) std::this_thread::yield();
    d_->stop();
    d_->poison(d_->registered_blocks(t));
    ASSERT_TRUE(p_->wait_end(t, Side::kPrefill));
    EXPECT_TRUE(d_->is_poison(d_->registered_blocks(t)));
    d_ = std::make_unique<Instance>(options_of("decode-1", Role::kConsumer), shape);
  }
}

// Whoever is idle sleeps: the owner threads wake up by timers only.
TEST_F(AgentTest, IdleAgentsDoNotPoll) {
  start();
  const auto t = TransferId::random();
  ASSERT_TRUE(p_->ready(t, 1, 30));
  ASSERT_TRUE(d_->register_blocks(t, p_->address(), 30));
  ASSERT_TRUE(d_->wait_end(t, Side::kDecode));
  ASSERT_TRUE(p_->wait_end(t, Side::kPrefill));
  std::this_thread::sleep_for(100ms);
  const auto before = wakeups();
  std::this_thread::sleep_for(1s);
  // Heartbeats of two peers each 1.25 s, and the timers behind them.
  EXPECT_LT(wakeups() - before, 40);
}

TEST(AgentCreate, BadOptionsNameTheField) {
  Instance instance(options_of("probe", Role::kBoth));
  const auto message = [&](const std::function<void(AgentOptions&, Geometry&)>& spoil) {
    AgentOptions options = options_of("x", Role::kBoth);
    Geometry geometry = instance.geometry();
    spoil(options, geometry);
    const auto agent = Agent::create(options, geometry);
    return agent ? std::string("created") : agent.error().message;
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(message([](auto& o, auto&) { o.engine_id = ""; }), HasSubstr("engine_id"));
  EXPECT_THAT(message([](auto& o, auto&) { o.engine_id = std::string(129, 'a'); }),
              HasSubstr("129"));
  EXPECT_THAT(message([](auto& o, auto&) { o.engine_id = "a\nb"; }), HasSubstr("0x0a"));
  EXPECT_THAT(message([](auto& o, auto&) { o.fabric = "efa"; }), HasSubstr("'efa'"));
  EXPECT_THAT(message([](auto& o, auto&) { o.peer_timeout = 0ms; }), HasSubstr("peer_timeout"));
  EXPECT_THAT(message([](auto& o, auto&) { o.lease_renewal = 40s; }), HasSubstr("lease_renewal"));
  EXPECT_THAT(message([](auto& o, auto&) { o.transfers_max = 0; }), HasSubstr("transfers_max"));
  EXPECT_THAT(message([](auto& o, auto&) { o.post_cost = -1ns; }), HasSubstr("post_cost is -1"));
  EXPECT_THAT(message([](auto& o, auto&) { o.host = "no such host"; }), HasSubstr("no such host"));
  EXPECT_THAT(message([&](auto& o, auto&) { o.port = instance.address().port; }),
              HasSubstr("is in use"));
  EXPECT_THAT(message([](auto&, auto& g) { g.block_size = 0; }), HasSubstr("block_size"));
  EXPECT_THAT(message([](auto&, auto& g) { g.regions[0].base = nullptr; }), HasSubstr("base"));
}

// The refusal names field and both values on D's side; P counts it, and serves others.
class RefusedPeer : public AgentTest {
 protected:
  std::string refusal(const std::function<void(Geometry&)>& change_geometry,
                      const std::function<void(PeerAddress&)>& change_address = {}) {
    Instance other(options_of("decode-2", Role::kConsumer), {}, {}, change_geometry);
    PeerAddress address = p_->address();
    if (change_address) change_address(address);
    const auto t = TransferId::random();
    EXPECT_TRUE(other.register_blocks(t, address, 8));
    EXPECT_TRUE(other.wait_end(t, Side::kDecode));
    const Event end = other.ends(t, Side::kDecode).at(0);
    EXPECT_EQ(end.outcome, Outcome::kFailed);
    EXPECT_EQ(end.cause, Cause::kRefused);
    EXPECT_TRUE(other.wait_until([&] { return other.free_blocks() == 64; }));
    return end.text;
  }
};

TEST_F(RefusedPeer, NamesFieldAndBothValues) {
  start();
  using ::testing::AllOf;
  using ::testing::HasSubstr;
  EXPECT_THAT(refusal([](Geometry& g) { g.model = "other-model"; }),
              AllOf(HasSubstr("model"), HasSubstr("test-model"), HasSubstr("other-model")));
  EXPECT_THAT(refusal([](Geometry& g) { g.regions[2].name = "layer.9"; }), HasSubstr("layer."));
  EXPECT_THAT(refusal({}, [](PeerAddress& a) { a.engine_id = "prefill-9"; }),
              AllOf(HasSubstr("prefill-1"), HasSubstr("prefill-9")));
  AgentOptions pull = options_of("decode-3", Role::kConsumer);
  pull.mode = Mode::kPull;
  Instance other(pull, {},
                 [](const PeerId&) { return std::move(*fabric::shm::make_shm_fabric()); });
  const auto u = TransferId::random();
  ASSERT_TRUE(other.fetch_blocks(u, p_->address(), {{0, 8}, {{0, 1}}}));
  ASSERT_TRUE(other.wait_end(u, Side::kDecode));
  EXPECT_THAT(other.ends(u, Side::kDecode).at(0).text,
              AllOf(HasSubstr("mode"), HasSubstr("push"), HasSubstr("pull")));
  EXPECT_GE(p_->agent().metrics().refused_peers.value(), 4U);
  const auto t = TransferId::random();
  ASSERT_TRUE(p_->ready(t, 3, 8));
  ASSERT_TRUE(d_->register_blocks(t, p_->address(), 8));
  ASSERT_TRUE(d_->wait_end(t, Side::kDecode));
  EXPECT_EQ(d_->ends(t, Side::kDecode).at(0).outcome, Outcome::kDone);
}

TEST_F(AgentTest, ADrainingPairRefusesTheNewAndEndsWhatRuns) {
  start();
  d_->keep_decoded_blocks(true);
  const auto running = TransferId::random();
  ASSERT_TRUE(p_->agent().expect(running, 30));
  ASSERT_TRUE(d_->register_blocks(running, p_->address(), 30));
  ASSERT_TRUE(p_->agent().drain());
  ASSERT_TRUE(d_->agent().drain());
  const auto late = TransferId::random();
  ASSERT_TRUE(d_->register_blocks(late, p_->address(), 8));
  ASSERT_TRUE(p_->agent().expect(late, 8));
  ASSERT_TRUE(d_->wait_end(late, Side::kDecode));
  ASSERT_TRUE(p_->wait_end(late, Side::kPrefill));
  EXPECT_EQ(d_->ends(late, Side::kDecode).at(0).cause, Cause::kShutdown);
  EXPECT_EQ(p_->ends(late, Side::kPrefill).at(0).cause, Cause::kShutdown);
  ASSERT_TRUE(p_->ready(running, 12, 30));
  expect_done(running, 12);
}

TEST_F(AgentTest, AnAbandonedAgentEndsEverythingWithEventsAndTellsItsPeer) {
  start();
  const auto t = TransferId::random();
  ASSERT_TRUE(p_->agent().expect(t, 30));
  ASSERT_TRUE(d_->register_blocks(t, p_->address(), 30));
  // P has the registration, and not only the connection: else nothing of D's would end there.
  ASSERT_TRUE(p_->ready_piece(t, 3, {0, 16}, false));
  ASSERT_TRUE(p_->wait_until([&] { return p_->agent().metrics().writes_posted.value() > 0; }));
  ASSERT_TRUE(d_->agent().abandon());
  ASSERT_TRUE(d_->wait_end(t, Side::kDecode));
  EXPECT_EQ(d_->ends(t, Side::kDecode).at(0).cause, Cause::kShutdown);
  ASSERT_TRUE(p_->wait_end(t, Side::kPrefill));
  EXPECT_EQ(p_->ends(t, Side::kPrefill).at(0).outcome, Outcome::kCancelled);
  expect_all_returned();
}

}  // namespace
}  // namespace baton
