// Who counts as silent, on a clock of the test's own.
#include "serving/upstream_pool.h"

#include <gtest/gtest.h>

#include <atomic>

#include "serving/testing/fake_instance.h"

namespace baton::serving {
namespace {

using testing::eventually;
using testing::FakeInstance;

constexpr Duration kSilence = std::chrono::hours(1);

class SilenceTest : public ::testing::Test {
 protected:
  SilenceTest() {
    UpstreamPool::Options options;
    options.prefill = {instance_.url()};
    options.peer_timeout = kSilence;
    pool_ = std::make_unique<UpstreamPool>(
        options, *client_, [this](std::size_t, const std::string&) { ++silent_; }, [] {});
    pool_->tick(now());
    EXPECT_TRUE(eventually([this] { return pool_->snapshot()[0].up; }));
  }
  ~SilenceTest() override { client_.reset(); }

  FakeInstance instance_{"engine-p1", "kv_producer"};
  std::unique_ptr<http::Client> client_ = http::Client::start();
  std::atomic<int> silent_{0};
  std::unique_ptr<UpstreamPool> pool_;
};

TEST_F(SilenceTest, IsTimeThatTheRouterLookedAndHeardNothing) {
  instance_.answer_polls(false);
  const Time until = now() + kSilence + std::chrono::minutes(1);
  for (Time at = pool_->next_tick(); at < until; at = pool_->next_tick()) pool_->tick(at);
  EXPECT_EQ(silent_, 1);
  EXPECT_FALSE(pool_->snapshot()[0].up);
}

// With every tick late, as on cores that are busy, it is found with the first one behind it.
TEST_F(SilenceTest, IsFoundByTicksThatAreAllLate) {
  instance_.answer_polls(false);
  const Duration late = kSilence / 10;
  const Time until = now() + kSilence + 2 * late;
  for (Time at = pool_->next_tick() + late; at < until; at = pool_->next_tick() + late) {
    pool_->tick(at);
  }
  EXPECT_EQ(silent_, 1);
}

// Stopped itself, or its whole machine was: the instances may have been well all the time.
TEST_F(SilenceTest, IsNotTheTimeThatTheRouterStoodStill) {
  instance_.answer_polls(false);
  Time at = pool_->next_tick() + 10 * kSilence;
  for (int i = 0; i < 3; ++i, at = pool_->next_tick()) pool_->tick(at);
  EXPECT_EQ(silent_, 0);
  EXPECT_TRUE(pool_->snapshot()[0].up);
}

}  // namespace
}  // namespace baton::serving
