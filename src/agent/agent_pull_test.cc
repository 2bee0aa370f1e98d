// Pull between two agents of one process, over real sockets and each fabric that reads: D reads
// what P announced.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/testing/instance.h"

namespace baton {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using testing::Instance;
using testing::options_of;
using testing::Shape;

class AgentPullTest : public ::testing::TestWithParam<const char*> {
 protected:
  void start(const std::function<void(AgentOptions&)>& change = {}, const Shape& shape = {}) {
    AgentOptions p = options_of("prefill-1", Role::kProducer);
    AgentOptions d = options_of("decode-1", Role::kConsumer);
    for (AgentOptions* options : {&p, &d}) {
      options->mode = Mode::kPull;
      options->fabric = GetParam();
      if (change) change(*options);
    }
    p_ = std::make_unique<Instance>(p, shape);
    d_ = std::make_unique<Instance>(d, shape);
    d_->keep_decoded_blocks(true);
    total_ = shape.blocks;
  }
  void expect_done(TransferId transfer, std::uint64_t seed, std::uint32_t first_block = 0) {
    ASSERT_TRUE(d_->wait_end(transfer, Side::kDecode));
    ASSERT_TRUE(p_->wait_end(transfer, Side::kPrefill));
    const Event d_end = d_->ends(transfer, Side::kDecode).at(0);
    const Event p_end = p_->ends(transfer, Side::kPrefill).at(0);
    ASSERT_EQ(d_end.outcome, Outcome::kDone) << d_end.text;
    EXPECT_EQ(p_end.outcome, Outcome::kDone) << p_end.text;
    EXPECT_EQ(d_end.bytes, p_end.bytes);
    EXPECT_GT(d_end.writes, 0U);
    EXPECT_GT(d_end.runs, 0U);
    EXPECT_LE(d_end.runs, d_end.writes);
    const std::string fabric = GetParam();
    EXPECT_EQ(d_end.fabric, fabric == "auto" ? "shm" : fabric);
    EXPECT_EQ(p_end.fabric, d_end.fabric);
    EXPECT_EQ(d_end.first_token, static_cast<TokenId>(seed));
    EXPECT_EQ(d_->difference(seed, first_block, d_->registered_blocks(transfer)), "");
  }

  std::unique_ptr<Instance> p_, d_;
  std::size_t total_ = 0;
};

TEST_P(AgentPullTest, ReadsWhatWasAnnounced) {
  start();
  const auto t = TransferId::random();
  ASSERT_TRUE(p_->ready(t, 21, 50));
  ASSERT_TRUE(d_->fetch_blocks(t, p_->address(), p_->announced(t, 50)));
  expect_done(t, 21);
  EXPECT_TRUE(p_->wait_until([&] { return p_->free_blocks() == total_; }));
  EXPECT_EQ(p_->agent().metrics().bytes_written.value(), 0U);
  EXPECT_EQ(d_->agent().metrics().bytes_received.value(),
            d_->ends(t, Side::kDecode).at(0).bytes_planned);
}

TEST_P(AgentPullTest, ManyAtOnceEachTheirOwnBytes) {
  start();
  std::vector<TransferId> ids;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    const TransferId& t = ids.emplace_back(TransferId::random());
    ASSERT_TRUE(p_->ready(t, seed, 30));
    ASSERT_TRUE(d_->fetch_blocks(t, p_->address(), p_->announced(t, 30)));
  }
  for (std::uint64_t seed = 1; seed <= 6; ++seed) expect_done(ids[seed - 1], seed);
}

TEST_P(AgentPullTest, OnlyTheMissingSuffixIsRead) {
  start();
  const auto t = TransferId::random();
  ASSERT_TRUE(p_->ready(t, 22, 40));
  ASSERT_TRUE(d_->fetch_blocks(t, p_->address(), p_->announced(t, 40), 1, 16));
  expect_done(t, 22, 4);
}

TEST_P(AgentPullTest, VerifiedBlocks) {
  start([](AgentOptions& options) { options.verify_blocks = true; });
  const auto t = TransferId::random();
  ASSERT_TRUE(p_->ready(t, 23, 30));
  ASSERT_TRUE(d_->fetch_blocks(t, p_->address(), p_->announced(t, 30)));
  expect_done(t, 23);
  EXPECT_EQ(d_->ends(t, Side::kDecode).at(0).blocks_verified, 8U);
}

TEST_P(AgentPullTest, AnEngineMayWaitUntilItsReadsArePosted) {
  start();
  const auto t = TransferId::random();
  ASSERT_TRUE(p_->ready(t, 24, 50));
  ASSERT_TRUE(d_->fetch_blocks(t, p_->address(), p_->announced(t, 50)));
  EXPECT_TRUE(d_->agent().wait_posted(t, 20s));
  EXPECT_GT(d_->agent().metrics().reads_posted.value(), 0U);
  expect_done(t, 24);
  EXPECT_TRUE(d_->agent().wait_posted(t, 0ms));  // over: nothing to wait for
  EXPECT_TRUE(d_->agent().wait_posted(TransferId::random(), 0ms));
}

TEST_P(AgentPullTest, WhatPGaveUpIsNotUsed) {
  start();
  const auto t = TransferId::random();
  ASSERT_TRUE(p_->ready(t, 25, 30));
  const SourceBlocks source = p_->announced(t, 30);
  ASSERT_TRUE(p_->agent().cancel(t));
  ASSERT_TRUE(p_->wait_end(t, Side::kPrefill));
  ASSERT_TRUE(d_->fetch_blocks(t, p_->address(), source));
  ASSERT_TRUE(d_->wait_end(t, Side::kDecode));
  EXPECT_NE(d_->ends(t, Side::kDecode).at(0).outcome, Outcome::kDone);
}

TEST_P(AgentPullTest, AWrongAnnouncementIsRefusedAndOthersAreServed) {
  start();
  const auto wrong = TransferId::random();
  const auto right = TransferId::random();
  ASSERT_TRUE(p_->ready(wrong, 26, 30));
  ASSERT_TRUE(p_->ready(right, 27, 30));
  ASSERT_TRUE(d_->fetch_blocks(wrong, p_->address(), p_->announced(right, 30)));
  ASSERT_TRUE(d_->fetch_blocks(right, p_->address(), p_->announced(right, 30)));
  ASSERT_TRUE(d_->wait_end(wrong, Side::kDecode));
  EXPECT_THAT(d_->ends(wrong, Side::kDecode).at(0).text, HasSubstr("block_ids"));
  expect_done(right, 27);
}

TEST_P(AgentPullTest, TheLeaseEndsWhereNobodyReads) {
  start([](AgentOptions& options) {
    options.lease = 300ms;
    options.lease_renewal = 100ms;
  });
  const auto t = TransferId::random();
  ASSERT_TRUE(p_->ready(t, 28, 30));
  ASSERT_TRUE(p_->wait_end(t, Side::kPrefill));
  EXPECT_EQ(p_->ends(t, Side::kPrefill).at(0).cause, Cause::kLeaseExpired);
  EXPECT_EQ(p_->free_blocks(), total_);
}

TEST_P(AgentPullTest, PushAndPullRefuseEachOtherAndGoOn) {
  start();
  AgentOptions push = options_of("prefill-2", Role::kProducer);
  push.fabric = GetParam();
  Instance other(push);
  const auto t = TransferId::random();
  ASSERT_TRUE(other.ready(t, 29, 30));
  ASSERT_TRUE(d_->fetch_blocks(t, other.address(), other.announced(t, 30)));
  ASSERT_TRUE(d_->wait_end(t, Side::kDecode));
  EXPECT_THAT(d_->ends(t, Side::kDecode).at(0).text,
              HasSubstr("mode: theirs is push, ours is pull"));
  EXPECT_EQ(other.agent().metrics().refused_peers.value(), 1U);
  const auto next = TransferId::random();
  ASSERT_TRUE(p_->ready(next, 30, 30));
  ASSERT_TRUE(d_->fetch_blocks(next, p_->address(), p_->announced(next, 30)));
  expect_done(next, 30);
}

INSTANTIATE_TEST_SUITE_P(Fabrics, AgentPullTest, ::testing::Values("shm", "libfabric", "auto"),
                         [](const auto& instance) { return std::string(instance.param); });

}  // namespace
}  // namespace baton
