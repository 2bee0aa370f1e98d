// Public fault reports on KV hand-over, tried on the shipped machines. Each ends with the standing
// checks: one end for everything, all blocks back, all tables empty, a plain request succeeds.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "sim/traffic.h"

namespace baton::sim {
namespace {

using std::chrono::milliseconds;

class Trial : public ::testing::Test {
 protected:
  void build(std::uint32_t ranks = 1) {
    world.emplace(settings, choices, 1, journal);
    traffic.emplace(*world);
    p = world->add_instance(Role::kProducer, ranks);
    d = world->add_instance(Role::kConsumer, ranks);
  }
  Plan plan() {
    Plan out;
    out.number = ++number;
    out.prefill = p;
    out.decode = d;
    out.prompts = {16};
    out.request_timeout = std::chrono::seconds(5);
    return out;
  }
  void run(Duration length = std::chrono::seconds(6)) {
    world->run_until(world->now() + length,
                     [&] { return traffic->all_finished() && world->idle(); });
  }
  bool answered(std::uint32_t request) const {
    return traffic->result(request).answered && !traffic->result(request).recomputed;
  }
  // The standing checks.
  void finish() {
    world->heal();
    for (const std::uint32_t instance : {p, d}) world->start(instance);
    run();
    const Plan plain = plan();
    traffic->start(plain);
    run();
    EXPECT_TRUE(answered(plain.number)) << "a plain request failed afterwards";
    EXPECT_TRUE(world->idle()) << world->what_is_left();
    traffic->check_at_end();
    world->check_at_end();
    for (const Finding& finding : journal.findings()) {
      ADD_FAILURE() << to_string(finding.checker) << ": " << finding.text;
    }
  }
  std::uint64_t ends(std::string_view side, std::string_view outcome, std::string_view cause) {
    const auto found = journal.counts().find({side, outcome, cause});
    return found == journal.counts().end() ? 0 : found->second;
  }
  Process& prefill(std::uint32_t rank = 0) { return *world->rank(p, rank); }
  Process& decode(std::uint32_t rank = 0) { return *world->rank(d, rank); }

  Journal journal;
  SeededChoices choices{1};
  Settings settings;
  std::optional<World> world;
  std::optional<Traffic> traffic;
  std::uint32_t p = 0, d = 0, number = 0;
};

// The write to one rank or to both fails when it is submitted: every one, or those of one layer.
TEST_F(Trial, B01_FailedSubmitEndsTheRequestAtOnce) {
  struct Case {
    std::vector<std::uint32_t> ranks;
    std::optional<std::uint32_t> layer;
  };
  for (const Case& fails : {Case{{1}, {}}, Case{{1}, 1}, Case{{0}, 2}, Case{{0, 1}, {}}}) {
    world.reset();
    traffic.reset();
    build(2);
    world->on_post = [&](Process& from, const handover::WriteOp& op) -> Status {
      const bool hit = std::count(fails.ranks.begin(), fails.ranks.end(), from.place.rank) > 0 &&
                       op.local_region == fails.layer.value_or(op.local_region);
      return hit ? fail(Errc::kIo, "no route") : Status{};
    };
    const Plan request = plan();
    const Time start = world->now();
    traffic->start(request);
    run();
    EXPECT_EQ(traffic->result(request.number).status, 502);
    EXPECT_LT(traffic->result(request.number).at - start, milliseconds(settings.lease));
    // The first that fails ends the request, and so the other rank's part of it.
    std::uint64_t failed = 0;
    for (const std::uint32_t rank : {0, 1}) {
      const AgentMetrics& metrics = decode(rank).metrics;
      EXPECT_EQ(metrics.decode_failed.value() + metrics.decode_cancelled.value(), 1U) << rank;
      const bool hit = std::count(fails.ranks.begin(), fails.ranks.end(), rank) > 0;
      failed += hit ? metrics.decode_failed.value() : 0;
    }
    EXPECT_GE(failed, 1U);
    finish();
  }
}

// 64 requests at once queue at D for longer than the lease.
TEST_F(Trial, B02_QueuedRequestsKeepTheirLease) {
  settings.pool_blocks = 300;
  settings.transfers_max = 80;
  settings.lease = milliseconds(200);
  build();
  for (int i = 0; i < 64; ++i) {
    Plan request = plan();
    request.queue_at_decode = milliseconds(20 * i);
    traffic->start(request);
  }
  run();
  for (std::uint32_t i = 1; i <= 64; ++i) EXPECT_TRUE(answered(i)) << i;
  EXPECT_EQ(prefill().metrics.leases_expired.value(), 0U);
  EXPECT_GT(prefill().metrics.leases_renewed.value(), 64U);
  finish();
}

TEST_F(Trial, B02_AKilledDecodeSideFreesPWithinOneLease) {
  build();
  for (int i = 0; i < 4; ++i) {
    Plan request = plan();
    request.queue_at_decode = std::chrono::seconds(2);
    traffic->start(request);
  }
  world->run_until(world->now() + milliseconds(100));
  traffic->instance_gone(d);
  world->crash(d);
  world->run_until(world->now() + settings.lease + milliseconds(1));
  EXPECT_EQ(prefill().pool.free_blocks(), prefill().pool.blocks());
  finish();
}

// The first, the middle or the last of the completions that were announced is lost: of as many as
// there are writes where each says that it has come, of one where completion means delivery.
class LostCompletion : public Trial,
                       public ::testing::WithParamInterface<std::tuple<bool, std::uint32_t>> {
 protected:
  // One write a block, and all of them ready at once.
  Plan begin(bool delivery, std::uint32_t writes) {
    settings.delivery_complete = delivery;
    settings.layers = 1;
    settings.write_bytes_max = settings.block_size * settings.token_bytes;
    settings.pool_blocks = 128;
    world.reset();
    traffic.reset();
    journal = Journal();
    build();
    Plan request = plan();
    request.prompts = {writes * settings.block_size};
    request.piece_tokens = request.prompts[0];
    return request;
  }
  std::uint64_t arrived() { return decode().metrics.immediates_received.value(); }
};

TEST_P(LostCompletion, B04_LostCompletion) {
  const auto [delivery, writes] = GetParam();
  const Plan whole = begin(delivery, writes);
  traffic->start(whole);
  run();
  ASSERT_TRUE(answered(whole.number));
  const std::uint64_t announced = arrived();
  ASSERT_EQ(announced, delivery ? 1U : writes);
  ASSERT_EQ(prefill().metrics.writes_posted.value(), writes + (delivery ? 1U : 0U));
  finish();
  for (const std::uint64_t lost : std::set<std::uint64_t>{0, announced / 2, announced - 1}) {
    const Plan request = begin(delivery, writes);
    world->lose_immediates = 1;
    world->skip_immediates = static_cast<int>(lost);
    const Time start = world->now();
    traffic->start(request);
    run();
    ASSERT_EQ(world->lose_immediates, 0U) << "completion " << lost << " never came";
    ASSERT_EQ(arrived(), announced - 1) << lost;
    EXPECT_FALSE(answered(request.number)) << lost;
    EXPECT_EQ(traffic->result(request.number).status, 502) << lost;
    EXPECT_EQ(ends("decode", "failed", "deadline"), 1U) << lost;
    EXPECT_LT(traffic->result(request.number).at - start,
              handover::within(handover::BoundId::kRegisteredImmediateLost, decode().config) +
                  milliseconds(100))
        << lost;
    finish();
  }
}

INSTANTIATE_TEST_SUITE_P(Writes, LostCompletion,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(1U, 10U, 16U, 17U, 96U)));

// A completion that comes for a request that is over is counted nowhere. One that comes twice
// before the end, which no fabric does, fails the request: more than were announced is never
// success.
TEST_F(Trial, B04_DoubledCompletionIsNeverCountedAsAnother) {
  for (const Duration again : {Duration(milliseconds(60)), Duration{}}) {
    world.reset();
    traffic.reset();
    journal = Journal();
    build();
    world->repeat_immediates = again;
    const Plan request = plan();
    traffic->start(request);
    run();
    world->run_until(world->now() + milliseconds(100));
    if (again.count() > 0) {
      EXPECT_TRUE(answered(request.number));
      EXPECT_EQ(decode().metrics.immediates_unknown.value(), 1U);
    } else {
      EXPECT_EQ(ends("decode", "done", "none") + ends("decode", "failed", "refused"), 1U);
    }
    finish();
  }
}

// D aborts after it registered; P is killed, is told, or completes late. 40 rounds each.
TEST_F(Trial, B08_AbortedWaitersGiveTheirBlocksBack) {
  build();
  for (int round = 0; round < 40; ++round) {
    Plan request = plan();
    request.piece_time = milliseconds(10);
    request.client_gone_after = milliseconds(12 + round % 20);
    traffic->start(request);
    if (round % 3 == 2) {
      world->hold_data(prefill().place.number, decode().place.number, milliseconds(80));
    }
    if (round % 3 == 0) {
      world->later(milliseconds(15), [&] {
        traffic->instance_gone(p);
        world->crash(p);
        world->start(p);
      });
    }
    run(std::chrono::seconds(2));
    ASSERT_EQ(decode().pool.free_blocks(), decode().pool.blocks()) << "round " << round;
  }
  finish();
}

// P frees when its own last write completes, whatever D says afterwards.
TEST_F(Trial, B13_PFreesAtItsLastCompletion) {
  build();
  const Time start = world->now();
  for (int i = 0; i < 200; ++i) {
    world->later(milliseconds(5 * i), [&] { traffic->start(plan()); });
  }
  world->later(milliseconds(100), [&] {
    world->cut_one_way(decode().place.number, prefill().place.number, milliseconds(50));
  });
  std::size_t held = 0;
  for (int i = 0; i < 1000; ++i) {
    world->run_until(start + milliseconds(i));
    held += prefill().pool.blocks() - prefill().pool.free_blocks();
  }
  run();
  // 4 blocks each 5 ms: held for the lease (500 ms) they would be all of the pool, all the time.
  EXPECT_LT(held / 1000, prefill().pool.blocks() / 2);
  EXPECT_GT(ends("prefill", "done", "none"), 150U);
  finish();
}

// A full P, all clients gone; cleaning runs on time, not on traffic.
TEST_F(Trial, B14_CancelledRequestsLeaveNoBlockAtP) {
  settings.pool_blocks = 64;
  build();
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 100; ++i) {
      Plan request = plan();
      request.client_gone_after = milliseconds(20);
      traffic->start(request);
    }
    world->run_until(world->now() + milliseconds(200) + settings.lease);
    EXPECT_EQ(prefill().pool.free_blocks(), 64U);
    const Plan probe = plan();
    traffic->start(probe);
    run();
    EXPECT_TRUE(answered(probe.number));
  }
  finish();
}

// The abort of A moved over its whole life, with B at once in a pool that cannot hold both.
TEST_F(Trial, B16_AbortAtEveryMomentNeverSpoilsTheNext) {
  settings.pool_blocks = 8;
  settings.data_delay_max = milliseconds(20);
  for (int moment = 0; moment < 100; ++moment) {
    for (const bool delivery : {true, false}) {
      settings.delivery_complete = delivery;
      world.reset();
      traffic.reset();
      build();
      Plan a = plan();
      a.prompts = {24};
      a.piece_time = milliseconds(3);
      a.piece_tokens = 4;
      a.client_gone_after = std::chrono::microseconds(700 * moment);
      traffic->start(a);
      Plan b = plan();
      b.prompts = {24};
      world->run_until(world->now() + a.client_gone_after);
      traffic->start(b);
      run();
      EXPECT_TRUE(answered(b.number)) << "moment " << moment;
      finish();
    }
  }
}

// The lease is shorter than D's wait, and D renews nothing.
TEST_F(Trial, B17_NothingIsServedAfterTheLeaseEnded) {
  settings.lease = milliseconds(100);
  build();
  for (int i = 0; i < 42; ++i) {
    Plan request = plan();
    request.claims = false;
    request.queue_at_decode = milliseconds(300 + 20 * i);
    traffic->start(request);
  }
  run();
  // Those that P took last may just be in time; what was late failed, and no byte was wrong.
  std::uint32_t failed = 0;
  for (std::uint32_t i = 1; i <= 42; ++i) failed += answered(i) ? 0 : 1;
  EXPECT_EQ(failed, prefill().metrics.leases_expired.value());
  EXPECT_GT(failed, 12U);
  finish();
}

// Each reason that P can drop a push for reaches D with its cause.
TEST_F(Trial, B46_TheReasonOfADroppedPushReachesD) {
  const auto reason = [&](std::string_view cause, const std::function<void(Plan&)>& prepare) {
    world.reset();
    traffic.reset();
    journal = Journal();
    build();
    Plan request = plan();
    prepare(request);
    traffic->start(request);
    run();
    EXPECT_GE(ends("decode", cause == "cancelled_by_peer" ? "cancelled" : "failed", cause), 1U)
        << cause;
    EXPECT_FALSE(answered(request.number)) << cause;
    finish();
  };
  reason("fabric", [&](Plan&) {
    world->on_post = [](Process&, const handover::WriteOp&) { return fail(Errc::kIo, "full"); };
  });
  reason("cancelled_by_peer", [&](Plan& request) {
    request.piece_time = milliseconds(20);
    request.prefill_preempt_after = milliseconds(30);
    request.piece_tokens = 4;
  });
  reason("peer_died", [&](Plan& request) {
    request.piece_time = milliseconds(40);
    world->later(milliseconds(30), [&] {
      traffic->instance_gone(p);
      world->crash(p);
    });
  });
  reason("peer_silent", [&](Plan& request) {
    request.piece_time = milliseconds(40);
    world->later(milliseconds(30),
                 [&] { world->stall(prefill().place.number, milliseconds(900)); });
  });
}

// A registration that does not fit what P computed is refused by field, with both values.
TEST_F(Trial, B46_ABadRegistrationIsToldWhatIsWrongWithIt) {
  build();
  const TransferId transfer{Traffic::kForeign, 1};
  std::string told;
  struct Listener final : Engines {
    explicit Listener(std::string& t) : text(t) {}
    void decode_ended(Process&, const Event& event) override {
      text = fmt::format("{}: {}", to_string(event.cause), event.text);
    }
    void prefill_ended(Process&, const Event&) override {}
    std::string& text;
  } listener(told);
  world->engines = &listener;
  ASSERT_TRUE(prefill().begin_prefill(transfer, 16));
  prefill().submit([&](Process& self, Time now) { self.expect(transfer, 16, now); });
  prefill().compute_piece(transfer, 16, TokenId{7});
  prefill().turn();
  decode().reserve_and_register({transfer, {0, 1}}, world->address(p, 0, true), {0, 20}, 20,
                                prefill().place.number);
  decode().turn();
  world->run_until(world->now() + milliseconds(50), [&] { return !told.empty(); });
  EXPECT_EQ(told, "refused: the prefill side stopped: prompt_tokens: ours is 16, theirs is 20");
  EXPECT_EQ(prefill().metrics.refused_messages.value(), 1U);
  prefill().abandon_prefill(transfer);
  prefill().turn();
  world->engines = &*traffic;
  finish();
}

// What keeps A's bytes at P until its lease has ended there, while B waits for its blocks.
enum class Late : std::uint8_t { kHandshake, kMemory, kSlowWrite };

// P's blocks go to another request while the way to D is still being made, or while another's write
// takes all the places: no byte of the next owner leaves for the first one's decode.
class LateHandshake : public Trial, public ::testing::WithParamInterface<std::pair<Late, bool>> {
 protected:
  // A small request of a third instance, whose write is on its way until the data are let through.
  Plan start_slow_write() {
    Plan slow = plan();
    slow.decode = world->add_instance(Role::kConsumer, 1);
    slow.prompts = {4};
    traffic->start(slow);
    world->run_until(world->now() + milliseconds(50),
                     [&] { return prefill().prefill->writes_in_flight() > 0; });
    EXPECT_EQ(prefill().prefill->writes_in_flight(), 1U);
    world->hold_data(prefill().place.number, world->rank(slow.decode, 0)->place.number,
                     std::chrono::seconds(1));
    return slow;
  }
  // For so long P hears no Hello, and every connection that D makes is reset soon.
  void interrupt_handshakes(Duration length) {
    world->cut_one_way(decode().place.number, prefill().place.number, length);
    for (Duration after{}; after <= length; after += milliseconds(20)) {
      world->later(after, [this] {
        for (handover::LinkId link = 1; link < 64; ++link) world->cut(link);
      });
    }
  }
  // Bytes that were posted into the blocks that a request had at D.
  std::uint64_t posted_for(const Plan& request) {
    std::uint64_t bytes = 0;
    for (const auto& [key, held] : decode().held()) {
      if (key.first.low / Traffic::kParts == request.number) bytes += held.posted;
    }
    return bytes;
  }
  std::size_t used_at_p() { return prefill().pool.blocks() - prefill().pool.free_blocks(); }
  std::size_t used_at_d() { return decode().pool.blocks() - decode().pool.free_blocks(); }
};

TEST_P(LateHandshake, B52_ALateHandshakeSendsNoOtherRequestsBytes) {
  const auto [late, delivery] = GetParam();
  settings.delivery_complete = delivery;
  settings.peer_timeout = std::chrono::seconds(2);
  settings.reconnect_grace = std::chrono::seconds(2);
  settings.transfer_timeout = std::chrono::seconds(3);
  settings.pool_blocks = 8;  // a prompt takes seven, at P and at D
  if (late == Late::kSlowWrite) settings.writes_in_flight_max = 1;
  build();
  std::optional<Plan> slow;
  if (late == Late::kSlowWrite) slow = start_slow_write();
  const Time start = world->now();
  const auto at = [&](int ms) { world->run_until(start + milliseconds(ms)); };
  if (late == Late::kMemory) {
    world->hold_data(prefill().place.number, decode().place.number, std::chrono::seconds(1));
  }
  if (late != Late::kHandshake) {
    world->later(milliseconds(50), [&] {  // P has A's registration, and hears of A no more
      world->cut_one_way(decode().place.number, prefill().place.number, milliseconds(540));
    });
  } else {
    interrupt_handshakes(milliseconds(700));
  }
  Plan a = plan();
  a.prompts = {28};
  traffic->start(a);
  const std::uint64_t posted_before = world->bytes_posted;
  at(400);
  EXPECT_EQ(ends("prefill", "failed", "lease_expired"), 0U);
  EXPECT_EQ(used_at_d(), 7U);
  at(600);
  EXPECT_EQ(ends("prefill", "failed", "lease_expired"), 1U);
  EXPECT_EQ(used_at_p(), slow ? 1U : 0U);
  Plan b = plan();
  b.prompts = {28};
  traffic->start(b);
  at(690);  // and still no byte may leave
  EXPECT_EQ(used_at_p(), slow ? 8U : 7U) << "B has A's blocks at P";
  EXPECT_EQ(world->bytes_posted, posted_before);
  // D hears of it as soon as P can be heard.
  EXPECT_EQ(ends("decode", "failed", "lease_expired"), late == Late::kHandshake ? 0U : 1U);
  EXPECT_EQ(traffic->result(a.number).finished, late != Late::kHandshake);
  EXPECT_EQ(used_at_d(), 7U) << "A's blocks until it has failed, then B's";
  run();
  EXPECT_EQ(ends("decode", "failed", "lease_expired"), 1U);
  EXPECT_EQ(traffic->result(a.number).status, 502);
  EXPECT_FALSE(traffic->result(a.number).answered);
  EXPECT_TRUE(answered(b.number));
  EXPECT_TRUE(!slow || answered(slow->number));
  // Not one byte was posted but B's own (and what the slow one still had to write).
  EXPECT_EQ(posted_for(a), 0U);
  EXPECT_EQ(posted_for(b), 7 * prefill().pool.bytes_per_block());
  EXPECT_EQ(prefill().metrics.bytes_written.value(),
            (slow ? 8 : 7) * prefill().pool.bytes_per_block());
  finish();
}

std::string name_of_late(const ::testing::TestParamInfo<std::pair<Late, bool>>& tested) {
  const auto [late, delivery] = tested.param;
  return fmt::format("{}{}",
                     late == Late::kHandshake ? "Handshake"
                     : late == Late::kMemory  ? "Memory"
                                              : "SlowWrite",
                     delivery ? "" : "WithoutDelivery");
}

// A write is slow where its completion waits for its landing.
INSTANTIATE_TEST_SUITE_P(All, LateHandshake,
                         ::testing::Values(std::pair(Late::kHandshake, true),
                                           std::pair(Late::kHandshake, false),
                                           std::pair(Late::kMemory, true),
                                           std::pair(Late::kMemory, false),
                                           std::pair(Late::kSlowWrite, true)),
                         name_of_late);

// Each kind of failure in its own counter.
TEST_F(Trial, B55_EachFailureInItsOwnCounter) {
  build();
  for (int i = 0; i < 3; ++i) {  // failed writes
    world->on_post = [](Process&, const handover::WriteOp&) { return fail(Errc::kIo, "broken"); };
    traffic->start(plan());
    run();
    world->on_post = nullptr;
    Plan expired = plan();  // leases
    expired.claims = false;
    expired.queue_at_decode = std::chrono::seconds(2);
    traffic->start(expired);
    run();
    Plan aborted = plan();  // client aborts
    aborted.piece_time = milliseconds(60);
    aborted.client_gone_after = milliseconds(40);
    traffic->start(aborted);
    run();
  }
  EXPECT_EQ(ends("prefill", "failed", "fabric"), 3U);
  EXPECT_EQ(ends("decode", "failed", "fabric"), 3U);
  EXPECT_EQ(ends("prefill", "failed", "lease_expired"), 3U);
  EXPECT_EQ(prefill().metrics.leases_expired.value(), 3U);
  EXPECT_EQ(ends("decode", "cancelled", "cancelled_here") +
                ends("decode", "cancelled", "cancelled_by_peer"),
            3U);
  EXPECT_EQ(decode().metrics.decode_cancelled.value(), 3U);
  EXPECT_EQ(prefill().metrics.refused_peers.value(), 0U);
  EXPECT_EQ(ends("decode", "failed", "refused") + ends("decode", "failed", "deadline"), 0U);
  finish();
}

// The two that are nobody's write or lease: a handshake that is refused, and a message for which no
// other is sent.
TEST_F(Trial, B55_RefusedHandshakesAndLostMessagesAreCountedApart) {
  settings.fixed_delays = true;  // the close does not overtake the Refuse, as on a stream
  build();
  const std::uint32_t odd = world->add_instance(Role::kConsumer, 1, true);
  for (std::uint64_t i = 1; i <= 3; ++i) {
    Plan refused = plan();
    refused.decode = odd;
    traffic->start(refused);
    run();
    EXPECT_EQ(world->rank(odd, 0)->metrics.decode_failed.value(), i);
    EXPECT_EQ(prefill().metrics.refused_peers.value(), i);
    world->lose_immediates = 1;
    Plan lost = plan();
    traffic->start(lost);
    run();
    EXPECT_EQ(world->lose_immediates, 0U);
    EXPECT_EQ(ends("decode", "failed", "deadline"), i);
  }
  EXPECT_EQ(ends("decode", "failed", "refused"), 3U);
  EXPECT_EQ(ends("decode", "failed", "fabric") + ends("prefill", "failed", "fabric"), 0U);
  EXPECT_EQ(decode().metrics.decode_failed.value(), 3U);
  EXPECT_EQ(prefill().metrics.refused_peers.value(), 3U);
  finish();
}

// One id that R made and an attempt number: a retry never pairs with an older attempt's blocks.
TEST_F(Trial, B59_ARetryNeverPairsWithAnOldAttempt) {
  settings.data_delay_max = milliseconds(20);
  for (int moment = 0; moment < 40; ++moment) {
    for (const Preempt how : {Preempt::kSupersede, Preempt::kWithdraw}) {
      world.reset();
      traffic.reset();
      build();
      Plan request = plan();
      request.piece_time = milliseconds(3);
      request.piece_tokens = 4;
      request.preempt = how;
      request.preempt_after = milliseconds(moment);
      traffic->start(request);
      run();
      EXPECT_TRUE(answered(request.number)) << "moment " << moment;
      finish();
    }
  }
}

// ---- instances that are P and D ----

class BothTrial : public Trial {
 protected:
  // Two requests each way, each of half a pool.
  void start(Mode mode, std::uint32_t pool_blocks, Duration until_decode) {
    journal = Journal();
    settings.mode = mode;
    settings.pool_blocks = pool_blocks;
    traffic.reset();
    world.emplace(settings, choices, 1, journal);
    traffic.emplace(*world);
    p = world->add_instance(Role::kBoth, 1);
    d = world->add_instance(Role::kBoth, 1);
    for (int i = 0; i < 4; ++i) {
      Plan plan = this->plan();
      if (i % 2 == 1) std::swap(plan.prefill, plan.decode);
      plan.decode_delay = until_decode;
      plan.request_timeout = std::chrono::hours(1);
      traffic->start(plan);
    }
  }
  std::uint64_t marks(Mark mark) const { return journal.marks()[static_cast<std::size_t>(mark)]; }
};

TEST_F(BothTrial, BytesGoBothWaysAtOnce) {
  for (const Mode mode : {Mode::kPush, Mode::kPull}) {
    const std::uint32_t first = number + 1;
    start(mode, 48, Duration{});
    run();
    for (std::uint32_t i = first; i <= number; ++i) EXPECT_TRUE(answered(i));
    EXPECT_GT(marks(mode == Mode::kPull ? Mark::pulled_both_ways : Mark::pushed_both_ways), 0U);
    finish();
  }
}

// Each pool is full of prompts, and each prompt waits for blocks in the other pool.
TEST_F(BothTrial, TwoThatWaitForEachOthersPoolsStopWaiting) {
  settings.transfer_total = milliseconds(1200);
  for (const Mode mode : {Mode::kPush, Mode::kPull}) {
    start(mode, 8, milliseconds(20));
    run();
    EXPECT_TRUE(traffic->all_finished()) << "they wait for each other";
    EXPECT_GT(marks(Mark::waited_for_each_other), 0U);
    finish();
  }
}

TEST_F(BothTrial, NothingElseEndsThatWait) {
  settings.transfer_total = std::chrono::hours(1);
  for (const Mode mode : {Mode::kPush, Mode::kPull}) {
    start(mode, 8, milliseconds(20));
    run(std::chrono::seconds(60));
    EXPECT_EQ(traffic->open(), 4U);
  }
}

}  // namespace
}  // namespace baton::sim
