// That the simulator itself is what it says: deterministic, replayable, and able to fail.
#include <gtest/gtest.h>

#include "sim/campaign.h"
#include "sim/random_run.h"
#include "sim/traffic.h"

namespace baton::sim {
namespace {

std::uint64_t hash_of(std::uint64_t seed, bool large = false) {
  Journal journal;
  run_random(seed, draw_mix(seed, large), journal, nullptr);
  EXPECT_FALSE(journal.failed()) << journal.findings().front().text;
  return journal.hash();
}

TEST(Sim, TheSameSeedGivesTheSameTrace) {
  EXPECT_EQ(hash_of(7), hash_of(7));
  EXPECT_NE(hash_of(7), hash_of(8));
  EXPECT_EQ(hash_of(3, true), hash_of(3, true));
}

TEST(Sim, APathReplaysItsSchedule) {
  const PairCase pair{PairEvent::kCancelD, PairEvent::kNewAttempt, PairFabric::kShm, 1};
  PathChoices walk;
  for (int i = 0; i < 500; ++i) {
    Journal first;
    run_pair(pair, walk, first, nullptr);
    PathChoices again(walk.path());
    Journal second;
    run_pair(pair, again, second, nullptr);
    ASSERT_EQ(first.hash(), second.hash());
    ASSERT_TRUE(walk.next());
  }
}

TEST(Sim, AllPathsAreWalkedOnce) {
  PathChoices walk;
  std::vector<std::vector<std::uint32_t>> seen;
  do {
    if (walk.pick(2) == 0) walk.pick(3);
    seen.push_back(walk.path());
  } while (walk.next());
  EXPECT_EQ(seen, (std::vector<std::vector<std::uint32_t>>{{0, 0}, {0, 1}, {0, 2}, {1}}));
}

// One request in a world where somebody writes into D's memory or forgets a block.
struct Sabotage : ::testing::Test {
  Journal journal;
  SeededChoices choices{1};
  Settings settings;
  Plan plan;
  Role prefill_role = Role::kProducer;
  Sabotage() {
    plan.number = 1;
    plan.prompts = {10};
  }
  void run(const std::function<void(World&)>& spoil) {
    World world(settings, choices, 1, journal);
    Traffic traffic(world);
    plan.prefill = world.add_instance(prefill_role, 1);
    plan.decode = world.add_instance(Role::kConsumer, 1);
    traffic.start(plan);
    world.later(std::chrono::milliseconds(4), [&] { spoil(world); });
    world.run_until(world.now() + std::chrono::seconds(4),
                    [&] { return traffic.all_finished() && world.idle(); });
    traffic.check_at_end();
    world.check_at_end();
  }
  bool found(Checker checker) const {
    for (const Finding& finding : journal.findings()) {
      if (finding.checker == checker) return true;
    }
    return false;
  }
};

TEST_F(Sabotage, NothingIsFoundWhereNothingIsWrong) {
  run([](World&) {});
  EXPECT_FALSE(journal.failed());
}

TEST_F(Sabotage, AByteInAFreeBlockIsALateByte) {
  run([](World& world) { world.process(1).pool.fill(40, std::byte{1}); });
  EXPECT_TRUE(found(Checker::kLateByte));
}

TEST_F(Sabotage, AByteChangedWhileDecodingIsAnEarlyRead) {
  plan.decode_time = std::chrono::milliseconds(100);
  run([](World& world) {
    world.later(std::chrono::milliseconds(60), [&world] {
      for (const auto& [key, held] : world.process(1).held()) {
        world.process(1).pool.fill(held.blocks[0], std::byte{1});
      }
    });
  });
  EXPECT_TRUE(found(Checker::kEarlyRead));
}

TEST_F(Sabotage, AByteInAPromptOfAPThatIsDAsWellIsALateByte) {
  prefill_role = Role::kBoth;
  plan.decode_delay = std::chrono::milliseconds(100);
  run([](World& world) {
    world.later(std::chrono::milliseconds(60), [&world] {
      Pool& pool = world.process(0).pool;
      for (BlockId block = 0; block < pool.blocks(); ++block) {
        if (!pool.all(block, kPoison)) pool.fill(block, std::byte{1});
      }
    });
  });
  EXPECT_TRUE(found(Checker::kLateByte));
}

TEST_F(Sabotage, AForgottenBlockIsMissedInTheBooks) {
  run([](World& world) { (void)world.process(1).pool.take(1); });
  EXPECT_TRUE(found(Checker::kBooks));
}

}  // namespace
}  // namespace baton::sim
