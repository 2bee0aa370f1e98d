// The rows of the table of bounds, one world each [I4]: a state, one loss, and the survivor's
// engine hears of it, for the reason that the row gives, within the row's time by the virtual
// clock. The worlds with several faults hold to the sum of the table (random_run.cc).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "handover/bounds.h"
#include "sim/world.h"

namespace baton::sim {
namespace {

using handover::BoundId;
using std::chrono::milliseconds;

constexpr std::uint32_t kPrompt = 16;
const TransferId kId{7, 7};
const Process::Key kKey{kId, {0, 1}};

// One P, one D, and an engine on either side that does what the test says and keeps what it hears.
class Pair final : public Engines {
 public:
  explicit Pair(const Settings& settings) : world(settings, choices_, 1, journal) {
    world.engines = this;
    p_ = world.add_instance(true, 1);
    d_ = world.add_instance(false, 1);
  }

  void claim() {
    d().submit([at = address()](Process& self, Time now) { self.decode->claim(kId, at, now); });
    d().turn();
  }
  void register_blocks() {
    std::optional<SourceBlocks> source;
    if (world.settings.mode == Mode::kPull) source = p().announced(kId);
    d().reserve_and_register(kKey, address(), {0, kPrompt}, kPrompt, world.instance(p_).ranks[0],
                             source);
    d().turn();
  }
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
  void cancel_at_d() {
    d().submit([](Process& self, Time now) { self.decode->cancel(kId, now); });
    d().turn();
  }
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

 private:
  PeerAddress address() { return world.address(p_, 0, true); }
  void note(std::optional<End>& where, const Event& event) {
    if (!where) where = End{world.now(), event.cause, event.text};
  }

  SeededChoices choices_{1};

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
};

constexpr auto kForEver = std::chrono::hours(1);

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
       x.expect();
       x.finish();
       x.claim();
       x.pass(milliseconds(30));
       x.world.hold_data(x.p().place.number, x.d().place.number, kForEver);
       x.world.hold_data(x.d().place.number, x.p().place.number, kForEver);
     },
     &Pair::register_blocks, [](Settings& s) { s.mode = Mode::kPull; }},
    {BoundId::kReadyNeverRegistered, Side::kPrefill, Cause::kLeaseExpired, &Pair::expect,
     &Pair::finish},
    {BoundId::kExpectedAfterCancel, Side::kPrefill, Cause::kCancelledByPeer,
     [](Pair& x) {
       x.claim();
       x.cancel_at_d();
       x.pass(milliseconds(30));
     },
     &Pair::expect},
    {BoundId::kExpectedHolderLost, Side::kPrefill, Cause::kPeerSilent,
     [](Pair& x) {
       x.claim();
       x.expect();
       x.pass(milliseconds(30));
     },
     [](Pair& x) { x.world.stall(x.d().place.number, kForEver); }},
    {BoundId::kReadyHolderLost, Side::kPrefill, Cause::kPeerDied,
     [](Pair& x) {
       x.claim();
       x.expect();
       x.finish();
       x.pass(milliseconds(30));
     },
     &Pair::crash_d},
    {BoundId::kMatchedLinkClosed, Side::kPrefill, Cause::kPeerDied, &Pair::match, &Pair::crash_d},
    {BoundId::kMatchedSilence, Side::kPrefill, Cause::kPeerSilent, &Pair::match,
     [](Pair& x) { x.world.stall(x.d().place.number, kForEver); }},
    {BoundId::kMatchedGoodbye, Side::kPrefill, Cause::kCancelledByPeer, &Pair::match,
     &Pair::leave_d},
    {BoundId::kMatchedGoodbye, Side::kPrefill, Cause::kShutdown,
     [](Pair& x) {
       x.claim();
       x.expect();
       x.finish();
       x.pass(milliseconds(30));
     },
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
       x.p().abandon_prefill(kId);
       x.p().turn();
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

// A failing row names itself.
void PrintTo(const Row& row, std::ostream* out) {
  const handover::Bound& bound = handover::kBounds[static_cast<std::size_t>(row.bound)];
  *out << bound.side << ", " << bound.state << ": " << bound.lost;
}

class BoundsOfTheTable : public ::testing::TestWithParam<Row> {};

TEST_P(BoundsOfTheTable, TheSurvivorHearsOfTheLossInTime) {
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
  // What the channel of this world adds: a message each way, and a step of a timer.
  const Duration slack = 2 * pair.world.weather.delay_max + milliseconds(20);
  const Duration bound = handover::within(row.bound, config) + slack;
  pair.world.run_until(lost + 20 * bound, [&] { return ended.has_value(); });
  ASSERT_TRUE(ended) << "it was never told";
  EXPECT_LE((ended->at - lost) / milliseconds(1), bound / milliseconds(1)) << ended->text;
  EXPECT_EQ(to_string(ended->cause), to_string(row.cause)) << ended->text;
  for (const Finding& finding : pair.journal.findings()) {
    ADD_FAILURE() << to_string(finding.checker) << ": " << finding.text;
  }
}

INSTANTIATE_TEST_SUITE_P(Sim, BoundsOfTheTable, ::testing::ValuesIn(kRows), [](const auto& tested) {
  const handover::Bound& bound = handover::kBounds[static_cast<std::size_t>(tested.param.bound)];
  std::string name = fmt::format("{}_{}_{}", tested.index, bound.side, bound.state);
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
});

}  // namespace
}  // namespace baton::sim
