// An attempt taken back, given up or made anew by either side at every moment of its life; words
// that come twice, late or too early; and how a side drains and ends.
#include <gmock/gmock.h>

#include <map>
#include <tuple>

#include "handover/testing/pair.h"

namespace baton::handover::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

// ---- preemption, withdrawal and reissue at every moment ----

enum class Moment {
  kRegistered,
  kExpected,
  kFirstPiecePosted,
  kFirstPieceDone,
  kSecondPiecePosted,
  kSecondPieceDone,
  kLastPiecePosted,
  kHalfDone,
};
enum class Act { kPrefillCancels, kDecodeCancels, kDecodeWithdraws, kDecodeReissues };

class EveryMoment : public PairTest,
                    public ::testing::WithParamInterface<std::tuple<int, int, bool>> {
 protected:
  EveryMoment() {
    d_config.delivery_complete = p_config.delivery_complete = std::get<2>(GetParam());
    d_config.quarantine_blocks_max = 12;
    start();
  }
  Moment moment() const { return static_cast<Moment>(std::get<0>(GetParam())); }
  Act act() const { return static_cast<Act>(std::get<1>(GetParam())); }
  bool reached(Moment m) const { return moment() >= m; }

  void piece(std::uint32_t number) {
    if (handed_in_ != number) return;
    ++handed_in_;
    ready({4 * number, 4 * number + 4}, {number}, number == 2);
    look();
  }
  void reach() {
    register_range({0, 12}, {3, 4, 5});
    exchange();
    if (reached(Moment::kExpected)) p->expect(kId, 12, now);
    if (reached(Moment::kFirstPiecePosted)) piece(0);
    if (reached(Moment::kFirstPieceDone)) finish_writes();
    if (reached(Moment::kSecondPiecePosted)) piece(1);
    if (reached(Moment::kSecondPieceDone)) finish_writes();
    if (reached(Moment::kLastPiecePosted)) piece(2);
    if (reached(Moment::kHalfDone)) complete_one();
  }
  void finish_writes() {
    for (int i = 0; i < 3; ++i) {
      complete_all();
      look();
    }
  }
  // Whatever P's engine was still to say, and everything that comes of it.
  void go_on() {
    if (!reached(Moment::kExpected)) p->expect(kId, 12, now);
    for (std::uint32_t i = 0; i < 3; ++i) {
      piece(i);
      exchange();
      finish_writes();
    }
    pass(milliseconds(3000));
    finish_writes();
  }
  // Takes D's events; the blocks of the first attempt are not D's to reuse while a write into them
  // is posted, and none is posted after that [I1].
  void look() {
    for (; !d_port.events.empty(); d_port.events.pop_front()) {
      const Event& event = d_port.events.front();
      if (event.kind == Event::Kind::kEnded) ends_[event.attempt].push_back(event);
      const bool gives_back = event.outcome != Outcome::kDone &&
                              (event.kind == Event::Kind::kReleased || event.blocks_released);
      if (!gives_back) continue;
      ++releases_[event.attempt];
      if (event.attempt == baton::Attempt{0, 1}) released_at_ = p_port.posted_ever.size();
      for (const WriteOp& w : p_port.writes) EXPECT_FALSE(into_first(w)) << "[I1]";
    }
  }
  static bool into_first(const WriteOp& w) {
    return w.length > 0 && w.remote_offset / 64 >= 3 && w.remote_offset / 64 <= 5;
  }
  void check_first_is_over(Outcome outcome) {
    ASSERT_EQ((ends_[{0, 1}].size()), 1U);
    EXPECT_EQ((ends_[{0, 1}].front().outcome), outcome);
    EXPECT_EQ((releases_[{0, 1}]), 1);
    for (std::size_t i = released_at_; i < p_port.posted_ever.size(); ++i) {
      EXPECT_FALSE(into_first(p_port.posted_ever[i])) << "[I1]";
    }
    EXPECT_EQ(d->quarantined_blocks(), 0U);
    EXPECT_EQ(d_metrics.blocks_quarantined.value(), 0);
    EXPECT_TRUE(d->idle());
    EXPECT_TRUE(p->idle());
  }

  std::map<baton::Attempt, std::vector<Event>> ends_;
  std::map<baton::Attempt, int> releases_;
  std::size_t released_at_ = 0;
  std::uint32_t handed_in_ = 0;
};

TEST_P(EveryMoment, EndsOnceOnEachSideAndGivesTheBlocksBack) {
  reach();
  switch (act()) {
    case Act::kPrefillCancels:
      p->cancel(kId, now);
      handed_in_ = 3;  // its engine says no more
      break;
    case Act::kDecodeCancels:
      d->cancel(kId, now);
      break;
    case Act::kDecodeWithdraws:
      d->withdraw(kId, now);
      break;
    case Act::kDecodeReissues:
      register_range({0, 12}, {6, 7, 8}, {0, 2});
      break;
  }
  look();
  exchange();
  if (act() == Act::kDecodeWithdraws) {
    finish_writes();
    register_range({0, 12}, {6, 7, 8}, {1, 1});  // other blocks, as at another D under a binding
  }
  if (act() == Act::kPrefillCancels) {
    finish_writes();
    pass(milliseconds(3000));
    look();
  } else {
    go_on();
  }
  check_first_is_over(Outcome::kCancelled);
  const bool known = act() != Act::kPrefillCancels || reached(Moment::kExpected);
  ASSERT_EQ(p_port.events.size(), known ? 1U : 0U);
  const bool done = act() == Act::kDecodeWithdraws || act() == Act::kDecodeReissues;
  if (known) {
    EXPECT_EQ(p_port.events.front().outcome, done ? Outcome::kDone : Outcome::kCancelled);
  }
  ASSERT_EQ(ends_.size(), done ? 2U : 1U);
  if (done) {
    EXPECT_EQ(ends_.rbegin()->second.front().outcome, Outcome::kDone);
  }
}

INSTANTIATE_TEST_SUITE_P(Lifecycle, EveryMoment,
                         ::testing::Combine(::testing::Range(0, 8), ::testing::Range(0, 4),
                                            ::testing::Bool()));

// ---- twice and out of order ----

TEST_F(PairTest, EveryMessageTwiceAndTheOldOnesAgainAtTheEndChangeNothing) {
  std::vector<RecordingPort::Sent> to_p, to_d;
  const auto twice = [&] {
    for (int round = 0; round < 20; ++round) {
      accept();
      while (!d_port.out.empty()) {
        to_p.push_back(d_port.out.front());
        d_port.out.pop_front();
        for (int i = 0; i < 2; ++i) p->on_frame(to_p.back().link, to_p.back().frame(), now);
      }
      if (p_port.outbounds == 1 && round == 0) p->on_connected(Outbound{1}, now);
      work();
      while (!p_port.out.empty()) {
        to_d.push_back(p_port.out.front());
        p_port.out.pop_front();
        for (int i = 0; i < 2; ++i) d->on_frame(to_d.back().link, to_d.back().frame(), now);
      }
      if (p_port.outbounds == 1) p->on_connected(Outbound{1}, now);
      work();
    }
  };
  p->expect(kId, 8, now);
  register_range({0, 8}, {3, 4});
  twice();
  ready({0, 4}, {1}, false);
  twice();
  ready({4, 8}, {2}, true);
  twice();
  while (!p_port.writes.empty()) {
    complete_one();
    twice();
  }
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
  EXPECT_EQ(p_event().outcome, Outcome::kDone);
  const std::size_t posted = p_port.posted_ever.size();
  EXPECT_EQ(posted, 5U);  // two pieces, two layers, one immediate
  for (std::size_t i = to_p.size(); i-- > 0;) p->on_frame(to_p[i].link, to_p[i].frame(), now);
  for (std::size_t i = to_d.size(); i-- > 0;) d->on_frame(to_d[i].link, to_d[i].frame(), now);
  twice();
  EXPECT_EQ(p_port.posted_ever.size(), posted);
  EXPECT_TRUE(d_port.events.empty() && p_port.events.empty());
  EXPECT_TRUE(d->idle() && p->idle());
  EXPECT_EQ(p_port.outbounds, 1U);
}

TEST_F(PairTest, AnOlderAttemptThatComesAfterTheNewerIsTurnedAwayAndDrained) {
  d->claim(kId, address(), now);
  exchange();
  register_range({0, 8}, {3, 4}, {1, 1});
  const auto older = d_port.out.front();
  d_port.out.pop_front();
  register_range({0, 8}, {5, 6}, {1, 2});
  exchange();
  ready({0, 8}, {1, 2});
  p->on_frame(older.link, older.frame(), now);
  exchange();
  complete_all();
  EXPECT_EQ(p_event().attempt, (baton::Attempt{1, 2}));
  std::map<baton::Attempt, int> ends;
  for (const Event& event : d_port.events) ends[event.attempt] += event.outcome == Outcome::kDone;
  EXPECT_EQ(ends, (std::map<baton::Attempt, int>{{{1, 1}, 0}, {{1, 2}, 1}}));
  EXPECT_EQ(d->quarantined_blocks(), 0U);
}

// ---- prefix hits and sub-requests ----

TEST_F(PairTest, WhatDHasAlreadyIsNotMovedWhereverThePiecesEnd) {
  for (std::uint32_t held = 0; held <= 4; ++held) {
    const TransferId id{40, held + 1};
    p->expect(id, 16, now);
    std::vector<BlockId> wanted;
    for (std::uint32_t i = held; i < 4; ++i) wanted.push_back(8 + i);
    register_range({4 * held, 16}, wanted, {0, 1}, 16, id);
    exchange();
    const std::size_t before = p_port.posted_ever.size();
    ready({0, 8}, {0, 1}, false, id);
    complete_all();
    ready({8, 16}, {2, 3}, true, id);
    complete_all();
    complete_all();
    EXPECT_EQ(d_event().bytes, (4 - held) * 2 * 64U);
    EXPECT_EQ(p_event().outcome, Outcome::kDone);
    std::map<std::uint64_t, std::uint64_t> moved;
    for (std::size_t i = before; i < p_port.posted_ever.size(); ++i) {
      const WriteOp& w = p_port.posted_ever[i];
      for (std::uint64_t at = 0; at < w.length; at += 64) {
        moved[(w.local_offset + at) / 64] = (w.remote_offset + at) / 64;
      }
    }
    EXPECT_EQ(moved.size(), 4 - held);
    for (const auto& [local, remote] : moved) EXPECT_EQ(remote, local + 8);
  }
  EXPECT_TRUE(d->idle() && p->idle());
}

// Several samples or prompts of one client request are transfers of their own: nothing of one
// reaches another, however alike they are.
TEST_F(PairTest, SubRequestsOfOneRequestAreSeparateTransfers) {
  constexpr std::uint32_t kParts = 4;
  for (std::uint32_t i = 0; i < kParts; ++i) {
    p->expect({50, i + 1}, 8, now);
    register_range({0, 8}, {8 + 2 * i, 9 + 2 * i}, {0, 1}, 8, {50, i + 1});
  }
  exchange();
  d->cancel({50, 2}, now);
  exchange();
  for (std::uint32_t i = kParts; i-- > 0;) {
    ready({0, 8}, {2 * i, 2 * i + 1}, true, {50, i + 1});
  }
  for (int i = 0; i < 6; ++i) complete_all();
  std::map<std::uint64_t, std::vector<Event>> d_ends, p_ends;
  for (const Event& e : d_port.events) {
    if (e.kind == Event::Kind::kEnded) d_ends[e.transfer.low].push_back(e);
  }
  for (const Event& e : p_port.events) p_ends[e.transfer.low].push_back(e);
  for (std::uint32_t i = 0; i < kParts; ++i) {
    ASSERT_EQ(d_ends[i + 1].size(), 1U);
    ASSERT_EQ(p_ends[i + 1].size(), 1U);
    const Outcome expected = i == 1 ? Outcome::kCancelled : Outcome::kDone;
    EXPECT_EQ(d_ends[i + 1].front().outcome, expected);
    EXPECT_EQ(p_ends[i + 1].front().outcome, expected);
  }
  EXPECT_TRUE(d->idle() && p->idle());
}

// ---- bounds ----

TEST_F(PairTest, APThatOnlySaysItComputesIsNotWaitedForForEver) {
  d_config.transfer_total = milliseconds(150000);
  start();
  p->expect(kId, 8, now);
  register_range({0, 8}, {3, 4});
  exchange();
  pass(milliseconds(149900));
  EXPECT_TRUE(d_port.events.empty());
  pass(milliseconds(100));
  const Event event = d_event();
  EXPECT_EQ(event.cause, Cause::kDeadline);
  EXPECT_THAT(event.text, HasSubstr("no end within 150000 ms of registration"));
  exchange();
  EXPECT_EQ(d_event().kind, Event::Kind::kReleased);
  EXPECT_EQ(p_event().cause, Cause::kCancelledByPeer);
}

TEST_F(PairTest, ARegistrationMayBringItsOwnTotal) {
  p->expect(kId, 8, now);
  Registration r;
  r.transfer = kId;
  r.attempt = 1;
  r.peer = address();
  r.range = {0, 4};
  r.block_ids = {{3}};
  r.prompt_tokens = 8;
  r.total = milliseconds(7000);
  d->register_blocks(std::move(r), now);
  exchange();
  pass(milliseconds(7000));
  EXPECT_EQ(d_event().cause, Cause::kDeadline);
}

// ---- words that come before the request ----

TEST_F(PairTest, ACancelOfAClaimThatComesFirstEndsTheExpectationAtOnce) {
  d->claim(kId, address(), now);
  exchange();
  d->cancel(kId, now);
  exchange();
  p->expect(kId, 8, now);
  const Event event = p_event();
  EXPECT_EQ(event.outcome, Outcome::kCancelled);
  EXPECT_EQ(event.cause, Cause::kCancelledByPeer);
  ready({0, 8}, {1, 2});  // its engine had begun: dropped, the end was told
  EXPECT_TRUE(p_port.events.empty());
  EXPECT_TRUE(p->idle());
}

TEST_F(PairTest, ACancelOfARegistrationThatComesFirstDoesToo) {
  register_range({0, 8}, {3, 4});
  exchange();
  d->cancel(kId, now);
  exchange();
  ready({0, 8}, {1, 2});  // never expected, handed in at once
  EXPECT_EQ(p_event().cause, Cause::kCancelledByPeer);
  EXPECT_TRUE(p_port.posted_ever.empty());
}

TEST_F(PairTest, AnEarlyCancelIsForgottenAfterALeaseOrWhenDWantsTheTransferAgain) {
  for (const bool wanted_again : {false, true}) {
    const TransferId id{60, wanted_again ? 1U : 2U};
    d->claim(id, address(), now);
    exchange();
    d->cancel(id, now);
    exchange();
    if (wanted_again) {
      d->claim(id, address(), now);
      exchange();
    } else {
      pass(milliseconds(30000));
    }
    p->expect(id, 8, now);
    EXPECT_TRUE(p_port.events.empty());
    p->cancel(id, now);
  }
}

TEST_F(PairTest, AClaimThatComesBeforeTheRequestTiesItToItsD) {
  d->claim(kId, address(), now);
  exchange();
  p->expect(kId, 8, now);
  p->on_link_down(link, "closed by the peer", now);
  d_port.out.clear();
  now += milliseconds(500);
  p->on_time(now);
  EXPECT_EQ(p_event().cause, Cause::kPeerDied);  // and not after a renewal or a lease
  EXPECT_TRUE(p->idle());
}

// ---- draining and ending ----

TEST_F(PairTest, ADrainingPRefusesTheNewAndEndsWhatRuns) {
  p->expect(kId, 8, now);
  register_range({0, 8}, {3, 4}, {0, 1}, 0, {70, 1});  // nothing here matches it yet
  exchange();
  p->drain(now);
  exchange();
  EXPECT_EQ(d_event().cause, Cause::kShutdown);  // in one message, not at its deadline
  EXPECT_EQ(d->quarantined_blocks(), 0U);
  p->expect({70, 2}, 8, now);
  const Event refused = p_event();
  EXPECT_EQ(refused.cause, Cause::kShutdown);
  EXPECT_THAT(refused.text, HasSubstr("draining"));
  ready({0, 4}, {6}, false, {70, 3});
  EXPECT_EQ(p_event().cause, Cause::kShutdown);
  ready({0, 8}, {6, 7}, true, {70, 2});  // handed in before the engine heard: one end each [I3]
  ready({4, 8}, {7}, true, {70, 3});
  EXPECT_TRUE(p_port.events.empty());
  register_range({0, 8}, {5, 6}, {0, 1}, 0, {70, 4});
  exchange();
  EXPECT_EQ(d_event().cause, Cause::kShutdown);
  register_range({0, 8}, {3, 4});  // what was expected goes on, registered only now
  exchange();
  ready({0, 8}, {1, 2});
  complete_all();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
  EXPECT_EQ(p_event().outcome, Outcome::kDone);
  EXPECT_TRUE(p->idle());
}

TEST_F(PairTest, ADrainingDTakesOnlyWhatItHadAccepted) {
  d->claim(kId, address(), now);
  register_range({0, 4}, {7}, {0, 1}, 0, {71, 1});
  exchange();
  d->drain(now);
  register_range({0, 8}, {5, 6}, {0, 1}, 0, {71, 2});
  const Event refused = d_event();
  EXPECT_EQ(refused.cause, Cause::kShutdown);
  EXPECT_TRUE(refused.blocks_released);
  ready({0, 8}, {1, 2});
  register_range({0, 8}, {3, 4});                   // claimed before
  register_range({0, 4}, {8}, {0, 2}, 0, {71, 1});  // a further attempt
  EXPECT_EQ(d_event().cause, Cause::kSuperseded);
  exchange();
  complete_all();
  d->withdraw({71, 1}, now);
  exchange();
  d->claim({71, 1}, address(), now);
  register_range({0, 4}, {9}, {0, 3}, 0, {71, 1});
  ready({0, 4}, {3}, true, {71, 1});
  exchange();
  complete_all();
  std::map<TransferId, int> done;
  for (const Event& e : d_port.events) done[e.transfer] += e.outcome == Outcome::kDone;
  EXPECT_EQ(done, (std::map<TransferId, int>{{kId, 1}, {{71, 1}, 1}}));
  EXPECT_TRUE(d->idle() && p->idle());
}

TEST_F(PairTest, AnAbandonedPEndsEverythingWithEventsAndDHears) {
  ready({0, 8}, {1, 2});
  register_range({0, 8}, {3, 4});
  p->expect({72, 1}, 8, now);
  register_range({0, 8}, {5, 6}, {0, 1}, 0, {72, 1});
  exchange();
  ASSERT_FALSE(p_port.writes.empty());
  const std::size_t posted = p_port.posted_ever.size();
  p->abandon(now);
  exchange();
  EXPECT_EQ(p_event().transfer, (TransferId{72, 1}));
  EXPECT_TRUE(p_port.events.empty());  // the other one's blocks are still being read [I2]
  complete_all();
  const Event event = p_event();
  EXPECT_EQ(event.cause, Cause::kShutdown);
  EXPECT_EQ(p_port.posted_ever.size(), posted);
  std::map<TransferId, int> ends;
  for (const Event& e : d_port.events) {
    ends[e.transfer] += e.kind == Event::Kind::kEnded && e.cause == Cause::kShutdown;
  }
  EXPECT_EQ(ends, (std::map<TransferId, int>{{kId, 1}, {{72, 1}, 1}}));
  EXPECT_EQ(d->quarantined_blocks(), 0U);
}

TEST_F(PairTest, AnAbandonedDEndsEverythingWithEventsAndPHears) {
  ready({0, 8}, {1, 2});
  register_range({0, 8}, {3, 4});
  ready({0, 4}, {5}, true, {73, 1});
  d->claim({73, 1}, address(), now);
  exchange();
  d->abandon(now);
  const Event event = d_event();
  EXPECT_EQ(event.cause, Cause::kShutdown);
  EXPECT_FALSE(event.blocks_released);
  exchange();
  EXPECT_EQ(p_event().transfer, (TransferId{73, 1}));  // the claim was given back
  complete_all();
  EXPECT_EQ(d_event().kind, Event::Kind::kReleased);
  EXPECT_EQ(p_event().cause, Cause::kCancelledByPeer);
  register_range({0, 8}, {3, 4}, {0, 1}, 0, {73, 2});
  EXPECT_EQ(d_event().cause, Cause::kShutdown);
  EXPECT_TRUE(d->idle());
}

TEST_F(PairTest, ADThatEndsFencesItsWritersAndSaysGoodbye) {
  ready({0, 8}, {1, 2});
  d->claim(kId, address(), now);
  exchange();
  d->shutdown(now);
  EXPECT_EQ(d_port.fences, std::vector<Inbound>{Inbound{1}});
  exchange();
  const Event event = p_event();
  EXPECT_EQ(event.cause, Cause::kShutdown);
  EXPECT_THAT(event.text, HasSubstr("the decode side is shutting down"));
  EXPECT_TRUE(p->idle());
}

TEST_F(PairTest, APThatEndsSaysGoodbyeAndIsNotDialledAgain) {
  p->expect(kId, 8, now);
  register_range({0, 8}, {3, 4});
  d->claim({74, 1}, address(), now);
  exchange();
  p->shutdown(now);
  exchange();
  const Event event = d_event();
  EXPECT_EQ(event.cause, Cause::kShutdown);
  EXPECT_TRUE(event.blocks_released);
  EXPECT_TRUE(d->idle());
  pass(milliseconds(10000));
  EXPECT_TRUE(d_port.dialled.empty());
  EXPECT_EQ(p_port.outbounds, 1U);
}

// ---- bytes that do not move, and a peer with two names ----

// D's agent answers every ping and its memory takes nothing: a cut data path, or a D that wants to
// keep P's blocks and P's share of writes.
TEST_F(PairTest, WritesThatDoNotMoveEndWithinThePeerTimeout) {
  ready({0, 8}, {1, 2});
  register_range({0, 8}, {3, 4});
  exchange();
  ASSERT_FALSE(p_port.writes.empty());
  pass(p_config.peer_timeout - milliseconds(1));
  EXPECT_TRUE(p_port.closed.empty());
  EXPECT_TRUE(p_port.events.empty());
  pass(milliseconds(1));
  ASSERT_EQ(p_port.closed.size(), 1U);
  const Event told = d_event();
  EXPECT_EQ(told.cause, Cause::kFabric);
  EXPECT_THAT(told.text, HasSubstr("no write completed for 5000 ms"));
  EXPECT_FALSE(told.blocks_released);
  EXPECT_TRUE(p_port.events.empty()) << "[I2] its blocks are still being read";
  while (!p_port.writes.empty()) {  // the closed outbound gives its writes back
    p->on_write_failed(p_port.writes.front().context, "closed", now);
    p_port.writes.pop_front();
  }
  exchange();
  EXPECT_EQ(p_event().cause, Cause::kFabric);
  EXPECT_TRUE(p->idle());
  ASSERT_EQ(d_port.fences.size(), 1U) << "what failed may still land [I1]";
}

// A completion now and then is a slow link, not a dead one.
TEST_F(PairTest, SlowWritesGoOn) {
  ready({0, 16}, {1, 5, 2, 7});
  register_range({0, 16}, {3, 6, 4, 8});
  exchange();
  ASSERT_GT(p_port.writes.size(), 3U);
  for (int i = 0; i < 3; ++i) {
    pass(p_config.peer_timeout - milliseconds(1));
    complete_one();
  }
  complete_all();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
  EXPECT_EQ(p_event().outcome, Outcome::kDone);
}

// After an end the blocks wait for completions, and no longer than that [I4].
TEST_F(PairTest, AnEndWithWritesThatDoNotMoveIsBounded) {
  ready({0, 8}, {1, 2});
  register_range({0, 8}, {3, 4});
  exchange();
  ASSERT_FALSE(p_port.writes.empty());
  d->cancel(kId, now);
  exchange();
  pass(p_config.peer_timeout);
  EXPECT_EQ(p_port.closed.size(), 1U);
}

TEST_F(PairTest, AnotherAddressOfAConnectedPeerIsTheSamePeer) {
  ready({0, 8}, {1, 2});
  register_range({0, 8}, {3, 4});
  exchange();
  Registration r;
  r.transfer = {0xC, 1};
  r.attempt = 1;
  r.peer = {"another-name", 1, "p", 2};
  r.range = {0, 4};
  r.block_ids = {{5}};
  r.prompt_tokens = 4;
  d->register_blocks(std::move(r), now);
  ready({0, 4}, {9}, true, {0xC, 1});
  exchange();
  EXPECT_EQ(d_port.inbounds, 1U) << "a second session would have ended the first";
  complete_all();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
}

// A process that is P and D has one gauge for the connections of both.
TEST_F(PairTest, BothSidesOfOneProcessCountTheirConnections) {
  p.emplace(p_config, p_port, d_metrics);
  register_range({0, 8}, {0, 1});
  exchange();
  EXPECT_EQ(d_metrics.peers_connected.value(), 2);
  p->on_link_down(link, "closed", now);
  EXPECT_EQ(d_metrics.peers_connected.value(), 1);
  d->on_link_down(link, "closed", now);
  EXPECT_EQ(d_metrics.peers_connected.value(), 0);
  pass(milliseconds(20));  // D dials again
  EXPECT_EQ(d_metrics.peers_connected.value(), 2);
}

// Its inbound is that of the first name: under the second one nobody would fence it.
TEST_F(PairTest, APeerWithoutANameInItsAddressKeepsTheOneItSaidFirst) {
  Registration r;
  r.transfer = kId;
  r.attempt = 1;
  r.peer = {"h", 1, "", 0};
  r.range = {0, 4};
  r.block_ids = {{5}};
  r.prompt_tokens = 4;
  d->register_blocks(std::move(r), now);
  exchange();
  ASSERT_TRUE(d_port.events.empty());
  p_config.id.engine_id = "q";
  p.emplace(p_config, p_port, p_metrics);
  d->on_link_down(link, "closed", now);
  d->on_time(now);
  exchange();
  const Event event = d_event();
  EXPECT_EQ(event.cause, Cause::kRefused);
  EXPECT_THAT(event.text, ::testing::HasSubstr("engine_id: we asked for p, theirs is q"));
  EXPECT_FALSE(event.blocks_released) << "p was told of them";
  ASSERT_EQ(d_port.fences.size(), 1U);
  EXPECT_EQ(d_port.fences.front(), Inbound{1});
}

}  // namespace
}  // namespace baton::handover::testing
