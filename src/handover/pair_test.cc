// One behaviour of the contract a test, with every message and completion placed by hand.
#include <gmock/gmock.h>

#include <map>

#include "handover/testing/pair.h"

namespace baton::handover::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

// ---- either order ----

TEST_F(PairTest, RegistrationFirst) {
  register_range({0, 8}, {3, 4});
  exchange();
  EXPECT_TRUE(p_port.writes.empty());
  p->expect(kId, 8, now);
  ready({0, 8}, {1, 2});
  EXPECT_FALSE(p_port.writes.empty());  // at once, not at a later step
  complete_all();
  const Event done = d_event();
  EXPECT_EQ(done.outcome, Outcome::kDone);
  EXPECT_EQ(done.bytes, 2U * 2 * 64);
  EXPECT_EQ(done.first_token, 99);
  EXPECT_EQ(done.range, (TokenRange{0, 8}));
  const Event p_done = p_event();
  EXPECT_EQ(p_done.outcome, Outcome::kDone);
  EXPECT_EQ(p_done.bytes, p_done.bytes_planned);
  EXPECT_EQ(p_done.peer, "d");
  EXPECT_TRUE(d->idle() && p->idle());
}

TEST_F(PairTest, BlocksFirst) {
  ready({0, 8}, {1, 2});
  register_range({0, 8}, {3, 4});
  exchange();
  complete_all();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
  EXPECT_EQ(p_event().outcome, Outcome::kDone);
}

TEST_F(PairTest, ADuplicateRegisterNeverWritesAgain) {
  register_range({0, 8}, {3, 4});
  exchange();
  again_to_p(wire::MessageType::kRegister);  // before
  ready({0, 8}, {1, 2});
  again_to_p(wire::MessageType::kRegister);  // during
  complete_all();
  const std::size_t posted = p_port.posted_ever.size();
  again_to_p(wire::MessageType::kRegister);  // after
  pass(milliseconds(100));
  again_to_p(wire::MessageType::kRegister);
  EXPECT_EQ(p_port.posted_ever.size(), posted);
  EXPECT_EQ(d_port.events.size(), 1U);
  EXPECT_EQ(p_port.events.size(), 1U);
}

TEST_F(PairTest, OnlyTheMissingSuffixMovesToTheRightBlocks) {
  ready({0, 14}, {1, 2, 5, 9});
  register_range({8, 14}, {11, 3});
  exchange();
  complete_all();
  EXPECT_EQ(d_event().bytes, 2U * 2 * 64);
  std::map<std::uint64_t, std::uint64_t> moved;
  for (const WriteOp& w : p_port.posted_ever) {
    if (w.length > 0) moved[w.local_offset / 64] = w.remote_offset / 64;
  }
  EXPECT_EQ(moved, (std::map<std::uint64_t, std::uint64_t>{{5, 11}, {9, 3}}));
}

TEST_F(PairTest, AnEmptyRangeFreesPAndMovesNothing) {
  ready({0, 8}, {1, 2});
  register_range({8, 8}, {});
  exchange();
  EXPECT_TRUE(p_port.posted_ever.empty());
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
  EXPECT_EQ(p_event().outcome, Outcome::kDone);
}

TEST_F(PairTest, PiecesAreWrittenAsTheyComeAndEndOnce) {
  p->expect(kId, 12, now);
  register_range({0, 12}, {3, 4, 5});
  exchange();
  ready({0, 4}, {1}, false);
  EXPECT_EQ(p_port.writes.size(), 2U);  // one a layer, while the rest is still computed
  complete_all();
  EXPECT_TRUE(d_port.events.empty());
  ready({4, 8}, {2}, false);
  ready({8, 12}, {6}, true);
  complete_all();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
  EXPECT_EQ(p_event().outcome, Outcome::kDone);
  EXPECT_TRUE(d_port.events.empty() && p_port.events.empty());  // never one a piece
}

// ---- I2: order of data, immediate, final ----

TEST_F(PairTest, TheImmediateFollowsAllDataAndDWaitsForBothWords) {
  ready({0, 8}, {1, 2});
  register_range({0, 8}, {3, 4});
  exchange();
  for (const WriteOp& w : p_port.writes) EXPECT_FALSE(w.immediate);
  const std::size_t data = p_port.writes.size();
  while (p_port.posted_ever.size() == data) complete_one();
  ASSERT_EQ(p_port.writes.size(), 1U);
  EXPECT_EQ(p_port.writes.front().length, 0U);
  EXPECT_TRUE(p_port.writes.front().immediate);
  exchange();  // Final is with D, the immediate is not
  EXPECT_TRUE(d_port.events.empty());
  complete_one();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
}

TEST_F(PairTest, TheImmediateMayComeBeforeFinal) {
  ready({0, 8}, {1, 2});
  register_range({0, 8}, {3, 4});
  exchange();
  while (!p_port.writes.empty()) complete_one();
  EXPECT_TRUE(d_port.events.empty());
  exchange();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
}

TEST_F(PairTest, AnUnknownImmediateCreatesNothingAndIsCounted) {
  register_range({0, 8}, {3, 4});
  exchange();
  d->on_immediate(Inbound{1}, Slot{7, 0}.to_immediate(), now);   // never granted
  d->on_immediate(Inbound{1}, Slot{0, 9}.to_immediate(), now);   // another generation
  d->on_immediate(Inbound{77}, Slot{0, 0}.to_immediate(), now);  // another writer
  EXPECT_EQ(d_metrics.immediates_unknown.value(), 3U);
  EXPECT_TRUE(d_port.events.empty());
}

TEST_F(PairTest, CountingFabricsKeepToTheirCredits) {
  d_config.delivery_complete = p_config.delivery_complete = false;
  d_config.immediates_max = 8;  // 2 credits for the first
  start();
  ready({0, 16}, {1, 3, 5, 7});
  register_range({0, 16}, {2, 4, 6, 8});
  exchange();
  EXPECT_EQ(p_port.writes.size(), 2U);
  for (const WriteOp& w : p_port.writes) EXPECT_TRUE(w.immediate);
  complete_one();
  EXPECT_EQ(p_port.writes.size(), 1U);  // counted, but the credit is still on its way
  complete_all();
  while (d_port.events.empty() && !p_port.writes.empty()) complete_all();
  const Event done = d_event();
  EXPECT_EQ(done.outcome, Outcome::kDone);
  EXPECT_EQ(done.writes, 8U);
  EXPECT_EQ(done.runs, 0U) << "D counts what came";
  EXPECT_EQ(p_event().runs, 8U) << "no two blocks are neighbours";
}

// ---- I1: cancel, quarantine, fences ----

TEST_F(PairTest, ACancelBeforeTheWriteMeansNoWrite) {
  register_range({0, 8}, {3, 4});
  exchange();
  d->cancel(kId, now);
  EXPECT_FALSE(d_event().blocks_released);
  EXPECT_EQ(d->quarantined_blocks(), 2U);
  ready({0, 8}, {1, 2});  // crosses the Cancel
  exchange();
  while (!p_port.writes.empty()) complete_one();
  exchange();
  const Event released = d_event();
  EXPECT_EQ(released.kind, Event::Kind::kReleased);
  EXPECT_EQ(d->quarantined_blocks(), 0U);
  EXPECT_EQ(p_event().cause, Cause::kCancelledByPeer);
}

TEST_F(PairTest, ACancelDuringAWriteKeepsTheBlocksUntilTheLastCompletion) {
  ready({0, 8}, {1, 2});
  register_range({0, 8}, {3, 4});
  exchange();
  ASSERT_FALSE(p_port.writes.empty());
  d->cancel(kId, now);
  EXPECT_FALSE(d_event().blocks_released);
  exchange();
  pass(milliseconds(1000));
  EXPECT_TRUE(d_port.events.empty());  // P said stopped, not drained
  EXPECT_TRUE(p_port.events.empty());  // [I2] its blocks are being read
  const std::size_t posted = p_port.posted_ever.size();
  complete_all();
  EXPECT_EQ(p_port.posted_ever.size(), posted);
  EXPECT_EQ(d_event().kind, Event::Kind::kReleased);
  EXPECT_EQ(p_event().outcome, Outcome::kCancelled);
}

TEST_F(PairTest, ACancelOvertakesItsRegisterAndTheRegisterStaysWithoutEffect) {
  ready({0, 8}, {1, 2});
  d->claim(kId, address(), now);
  exchange();
  register_range({0, 8}, {3, 4});
  const auto late = d_port.out.front();
  d_port.out.pop_front();
  d->cancel(kId, now);
  exchange();
  EXPECT_FALSE(d_event().blocks_released);
  EXPECT_EQ(d_event().kind, Event::Kind::kReleased);
  ready({0, 8}, {1, 2}, true, {7, 7});  // P is alive
  p->on_frame(late.link, late.frame(), now);
  exchange();
  EXPECT_TRUE(p_port.posted_ever.empty());
}

TEST_F(PairTest, TheCancelIsRepeatedUntilPHasDrained) {
  register_range({0, 8}, {3, 4});
  exchange();
  d->cancel(kId, now);
  lose_messages();
  EXPECT_FALSE(d_event().blocks_released);
  pass(milliseconds(1000));
  EXPECT_EQ(d_event().kind, Event::Kind::kReleased);
  EXPECT_GT(d_metrics.retransmits.value(), 0U);
}

TEST_F(PairTest, ARegistrationThatNeverLeftIsReleasedAtOnce) {
  register_range({0, 8}, {3, 4});
  d->cancel(kId, now);
  const Event event = d_event();
  EXPECT_EQ(event.outcome, Outcome::kCancelled);
  EXPECT_TRUE(event.blocks_released);
  exchange();  // P may have been told of the claim
  EXPECT_TRUE(d->idle());
}

TEST_F(PairTest, OnlyTheFenceReleasesBlocksOfALostPeer) {
  ready({0, 8}, {1, 2});
  register_range({0, 8}, {3, 4});
  exchange();
  deliver_messages = false;
  pass(milliseconds(5001));
  const Event lost = d_event();
  EXPECT_EQ(lost.cause, Cause::kPeerSilent);
  EXPECT_FALSE(lost.blocks_released);
  ASSERT_EQ(d_port.fences.size(), 1U);
  pass(milliseconds(60000));
  EXPECT_TRUE(d_port.events.empty());  // no time alone makes reuse safe
  d->on_fenced(d_port.fences.front(), now);
  EXPECT_EQ(d_event().kind, Event::Kind::kReleased);
}

TEST_F(PairTest, AFenceThatComesUnaskedIsTheDeathOfTheWriter) {
  register_range({0, 8}, {3, 4});
  exchange();
  d->on_fenced(Inbound{1}, now);
  const Event event = d_event();
  EXPECT_EQ(event.cause, Cause::kPeerDied);
  EXPECT_TRUE(event.blocks_released);
}

TEST_F(PairTest, AStoppedPeerThatWakesDrainsWhatWasQuarantined) {
  register_range({0, 8}, {3, 4});
  exchange();
  deliver_messages = false;
  pass(milliseconds(5001));
  lose_messages();
  EXPECT_FALSE(d_event().blocks_released);
  deliver_messages = true;
  pass(milliseconds(3000));  // D dials again for the sake of the quarantine
  EXPECT_EQ(d_event().kind, Event::Kind::kReleased);
  EXPECT_TRUE(d->idle());
}

// Two transfers that D cancels while P writes them: four blocks in quarantine, one more than the
// cap.
class QuarantineCapTest : public PairTest {
 protected:
  QuarantineCapTest() {
    d_config.quarantine_blocks_max = 3;
    p_config.lease = milliseconds(2000);  // shorter than what is held back may wait
    start();
    for (std::uint32_t i = 0; i < 2; ++i) {
      const TransferId id{1, i + 1};
      ready({0, 8}, {2 * i, 2 * i + 1}, true, id);
      register_range({0, 8}, {2 * i, 2 * i + 1}, {0, 1}, 0, id);
    }
    exchange();
    for (std::uint32_t i = 0; i < 2; ++i) d->cancel({1, i + 1}, now);
    exchange();
    d_port.events.clear();
    p_port.events.clear();
    ready({0, 8}, {8, 9});
    register_range({0, 8}, {8, 9});
    exchange();
  }
};

TEST_F(QuarantineCapTest, PastTheCapAPeerGetsNoNewGrantUntilItHasDrained) {
  EXPECT_TRUE(d_port.events.empty());
  complete_all();
  EXPECT_EQ(d_event().kind, Event::Kind::kReleased);
  EXPECT_EQ(d_event().kind, Event::Kind::kReleased);
  const Event done = d_event();
  EXPECT_EQ(done.transfer, kId);
  EXPECT_EQ(done.outcome, Outcome::kDone);
  EXPECT_TRUE(d->idle());
}

TEST_F(QuarantineCapTest, APeerThatDoesNotDrainIsRefused) {
  pass(milliseconds(4999));
  EXPECT_TRUE(d_port.events.empty());
  pass(milliseconds(1));
  const Event refused = d_event();
  EXPECT_EQ(refused.cause, Cause::kRefused);
  EXPECT_THAT(refused.text,
              HasSubstr("4 blocks wait for peer p to drain, quarantine_blocks_max is 3"));
  EXPECT_TRUE(refused.blocks_released);
  exchange();
  const Event told = p_event();
  EXPECT_EQ(told.transfer, kId);
  EXPECT_EQ(told.cause, Cause::kCancelledByPeer);  // its lease was renewed until then
}

TEST_F(QuarantineCapTest, ACancelOfWhatIsHeldBackGivesItsBlocksBackAtOnce) {
  d->cancel(kId, now);
  const Event cancelled = d_event();
  EXPECT_EQ(cancelled.outcome, Outcome::kCancelled);
  EXPECT_TRUE(cancelled.blocks_released);
  exchange();
  EXPECT_EQ(p_event().transfer, kId);  // P hears of it although it was never registered
  complete_all();
  EXPECT_TRUE(d->idle() && p->idle());
}

TEST_F(PairTest, AFailedWriteIsNotDrainedByWordButByFence) {
  ready({0, 8}, {1, 2});
  register_range({0, 8}, {3, 4});
  exchange();
  const WriteOp op = p_port.writes.front();
  p_port.writes.pop_front();
  p->on_write_failed(op.context, "link error", now);
  while (!p_port.writes.empty()) complete_one();
  exchange();
  const Event failed = d_event();
  EXPECT_EQ(failed.cause, Cause::kFabric);
  EXPECT_FALSE(failed.blocks_released);
  EXPECT_EQ(p_event().cause, Cause::kFabric);
  ASSERT_FALSE(d_port.fences.empty());
  d->on_fenced(d_port.fences.front(), now);
  EXPECT_EQ(d_event().kind, Event::Kind::kReleased);
}

TEST_F(PairTest, WhatFailedBeforeThePeerWasLostIsNotForgottenWithIt) {
  ready({0, 8}, {1, 2});
  register_range({0, 8}, {3, 4});
  exchange();
  ASSERT_FALSE(p_port.writes.empty());
  deliver_messages = false;
  pass(milliseconds(5001));
  lose_messages();
  EXPECT_FALSE(d_event().blocks_released);
  while (!p_port.writes.empty()) {  // P's row of D has no write left from here on
    p->on_write_failed(p_port.writes.front().context, "link error", now);
    p_port.writes.pop_front();
  }
  EXPECT_EQ(p_event().cause, Cause::kPeerSilent);
  deliver_messages = true;
  pass(milliseconds(10000));  // D dials again and asks whether P has drained
  EXPECT_TRUE(last_to_d.contains(wire::MessageType::kStopped));
  EXPECT_TRUE(d_port.events.empty());  // a failed write may land late: only the fence helps [I1]
  d->on_fenced(Inbound{1}, now);
  EXPECT_EQ(d_event().kind, Event::Kind::kReleased);
}

TEST_F(PairTest, LostPeersGiveTheirPlaceToNewOnes) {
  for (std::uint64_t incarnation = 1; incarnation <= 3 * p_config.peers_max; ++incarnation) {
    d_config.id.incarnation = incarnation;
    d.emplace(d_config, d_port, d_metrics);
    const TransferId id{2, incarnation};
    ready({0, 8}, {1, 2}, true, id);
    register_range({0, 8}, {3, 4}, {0, 1}, 0, id);
    exchange();
    complete_all();
    EXPECT_EQ(d_event().outcome, Outcome::kDone);
    EXPECT_EQ(p_event().outcome, Outcome::kDone);
    p->on_link_down(link, "closed by the peer", now);
    deliver_messages = false;
    pass(milliseconds(501));
    lose_messages();
    deliver_messages = true;
  }
}

TEST_F(PairTest, ARegistrationOfASessionThatDGaveUpIsNeverWritten) {
  p->expect(kId, 8, now);
  register_range({0, 8}, {3, 4});
  accept();
  p->on_frame(link, d_port.out.front().frame(), now);  // Hello
  d_port.out.pop_front();
  d->on_frame(link, p_port.out.front().frame(), now);  // HelloAck
  p_port.out.clear();
  ASSERT_EQ(d_port.out[0].type, wire::MessageType::kOffer);  // is lost
  ASSERT_EQ(d_port.out[1].type, wire::MessageType::kRegister);
  p->on_frame(link, d_port.out[1].frame(), now);
  lose_messages();
  d->on_link_down(link, "reset", now);  // only D sees it
  while (d_port.events.empty()) {
    now += milliseconds(50);
    d->on_time(now);
    for (const LinkId dialled : d_port.dialled) d->on_link_down(dialled, "refused", now);
    d_port.dialled.clear();
  }
  EXPECT_EQ(d_event().cause, Cause::kPeerDied);
  d->on_fenced(d_port.fences.front(), now);
  EXPECT_EQ(d_event().kind, Event::Kind::kReleased);
  register_range({0, 4}, {3}, {0, 1}, 0, {8, 8});  // the blocks are another's now
  exchange();
  ready({0, 8}, {1, 2});
  exchange();
  EXPECT_TRUE(p_port.posted_ever.empty());
  EXPECT_EQ(p_event().cause, Cause::kPeerDied);
}

TEST_F(PairTest, AnOlderConnectionReadLateDoesNotReplaceTheNewer) {
  d->claim(kId, address(), now);
  accept();
  const auto late = d_port.out.front();  // Hello of the first connection
  d_port.out.clear();
  d->on_link_down(link, "reset", now);
  pass(milliseconds(100));
  const LinkId newer = link;
  ASSERT_NE(newer, late.link);
  p->on_link_accepted(99, now);
  p->on_frame(99, late.frame(), now);
  EXPECT_EQ(p_port.hung_up.back(), 99U);
  register_range({0, 8}, {3, 4});
  ready({0, 8}, {1, 2});
  exchange();
  complete_all();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
}

// ---- I3, I6: attempts ----

TEST_F(PairTest, AHigherAttemptSupersedesAndTheOldOneEndsOnce) {
  register_range({0, 8}, {3, 4}, {0, 1});
  exchange();
  register_range({0, 8}, {5, 6}, {0, 2});
  const Event old = d_event();
  EXPECT_EQ(old.cause, Cause::kSuperseded);
  EXPECT_EQ(old.attempt, (baton::Attempt{0, 1}));
  exchange();
  ready({0, 8}, {1, 2});
  exchange();
  complete_all();
  std::vector<Event> events(d_port.events.begin(), d_port.events.end());
  ASSERT_EQ(events.size(), 2U);  // the old blocks' release and the new attempt's end
  for (const WriteOp& w : p_port.posted_ever) {
    if (w.length > 0) {
      EXPECT_GE(w.remote_offset / 64, 5U);  // nothing into the old blocks
    }
  }
  EXPECT_EQ(p_event().attempt, (baton::Attempt{0, 2}));
  EXPECT_TRUE(p_port.events.empty());
}

TEST_F(PairTest, TheSameAttemptTwiceIsOneAttempt) {
  register_range({0, 8}, {3, 4});
  register_range({0, 8}, {3, 4});
  ready({0, 8}, {1, 2});
  exchange();
  complete_all();
  EXPECT_EQ(d_port.events.size(), 1U);
}

TEST_F(PairTest, WithdrawnBlocksComeBackAndAnotherAttemptMayFollow) {
  ready({0, 8}, {1, 2});
  register_range({0, 8}, {3, 4});
  exchange();
  d->withdraw(kId, now);
  EXPECT_TRUE(d_port.events.empty());  // P has begun to write
  exchange();
  complete_all();
  const Event event = d_event();
  EXPECT_EQ(event.outcome, Outcome::kCancelled);
  EXPECT_TRUE(event.blocks_released);
  EXPECT_TRUE(p_port.events.empty());  // P keeps its blocks under the lease
  register_range({0, 8}, {5, 6}, {0, 2});
  exchange();
  complete_all();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
  EXPECT_EQ(p_event().outcome, Outcome::kDone);
}

TEST_F(PairTest, ASlotComesBackUnderAnotherGeneration) {
  std::vector<std::uint32_t> immediates;
  for (std::uint32_t i = 0; i < 20; ++i) {
    const TransferId id{5, i + 1};
    ready({0, 4}, {1}, true, id);
    register_range({0, 4}, {3}, {0, 1}, 0, id);
    exchange();
    complete_all();
    immediates.push_back(*p_port.posted_ever.back().immediate);
  }
  std::sort(immediates.begin(), immediates.end());
  EXPECT_EQ(std::unique(immediates.begin(), immediates.end()), immediates.end());
}

TEST_F(PairTest, AGrantTooOldToBeToldFromADuplicateIsMadeAnew) {
  p_config.ends_remembered_max = 1;
  start();
  d->claim(kId, address(), now);
  exchange();
  register_range({0, 8}, {3, 4});  // the oldest epoch; it is held back
  const auto late = d_port.out.front();
  d_port.out.pop_front();
  for (std::uint32_t i = 0; i < 3; ++i) {
    const TransferId id{5, i + 1};
    ready({0, 4}, {1}, true, id);
    register_range({0, 4}, {5}, {0, 1}, 0, id);
    exchange();
    complete_all();
  }
  d_port.events.clear();
  p->on_frame(late.link, late.frame(), now);
  ready({0, 8}, {1, 2});
  exchange();
  EXPECT_TRUE(d_port.events.empty());
  pass(milliseconds(500));
  complete_all();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
}

TEST_F(PairTest, ADuplicateOfAForgottenGrantIsNotTakenForANewOne) {
  p_config.ends_remembered_max = 1;
  start();
  ready({0, 8}, {1, 2});
  register_range({0, 8}, {3, 4});
  exchange();
  complete_all();
  const auto late = last_to_p.at(wire::MessageType::kRegister);
  for (std::uint32_t i = 0; i < 2 * p_config.transfers_max; ++i) {  // both memories forget it
    const TransferId id{5, i + 1};
    ready({0, 4}, {1}, true, id);
    register_range({0, 4}, {3}, {0, 1}, 0, id);
    exchange();
    complete_all();
  }
  const std::size_t posted = p_port.posted_ever.size();
  p->on_frame(late.link, late.frame(), now);
  EXPECT_TRUE(p->idle());
  ready({0, 8}, {1, 2});
  exchange();
  EXPECT_EQ(p_port.posted_ever.size(), posted);
}

// ---- I4: bounds ----

TEST_F(PairTest, ALostRegisterIsRepeated) {
  d->claim(kId, address(), now);
  exchange();
  register_range({0, 8}, {3, 4});
  lose_messages();
  ready({0, 8}, {1, 2});
  pass(milliseconds(300));
  complete_all();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
}

TEST_F(PairTest, ALostFinalIsAskedFor) {
  ready({0, 8}, {1, 2});
  register_range({0, 8}, {3, 4});
  exchange();
  while (!p_port.writes.empty()) complete_one();
  lose_messages();
  EXPECT_EQ(p_event().outcome, Outcome::kDone);
  EXPECT_TRUE(d_port.events.empty());
  pass(milliseconds(2500));
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
}

TEST_F(PairTest, ARegistrationThatNothingMatchesEndsAtItsDeadline) {
  register_range({0, 8}, {3, 4});
  exchange();
  pass(milliseconds(59900));
  EXPECT_TRUE(d_port.events.empty());
  pass(milliseconds(200));
  EXPECT_EQ(d_event().cause, Cause::kDeadline);
  exchange();
  EXPECT_EQ(d_event().kind, Event::Kind::kReleased);
  EXPECT_TRUE(p->idle());
}

TEST_F(PairTest, PsWordThatItComputesExtendsTheDeadline) {
  p->expect(kId, 8, now);
  register_range({0, 8}, {3, 4});
  exchange();
  pass(milliseconds(90000));
  EXPECT_TRUE(d_port.events.empty());
  ready({0, 8}, {1, 2});
  exchange();
  complete_all();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
}

TEST_F(PairTest, AnUnreachablePeerIsToldWithinASecond) {
  register_range({0, 8}, {3, 4});
  for (int i = 0; i < 100 && d_port.events.empty(); ++i) {
    if (!d_port.dialled.empty()) {
      const LinkId dialled = d_port.dialled.front();
      d_port.dialled.clear();
      d->on_link_down(dialled, "connection refused", now);
    }
    now += milliseconds(10);
    d->on_time(now);
  }
  const Event event = d_event();
  EXPECT_EQ(event.cause, Cause::kPeerUnreachable);
  EXPECT_THAT(event.text, HasSubstr("connection refused"));
  EXPECT_TRUE(event.blocks_released);
  EXPECT_LE(now, Time(std::chrono::seconds(101)));
}

TEST_F(PairTest, PFailsWithinASecondOfItsDecodePeersDeath) {
  p->expect(kId, 8, now);
  register_range({0, 8}, {3, 4});
  exchange();
  p->on_link_down(link, "closed by the peer", now);
  d_port.out.clear();
  now += milliseconds(1000);
  p->on_time(now);
  const Event event = p_event();
  EXPECT_EQ(event.cause, Cause::kPeerDied);
  EXPECT_TRUE(event.blocks_released);
  EXPECT_TRUE(p->idle());
  EXPECT_EQ(p_port.closed.size(), 1U);
}

TEST_F(PairTest, AConnectionThatBreaksMayComeBackWithoutLoss) {
  p->expect(kId, 8, now);
  register_range({0, 8}, {3, 4});
  exchange();
  p->on_link_down(link, "reset", now);
  d->on_link_down(link, "reset", now);
  pass(milliseconds(50));
  ready({0, 8}, {1, 2});
  exchange();
  complete_all();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
  EXPECT_EQ(p_port.outbounds, 1U);  // the way to the memory was never closed
}

TEST_F(PairTest, ACancelAtPIsKnownAtDAtOnceBeforeAndAfterTheRegistration) {
  p->expect(kId, 8, now);
  register_range({0, 8}, {3, 4});
  exchange();
  p->cancel(kId, now);
  exchange();
  const Event event = d_event();
  EXPECT_EQ(event.cause, Cause::kCancelledByPeer);
  EXPECT_TRUE(event.blocks_released);
  EXPECT_EQ(p_event().cause, Cause::kCancelledHere);
  const TransferId other{3, 3};
  p->expect(other, 8, now);
  p->cancel(other, now);
  EXPECT_TRUE(p_port.events.empty());
  register_range({0, 8}, {3, 4}, {0, 1}, 0, other);
  exchange();
  EXPECT_EQ(d_event().cause, Cause::kCancelledByPeer);
}

// ---- I5: lease ----

TEST_F(PairTest, TheLeaseEndsExactlyAndWhateverTheOrder) {
  const TransferId first{1, 1}, second{1, 2};
  ready({0, 4}, {1}, true, first);
  now += milliseconds(1000);
  ready({0, 4}, {2}, true, second);
  EXPECT_EQ(p->next_deadline(), now + milliseconds(29000));
  pass(milliseconds(28999));
  EXPECT_TRUE(p_port.events.empty());
  pass(milliseconds(1));
  const Event event = p_event();
  EXPECT_EQ(event.transfer, first);
  EXPECT_EQ(event.cause, Cause::kLeaseExpired);
  EXPECT_TRUE(p_port.events.empty());
}

TEST_F(PairTest, AClaimKeepsTheLeaseAliveAndItsCancelFreesAtOnce) {
  ready({0, 8}, {1, 2});
  d->claim(kId, address(), now);
  exchange();
  pass(milliseconds(120000));
  EXPECT_TRUE(p_port.events.empty());
  d->cancel(kId, now);
  exchange();
  EXPECT_EQ(p_event().cause, Cause::kCancelledByPeer);
  EXPECT_TRUE(d->idle());
}

// Whatever D's request ends of before its connection stands, P must not wait for its lease.
TEST_F(PairTest, AClaimCancelledBeforeTheConnectionStandsIsToldWhenItDoes) {
  ready({0, 8}, {1, 2});
  d->claim(kId, address(), now);
  d->cancel(kId, now);
  exchange();
  EXPECT_EQ(p_event().cause, Cause::kCancelledByPeer);
  EXPECT_TRUE(d->idle() && p->idle());
}

TEST_F(PairTest, ARegistrationCancelledBeforeTheConnectionStandsIsToldWhenItDoes) {
  ready({0, 8}, {1, 2});
  register_range({0, 8}, {3, 4});
  d->cancel(kId, now);
  EXPECT_TRUE(d_event().blocks_released);
  exchange();
  EXPECT_TRUE(p_port.posted_ever.empty());
  EXPECT_EQ(p_event().cause, Cause::kCancelledByPeer);
  EXPECT_TRUE(d->idle() && p->idle());
}

TEST_F(PairTest, ACancelThatNoConnectionCarriesIsForgottenWithThePeer) {
  deliver_messages = false;
  d->claim(kId, address(), now);
  d->cancel(kId, now);
  pass(milliseconds(4999));
  EXPECT_FALSE(d->idle());
  pass(milliseconds(1));
  EXPECT_TRUE(d->idle());
}

TEST_F(PairTest, ACancelThatWasNotToldYetGivesWayToANewClaim) {
  ready({0, 8}, {1, 2});
  d->claim(kId, address(), now);
  d->cancel(kId, now);
  d->claim(kId, address(), now);
  exchange();
  EXPECT_TRUE(p_port.events.empty());
  pass(milliseconds(60000));
  EXPECT_TRUE(p_port.events.empty());
}

TEST_F(PairTest, ARegistrationThatIsRefusedHereEndsItsClaimAndFreesP) {
  ready({0, 8}, {1, 2});
  d->claim(kId, address(), now);
  exchange();
  register_range({0, 8}, {3, 3});
  EXPECT_EQ(d_event().cause, Cause::kRefused);
  exchange();
  EXPECT_EQ(p_event().cause, Cause::kCancelledByPeer);
  EXPECT_TRUE(d->idle() && p->idle());
}

TEST_F(PairTest, NoLeaseEndsUnderAPostedWrite) {
  ready({0, 8}, {1, 2});
  register_range({0, 8}, {3, 4});
  exchange();
  ASSERT_FALSE(p_port.writes.empty());
  deliver_messages = false;
  pass(milliseconds(40000));
  EXPECT_TRUE(p_port.events.empty());
  const std::size_t posted = p_port.posted_ever.size();
  while (!p_port.writes.empty()) complete_one();
  EXPECT_EQ(p_port.posted_ever.size(), posted);
  EXPECT_EQ(p_event().outcome, Outcome::kFailed);
}

// ---- I7, I9: refusals ----

TEST_F(PairTest, AHandshakeThatDoesNotFitIsRefusedOnBothSidesWithBothValues) {
  d_config.geometry.kv_dtype = "float32";
  start();
  register_range({0, 8}, {3, 4});
  exchange();
  const Event event = d_event();
  EXPECT_EQ(event.cause, Cause::kRefused);
  EXPECT_THAT(event.text, HasSubstr("kv_dtype: theirs is bfloat16, ours is float32"));
  EXPECT_EQ(d_metrics.refused_peers.value(), 1U);
  EXPECT_EQ(p_metrics.refused_peers.value(), 1U);
}

TEST_F(PairTest, PushRefusesPull) {
  p_config.mode = Mode::kPull;
  start();
  register_range({0, 8}, {3, 4});
  exchange();
  EXPECT_THAT(d_event().text, HasSubstr("mode: theirs is pull, ours is push"));
}

TEST_F(PairTest, AnotherIncarnationIsToldApart) {
  p_config.id.incarnation = 3;
  start();
  register_range({0, 8}, {3, 4});
  exchange();
  EXPECT_EQ(d_event().cause, Cause::kPeerRestarted);
}

TEST_F(PairTest, UnlikePromptLengthsAreRefusedWithBothValues) {
  p->expect(kId, 9, now);
  register_range({0, 8}, {3, 4});
  exchange();
  const Event event = d_event();
  EXPECT_EQ(event.cause, Cause::kRefused);
  EXPECT_THAT(event.text, HasSubstr("prompt_tokens: ours is 9, theirs is 8"));
}

TEST_F(PairTest, HostileListsAreRefusedBeforeAnythingIsMadeOfThem) {
  d->claim(kId, address(), now);
  exchange();
  wire::Encoder encoder;
  const auto send = [&](std::vector<BlockId> ids, TokenRange range, Epoch epoch) {
    wire::Register r;
    r.transfer = {9, epoch};
    r.range = range;
    r.prompt_tokens = range.end;
    r.num_groups = 1;
    r.block_ids[0] = ids;
    r.num_grants = 1;
    r.grant = {{0, 0}, {1, 1}, epoch, 1};
    RecordingPort wire;
    wire.send(link, encoder.encode(r));
    p->on_frame(link, wire.out.front().frame(), now);
    exchange();
  };
  send({3, kBlocks}, {0, 8}, 101);
  send({3, 3}, {0, 8}, 102);
  send({3}, {0, 8}, 103);
  send({3, 4}, {1, 8}, 104);
  EXPECT_EQ(p_metrics.refused_messages.value(), 4U);
  EXPECT_TRUE(p->idle());
  send({3, 4}, {0, 8}, 105);  // the peer is served on
  EXPECT_FALSE(p->idle());
}

TEST_F(PairTest, StrangersMustSayHello) {
  p->on_link_accepted(50, now);
  wire::Encoder encoder;
  RecordingPort wire;
  wire.send(50, encoder.encode(wire::Ping{1, 2}));
  p->on_frame(50, wire.out.front().frame(), now);
  ASSERT_EQ(p_port.hung_up.size(), 1U);
  EXPECT_EQ(p_port.out.back().type, wire::MessageType::kRefuse);
  p->on_link_accepted(51, now);
  pass(milliseconds(5001));
  EXPECT_EQ(p_port.hung_up.size(), 2U);  // silence is no way in either
}

// ---- verification ----

TEST_F(PairTest, ABlockThatIsNotWhatWasSentEndsAsCorrupt) {
  d_config.verify_blocks = p_config.verify_blocks = true;
  start();
  for (std::uint64_t i = 0; i < kBlocks; ++i) {
    p_port.block_hashes.push_back(i * 10);
    d_port.block_hashes.push_back(i * 10);
  }
  p_port.block_hashes[1] = d_port.block_hashes[3] = 1;
  p_port.block_hashes[2] = 5;
  d_port.block_hashes[4] = 6;
  ready({0, 8}, {1, 2});
  register_range({0, 8}, {3, 4});
  exchange();
  complete_all();
  const Event event = d_event();
  EXPECT_EQ(event.cause, Cause::kCorrupt);
  EXPECT_THAT(event.text, HasSubstr("block 4 of group 0"));
  EXPECT_EQ(event.blocks_verified, 1U);
  EXPECT_TRUE(event.blocks_released);
  EXPECT_EQ(d_metrics.blocks_corrupt.value(), 1U);
}

TEST_F(PairTest, VerifiedBlocksAreCounted) {
  d_config.verify_blocks = p_config.verify_blocks = true;
  start();
  ready({0, 8}, {1, 2});
  register_range({0, 8}, {3, 4});
  exchange();
  complete_all();
  EXPECT_EQ(d_event().blocks_verified, 2U);
  EXPECT_EQ(p_port.hashed, 2);
}

// Blocks so large that one turn of D compares one of them: P is lost, and fenced, in between. All
// has landed, so that nobody needs to hear of it.
TEST_F(PairTest, ThePeerMayBeLostWhileItsHashesAreCompared) {
  pool_ = layout::make_pool(2, kBlocks, 128 << 10);
  for (Config* c : {&d_config, &p_config}) {
    c->geometry = pool_.geometry;
    c->verify_blocks = true;
  }
  start();
  ready({0, 16}, {1, 2, 3, 4});
  register_range({0, 16}, {5, 6, 7, 8});
  exchange();
  while (p_port.out.empty()) complete_one();  // up to Final, and the immediate is posted
  const auto final = p_port.out.front();
  ASSERT_EQ(final.type, wire::MessageType::kFinal);
  d->on_frame(final.link, final.frame(), now);
  d->on_immediate(Inbound{d_port.inbounds}, p_port.writes.front().immediate.value(), now);
  ASSERT_TRUE(d->work(now));
  ASSERT_EQ(d_port.hashed, 1);
  d->on_link_down(link, "reset", now);
  d->on_fenced(Inbound{d_port.inbounds}, now);
  now += d_config.reconnect_grace;
  d->on_time(now);
  EXPECT_TRUE(d_port.events.empty());
  while (d->work(now)) {
  }
  const Event event = d_event();
  EXPECT_EQ(event.outcome, Outcome::kDone);
  EXPECT_EQ(event.blocks_verified, 4U);
  EXPECT_TRUE(d_port.events.empty());
}

// ---- room ----

TEST_F(PairTest, AFullFabricIsAskedAgainAfterACompletion) {
  p_port.room = 1;
  ready({0, 16}, {1, 3, 5, 7});
  register_range({0, 16}, {2, 4, 6, 8});
  exchange();
  EXPECT_EQ(p_port.writes.size(), 1U);
  EXPECT_FALSE(p->work(now));  // nothing to spin for
  complete_all();
  while (!p_port.writes.empty()) complete_all();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
}

TEST_F(PairTest, ShutdownTellsTheOtherSide) {
  p->expect(kId, 8, now);
  register_range({0, 8}, {3, 4});
  exchange();
  p->shutdown(now);
  exchange();
  EXPECT_EQ(d_event().cause, Cause::kShutdown);
  EXPECT_TRUE(p_port.events.empty());
}

}  // namespace
}  // namespace baton::handover::testing
