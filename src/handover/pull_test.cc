// Pull: D reads P's finished blocks. One behaviour a test, with every message and completion placed
// by hand.
#include <gmock/gmock.h>

#include <map>

#include "handover/testing/pair.h"

namespace baton::handover::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using wire::MessageType;

class PullTest : public PairTest {
 protected:
  PullTest() {
    d_config.mode = p_config.mode = Mode::kPull;
    start();
  }

  // D's registration of what P announced.
  void fetch(TokenRange range, std::vector<BlockId> blocks, SourceBlocks source,
             baton::Attempt number = {0, 1}, TransferId id = kId) {
    Registration r;
    r.transfer = id;
    r.binding = number.binding;
    r.attempt = number.attempt;
    r.peer = address();
    r.range = range;
    r.block_ids = {std::move(blocks)};
    r.prompt_tokens = source.range.end;
    r.source = std::move(source);
    d->register_blocks(std::move(r), now);
    work();
  }
  void announce(TokenRange range, std::vector<BlockId> blocks, std::uint64_t announcement) {
    ReadyPiece piece;
    piece.transfer = kId;
    piece.range = range;
    piece.block_ids = {std::move(blocks)};
    piece.announcement = announcement;
    p->expect(kId, range.end, now);
    p->ready(std::move(piece), now);
    work();
  }
  // As exchange(), and D's messages of the type are lost.
  void exchange_without(MessageType lost) {
    do {
      std::erase_if(d_port.out, [&](const RecordingPort::Sent& s) { return s.type == lost; });
      exchange_one();
    } while (!d_port.out.empty() || !p_port.out.empty());
  }
  // D has read what was announced, and P, which never heard of it, has other blocks by now.
  void read_and_reuse_id() {
    announce({0, 8}, {1, 2}, 11);
    fetch({0, 8}, {3, 4}, {{0, 8}, {{1, 2}}, 11});
    accept();
    exchange_without(MessageType::kRegister);
    finish_reads();
    p->cancel(kId, now);
    p_port.events.clear();
    announce({0, 8}, {1, 2}, 12);
    pass(milliseconds(300));  // Register comes again, as taken
  }
  // Messages are delivered one by one until D has had one of the type; what follows it waits.
  void exchange_until_d_gets(MessageType type) {
    last_to_d.erase(type);
    accept();
    while (!last_to_d.contains(type) && !(d_port.out.empty() && p_port.out.empty())) {
      exchange_one();
    }
  }
  // P misses the connection for longer than it waits, D comes back within its own patience, and
  // P's first message of the type is lost.
  void reconnect_after_p_lost_d(MessageType lost) {
    p->on_link_down(link, "reset", now);
    lose_messages();
    p->on_time(now + p_config.reconnect_grace);
    ASSERT_EQ(p_port.fences.size(), 1U);
    d->on_link_down(link, "reset", now);
    d->on_time(now);
    exchange_until_d_gets(MessageType::kHelloAck);
    std::erase_if(p_port.out, [&](const RecordingPort::Sent& s) { return s.type == lost; });
    exchange();
  }
  // P no longer knows the grant, and nothing is wrong with the request.
  void p_asks_for_a_new_grant() {
    wire::Stopped again;
    again.key = {kId, {0, 1}, {0, 0}, 1};
    again.drained = again.again = true;
    wire::Encoder encoder;
    p_port.send(link, encoder.encode(again));
    exchange();
  }
  void fetch_two() { fetch({0, 8}, {3, 4}, {{0, 8}, {{1, 2}}}); }
  void finish_one_read() {
    const ReadOp op = d_port.reads.front();
    d_port.reads.pop_front();
    d->on_read_done(op.context, now);
    work();
  }
  void finish_reads() {
    while (!d_port.reads.empty()) finish_one_read();
  }
};

TEST_F(PullTest, DReadsAndPFreesItsBlocksAfterTheLastByte) {
  ready({0, 8}, {1, 2});
  fetch_two();
  exchange();
  ASSERT_EQ(d_port.reads.size(), 2U);  // two adjacent blocks of each layer are one read
  EXPECT_TRUE(p_port.events.empty());
  finish_reads();
  EXPECT_TRUE(d_port.events.empty());  // [I5] P has not said that the blocks stood still
  exchange();
  const Event done = d_event();
  EXPECT_EQ(done.outcome, Outcome::kDone);
  EXPECT_EQ(done.bytes, 2U * 2 * 64);
  EXPECT_EQ(done.writes, 2U);
  EXPECT_EQ(done.first_token, 99);
  EXPECT_TRUE(done.blocks_released);
  const Event lent = p_event();
  EXPECT_EQ(lent.outcome, Outcome::kDone);
  EXPECT_EQ(lent.bytes, lent.bytes_planned);
  EXPECT_EQ(lent.peer, "d");
  EXPECT_TRUE(d->idle() && p->idle());
  EXPECT_TRUE(p_port.posted_ever.empty());
}

TEST_F(PullTest, EachBlockIsReadFromWhereItWasAnnounced) {
  ready({0, 14}, {1, 2, 5, 9});
  fetch({8, 14}, {11, 3}, {{0, 14}, {{1, 2, 5, 9}}});  // a prefix of two blocks is there already
  exchange();
  std::map<std::uint64_t, std::uint64_t> moved;
  for (const ReadOp& r : d_port.reads_ever) moved[r.remote_offset / 64] = r.local_offset / 64;
  EXPECT_EQ(moved, (std::map<std::uint64_t, std::uint64_t>{{5, 11}, {9, 3}}));
  finish_reads();
  exchange();
  EXPECT_EQ(d_event().bytes, 2U * 2 * 64);
  EXPECT_EQ(p_event().outcome, Outcome::kDone);
}

TEST_F(PullTest, NothingWantedFreesPWithoutARead) {
  ready({0, 8}, {1, 2});
  fetch({8, 8}, {}, {{0, 8}, {{1, 2}}});
  exchange();
  EXPECT_TRUE(d_port.reads_ever.empty());
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
  EXPECT_EQ(p_event().outcome, Outcome::kDone);
}

TEST_F(PullTest, AFullFabricIsAskedAgainAndPostingIsToldWhenAllIsOut) {
  d_config.write_bytes_max = 64;  // a read a block and layer
  d_port.room = 3;
  start();
  ready({0, 8}, {1, 2});
  fetch_two();
  exchange();
  EXPECT_EQ(d_port.reads_ever.size(), 3U);
  EXPECT_TRUE(d_port.all_posted.empty());
  finish_one_read();
  EXPECT_EQ(d_port.reads_ever.size(), 4U);
  EXPECT_THAT(d_port.all_posted, ::testing::ElementsAre(kId));
  finish_reads();
  exchange();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
}

TEST_F(PullTest, ANewGrantBeforeTheFirstReadReadsEachByteOnce) {
  ready({0, 8}, {1, 2});
  d_port.room = 0;  // the fabric takes nothing yet
  fetch_two();
  exchange();
  p_asks_for_a_new_grant();
  d_port.room = 1000;
  pass(milliseconds(500));
  finish_reads();
  exchange();
  pass(milliseconds(500));
  ASSERT_FALSE(d_port.events.empty());
  EXPECT_EQ(d_port.reads_ever.size(), 2U);
}

TEST_F(PullTest, ANewGrantKeepsWhatWasRead) {
  ready({0, 8}, {1, 2});
  fetch_two();
  exchange();
  finish_one_read();
  finish_one_read();
  d_port.out.clear();  // taken
  p_asks_for_a_new_grant();
  pass(milliseconds(500));
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
  EXPECT_EQ(d_port.reads_ever.size(), 2U);  // [I8]
}

TEST_F(PullTest, ANewGrantGoesOnWhereReadingWas) {
  d_config.write_bytes_max = 64;  // a read a block and layer
  d_port.room = 3;
  start();
  ready({0, 8}, {1, 2});
  fetch_two();
  exchange();
  ASSERT_EQ(d_port.reads_ever.size(), 3U);
  d_port.room = 0;  // the fabric is full of others' reads when these are done
  finish_reads();
  ASSERT_EQ(d_port.reads_ever.size(), 3U);
  p_asks_for_a_new_grant();
  d_port.room = 1000;
  pass(milliseconds(500));
  finish_reads();
  exchange();
  pass(milliseconds(500));
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
  EXPECT_EQ(d_port.reads_ever.size(), 4U);  // [I8]
}

// ---- what was read counts only if it stood still ----

TEST_F(PullTest, WhatWasReadPastTheLeaseIsDiscarded) {
  p_config.lease = d_config.lease = milliseconds(1000);
  start();
  ready({0, 8}, {1, 2});
  fetch_two();
  exchange();
  deliver_messages = false;  // D stands still: nothing renews
  lose_messages();
  d->on_link_down(link, "stopped", now);
  p->on_time(now + p_config.lease + milliseconds(1));
  EXPECT_EQ(p_event().cause, Cause::kLeaseExpired);
  deliver_messages = true;
  finish_reads();
  pass(milliseconds(100));  // the connection comes back, and D asks
  const Event lost = d_event();
  EXPECT_EQ(lost.outcome, Outcome::kFailed);
  EXPECT_EQ(lost.cause, Cause::kLeaseExpired);
  EXPECT_TRUE(lost.blocks_released);
}

// The caller cancelled at P and used the id once more; P has other bytes in the very same blocks,
// and never heard of the D that read them before.
TEST_F(PullTest, BlocksOfAnEarlierRequestUnderTheSameIdAreNotVouchedFor) {
  read_and_reuse_id();
  const Event event = d_event();
  EXPECT_EQ(event.outcome, Outcome::kFailed);
  EXPECT_EQ(event.cause, Cause::kUnknownTransfer);
  EXPECT_THAT(event.text, HasSubstr("ours is 000000000000000c, theirs is 000000000000000b"));
  EXPECT_TRUE(p_port.events.empty());  // its blocks wait for the D that was told of them
  fetch({0, 8}, {3, 4}, {{0, 8}, {{1, 2}}, 12}, {0, 2});
  exchange();
  finish_reads();
  exchange();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
}

TEST_F(PullTest, ALinkOfVersion1HasNoAnnouncementToCompare) {
  d_config.version_max = wire::kVersionMin;
  start();
  read_and_reuse_id();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
}

TEST_F(PullTest, ACancelAtPReachesDAndItsReadsAreDiscarded) {
  ready({0, 8}, {1, 2});
  fetch_two();
  exchange();
  p->cancel(kId, now);
  EXPECT_EQ(p_event().outcome, Outcome::kCancelled);  // its blocks are free: D will not use them
  exchange();
  const Event event = d_event();
  EXPECT_EQ(event.outcome, Outcome::kCancelled);
  EXPECT_FALSE(event.blocks_released);  // [I1] our own reads are still out
  finish_reads();
  EXPECT_EQ(d_event().kind, Event::Kind::kReleased);
  EXPECT_TRUE(d->idle() && p->idle());
}

TEST_F(PullTest, OtherBlocksThanAnnouncedAreRefusedByName) {
  ready({0, 8}, {1, 2});
  fetch({0, 8}, {3, 4}, {{0, 8}, {{1, 7}}});
  exchange();
  finish_reads();
  exchange();
  const Event event = d_event();
  EXPECT_EQ(event.cause, Cause::kRefused);
  EXPECT_THAT(event.text, HasSubstr("block 1 of group 0 is 2 here, theirs is 7"));
  EXPECT_EQ(p_event().outcome, Outcome::kCancelled);  // nobody comes for its blocks any more
}

TEST_F(PullTest, BlocksPastThePoolAreRefusedBeforeARead) {
  ready({0, 8}, {1, 2});
  fetch({0, 8}, {3, 4}, {{0, 8}, {{1, kBlocks}}});
  exchange();
  EXPECT_TRUE(d_port.reads_ever.empty());
  EXPECT_THAT(d_event().text, HasSubstr("names block 16, the pool has 16"));
  EXPECT_EQ(p_event().outcome, Outcome::kCancelled);  // P does not wait for its lease
}

TEST_F(PullTest, FinalBeforeEverythingWasReadIsRefused) {
  ready({0, 8}, {1, 2});
  fetch_two();
  exchange();
  wire::Final final;
  final.key = {kId, {0, 1}, {0, 0}, 1};
  final.range = {0, 8};
  final.bytes = 2U * 2 * 64;
  wire::Encoder encoder;
  p_port.send(link, encoder.encode(final));
  exchange();
  EXPECT_THAT(d_event().text, HasSubstr("before everything was read"));
}

TEST_F(PullTest, BlocksThatAreNotFinishedAreNotLent) {
  p->expect(kId, 8, now);
  ready({0, 4}, {1}, false);
  fetch_two();
  exchange();
  finish_reads();
  exchange();
  EXPECT_THAT(d_event().text, HasSubstr("not finished"));
  ready({4, 8}, {2});
  fetch({0, 8}, {3, 4}, {{0, 8}, {{1, 2}}}, {0, 2});
  exchange();
  finish_reads();
  exchange();
  while (d_port.events.size() > 1) d_port.events.pop_front();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
}

TEST_F(PullTest, BlocksOfAnUnknownTransferAreNotLent) {
  fetch_two();
  exchange();
  EXPECT_THAT(d_event().text, HasSubstr("no finished blocks"));
}

// ---- cancel, withdraw, loss ----

TEST_F(PullTest, ACancelAtDFreesPAtOnceAndDWhenItsReadsAreOver) {
  ready({0, 8}, {1, 2});
  fetch_two();
  exchange();
  finish_one_read();
  d->cancel(kId, now);
  EXPECT_FALSE(d_event().blocks_released);
  EXPECT_EQ(d->quarantined_blocks(), 2U);
  exchange();
  EXPECT_EQ(p_event().outcome, Outcome::kCancelled);
  finish_one_read();
  EXPECT_EQ(d_event().kind, Event::Kind::kReleased);
  EXPECT_EQ(d->quarantined_blocks(), 0U);
}

TEST_F(PullTest, AWithdrawnRegistrationMayBeMadeAgainAtOtherBlocks) {
  ready({0, 8}, {1, 2});
  fetch_two();
  exchange();
  d->withdraw(kId, now);
  EXPECT_TRUE(d_port.events.empty());
  finish_reads();
  EXPECT_EQ(d_event().outcome, Outcome::kCancelled);
  exchange();
  EXPECT_TRUE(p_port.events.empty());  // P keeps what it has
  fetch({0, 8}, {9, 10}, {{0, 8}, {{1, 2}}}, {0, 2});
  exchange();
  finish_reads();
  exchange();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
  EXPECT_EQ(p_event().outcome, Outcome::kDone);
}

TEST_F(PullTest, AFailedReadThatMayStillLandHoldsTheBlocksUntilTheWayIsClosed) {
  ready({0, 8}, {1, 2});
  fetch_two();
  exchange();
  const ReadOp op = d_port.reads.front();
  d_port.reads.pop_front();
  d->on_read_failed(op.context, "broken", now);
  finish_reads();
  EXPECT_EQ(d_event().cause, Cause::kFabric);
  EXPECT_TRUE(d_port.events.empty());
  ASSERT_EQ(d_port.closed.size(), 1U);
  d->on_outbound_closed(d_port.closed.front(), now);
  EXPECT_EQ(d_event().kind, Event::Kind::kReleased);
  EXPECT_EQ(d->quarantined_blocks(), 0U);
}

TEST_F(PullTest, ReadsThatDoNotMoveEndWithinThePeerTimeout) {
  ready({0, 8}, {1, 2});
  fetch_two();
  exchange();
  pass(p_config.peer_timeout + milliseconds(10));
  EXPECT_EQ(d_event().cause, Cause::kFabric);
  EXPECT_EQ(d_port.closed.size(), 1U);
  exchange();
  EXPECT_EQ(p_event().outcome, Outcome::kCancelled);  // told, and not left to its lease
}

TEST_F(PullTest, ThePeersMemoryThatDoesNotAnswerEndsWithinThePeerTimeout) {
  auto_connect = false;
  ready({0, 8}, {1, 2});
  fetch_two();
  exchange();
  pass(p_config.peer_timeout + milliseconds(10));
  const Event event = d_event();
  EXPECT_EQ(event.cause, Cause::kFabric);
  EXPECT_THAT(event.text, HasSubstr("no answer within 5000 ms"));
}

TEST_F(PullTest, AWayThatCouldNotBeMadeIsOfferedAgain) {
  auto_connect = false;
  ready({0, 8}, {1, 2});
  fetch_two();
  exchange();
  d->on_connect_failed(Outbound{d_port.outbounds}, "the offer was taken back", now);
  EXPECT_EQ(d_event().cause, Cause::kFabric);
  exchange();
  EXPECT_EQ(p_event().outcome, Outcome::kCancelled);
  auto_connect = true;
  constexpr TransferId kNext{0xA, 0xC};
  ready({0, 8}, {5, 6}, true, kNext);
  fetch({0, 8}, {7, 8}, {{0, 8}, {{5, 6}}}, {0, 1}, kNext);
  exchange();
  pass(milliseconds(500));
  finish_reads();
  exchange();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
}

TEST_F(PullTest, LossOfPFailsDAndReleasesItsBlocksAfterItsReads) {
  ready({0, 8}, {1, 2});
  fetch_two();
  exchange();
  d->on_link_down(link, "reset", now);
  deliver_messages = false;
  d_port.dialled.clear();
  pass(milliseconds(600));
  const Event event = d_event();
  EXPECT_EQ(event.cause, Cause::kPeerDied);
  EXPECT_FALSE(event.blocks_released);
  finish_reads();
  EXPECT_EQ(d_event().kind, Event::Kind::kReleased);
}

TEST_F(PullTest, OnePeerOfSeveralLeavesReadPlacesToTheOthers) {
  d_config.write_bytes_max = 64;
  d_config.writes_in_flight_max = p_config.writes_in_flight_max = 4;
  start();
  ready({0, 8}, {1, 2});
  fetch_two();  // four reads
  exchange();
  EXPECT_EQ(d_port.reads.size(), 4U);  // alone it has all places
  finish_reads();
  exchange();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
  // Another P, whose memory is connected as well.
  Registration r;
  r.transfer = {0xB, 0xB};
  r.attempt = 1;
  r.peer = {"h", 9, "q", 7};
  r.range = {0, 4};
  r.prompt_tokens = 4;
  r.block_ids = {{9}};
  r.source = SourceBlocks{{0, 4}, {{0}}};
  d->register_blocks(std::move(r), now);
  const LinkId other = d_port.dialled.back();
  d_port.dialled.clear();
  d->on_link_up(other, now);
  wire::Encoder encoder;
  const auto say = [&](std::span<const std::byte> frame) {
    p_port.send(other, frame);
    const auto sent = p_port.out.back();
    p_port.out.pop_back();
    d->on_frame(other, sent.frame(), now);
  };
  wire::HelloAck ack;
  ack.from = {"q", 7};
  ack.expected = d_config.id;
  ack.mode = Mode::kPull;
  ack.role = Role::kProducer;
  ack.fabric = d_config.fabric;
  ack.peer_timeout = d_config.peer_timeout;
  ack.lease = d_config.lease;
  ack.geometry = p_config.geometry;
  say(encoder.encode(ack));
  const std::array<std::byte, 2> offer{std::byte{7}, std::byte{7}};
  say(encoder.encode(wire::Offer{offer}));
  std::erase_if(d_port.out, [&](const auto& sent) { return sent.link == other; });
  constexpr TransferId kNext{0xA, 0xC};
  ready({0, 8}, {5, 6}, true, kNext);
  fetch({0, 8}, {7, 8}, {{0, 8}, {{5, 6}}}, {0, 1}, kNext);
  EXPECT_EQ(d_port.reads.size(), 3U);  // three quarters
}

// ---- lost and repeated messages ----

// P began a new session: what it grants through the old way is over there.
TEST_F(PullTest, AnotherOfferClosesTheOldWayAndReadsGoOnThroughTheNew) {
  d_port.room = 1;
  ready({0, 8}, {1, 2});
  fetch_two();
  exchange();
  ASSERT_EQ(d_port.reads_ever.size(), 1U);
  wire::Encoder encoder;
  const std::vector<std::byte> offer{std::byte{1}, std::byte{77}};
  p_port.send(link, encoder.encode(wire::Offer{offer}));
  exchange();
  EXPECT_THAT(d_port.closed, ::testing::ElementsAre(Outbound{1}));
  ASSERT_EQ(d_port.offers.size(), 2U);
  EXPECT_EQ(d_port.offers[1], offer);
  finish_one_read();
  finish_one_read();
  ASSERT_EQ(d_port.reads_ever.size(), 2U);
  EXPECT_EQ(d_port.reads_ever[1].from, Outbound{2});
  exchange();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
}

TEST_F(PullTest, ALostFinalIsAskedForAgain) {
  ready({0, 8}, {1, 2});
  fetch_two();
  exchange();
  finish_reads();
  const auto taken = d_port.out.back();
  d_port.out.clear();
  p->on_frame(taken.link, taken.frame(), now);
  p_port.out.clear();  // Final
  work();
  p_port.out.clear();
  EXPECT_EQ(p_event().outcome, Outcome::kDone);
  pass(milliseconds(500));
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
  EXPECT_TRUE(p_port.events.empty());
}

TEST_F(PullTest, ALostOfferComesWithTheRepeatedRegister) {
  ready({0, 8}, {1, 2});
  fetch_two();
  accept();
  p->on_frame(d_port.out.front().link, d_port.out.front().frame(), now);  // Hello
  d_port.out.pop_front();
  const auto ack = p_port.out.front();
  p_port.out.clear();  // with the offer
  d->on_frame(ack.link, ack.frame(), now);
  pass(milliseconds(500));
  EXPECT_EQ(d_port.reads_ever.size(), 2U);
  finish_reads();
  exchange();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
}

// P lost D for a moment and fenced what it had offered; D's session goes on, and the Offer of the
// new connection is lost. Nothing may be read through the way that was made before.
TEST_F(PullTest, AfterAReconnectionNothingIsReadBeforeTheOfferOfThatConnection) {
  ready({0, 8}, {1, 2});
  fetch_two();
  exchange();
  finish_reads();
  exchange();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
  constexpr TransferId kNext{0xA, 0xC};
  d->claim(kNext, address(), now);  // D has a use for the connection
  reconnect_after_p_lost_d(MessageType::kOffer);
  ready({0, 8}, {5, 6}, true, kNext);
  fetch({0, 8}, {7, 8}, {{0, 8}, {{5, 6}}}, {0, 1}, kNext);
  exchange();
  EXPECT_EQ(d_port.reads_ever.size(), 2U);  // of the first request
  pass(milliseconds(500));                  // Register comes again, and the Offer with its answer
  ASSERT_EQ(d_port.reads_ever.size(), 4U);
  EXPECT_EQ(d_port.reads_ever.back().from, Outbound{2});
  EXPECT_THAT(d_port.closed, ::testing::ElementsAre(Outbound{1}));
  finish_reads();
  exchange();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
}

TEST_F(PullTest, AfterAReconnectionTheSameOfferLetsReadsGoOnThroughTheSameWay) {
  d_port.room = 1;
  ready({0, 8}, {1, 2});
  fetch_two();
  exchange();
  p->on_link_down(link, "reset", now);
  d->on_link_down(link, "reset", now);
  lose_messages();
  d->on_time(now);
  exchange_until_d_gets(MessageType::kHelloAck);
  finish_one_read();
  EXPECT_EQ(d_port.reads_ever.size(), 1U);
  exchange();
  EXPECT_EQ(d_port.reads_ever.size(), 2U);
  EXPECT_EQ(d_port.reads_ever.back().from, Outbound{1});
  EXPECT_TRUE(d_port.closed.empty());
  finish_reads();
  exchange();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
  EXPECT_EQ(p_event().outcome, Outcome::kDone);
}

TEST_F(PullTest, DuplicatesChangeNothing) {
  ready({0, 8}, {1, 2});
  fetch_two();
  exchange();
  again_to_p(MessageType::kRegister);
  finish_reads();
  exchange();
  again_to_p(MessageType::kRegister);
  exchange();
  EXPECT_EQ(d_port.reads_ever.size(), 2U);
  EXPECT_EQ(d_port.events.size(), 1U);
  EXPECT_EQ(p_port.events.size(), 1U);
}

// ---- verification, modes ----

TEST_F(PullTest, WithVerificationACorruptBlockIsNamed) {
  d_config.verify_blocks = p_config.verify_blocks = true;
  start();
  p_port.block_hashes = {0, 11, 12};
  d_port.block_hashes = {0, 0, 0, 11, 99};
  ready({0, 8}, {1, 2});
  fetch_two();
  exchange();
  finish_reads();
  exchange();
  const Event event = d_event();
  EXPECT_EQ(event.cause, Cause::kCorrupt);
  EXPECT_THAT(event.text, HasSubstr("block 4 of group 0"));
}

TEST_F(PullTest, APushPeerIsRefusedOnBothSidesByName) {
  p_config.mode = Mode::kPush;
  start();
  fetch_two();
  exchange();
  const Event event = d_event();
  EXPECT_EQ(event.cause, Cause::kRefused);
  EXPECT_THAT(event.text, HasSubstr("mode: theirs is push, ours is pull"));
  EXPECT_EQ(p_metrics.refused_peers.value(), 1U);
  EXPECT_TRUE(event.blocks_released);
}

TEST_F(PullTest, APushingDIsRefusedByAPThatIsPulledFrom) {
  d_config.mode = Mode::kPush;
  start();
  register_range({0, 8}, {3, 4});
  exchange();
  const Event event = d_event();
  EXPECT_EQ(event.cause, Cause::kRefused);
  EXPECT_THAT(event.text, HasSubstr("mode: theirs is pull, ours is push"));
  EXPECT_EQ(p_metrics.refused_peers.value(), 1U);
  EXPECT_TRUE(p_port.writes.empty());
}

TEST(CheckRegistration, SourceBelongsToPullAndCoversTheRange) {
  layout::TestPool pool = layout::make_pool(2, 16);
  Registration r;
  r.transfer = {1, 2};
  r.range = {4, 12};
  r.prompt_tokens = 12;
  r.block_ids = {{1, 2}};
  const auto refusal = [&](Mode mode) {
    const Status status = check_registration(pool.geometry, mode, r);
    return status ? std::string("accepted") : status.error().message;
  };
  EXPECT_EQ(refusal(Mode::kPush), "accepted");
  EXPECT_THAT(refusal(Mode::kPull), HasSubstr("source is missing"));
  r.source = SourceBlocks{{0, 12}, {{7, 8, 9}}};
  EXPECT_EQ(refusal(Mode::kPull), "accepted");
  EXPECT_THAT(refusal(Mode::kPush), HasSubstr("mode is push"));
  r.source->range = {8, 12};
  EXPECT_THAT(refusal(Mode::kPull), HasSubstr("source.range is 8 to 12, range is 4 to 12"));
  r.source->range = {3, 12};
  EXPECT_THAT(refusal(Mode::kPull), HasSubstr("block_size is 4"));
  r.source = SourceBlocks{{0, 12}, {{7, 8}}};
  EXPECT_THAT(refusal(Mode::kPull), HasSubstr("lists 2 blocks, tokens 0 to 12 have 3"));
  r.source = SourceBlocks{{0, 12}, {}};
  EXPECT_THAT(refusal(Mode::kPull), HasSubstr("0 groups, num_groups is 1"));
}

}  // namespace
}  // namespace baton::handover::testing
