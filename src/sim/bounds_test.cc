// The rows of the table of bounds, one world each [I4]: a state, one loss, and the survivor knows
// of it, for the reason that the row gives, within the row's time by the virtual clock. Rows that
// have no world here name the test that tries them (kElsewhere). The worlds with several faults
// hold to the sum of the table, and crashes and silence to two rows (random_run.cc, world.cc).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "handover/bounds.h"
#include "sim/world.h"

namespace baton::sim {
namespace {

using handover::BoundId;
using std::chrono::milliseconds;
using wire::MessageType;

constexpr std::uint32_t kPrompt = 16;
const TransferId kId{7, 7};
const Process::Key kKey{kId, {0, 1}};
const Process::Key kAnother{{8, 8}, {0, 1}};
constexpr auto kForEver = std::chrono::hours(1);
constexpr std::uint32_t kAll = 1U << 30;

// One P, one D, and an engine on either side that does what the test says and keeps what it hears.
class Pair final : public Engines {
 public:
  explicit Pair(const Settings& settings) : world(settings, choices_, 1, journal) {
    world.engines = this;
    p_ = world.add_instance(Role::kProducer, 1);
    d_ = world.add_instance(Role::kConsumer, 1);
  }

  void claim() {
    d().submit([at = address()](Process& self, Time now) { self.decode->claim(kId, at, now); });
    d().turn();
  }
  void register_blocks() { register_as(kKey); }
  void register_another() { register_as(kAnother); }
  void announce() { source_ = p().announced(kId); }
  void expect() {
    ASSERT_TRUE(p().begin_prefill(kId, kPrompt));
    p().submit([](Process& self, Time now) { self.expect(kId, kPrompt, now); });
    p().turn();
  }
  void finish() {
    p().compute_piece(kId, kPrompt, TokenId{7});
    p().turn();
  }
  // Both have spoken, and P's engine computes.
  void match() {
    expect();
    register_blocks();
    pass(milliseconds(30));
  }
  // D has claimed what P's engine computes, or has finished.
  void claimed() {
    claim();
    expect();
    pass(milliseconds(30));
  }
  void claimed_and_finished() {
    claim();
    expect();
    finish();
    pass(milliseconds(30));
  }
  // Pull: D reads, and nothing comes for so long.
  void reading(Duration held) {
    claimed_and_finished();
    hold_data(held);
    register_blocks();
    pass(milliseconds(20));
    ASSERT_GT(d().metrics.reads_posted.value(), 0U);
  }
  // D's messages are repeated at the longest distance by now.
  void match_long_ago() {
    match();
    pass(milliseconds(400));
  }
  void lose_the_stop_after_a_piece() {
    match_long_ago();
    p().compute_piece(kId, 4, std::nullopt);
    pass(milliseconds(30));
    lose(MessageType::kStopped);
  }
  void cancel_at_d() {
    d().submit([](Process& self, Time now) { self.decode->cancel(kId, now); });
    d().turn();
  }
  void withdraw_at_d() {
    d().submit([](Process& self, Time now) { self.decode->withdraw(kId, now); });
    d().turn();
  }
  void cancel_at_p() {
    p().abandon_prefill(kId);
    p().turn();
  }
  void hold_data(Duration length) {
    world.hold_data(p().place.number, d().place.number, length);
    world.hold_data(d().place.number, p().place.number, length);
  }
  void lose(MessageType type, std::uint32_t count = 1) {
    world.lose_next[static_cast<std::size_t>(type)] = count;
  }
  bool is_lost(MessageType type) const {
    return world.lose_next[static_cast<std::size_t>(type)] == 0;
  }
  void use_odd_decode() { d_ = world.add_instance(Role::kConsumer, 1, true); }
  void forget_ends() {
    ended_at_p.reset();
    ended_at_d.reset();
  }
  // D's engine has every block again.
  bool is_released() { return d().pool.free_blocks() == d().pool.blocks(); }
  void pass(Duration time) { world.run_until(world.now() + time); }

  void decode_ended(Process& process, const Event& event) override {
    note(ended_at_d, event);
    if (event.outcome == Outcome::kDone) process.release_done({event.transfer, event.attempt});
  }
  void prefill_ended(Process&, const Event& event) override { note(ended_at_p, event); }

  Process& p() { return *world.rank(p_, 0); }
  Process& d() { return *world.rank(d_, 0); }
  void crash_p() { world.crash(p_); }
  void crash_d() { world.crash(d_); }
  void leave_p() { world.leave(p_); }
  void leave_d() { world.leave(d_); }

  struct End {
    Time at{};
    Cause cause = Cause::kNone;
    std::string text;
  };
  Journal journal;
  std::optional<End> ended_at_p, ended_at_d;
  std::uint64_t renewals = 0;  // at P, before the loss

 private:
  void register_as(const Process::Key& key) {
    if (world.settings.mode == Mode::kPull && !source_) announce();
    d().reserve_and_register(key, address(), {0, kPrompt}, kPrompt, world.instance(p_).ranks[0],
                             source_);
    d().turn();
  }
  PeerAddress address() { return world.address(p_, 0, true); }
  void note(std::optional<End>& where, const Event& event) {
    if (!where) where = End{world.now(), event.cause, event.text};
  }

  SeededChoices choices_{1};
  std::optional<SourceBlocks> source_;  // pull: as P announced it

 public:
  World world;

 private:
  std::uint32_t p_ = 0, d_ = 0;
};

struct Row {
  BoundId bound;
  Side knows;
  Cause cause;
  std::function<void(Pair&)> state;
  std::function<void(Pair&)> loss;
  std::function<void(Settings&)> settings = [](Settings&) {};
  // What shows that it is known, where that is more or other than the end at its engine.
  std::function<bool(Pair&)> known = {};
};

// P's Offer does not overtake its HelloAck, as on a stream: the way to its memory stands before D
// reads.
void pull(Settings& s) {
  s.mode = Mode::kPull;
  s.fixed_delays = true;
}

bool reads_ended(Pair& x) {
  return x.ended_at_d && x.d().metrics.reads_posted.value() > 0;
}

const Row kRows[] = {
    {BoundId::kWaitingRefused, Side::kDecode, Cause::kPeerUnreachable, [](Pair& x) { x.crash_p(); },
     [](Pair& x) { x.register_blocks(); }},
    {BoundId::kRegisteredLinkClosed, Side::kDecode, Cause::kPeerDied, &Pair::match, &Pair::crash_p,
     [](Settings& s) { s.fence_on_crash = false; }},
    {BoundId::kRegisteredWriterDead, Side::kDecode, Cause::kPeerDied, &Pair::match, &Pair::crash_p},
    {BoundId::kRegisteredSilence, Side::kDecode, Cause::kPeerSilent, &Pair::match,
     [](Pair& x) { x.world.stall(x.p().place.number, kForEver); }},
    {BoundId::kRegisteredGoodbye, Side::kDecode, Cause::kShutdown, &Pair::match, &Pair::leave_p},
    {BoundId::kRegisteredUnmatched, Side::kDecode, Cause::kDeadline, [](Pair&) {},
     &Pair::register_blocks},
    {BoundId::kRegisteredImmediateLost, Side::kDecode, Cause::kDeadline, &Pair::match,
     [](Pair& x) {
       x.world.lose_immediates = 1;
       x.finish();
     }},
    {BoundId::kReadingStuck, Side::kDecode, Cause::kFabric,
     [](Pair& x) {
       x.claimed_and_finished();
       x.hold_data(kForEver);
     },
     &Pair::register_blocks, pull, reads_ended},
    {BoundId::kReadyNeverRegistered, Side::kPrefill, Cause::kLeaseExpired, &Pair::expect,
     &Pair::finish},
    {BoundId::kExpectedAfterCancel, Side::kPrefill, Cause::kCancelledByPeer,
     [](Pair& x) {
       x.claim();
       x.cancel_at_d();
       x.pass(milliseconds(30));
     },
     &Pair::expect},
    {BoundId::kExpectedHolderLost, Side::kPrefill, Cause::kPeerSilent, &Pair::claimed,
     [](Pair& x) { x.world.stall(x.d().place.number, kForEver); }},
    {BoundId::kReadyHolderLost, Side::kPrefill, Cause::kPeerDied, &Pair::claimed_and_finished,
     &Pair::crash_d},
    {BoundId::kMatchedLinkClosed, Side::kPrefill, Cause::kPeerDied, &Pair::match, &Pair::crash_d},
    {BoundId::kMatchedSilence, Side::kPrefill, Cause::kPeerSilent, &Pair::match,
     [](Pair& x) { x.world.stall(x.d().place.number, kForEver); }},
    {BoundId::kMatchedGoodbye, Side::kPrefill, Cause::kCancelledByPeer, &Pair::match,
     &Pair::leave_d},
    {BoundId::kMatchedGoodbye, Side::kPrefill, Cause::kShutdown, &Pair::claimed_and_finished,
     &Pair::leave_d},
    {BoundId::kMatchedWritesStuck, Side::kPrefill, Cause::kFabric,
     [](Pair& x) {
       x.match();
       x.world.hold_data(x.p().place.number, x.d().place.number, kForEver);
     },
     &Pair::finish},
    {BoundId::kMatchedWriteFailed, Side::kDecode, Cause::kFabric,
     [](Pair& x) {
       x.match();
       x.world.on_post = [](Process&, const handover::WriteOp&) -> Status {
         return fail(Errc::kIo, "no route");
       };
     },
     &Pair::finish},
    {BoundId::kCancelled, Side::kPrefill, Cause::kCancelledByPeer, &Pair::match,
     &Pair::cancel_at_d},
    {BoundId::kCancelled, Side::kDecode, Cause::kCancelledByPeer, &Pair::match,
     [](Pair& x) {
       x.p().compute_piece(kId, 4, std::nullopt);
       x.cancel_at_p();
     }},
    {BoundId::kDrainNewRequest, Side::kPrefill, Cause::kShutdown, [](Pair& x) { x.p().drain(); },
     &Pair::expect},
    {BoundId::kDrainNewRequest, Side::kDecode, Cause::kShutdown, [](Pair& x) { x.d().drain(); },
     &Pair::register_blocks},
    {BoundId::kAbandoned, Side::kPrefill, Cause::kShutdown, &Pair::match,
     [](Pair& x) {
       x.p().prefill->abandon(x.p().clock());
       x.p().turn();
     }},
    {BoundId::kAbandoned, Side::kDecode, Cause::kShutdown, &Pair::match,
     [](Pair& x) {
       x.d().decode->abandon(x.d().clock());
       x.d().turn();
     }},
};

// The rows of what is lost on the way, of D's quarantine and of memory that does not answer.
const Row kMoreRows[] = {
    {BoundId::kWaitingSilent, Side::kDecode, Cause::kPeerSilent,
     [](Pair& x) { x.world.stall(x.p().place.number, kForEver); }, &Pair::register_blocks},
    {BoundId::kWaitingHeldBack, Side::kDecode, Cause::kRefused,
     [](Pair& x) {
       x.match();
       x.lose(MessageType::kStopped, kAll);
       x.cancel_at_d();
       x.pass(milliseconds(30));
       x.forget_ends();
     },
     &Pair::register_another, [](Settings& s) { s.quarantine_blocks_max = 4; }},
    // On a stream the close does not overtake the Refuse.
    {BoundId::kWaitingUnfit, Side::kDecode, Cause::kRefused, &Pair::use_odd_decode,
     &Pair::register_blocks, [](Settings& s) { s.fixed_delays = true; }},
    {BoundId::kRegisteredMessageLost, Side::kDecode, Cause::kNone,
     [](Pair& x) {
       x.claimed_and_finished();
       x.lose(MessageType::kRegister);
     },
     &Pair::register_blocks},
    {BoundId::kRegisteredMessageLost, Side::kDecode, Cause::kNone,
     [](Pair& x) {
       x.match_long_ago();
       x.lose(MessageType::kFinal);
     },
     &Pair::finish},
    {BoundId::kRegisteredMessageLost, Side::kDecode, Cause::kCancelledByPeer,
     &Pair::lose_the_stop_after_a_piece, &Pair::cancel_at_p},
    {BoundId::kRegisteredComputing, Side::kDecode, Cause::kDeadline, &Pair::expect,
     &Pair::register_blocks, [](Settings& s) { s.transfer_total = 4 * s.transfer_timeout; }},
    {BoundId::kWithdrawingPeerLost, Side::kDecode, Cause::kCancelledHere,
     [](Pair& x) {
       x.match();
       x.lose(MessageType::kStopped, kAll);
     },
     &Pair::withdraw_at_d},
    {BoundId::kQuarantinedMessageLost, Side::kDecode, Cause::kCancelledHere,
     [](Pair& x) {
       x.match();
       x.lose(MessageType::kCancel);
     },
     &Pair::cancel_at_d, [](Settings&) {}, &Pair::is_released},
    {BoundId::kQuarantinedMessageLost, Side::kDecode, Cause::kCancelledHere,
     [](Pair& x) {
       x.match();
       x.lose(MessageType::kStopped);
     },
     &Pair::cancel_at_d, [](Settings&) {}, &Pair::is_released},
    {BoundId::kQuarantinedImmediateLost, Side::kDecode, Cause::kCancelledHere,
     [](Pair& x) {
       x.match();
       x.world.lose_immediates = 1;
       x.p().compute_piece(kId, 8, std::nullopt);
       x.p().turn();
       x.pass(milliseconds(30));
     },
     &Pair::cancel_at_d, [](Settings& s) { s.delivery_complete = false; }, &Pair::is_released},
    {BoundId::kClaimCancelLost, Side::kPrefill, Cause::kLeaseExpired,
     [](Pair& x) {
       x.claimed_and_finished();
       x.lose(MessageType::kCancel);
     },
     &Pair::cancel_at_d},
    {BoundId::kReadingUnanswered, Side::kDecode, Cause::kFabric,
     [](Pair& x) {
       x.expect();
       x.finish();
       x.hold_data(kForEver);
     },
     &Pair::register_blocks, pull},
    {BoundId::kReadingNotHeld, Side::kDecode, Cause::kCancelledByPeer,
     [](Pair& x) {
       x.claimed_and_finished();
       x.announce();
       x.cancel_at_p();
       x.pass(milliseconds(30));
       x.forget_ends();
     },
     &Pair::register_blocks, pull},
    {BoundId::kReadingNotHeld, Side::kDecode, Cause::kCancelledByPeer,
     [](Pair& x) { x.reading(kForEver); }, &Pair::cancel_at_p, pull},
    {BoundId::kReadingLate, Side::kDecode, Cause::kCancelledHere,
     [](Pair& x) { x.reading(kForEver); }, &Pair::cancel_at_d, pull, &Pair::is_released},
    {BoundId::kReadingCancelLost, Side::kPrefill, Cause::kLeaseExpired,
     [](Pair& x) {
       x.reading(milliseconds(100));
       x.lose(MessageType::kCancel);
     },
     &Pair::cancel_at_d, pull},
    {BoundId::kStranger, Side::kPrefill, Cause::kNone, [](Pair& x) { x.lose(MessageType::kHello); },
     [](Pair& x) {
       x.claim();
       // D keeps the connection and is silent: P alone can end it.
       x.world.later(milliseconds(10), [&x] { x.world.stall(x.d().place.number, kForEver); });
     },
     [](Settings&) {}, [](Pair& x) { return x.p().metrics.refused_peers.value() == 1; }},
    // D would wait far longer: it hears of it from P.
    {BoundId::kUnmatchedRequestNeverComes, Side::kDecode, Cause::kDeadline,
     [](Pair& x) { x.d().registration_deadline = 20 * x.world.settings.transfer_timeout; },
     &Pair::register_blocks, [](Settings& s) { s.transfer_total = 40 * s.transfer_timeout; }},
    {BoundId::kReadyRenewLost, Side::kPrefill, Cause::kNone,
     [](Pair& x) {
       x.claimed_and_finished();
       x.lose(MessageType::kRenew);
       x.world.run_until(x.world.now() + kForEver, [&] { return x.is_lost(MessageType::kRenew); });
     },
     [](Pair& x) { x.renewals = x.p().metrics.leases_renewed.value(); }, [](Settings&) {},
     [](Pair& x) { return x.p().metrics.leases_renewed.value() > x.renewals; }},
    {BoundId::kMatchedConnectUnanswered, Side::kPrefill, Cause::kFabric,
     [](Pair& x) {
       x.expect();
       x.hold_data(kForEver);
     },
     &Pair::register_blocks},
    {BoundId::kMatchedMessageLost, Side::kDecode, Cause::kNone,
     [](Pair& x) {
       x.expect();
       x.finish();
       x.lose(MessageType::kOffer);
     },
     &Pair::register_blocks},
    {BoundId::kMatchedMessageLost, Side::kDecode, Cause::kNone,
     [](Pair& x) {
       x.match_long_ago();
       x.lose(MessageType::kCredit);
     },
     &Pair::finish,
     [](Settings& s) {
       s.delivery_complete = false;
       s.immediates_max = 4;  // one credit for each registration
       s.layers = 1;
       s.data_delay_max = s.immediate_delay_max = milliseconds(1);
     }},
    {BoundId::kEnding, Side::kPrefill, Cause::kCancelledByPeer,
     [](Pair& x) {
       x.match();
       x.hold_data(kForEver);
       x.finish();
     },
     &Pair::cancel_at_d},
    {BoundId::kCancelLost, Side::kPrefill, Cause::kCancelledByPeer,
     [](Pair& x) {
       x.match();
       x.lose(MessageType::kCancel);
     },
     &Pair::cancel_at_d},
    {BoundId::kCancelLost, Side::kDecode, Cause::kCancelledByPeer,
     &Pair::lose_the_stop_after_a_piece, &Pair::cancel_at_p},
};

// Rows without a world above, and the test that tries each; tools/hygiene.py checks that it exists.
struct TriedElsewhere {
  BoundId bound;
  std::string_view test;
};
constexpr TriedElsewhere kElsewhere[] = {
    {BoundId::kQuarantinedPeerStopped, "sim_test Bounds.NoTimeAloneFreesWhatAStoppedPeerMayWrite"},
    {BoundId::kEarlyForgotten,
     "handover_test PairTest.AnEarlyCancelIsForgottenAfterALeaseOrWhenDWantsTheTransferAgain"},
    // Here a turn of D's process compares every hash before P can be lost.
    {BoundId::kVerifyingPeerLost,
     "handover_test PairTest.ThePeerMayBeLostWhileItsHashesAreCompared"},
};

// A failing row names itself.
void PrintTo(const Row& row, std::ostream* out) {
  const handover::Bound& bound = handover::kBounds[static_cast<std::size_t>(row.bound)];
  *out << bound.side << ", " << bound.state << ": " << bound.lost;
}

class BoundsOfTheTable : public ::testing::TestWithParam<Row> {};

TEST_P(BoundsOfTheTable, TheSurvivorKnowsOfTheLossInTime) {
  const Row& row = GetParam();
  Settings settings;
  row.settings(settings);
  Pair pair(settings);
  row.state(pair);
  ASSERT_FALSE(pair.ended_at_d || pair.ended_at_p) << "before the loss";
  const handover::Config config = pair.world.process(0).config;
  const Time lost = pair.world.now();
  row.loss(pair);
  const auto& ended = row.knows == Side::kDecode ? pair.ended_at_d : pair.ended_at_p;
  const auto known = [&] { return row.known ? row.known(pair) : ended.has_value(); };
  // What the channel of this world adds: a message each way, and a step of a timer.
  const Duration slack = 2 * pair.world.weather.delay_max + milliseconds(20);
  const Duration bound = handover::within(row.bound, config) + slack;
  pair.world.run_until(lost + 20 * bound, known);
  ASSERT_TRUE(known()) << "it was never told";
  EXPECT_LE((pair.world.now() - lost) / milliseconds(1), bound / milliseconds(1));
  if (ended) {
    EXPECT_EQ(to_string(ended->cause), to_string(row.cause)) << ended->text;
  }
  for (const std::uint32_t left : pair.world.lose_next) {
    EXPECT_TRUE(left == 0 || left > kAll / 2) << "the message was never sent, so never lost";
  }
  for (const Finding& finding : pair.journal.findings()) {
    ADD_FAILURE() << to_string(finding.checker) << ": " << finding.text;
  }
}

std::string name_of_row(const ::testing::TestParamInfo<Row>& tested) {
  const handover::Bound& bound = handover::kBounds[static_cast<std::size_t>(tested.param.bound)];
  std::string name = fmt::format("{}_{}_{}", tested.index, bound.side, bound.state);
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Sim, BoundsOfTheTable, ::testing::ValuesIn(kRows), name_of_row);
INSTANTIATE_TEST_SUITE_P(More, BoundsOfTheTable, ::testing::ValuesIn(kMoreRows), name_of_row);

// P stands still under posted writes, on a fabric that fences nobody who lives: D's engine has the
// end, and its blocks only when P has woken and says that it drained [I1].
TEST(Bounds, NoTimeAloneFreesWhatAStoppedPeerMayWrite) {
  Settings settings;
  settings.fence_on_request = false;
  settings.failed_writes_final = true;
  Pair pair(settings);
  pair.match();
  pair.hold_data(kForEver);
  pair.finish();
  pair.world.stall(pair.p().place.number, kForEver);
  const handover::Config config = pair.world.process(0).config;
  ASSERT_EQ(handover::within(BoundId::kQuarantinedPeerStopped, config), handover::kNoBound);
  pair.pass(handover::everything_ends_within(config));
  ASSERT_TRUE(pair.ended_at_d);
  EXPECT_EQ(to_string(pair.ended_at_d->cause), to_string(Cause::kPeerSilent));
  EXPECT_EQ(pair.d().decode->quarantined_blocks(), 4U);
  pair.world.heal();
  const Time woken = pair.world.now();
  pair.world.run_until(woken + kForEver, [&] { return pair.is_released(); });
  // The next dial, and the Cancel that goes with the new connection.
  EXPECT_LE((pair.world.now() - woken) / milliseconds(1), 2 * config.resend_max.count());
  for (const Finding& finding : pair.journal.findings()) {
    ADD_FAILURE() << to_string(finding.checker) << ": " << finding.text;
  }
}

TEST(Bounds, EveryRowIsTriedHereOrByTheTestThatIsNamed) {
  std::map<BoundId, int> tried;
  for (const Row& row : kRows) ++tried[row.bound];
  for (const Row& row : kMoreRows) ++tried[row.bound];
  for (const TriedElsewhere& row : kElsewhere) {
    EXPECT_EQ(tried[row.bound], 0) << row.test << " is not needed";
    ++tried[row.bound];
  }
  for (const handover::Bound& bound : handover::kBounds) {
    EXPECT_GT(tried[bound.id], 0) << bound.side << ", " << bound.state << ": " << bound.lost;
  }
}

}  // namespace
}  // namespace baton::sim
