// What every fabric must do with one-sided reads, run on each adapter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/random.h"
#include "fabric/testing/conformance.h"

namespace baton::fabric::conformance {
namespace {

using ::testing::HasSubstr;

class ConformanceReads : public Conformance {
 protected:
  void SetUp() override {
    Conformance::SetUp();
    if (!GetParam().may_lack_reads) return;
    const auto asked = GetParam().make();
    if (!asked->add("x").node->capabilities().reads) {
      GTEST_SKIP() << "no reads here: libfabric_fabric_test.cc";
    }
  }
  Pair join_reads(Peer& reader, Peer& source) { return join(reader, source, Access::kRead); }
  static Read read(OutboundId from, std::uint64_t at, std::uint64_t to, std::uint64_t length,
                   std::uint64_t context = 0) {
    Read read;
    read.from = from;
    read.remote_offset = at;
    read.local_offset = to;
    read.length = length;
    read.context = context;
    return read;
  }
  static std::vector<Read> same(std::size_t count, const Read& one) {
    std::vector<Read> reads(count, one);
    for (std::size_t i = 0; i < count; ++i) reads[i].context = i;
    return reads;
  }
  static std::size_t ended(const Peer& reader) {
    return reader.count(Kind::kReadDone) + reader.count(Kind::kReadFailed);
  }
  // Once the outbound is closed the local memory is the reader's own: whatever goes on elsewhere,
  // nothing lands there.
  void expect_nothing_lands(Peer& reader) {
    reader.node->fill(0, kPoolBytes, 77);
    const std::size_t before = reader.events.size();
    world_->rest();
    EXPECT_EQ(reader.events.size(), before);
    EXPECT_TRUE(reader.node->read(0, kPoolBytes) == testing::pattern(0, kPoolBytes, 77));
  }
  // All that a real fabric could not bring it has given up for good.
  static void expect_over(const Peer& reader) {
    if (reader.node->capabilities().name == "sim") return;  // draws it
    for (const FabricEvent& event : reader.of(Kind::kReadFailed)) EXPECT_TRUE(event.over);
  }
};

TEST_P(ConformanceReads, ACompletionComesAfterAllBytesOfItsRead) {
  Peer& reader = world_->add("d");
  Peer& source = world_->add("p");
  ASSERT_TRUE(reader.node->capabilities().reads);
  const Pair pair = join_reads(reader, source);
  source.node->fill(0, kPoolBytes, 5);
  // Unaligned at either end, from one byte to many slices.
  const std::vector<std::uint64_t> lengths{1, 63, 4096, 65537, 300001};
  std::uint64_t at = 13;
  for (std::uint64_t i = 0; i < lengths.size(); ++i) {
    post_all(reader, {read(pair.outbound, at + 7, at, lengths[i], 100 + i)});
    ASSERT_TRUE(world_->until([&] { return reader.count(Kind::kReadDone) == i + 1; }));
    EXPECT_EQ(reader.events.back().context, 100 + i);
    EXPECT_EQ(reader.events.back().outbound, pair.outbound);
    EXPECT_TRUE(reader.node->read(at, lengths[i]) == testing::pattern(at + 7, lengths[i], 5));
    EXPECT_EQ(reader.node->read(at - 13, 13), Bytes(13));
    EXPECT_EQ(reader.node->read(at + lengths[i], 32), Bytes(32));
    at += lengths[i] + 32;
  }
  world_->rest();
  EXPECT_TRUE(source.events.empty());  // nobody tells it
  EXPECT_TRUE(source.node->read(0, kPoolBytes) == testing::pattern(0, kPoolBytes, 5));
}

TEST_P(ConformanceReads, ManyReadsOfSeveralSourcesEachBringTheirOwn) {
  Peer& reader = world_->add("d");
  constexpr std::uint32_t kSources = 3;
  constexpr std::uint64_t kPieces = 64;
  constexpr std::uint64_t kPiece = 4096;
  std::vector<Peer*> sources;
  std::set<std::uint64_t> contexts;
  for (std::uint32_t s = 0; s < kSources; ++s) {
    sources.push_back(&world_->add(fmt::format("p{}", s)));
    const Pair pair = join_reads(reader, *sources[s]);
    sources[s]->node->fill(0, kPoolBytes, s);
    std::vector<Read> reads;
    for (std::uint64_t i = 0; i < kPieces; ++i) {
      const std::uint64_t to = (i * kSources + s) * kPiece;
      contexts.insert(to);
      reads.push_back(read(pair.outbound, (kPieces - 1 - i) * kPiece, to, kPiece, to));
    }
    post_all(reader, reads);
  }
  ASSERT_TRUE(world_->until([&] { return reader.count(Kind::kReadDone) == kSources * kPieces; }));
  for (const FabricEvent& event : reader.of(Kind::kReadDone)) contexts.erase(event.context);
  EXPECT_TRUE(contexts.empty());
  for (std::uint32_t s = 0; s < kSources; ++s) {
    for (std::uint64_t i = 0; i < kPieces; ++i) {
      ASSERT_TRUE(reader.node->read((i * kSources + s) * kPiece, kPiece) ==
                  testing::pattern((kPieces - 1 - i) * kPiece, kPiece, s))
          << s << " " << i;
    }
  }
}

TEST_P(ConformanceReads, WhatTheSourceHoldsAtThePostIsReadIfItStays) {
  Peer& reader = world_->add("d");
  Peer& source = world_->add("p");
  const Pair pair = join_reads(reader, source);
  for (std::uint32_t i = 0; i < 20; ++i) {
    source.node->fill(0, 70000, i);
    post_all(reader, {read(pair.outbound, 0, 0, 70000)});
    ASSERT_TRUE(world_->until([&] { return reader.count(Kind::kReadDone) == i + 1; }));
    source.node->fill(0, 70000, 999);
    world_->pump();
    ASSERT_TRUE(reader.node->read(0, 70000) == testing::pattern(0, 70000, i)) << i;
  }
}

TEST_P(ConformanceReads, ReadsAndWritesBetweenTheSameTwoKeepApart) {
  Peer& a = world_->add("a");
  Peer& b = world_->add("b");
  constexpr std::uint64_t kPart = kPoolBytes / 4;
  const Pair writes = join(a, b);
  const Pair reads = join_reads(a, b);
  const Pair back = join_reads(b, a);
  a.node->fill(0, kPart, 1);
  b.node->fill(0, kPart, 2);
  post_all(a, {write(writes.outbound, 0, kPart, kPart, 10, 1)});
  post_all(a, {read(reads.outbound, 0, 2 * kPart, kPart, 2)});
  post_all(b, {read(back.outbound, 0, 3 * kPart, kPart, 3)});
  ASSERT_TRUE(world_->until([&] {
    return b.count(Kind::kImmediate) == 1 && a.count(Kind::kReadDone) == 1 &&
           b.count(Kind::kReadDone) == 1 && a.count(Kind::kWriteDone) == 1;
  }));
  EXPECT_TRUE(b.node->read(kPart, kPart) == testing::pattern(0, kPart, 1));
  EXPECT_TRUE(a.node->read(2 * kPart, kPart) == testing::pattern(0, kPart, 2));
  EXPECT_TRUE(b.node->read(3 * kPart, kPart) == testing::pattern(0, kPart, 1));
  EXPECT_EQ(b.of(Kind::kImmediate)[0].inbound, writes.inbound);
}

TEST_P(ConformanceReads, TheWrongAccessIsRefused) {
  Peer& reader = world_->add("d");
  Peer& source = world_->add("p");
  const Pair reads = join_reads(reader, source);
  const Pair writes = join(reader, source);
  source.node->fill(0, kPoolBytes, 3);
  const auto write_refused = reader.node->post({write(reads.outbound, 0, 0, 64, 1)});
  ASSERT_FALSE(write_refused.status);
  EXPECT_THAT(write_refused.status.error().message, HasSubstr("an offer of reads, writes are"));
  const auto read_refused = reader.node->post_reads({read(writes.outbound, 0, 0, 64)});
  ASSERT_FALSE(read_refused.status);
  EXPECT_THAT(read_refused.status.error().message, HasSubstr("an offer of writes, reads are"));
  world_->rest();
  EXPECT_EQ(reader.count(Kind::kConnected), reader.events.size());
  EXPECT_TRUE(source.events.empty());
  EXPECT_EQ(reader.node->read(0, 64), Bytes(64));
  EXPECT_TRUE(source.node->read(0, kPoolBytes) == testing::pattern(0, kPoolBytes, 3));
}

TEST_P(ConformanceReads, RefusesWhatIsOutOfBounds) {
  Peer& reader = world_->add("d");
  Peer& source = world_->add("p", kPoolBytes / 2);
  const Pair pair = join_reads(reader, source);
  const auto refusal = [&](auto spoil) {
    Read bad = read(pair.outbound, 0, 0, 16);
    spoil(bad);
    const Node::Posted posted = reader.node->post_reads({bad});
    EXPECT_FALSE(posted.status);
    return posted.status ? std::string() : posted.status.error().message;
  };
  EXPECT_THAT(refusal([](Read& r) { r.local_offset = kPoolBytes - 15; }),
              HasSubstr("local_offset 1048561 + length 16"));
  EXPECT_THAT(refusal([](Read& r) { r.remote_offset = kPoolBytes / 2 - 15; }),
              HasSubstr("remote_offset 524273 + length 16"));
  EXPECT_THAT(refusal([](Read& r) { r.remote_offset = ~0ULL - 7; }), HasSubstr("remote_offset"));
  EXPECT_THAT(refusal([](Read& r) { r.local_offset = ~0ULL; }), HasSubstr("local_offset"));
  EXPECT_FALSE(refusal([](Read& r) { r.length = ~0ULL; }).empty());
  EXPECT_THAT(refusal([](Read& r) { r.length = 0; }), HasSubstr("length is 0"));
  EXPECT_THAT(refusal([](Read& r) { r.local_region = 1; }), HasSubstr("local_region 1"));
  EXPECT_THAT(refusal([](Read& r) { r.remote_region = 4000000000; }),
              HasSubstr("remote_region 4000000000"));
  EXPECT_THAT(refusal([](Read& r) { r.from.value += 1000; }), HasSubstr("outbound"));
  world_->rest();
  EXPECT_EQ(ended(reader), 0U);
  EXPECT_EQ(reader.node->read(0, kPoolBytes), Bytes(kPoolBytes));
}

TEST_P(ConformanceReads, TheGapBetweenBlocksIsNotRead) {
  Peer& reader = world_->add("d");
  Peer& source = world_->add("p");
  const Bytes offer = source.node->open_inbound(reader.id, Access::kRead).value().offer;
  // As long as the region is, in two blocks with a gap between them.
  std::vector<Region> regions = source.node->regions();
  regions[0].num_blocks = 2;
  regions[0].block_bytes = kPoolBytes / 4;
  regions[0].stride_bytes = kPoolBytes / 4 * 3;
  const OutboundId outbound = reader.node->connect(source.id, offer, regions).value();
  ASSERT_TRUE(world_->until([&] { return told(reader, Kind::kConnected, outbound); }));
  const auto refused = reader.node->post_reads({read(outbound, kPoolBytes / 4 - 8, 0, 16)});
  ASSERT_FALSE(refused.status);
  EXPECT_THAT(refused.status.error().message, HasSubstr("over the end of a block"));
  EXPECT_FALSE(reader.node->post_reads({read(outbound, kPoolBytes / 2, 0, 16)}).status);
  post_all(reader, {read(outbound, kPoolBytes / 4 * 3, 0, 16)});
  ASSERT_TRUE(world_->until([&] { return reader.count(Kind::kReadDone) == 1; }));
}

TEST_P(ConformanceReads, AFullQueueRefusesAndThenWorksOn) {
  Peer& reader = world_->add("d");
  Peer& source = world_->add("p");
  const Pair pair = join_reads(reader, source);
  const std::size_t most = reader.node->capabilities().writes_in_flight_max;
  const Node::Posted posted = reader.node->post_reads(same(most + 1, read(pair.outbound, 0, 0, 8)));
  EXPECT_EQ(posted.accepted, most);
  ASSERT_FALSE(posted.status);
  EXPECT_EQ(posted.status.error().code, Errc::kResourceExhausted);
  ASSERT_TRUE(world_->until([&] { return reader.count(Kind::kReadDone) == most; }));
  post_all(reader, same(3 * most, read(pair.outbound, 0, 0, 8)));
  ASSERT_TRUE(world_->until([&] { return reader.count(Kind::kReadDone) == 4 * most; }));
  world_->rest();
  EXPECT_EQ(ended(reader), 4 * most);
}

TEST_P(ConformanceReads, ClosingEndsEveryReadOnceAndNothingLandsAfter) {
  Peer& reader = world_->add("d");
  Peer& source = world_->add("p");
  for (int polls = 0; polls < 6; ++polls) {
    reader.events.clear();
    const Pair pair = join_reads(reader, source);
    source.node->fill(0, kPoolBytes, 6);
    post_all(reader, same(20, read(pair.outbound, 0, 0, kPoolBytes)));
    for (int i = 0; i < polls; ++i) world_->pump();
    reader.node->close_outbound(pair.outbound);
    EXPECT_FALSE(reader.node->post_reads({read(pair.outbound, 0, 0, 8)}).status);
    ASSERT_TRUE(world_->until([&] { return told(reader, Kind::kOutboundClosed, pair.outbound); }));
    EXPECT_EQ(reader.events.back().kind, Kind::kOutboundClosed);
    EXPECT_EQ(ended(reader), 20U);
    expect_over(reader);
    expect_nothing_lands(reader);
    // A closed connection is no fence.
    EXPECT_EQ(source.count(Kind::kInboundFenced), 0U);
  }
}

TEST_P(ConformanceReads, TheSameProcessMayConnectAgain) {
  Peer& reader = world_->add("d");
  Peer& source = world_->add("p");
  const Pair pair = join_reads(reader, source);
  reader.node->close_outbound(pair.outbound);
  ASSERT_TRUE(world_->until([&] { return told(reader, Kind::kOutboundClosed, pair.outbound); }));
  const OutboundId again = connect(reader, source, pair.offer);
  source.node->fill(0, 64, 4);
  post_all(reader, {read(again, 0, 0, 64)});
  ASSERT_TRUE(world_->until([&] { return reader.count(Kind::kReadDone) == 1; }));
  EXPECT_EQ(reader.node->read(0, 64), testing::pattern(0, 64, 4));
}

TEST_P(ConformanceReads, ASourceThatDiesEndsTheOutboundAndNobodyElse) {
  Peer& reader = world_->add("d");
  Peer& source = world_->add("p");
  Peer& other = world_->add("q");
  const Pair pair = join_reads(reader, source);
  const Pair other_pair = join_reads(reader, other);
  post_all(reader, same(60, read(pair.outbound, 0, 0, kPoolBytes)));
  world_->pump();
  world_->kill(source);
  ASSERT_TRUE(world_->until([&] { return told(reader, Kind::kOutboundClosed, pair.outbound); }));
  EXPECT_EQ(reader.events.back().kind, Kind::kOutboundClosed);
  EXPECT_FALSE(reader.events.back().error.empty());
  EXPECT_EQ(ended(reader), 60U);
  expect_over(reader);
  EXPECT_FALSE(reader.node->post_reads({read(pair.outbound, 0, 0, 8)}).status);
  expect_nothing_lands(reader);
  const std::size_t done = reader.count(Kind::kReadDone);
  other.node->fill(0, 64, 3);
  post_all(reader, {read(other_pair.outbound, 0, 0, 64)});
  ASSERT_TRUE(world_->until([&] { return reader.count(Kind::kReadDone) == done + 1; }));
  EXPECT_EQ(reader.node->read(0, 64), testing::pattern(0, 64, 3));
}

// What a stopped source owes is given by some fabrics and not by others; none may wait for it, and
// what it sends when it wakes lands nowhere.
TEST_P(ConformanceReads, AStoppedSourceHoldsUpNobodyAndItsBytesDoNotLandAfterTheClose) {
  Peer& reader = world_->add("d");
  Peer& source = world_->add("p");
  Peer& other = world_->add("q");
  const Pair pair = join_reads(reader, source);
  const Pair other_pair = join_reads(reader, other);
  source.node->fill(0, kPoolBytes, 1);
  other.node->fill(0, kPoolBytes, 2);
  post_all(reader, same(20, read(pair.outbound, 0, 0, kPoolBytes / 2)));
  world_->pump();
  world_->stop(source, true);
  const auto others = [&] {
    const auto done = reader.of(Kind::kReadDone);
    return std::count_if(done.begin(), done.end(), [&](const FabricEvent& event) {
      return event.outbound == other_pair.outbound;
    });
  };
  post_all(reader, {read(other_pair.outbound, 0, kPoolBytes / 2, 4096, 500)});
  ASSERT_TRUE(world_->until([&] { return others() == 1; }));
  EXPECT_TRUE(reader.node->read(kPoolBytes / 2, 4096) == testing::pattern(0, 4096, 2));
  reader.node->close_outbound(pair.outbound);
  ASSERT_TRUE(world_->until([&] { return told(reader, Kind::kOutboundClosed, pair.outbound); }));
  EXPECT_EQ(ended(reader), 21U);
  expect_over(reader);
  reader.node->fill(0, kPoolBytes, 77);
  world_->stop(source, false);
  expect_nothing_lands(reader);
}

TEST_P(ConformanceReads, AnOfferTakenBackUnusedIsFencedAtOnceAndVoid) {
  Peer& reader = world_->add("d");
  Peer& source = world_->add("p");
  const auto inbound = source.node->open_inbound(reader.id, Access::kRead).value();
  source.node->fence_inbound(inbound.id);
  ASSERT_TRUE(world_->until([&] { return fenced(source, inbound.id); }));
  const auto outbound = reader.node->connect(source.id, inbound.offer, source.node->regions());
  ASSERT_TRUE(outbound);
  ASSERT_TRUE(world_->until([&] { return told(reader, Kind::kConnectFailed, *outbound); }));
  world_->rest();
  EXPECT_EQ(source.events.size(), 1U);
}

// By death or by the fence alone: afterwards what the source puts into its memory reaches nobody.
TEST_P(ConformanceReads, AFencedReaderReadsNothingAnyMore) {
  Peer& reader = world_->add("d");
  Peer& other = world_->add("e");
  Peer& source = world_->add("p");
  const Pair pair = join_reads(reader, source);
  const Pair other_pair = join_reads(other, source);
  source.node->fill(0, kPoolBytes, 1);
  post_all(reader, same(40, read(pair.outbound, 0, 0, kPoolBytes)));
  world_->pump();
  if (GetParam().fenced_by_death) world_->stop(reader, true);
  source.node->fence_inbound(pair.inbound);
  if (GetParam().fenced_by_death) {
    world_->rest();
    EXPECT_FALSE(fenced(source, pair.inbound));
    world_->kill(reader);
  }
  ASSERT_TRUE(world_->until([&] { return fenced(source, pair.inbound); }));
  source.node->fill(0, kPoolBytes, 2);
  if (!GetParam().fenced_by_death) {
    ASSERT_TRUE(world_->until([&] { return told(reader, Kind::kOutboundClosed, pair.outbound); }));
    EXPECT_EQ(ended(reader), 40U);
    const Bytes got = reader.node->read(0, kPoolBytes);
    for (std::uint64_t i = 0; i < kPoolBytes; ++i) {
      ASSERT_TRUE(got[i] == std::byte{0} || got[i] == testing::pattern(i, 1)) << i;
    }
  }
  // The other one reads on.
  post_all(other, {read(other_pair.outbound, 0, 0, 4096)});
  ASSERT_TRUE(world_->until([&] { return other.count(Kind::kReadDone) == 1; }));
  EXPECT_TRUE(other.node->read(0, 4096) == testing::pattern(0, 4096, 2));
  EXPECT_FALSE(fenced(source, other_pair.inbound));
}

TEST_P(ConformanceReads, AReaderThatDiesIsFencedUnasked) {
  if (!GetParam().fenced_by_death) GTEST_SKIP() << kNotByDeath;
  Peer& reader = world_->add("d");
  Peer& source = world_->add("p");
  const Pair pair = join_reads(reader, source);
  post_all(reader, same(40, read(pair.outbound, 0, 0, kPoolBytes)));
  world_->pump();
  world_->kill(reader);
  ASSERT_TRUE(world_->until([&] { return fenced(source, pair.inbound); }));
  world_->rest();
  EXPECT_EQ(source.events.size(), 1U);
}

TEST_P(ConformanceReads, HostileOffersAreRefused) {
  Peer& reader = world_->add("d");
  Peer& source = world_->add("p");
  const Bytes good = source.node->open_inbound(reader.id, Access::kRead).value().offer;
  std::size_t begun = 0;
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    Bytes bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    begun += reader.node->connect(source.id, bad, source.node->regions()) ? 1U : 0U;
  }
  ASSERT_TRUE(world_->until([&] { return reader.events.size() == begun; }));
  EXPECT_EQ(reader.count(Kind::kConnectFailed), begun);
  // The true offer still stands.
  const OutboundId outbound = connect(reader, source, good);
  post_all(reader, {read(outbound, 0, 0, 8)});
  ASSERT_TRUE(world_->until([&] { return reader.count(Kind::kReadDone) == 1; }));
}

INSTANTIATE_TEST_SUITE_P(Adapters, ConformanceReads, ::testing::ValuesIn(adapters()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace baton::fabric::conformance
