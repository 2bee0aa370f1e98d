// A prefill agent among peers that send noise, lies and floods: it drops them with a reason and
// serves the others [I7].
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "agent/testing/instance.h"
#include "agent/testing/raw_peer.h"
#include "base/random.h"

namespace baton {
namespace {

using namespace std::chrono_literals;
using testing::Instance;
using testing::options_of;
using testing::RawPeer;

class HostilePeers : public ::testing::Test {
 protected:
  HostilePeers()
      : p_(options_of("prefill-1", Role::kProducer)), d_(options_of("decode-1", Role::kConsumer)) {}

  // One hand-over between the honest two.
  void pass(std::uint64_t seed) {
    const auto t = TransferId::random();
    ASSERT_TRUE(p_.agent().expect(t, 40));
    ASSERT_TRUE(d_.register_blocks(t, p_.address(), 40));
    ASSERT_TRUE(p_.ready(t, seed, 40));
    ASSERT_TRUE(d_.wait_end(t, Side::kDecode));
    ASSERT_TRUE(p_.wait_end(t, Side::kPrefill));
    EXPECT_EQ(d_.ends(t, Side::kDecode).at(0).outcome, Outcome::kDone);
  }
  const AgentMetrics& metrics() { return p_.agent().metrics(); }
  wire::Register sound_register(const std::vector<BlockId>& blocks) {
    wire::Register out;
    out.transfer = TransferId::random();
    out.attempt = {0, 1};
    out.range = {0, static_cast<std::uint32_t>(blocks.size()) * 4};
    out.prompt_tokens = out.range.end;
    out.num_groups = 1;
    out.block_ids[0] = blocks;
    out.num_grants = 1;
    out.grant.slot = {1, 1};
    out.grant.epoch = ++epoch_;
    out.grant.credits = 1;
    out.deadline = 60s;
    return out;
  }

  Instance p_, d_;
  Epoch epoch_ = 0;
};

TEST_F(HostilePeers, RandomBytesWhileTransfersRun) {
  Rng rng(7);
  for (std::uint64_t i = 0; i < 30; ++i) {
    RawPeer noise(p_.address());
    std::vector<std::byte> bytes(1 + rng.below(5000));
    for (auto& byte : bytes) byte = static_cast<std::byte>(rng.next());
    // Half of them begin like a frame.
    if (i % 2 == 0 && bytes.size() >= wire::kHeaderBytes) {
      wire::write_header(std::span(bytes).first(wire::kHeaderBytes), wire::MessageType::kHello, {});
      bytes[12] = static_cast<std::byte>(rng.next());
    }
    noise.write(bytes);
    pass(i);
  }
  EXPECT_GT(metrics().refused_messages.value() + metrics().refused_peers.value(), 0U);
}

TEST_F(HostilePeers, NoiseIsAnsweredWithAReasonAndClosed) {
  RawPeer noise(p_.address());
  const std::vector<std::byte> bytes(100, std::byte{0x11});
  noise.write(bytes);
  bool reason = false;
  noise.hear<wire::Refuse>([&](const wire::Refuse& refuse) { reason = !refuse.text.empty(); });
  EXPECT_TRUE(reason);
  EXPECT_TRUE(noise.closed_by_peer());
}

TEST_F(HostilePeers, MessagesBeforeTheHandshakeDoNothing) {
  RawPeer rude(p_.address());
  const std::vector<BlockId> blocks{1, 2, 3};
  rude.say(sound_register(blocks));
  pass(1);
  EXPECT_TRUE(p_.wait_until([&] { return metrics().transfers_prefill.value() == 0; }));
}

TEST_F(HostilePeers, GarbageRegistrationsAreRefusedOneByOne) {
  RawPeer liar(p_.address());
  ASSERT_TRUE(liar.say(liar.hello(d_.geometry())));
  ASSERT_TRUE(liar.hear<wire::HelloAck>());
  const std::vector<BlockId> good{1, 2, 3};
  const std::vector<BlockId> outside{1, 2, 64};
  const std::vector<BlockId> far_outside{0xFFFFFFFFU, 2, 3};
  const std::vector<BlockId> twice{1, 2, 2};
  const std::vector<BlockId> too_many{1, 2, 3, 4};
  std::vector<wire::Register> lies(8, sound_register(good));
  lies[0].block_ids[0] = outside;
  lies[1].block_ids[0] = far_outside;
  lies[2].block_ids[0] = twice;
  lies[3].block_ids[0] = too_many;
  lies[4].range = {2, 14};
  lies[5].range = {8, 4};
  lies[6].prompt_tokens = 1;
  lies[7].grant.writer = {3, 0};
  for (auto& lie : lies) {
    lie.transfer = TransferId::random();
    lie.grant.epoch = ++epoch_;
    ASSERT_TRUE(liar.say(lie));
  }
  pass(2);
  // Each is counted, none has opened anything.
  EXPECT_TRUE(p_.wait_until([&] { return metrics().refused_messages.value() >= lies.size(); }))
      << metrics().refused_messages.value();
  EXPECT_TRUE(p_.wait_until([&] { return metrics().transfers_prefill.value() == 0; }));
  pass(3);
}

TEST_F(HostilePeers, AStolenTransferIdGetsNothingWithoutAnOffer) {
  RawPeer thief(p_.address());
  ASSERT_TRUE(thief.say(thief.hello(d_.geometry())));
  ASSERT_TRUE(thief.hear<wire::HelloAck>());
  const std::vector<std::byte> lie(64, std::byte{0x77});
  ASSERT_TRUE(thief.say(wire::Offer{lie}));
  const std::vector<BlockId> blocks{1, 2, 3};
  ASSERT_TRUE(thief.say(sound_register(blocks)));
  pass(4);
}

TEST_F(HostilePeers, APeerThatNeverReadsDelaysNobody) {
  pass(1);
  RawPeer deaf(p_.address());
  ASSERT_TRUE(deaf.say(deaf.hello(d_.geometry())));
  const std::vector<BlockId> blocks{1, 2, 3};
  // Questions without end, whose answers nobody takes.
  std::thread asking([&] {
    for (int i = 0; i < 200'000; ++i) {
      if (!deaf.say(sound_register(blocks))) return;
    }
  });
  for (std::uint64_t i = 0; i < 20; ++i) pass(i);
  p_.stop();  // ends the asking, if its own bound has not yet
  asking.join();
}

TEST_F(HostilePeers, AFloodOfConnectionsLeavesPlaceForTheHonest) {
  std::vector<std::unique_ptr<RawPeer>> flood;
  for (int i = 0; i < 200; ++i) flood.push_back(std::make_unique<RawPeer>(p_.address()));
  pass(1);
}

}  // namespace
}  // namespace baton
