// What every fabric must do with writes, connections and fences, run on each adapter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/random.h"
#include "fabric/testing/conformance.h"

namespace baton::fabric::conformance {
namespace {

using ::testing::HasSubstr;

TEST_P(Conformance, AnImmediateComesAfterAllBytesOfItsWrite) {
  Peer& writer = world_->add("p");
  Peer& receiver = world_->add("d");
  const Pair pair = join(writer, receiver);
  writer.node->fill(0, kPoolBytes, 5);
  // Unaligned at either end, from one byte to many slices.
  const std::vector<std::uint64_t> lengths{1, 63, 4096, 65537, 300001};
  std::uint64_t at = 13;
  for (std::uint32_t i = 0; i < lengths.size(); ++i) {
    post_all(writer, {write(pair.outbound, at + 7, at, lengths[i], i, 100 + i)});
    ASSERT_TRUE(world_->until([&] { return receiver.count(Kind::kImmediate) == i + 1; }));
    EXPECT_EQ(receiver.events.back().immediate, i);
    EXPECT_EQ(receiver.events.back().inbound, pair.inbound);
    EXPECT_EQ(receiver.node->read(at, lengths[i]), testing::pattern(at + 7, lengths[i], 5));
    EXPECT_EQ(receiver.node->read(at + lengths[i], 16), Bytes(16));
    at += lengths[i] + 32;
  }
  ASSERT_TRUE(world_->until([&] { return writer.count(Kind::kWriteDone) == lengths.size(); }));
  std::set<std::uint64_t> contexts;
  for (const FabricEvent& event : writer.of(Kind::kWriteDone)) contexts.insert(event.context);
  EXPECT_EQ(contexts, (std::set<std::uint64_t>{100, 101, 102, 103, 104}));
}

TEST_P(Conformance, AWriteOfNothingCarriesAnImmediate) {
  Peer& writer = world_->add("p");
  Peer& receiver = world_->add("d");
  const Pair pair = join(writer, receiver);
  post_all(writer, {write(pair.outbound, 0, 0, 0, 0xFFFFFFFF, 9)});
  ASSERT_TRUE(world_->until([&] {
    return receiver.count(Kind::kImmediate) == 1 && writer.count(Kind::kWriteDone) == 1;
  }));
  EXPECT_EQ(receiver.of(Kind::kImmediate)[0].immediate, 0xFFFFFFFF);
  EXPECT_EQ(writer.of(Kind::kWriteDone)[0].context, 9U);
}

TEST_P(Conformance, WithDeliveryCompleteOneLastImmediateSpeaksForAll) {
  Peer& writer = world_->add("p");
  Peer& receiver = world_->add("d");
  if (!writer.node->capabilities().delivery_complete) GTEST_SKIP() << "not offered";
  const Pair pair = join(writer, receiver);
  writer.node->fill(0, kPoolBytes, 6);
  std::vector<Write> writes;
  for (std::uint64_t i = 0; i < 64; ++i) {
    writes.push_back(write(pair.outbound, (63 - i) * 16384, i * 16384, 16384, {}, i));
  }
  post_all(writer, writes);
  ASSERT_TRUE(world_->until([&] { return writer.count(Kind::kWriteDone) == 64; }));
  post_all(writer, {write(pair.outbound, 0, 0, 0, 77)});
  ASSERT_TRUE(world_->until([&] { return receiver.count(Kind::kImmediate) == 1; }));
  for (std::uint64_t i = 0; i < 64; ++i) {
    EXPECT_EQ(receiver.node->read(i * 16384, 16384), testing::pattern((63 - i) * 16384, 16384, 6));
  }
}

TEST_P(Conformance, LocalMemoryMayChangeAfterCompletion) {
  Peer& writer = world_->add("p");
  Peer& receiver = world_->add("d");
  const Pair pair = join(writer, receiver);
  for (std::uint32_t i = 0; i < 20; ++i) {
    writer.node->fill(0, 70000, i);
    post_all(writer, {write(pair.outbound, 0, 0, 70000, i)});
    ASSERT_TRUE(world_->until([&] { return writer.count(Kind::kWriteDone) == i + 1; }));
    writer.node->fill(0, 70000, 999);
    ASSERT_TRUE(world_->until([&] { return receiver.count(Kind::kImmediate) == i + 1; }));
    ASSERT_EQ(receiver.node->read(0, 70000), testing::pattern(0, 70000, i)) << i;
  }
}

TEST_P(Conformance, RefusesWhatIsOutOfBounds) {
  Peer& writer = world_->add("p");
  Peer& receiver = world_->add("d", kPoolBytes / 2);
  const Pair pair = join(writer, receiver);
  const auto refusal = [&](Write w) {
    const Node::Posted posted = writer.node->post({w});
    EXPECT_FALSE(posted.status);
    return posted.status ? std::string() : posted.status.error().message;
  };
  const Write good = write(pair.outbound, 0, 0, 16, 1);
  Write bad = good;
  bad.local_offset = kPoolBytes - 15;
  EXPECT_THAT(refusal(bad), HasSubstr("local_offset 1048561 + length 16"));
  bad = good;
  bad.remote_offset = kPoolBytes / 2 - 15;
  EXPECT_THAT(refusal(bad), HasSubstr("remote_offset 524273 + length 16"));
  bad = good;
  bad.remote_offset = ~0ULL - 7;
  EXPECT_THAT(refusal(bad), HasSubstr("remote_offset"));
  bad = good;
  bad.local_offset = ~0ULL;
  EXPECT_THAT(refusal(bad), HasSubstr("local_offset"));
  bad = good;
  bad.length = ~0ULL;
  EXPECT_FALSE(refusal(bad).empty());
  bad = good;
  bad.local_region = 1;
  EXPECT_THAT(refusal(bad), HasSubstr("local_region 1"));
  bad = good;
  bad.remote_region = 4000000000;
  EXPECT_THAT(refusal(bad), HasSubstr("remote_region 4000000000"));
  bad = good;
  bad.to = OutboundId{pair.outbound.value + 1000};
  EXPECT_THAT(refusal(bad), HasSubstr("outbound"));
  world_->rest();
  EXPECT_EQ(receiver.count(Kind::kImmediate), 0U);
  EXPECT_EQ(receiver.node->read(0, kPoolBytes / 2), Bytes(kPoolBytes / 2));
  post_all(writer, {good});
  ASSERT_TRUE(world_->until([&] { return receiver.count(Kind::kImmediate) == 1; }));
}

TEST_P(Conformance, AFullQueueRefusesAndThenWorksOn) {
  Peer& writer = world_->add("p");
  Peer& receiver = world_->add("d");
  const Pair pair = join(writer, receiver);
  const std::size_t most = writer.node->capabilities().writes_in_flight_max;
  std::vector<Write> writes(most + 1, write(pair.outbound, 0, 0, 8, 3));
  const Node::Posted posted = writer.node->post(writes);
  EXPECT_EQ(posted.accepted, most);
  ASSERT_FALSE(posted.status);
  EXPECT_EQ(posted.status.error().code, Errc::kResourceExhausted);
  ASSERT_TRUE(world_->until([&] { return receiver.count(Kind::kImmediate) == most; }));
  ASSERT_TRUE(world_->until([&] { return writer.count(Kind::kWriteDone) == most; }));
  post_all(writer, {write(pair.outbound, 0, 0, 8, 4)});
  ASSERT_TRUE(world_->until([&] { return receiver.count(Kind::kImmediate) == most + 1; }));
}

TEST_P(Conformance, TenThousandImmediatesAllArriveOnce) {
  Peer& writer = world_->add("p");
  Peer& receiver = world_->add("d");
  const Pair pair = join(writer, receiver);
  constexpr std::uint32_t kCount = 10000;
  std::vector<Write> writes;
  for (std::uint32_t i = 0; i < kCount; ++i) writes.push_back(write(pair.outbound, 0, 0, 0, i, i));
  post_all(writer, writes);
  ASSERT_TRUE(world_->until([&] {
    return receiver.count(Kind::kImmediate) >= kCount && writer.count(Kind::kWriteDone) >= kCount;
  }));
  world_->rest();
  std::vector<std::uint32_t> seen;
  for (const FabricEvent& event : receiver.of(Kind::kImmediate)) seen.push_back(event.immediate);
  std::sort(seen.begin(), seen.end());
  ASSERT_EQ(seen.size(), kCount);
  for (std::uint32_t i = 0; i < kCount; ++i) ASSERT_EQ(seen[i], i);
}

TEST_P(Conformance, ManyWritersShareOnePool) {
  Peer& receiver = world_->add("d");
  constexpr std::uint64_t kWriters = 8;
  constexpr std::uint64_t kShare = kPoolBytes / kWriters;
  constexpr std::uint64_t kPieces = 16;
  std::vector<Peer*> writers;
  std::map<InboundId, std::uint32_t> immediates;
  for (std::uint32_t i = 0; i < kWriters; ++i) {
    writers.push_back(&world_->add(fmt::format("p{}", i), kShare));
    const Pair pair = join(*writers[i], receiver);
    immediates[pair.inbound] = i;
    writers[i]->node->fill(0, kShare, i);
    // Interleaved: piece k of writer i lies beside piece k of writer i + 1.
    std::vector<Write> writes;
    for (std::uint64_t k = 0; k < kPieces; ++k) {
      const std::uint64_t piece = kShare / kPieces;
      writes.push_back(write(pair.outbound, k * piece, (k * kWriters + i) * piece, piece, i, k));
    }
    post_all(*writers[i], writes);
  }
  ASSERT_TRUE(
      world_->until([&] { return receiver.count(Kind::kImmediate) == kWriters * kPieces; }));
  for (const FabricEvent& event : receiver.of(Kind::kImmediate)) {
    EXPECT_EQ(event.immediate, immediates.at(event.inbound));
  }
  const Bytes all = receiver.node->read(0, kPoolBytes);
  const std::uint64_t piece = kShare / kPieces;
  for (std::uint32_t i = 0; i < kWriters; ++i) {
    for (std::uint64_t k = 0; k < kPieces; ++k) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>((k * kWriters + i) * piece);
      ASSERT_EQ(Bytes(begin, begin + static_cast<std::ptrdiff_t>(piece)),
                testing::pattern(k * piece, piece, i));
    }
  }
}

TEST_P(Conformance, BothDirectionsAtOnce) {
  Peer& a = world_->add("a");
  Peer& b = world_->add("b");
  const Pair to_b = join(a, b);
  const Pair to_a = join(b, a);
  a.node->fill(0, kPoolBytes / 2, 1);
  b.node->fill(0, kPoolBytes / 2, 2);
  post_all(a, {write(to_b.outbound, 0, kPoolBytes / 2, kPoolBytes / 2, 10)});
  post_all(b, {write(to_a.outbound, 0, kPoolBytes / 2, kPoolBytes / 2, 20)});
  ASSERT_TRUE(world_->until(
      [&] { return a.count(Kind::kImmediate) == 1 && b.count(Kind::kImmediate) == 1; }));
  EXPECT_EQ(a.node->read(kPoolBytes / 2, kPoolBytes / 2), testing::pattern(0, kPoolBytes / 2, 2));
  EXPECT_EQ(b.node->read(kPoolBytes / 2, kPoolBytes / 2), testing::pattern(0, kPoolBytes / 2, 1));
}

TEST_P(Conformance, ClosingEndsEveryWriteOnceAndThenTheOutbound) {
  Peer& writer = world_->add("p");
  Peer& receiver = world_->add("d");
  const Pair pair = join(writer, receiver);
  std::vector<Write> writes;
  for (std::uint64_t i = 0; i < 50; ++i) writes.push_back(write(pair.outbound, 0, 0, 100000, 1, i));
  post_all(writer, writes);
  world_->pump();
  writer.node->close_outbound(pair.outbound);
  EXPECT_FALSE(writer.node->post({write(pair.outbound, 0, 0, 8, 1)}).status);
  ASSERT_TRUE(world_->until([&] { return told(writer, Kind::kOutboundClosed, pair.outbound); }));
  EXPECT_EQ(writer.events.back().kind, Kind::kOutboundClosed);
  EXPECT_EQ(writer.count(Kind::kWriteDone) + writer.count(Kind::kWriteFailed), 50U);
  writer.node->close_outbound(pair.outbound);
  const std::size_t before = writer.events.size();
  world_->rest();
  EXPECT_EQ(writer.events.size(), before);
  // A closed connection is no fence.
  EXPECT_EQ(receiver.count(Kind::kInboundFenced), 0U);
}

TEST_P(Conformance, TheSameProcessMayConnectAgain) {
  Peer& writer = world_->add("p");
  Peer& receiver = world_->add("d");
  const Pair pair = join(writer, receiver);
  writer.node->close_outbound(pair.outbound);
  ASSERT_TRUE(world_->until([&] { return told(writer, Kind::kOutboundClosed, pair.outbound); }));
  const OutboundId again = connect(writer, receiver, pair.offer);
  writer.node->fill(0, 64, 4);
  post_all(writer, {write(again, 0, 0, 64, 8)});
  ASSERT_TRUE(world_->until([&] { return receiver.count(Kind::kImmediate) == 1; }));
  EXPECT_EQ(receiver.events.back().inbound, pair.inbound);
  EXPECT_EQ(receiver.node->read(0, 64), testing::pattern(0, 64, 4));
}

TEST_P(Conformance, AnOfferTakenBackUnusedIsFencedAtOnceAndVoid) {
  Peer& writer = world_->add("p");
  Peer& receiver = world_->add("d");
  const auto inbound = receiver.node->open_inbound(writer.id, Access::kWrite).value();
  receiver.node->fence_inbound(inbound.id);
  ASSERT_TRUE(world_->until([&] { return fenced(receiver, inbound.id); }));
  const auto outbound = writer.node->connect(receiver.id, inbound.offer, receiver.node->regions());
  ASSERT_TRUE(outbound);
  ASSERT_TRUE(world_->until([&] { return told(writer, Kind::kConnectFailed, *outbound); }));
  EXPECT_FALSE(writer.events.back().error.empty());
  receiver.node->fence_inbound(inbound.id);
  world_->rest();
  EXPECT_EQ(receiver.events.size(), 1U);
}

TEST_P(Conformance, AnOfferThatIsBeingFencedLetsNobodyInAgain) {
  if (!GetParam().fenced_by_death) GTEST_SKIP() << kNotByDeath;
  Peer& writer = world_->add("p");
  Peer& receiver = world_->add("d");
  const Pair pair = join(writer, receiver);
  receiver.node->fence_inbound(pair.inbound);
  world_->rest();
  const auto again = writer.node->connect(receiver.id, pair.offer, receiver.node->regions());
  ASSERT_TRUE(again);
  ASSERT_TRUE(world_->until([&] { return told(writer, Kind::kConnectFailed, *again); }));
}

TEST_P(Conformance, AConnectedWriterThatSaysNothingIsFencedByItsDeathOnly) {
  if (!GetParam().fenced_by_death) GTEST_SKIP() << kNotByDeath;
  Peer& writer = world_->add("p");
  Peer& other = world_->add("q");
  Peer& receiver = world_->add("d");
  const Pair pair = join(writer, receiver);
  const Pair other_pair = join(other, receiver);
  world_->stop(writer, true);
  receiver.node->fence_inbound(pair.inbound);
  world_->rest();
  EXPECT_FALSE(fenced(receiver, pair.inbound));
  world_->kill(writer);
  ASSERT_TRUE(world_->until([&] { return fenced(receiver, pair.inbound); }));
  post_all(other, {write(other_pair.outbound, 0, 0, 8, 5)});
  ASSERT_TRUE(world_->until([&] { return receiver.count(Kind::kImmediate) == 1; }));
  EXPECT_FALSE(fenced(receiver, other_pair.inbound));
}

TEST_P(Conformance, AWriterThatDiesWhileWritingIsFencedUnaskedAndLast) {
  if (!GetParam().fenced_by_death) GTEST_SKIP() << kNotByDeath;
  Peer& writer = world_->add("p");
  Peer& receiver = world_->add("d");
  const Pair pair = join(writer, receiver);
  writer.node->fill(0, kPoolBytes, 9);
  std::vector<Write> writes;
  for (std::uint64_t i = 0; i < 100; ++i)
    writes.push_back(write(pair.outbound, 0, 0, kPoolBytes, 1, i));
  post_all(writer, writes);
  for (int i = 0; i < 5; ++i) world_->pump();
  world_->kill(writer);
  ASSERT_TRUE(world_->until([&] { return fenced(receiver, pair.inbound); }));
  // Nothing lands any more: the blocks belong to somebody else now.
  receiver.node->fill(0, kPoolBytes, 10);
  const std::size_t before = receiver.events.size();
  world_->rest();
  EXPECT_EQ(receiver.events.size(), before);
  EXPECT_EQ(receiver.events.back().kind, Kind::kInboundFenced);
  EXPECT_EQ(receiver.node->read(0, kPoolBytes), testing::pattern(0, kPoolBytes, 10));
}

TEST_P(Conformance, AReceiverThatDiesEndsTheOutboundAndNobodyElse) {
  Peer& writer = world_->add("p");
  Peer& receiver = world_->add("d");
  Peer& other = world_->add("e");
  const Pair pair = join(writer, receiver);
  const Pair other_pair = join(writer, other);
  std::vector<Write> writes;
  for (std::uint64_t i = 0; i < 60; ++i)
    writes.push_back(write(pair.outbound, 0, 0, kPoolBytes, 1, i));
  post_all(writer, writes);
  world_->pump();
  world_->kill(receiver);
  ASSERT_TRUE(world_->until([&] { return told(writer, Kind::kOutboundClosed, pair.outbound); }));
  EXPECT_EQ(writer.events.back().kind, Kind::kOutboundClosed);
  EXPECT_FALSE(writer.events.back().error.empty());
  EXPECT_EQ(writer.count(Kind::kWriteDone) + writer.count(Kind::kWriteFailed), 60U);
  EXPECT_FALSE(writer.node->post({write(pair.outbound, 0, 0, 8, 1)}).status);
  writer.node->fill(0, 64, 3);
  post_all(writer, {write(other_pair.outbound, 0, 0, 64, 2)});
  ASSERT_TRUE(world_->until([&] { return other.count(Kind::kImmediate) == 1; }));
  EXPECT_EQ(other.node->read(0, 64), testing::pattern(0, 64, 3));
}

TEST_P(Conformance, ConnectingToTheDeadFails) {
  Peer& writer = world_->add("p");
  Peer& receiver = world_->add("d");
  const auto inbound = receiver.node->open_inbound(writer.id, Access::kWrite).value();
  const auto regions = receiver.node->regions();
  world_->kill(receiver);
  const auto outbound = writer.node->connect(receiver.id, inbound.offer, regions);
  ASSERT_TRUE(outbound) << outbound.error().message;
  ASSERT_TRUE(world_->until([&] { return told(writer, Kind::kConnectFailed, *outbound); }));
  world_->rest();
  EXPECT_EQ(writer.events.size(), 1U);
}

TEST_P(Conformance, HostileOffersAreRefused) {
  Peer& writer = world_->add("p");
  Peer& receiver = world_->add("d");
  const Bytes good = receiver.node->open_inbound(writer.id, Access::kWrite).value().offer;
  std::vector<Bytes> bad{{}, Bytes(1), Bytes(4096), Bytes(good.begin(), good.end() - 1)};
  bad.push_back(good);
  bad.back().push_back(std::byte{0});
  Rng rng(1);
  for (int i = 0; i < 8; ++i) {
    bad.emplace_back(good.size());
    for (std::byte& b : bad.back()) b = static_cast<std::byte>(rng.next());
  }
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    bad.push_back(good);
    bad.back()[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
  }
  std::size_t begun = 0;
  for (const Bytes& offer : bad) {
    begun += writer.node->connect(receiver.id, offer, receiver.node->regions()) ? 1U : 0U;
  }
  ASSERT_TRUE(world_->until([&] { return writer.events.size() == begun; }));
  EXPECT_EQ(writer.count(Kind::kConnectFailed), begun);
  EXPECT_TRUE(receiver.events.empty());
  // The true offer still stands.
  const OutboundId outbound = connect(writer, receiver, good);
  post_all(writer, {write(outbound, 0, 0, 8, 5)});
  ASSERT_TRUE(world_->until([&] { return receiver.count(Kind::kImmediate) == 1; }));
}

TEST_P(Conformance, RegionsThatAreNotWhatTheHandshakeToldAreRefused) {
  Peer& writer = world_->add("p");
  Peer& receiver = world_->add("d");
  const Bytes offer = receiver.node->open_inbound(writer.id, Access::kWrite).value().offer;
  const auto refusal = [&](const std::vector<Region>& regions) {
    const auto outbound = writer.node->connect(receiver.id, offer, regions);
    if (!outbound) return outbound.error().message;
    const std::size_t before = writer.events.size();
    EXPECT_TRUE(world_->until([&] { return writer.events.size() > before; }));
    EXPECT_EQ(writer.events.back().kind, Kind::kConnectFailed);
    return writer.events.back().error;
  };
  std::vector<Region> regions = receiver.node->regions();
  regions[0].stride_bytes = regions[0].block_bytes = kPoolBytes * 2;
  EXPECT_THAT(refusal(regions), HasSubstr("2097152"));
  regions = receiver.node->regions();
  regions.push_back(regions[0]);
  EXPECT_THAT(refusal(regions), HasSubstr("2"));
  regions[0].stride_bytes = 1;
  EXPECT_THAT(refusal(regions), HasSubstr("stride_bytes 1"));
  regions = receiver.node->regions();
  regions[0].num_blocks = 0xFFFFFFFF;
  regions[0].stride_bytes = ~0ULL;
  EXPECT_THAT(refusal(regions), HasSubstr("stride_bytes"));
  EXPECT_FALSE(refusal({}).empty());
}

INSTANTIATE_TEST_SUITE_P(Adapters, Conformance, ::testing::ValuesIn(adapters()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace baton::fabric::conformance
