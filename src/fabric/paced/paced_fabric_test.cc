#include "fabric/paced/paced_fabric.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <vector>

#include "fabric/null/null_fabric.h"

namespace baton::fabric::paced {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::uint64_t kPool = 1 << 20;
const int kQueue = static_cast<int>(make_null_fabric()->capabilities().writes_in_flight_max);

// Over the fabric that costs nothing, at a time that the test sets.
class PacedFabricTest : public ::testing::Test {
 protected:
  void start(const Link& link, Access access = Access::kWrite) {
    fabric_ =
        PacedFabric::create(make_null_fabric(), link, metrics_, [this] { return time_; }).value();
    Region region;
    region.base = memory_.data();
    region.stride_bytes = region.block_bytes = memory_.size();
    region.num_blocks = 1;
    ASSERT_TRUE(fabric_->register_regions(std::vector{region}));
    const Bytes offer = make_null_fabric()->open_inbound(PeerId{"p", 1}, access).value().offer;
    to_ = fabric_->connect(PeerId{"d", 1}, offer, std::vector{region}).value();
    ASSERT_EQ(fabric_->poll(events_), 1U);
  }
  Status post(std::uint64_t length) {
    Write write;
    write.to = to_;
    write.length = length;
    return fabric_->post(write);
  }
  // Posts until it is refused, at one moment.
  int post_all(std::uint64_t length, int most = 100'000) {
    int count = 0;
    while (count < most) {
      const Status posted = post(length);
      if (!posted) {
        EXPECT_EQ(posted.error().code, Errc::kResourceExhausted) << posted.error().message;
        break;
      }
      ++count;
      done_ += static_cast<int>(fabric_->poll(events_));
    }
    return count;
  }
  // The same, looking once a millisecond.
  int posts_in(milliseconds time, std::uint64_t length) {
    int count = post_all(length);
    for (milliseconds at{0}; at < time; ++at) {
      pass(milliseconds(1));
      count += post_all(length);
      drain();
    }
    return count;
  }
  void drain() {
    while (const std::size_t count = fabric_->poll(events_)) done_ += static_cast<int>(count);
  }
  void pass(Duration time) { time_ += time; }

  LinkMetrics metrics_;
  Time time_{std::chrono::hours(1)};
  std::vector<std::byte> memory_ = std::vector<std::byte>(kPool);
  std::unique_ptr<PacedFabric> fabric_;
  OutboundId to_;
  std::array<FabricEvent, 64> events_{};
  int done_ = 0;  // that drain() was told
};

TEST_F(PacedFabricTest, CarriesTheStatedBytesInASecondAndNoMore) {
  start({.bytes_per_second = 100'000'000});
  // Besides what the link carried and what it has begun, its queue is full.
  EXPECT_EQ(posts_in(milliseconds(1000), 1000), 100'001 + kQueue);
  EXPECT_EQ(done_, 100'001);
  EXPECT_EQ(metrics_.busy_nanoseconds.value(), 1'000'010'000U);
  EXPECT_EQ(metrics_.lost_nanoseconds.value(), 0U);
}

TEST_F(PacedFabricTest, PostsCostTheirTimeWhateverTheirLength) {
  start({.post_cost = microseconds(2)});
  EXPECT_EQ(posts_in(milliseconds(100), 1), 50'001);
  EXPECT_EQ(metrics_.posting_nanoseconds.value(), 100'002'000U);
  EXPECT_EQ(metrics_.busy_nanoseconds.value(), 0U);
}

TEST_F(PacedFabricTest, PostingAndBytesOverlapAndTheSlowerOneSetsThePace) {
  start({.bytes_per_second = 1'000'000'000, .post_cost = microseconds(2)});
  EXPECT_EQ(posts_in(milliseconds(100), 1000), 50'001);  // 1 us of link, 2 us of posting
  pass(milliseconds(1));
  drain();
  EXPECT_EQ(metrics_.busy_nanoseconds.value(), 50'001'000U);
  EXPECT_EQ(metrics_.lost_nanoseconds.value(), 0U);
}

// Where the link sets the pace the poster has nothing to catch up: its waiting is not the
// machine's.
TEST_F(PacedFabricTest, APosterThatWaitsForTheLinkLosesNothing) {
  start({.bytes_per_second = 10'000'000, .post_cost = microseconds(2)});
  // 100 us of link, 2 us of posting. Until the second post came the link had nothing to do.
  const int posts = posts_in(milliseconds(100), 1000);
  EXPECT_EQ(done_, 992);
  EXPECT_EQ(posts, 982 + kQueue);  // the last ten left the queue after the last post
  EXPECT_EQ(metrics_.posting_nanoseconds.value(), 2'000U * static_cast<unsigned>(posts));
  EXPECT_EQ(metrics_.lost_nanoseconds.value(), 0U);
}

// Posting is over when the queue has it, not when the link does.
TEST_F(PacedFabricTest, APostWaitsForTheLinkAndItsPosterDoesNot) {
  start({.bytes_per_second = 1'000'000'000, .post_cost = microseconds(2)});
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(post(50'000));  // 50 us of link
    pass(microseconds(2));
  }
  drain();
  EXPECT_EQ(done_, 1);
  pollfd wait{.fd = fabric_->second_wait_fd(), .events = POLLIN, .revents = 0};
  for (int done = 2; done <= 10; ++done) {
    pass(microseconds(50));
    ASSERT_EQ(::poll(&wait, 1, 10'000), 1);
    drain();
    EXPECT_EQ(done_, done);
  }
  EXPECT_EQ(metrics_.busy_nanoseconds.value(), 500'000U);
  EXPECT_EQ(metrics_.lost_nanoseconds.value(), 0U);
}

// A machine that is too slow for the link shows there: what waited could have gone.
TEST_F(PacedFabricTest, WhatALateOwnerLeavesWaitingIsLost) {
  start({.bytes_per_second = 1'000'000'000});
  ASSERT_TRUE(post(1000));
  ASSERT_TRUE(post(1000));
  pass(milliseconds(20));
  drain();
  EXPECT_EQ(done_, 2);
  EXPECT_EQ(metrics_.lost_nanoseconds.value(), 15'000'000U - 1'000U);  // but for Pacer::kCatchUp
}

TEST_F(PacedFabricTest, WhatWaitsWhenItsOutboundClosesFailsAndIsOver) {
  start({.bytes_per_second = 1'000'000'000});
  ASSERT_TRUE(post(1000));
  ASSERT_TRUE(post(1000));
  fabric_->close_outbound(to_);
  EXPECT_TRUE(fabric_->busy());
  const std::size_t count = fabric_->poll(events_);
  ASSERT_EQ(count, 3U);
  EXPECT_EQ(events_[0].kind, FabricEvent::Kind::kWriteFailed);
  EXPECT_TRUE(events_[0].over);
  EXPECT_EQ(events_[0].error, "closed before the link had room");
  EXPECT_EQ(events_[1].kind, FabricEvent::Kind::kWriteDone);
  EXPECT_EQ(events_[2].kind, FabricEvent::Kind::kOutboundClosed);
  EXPECT_FALSE(fabric_->busy());
  EXPECT_EQ(post(1000).error().code, Errc::kNotFound);
  EXPECT_EQ(metrics_.busy_nanoseconds.value(), 1000U);
}

TEST_F(PacedFabricTest, WhatDoesNotFitIsRefusedBeforeItWaits) {
  start({.bytes_per_second = 1'000'000'000});
  ASSERT_TRUE(post(1000));
  Write write;
  write.to = to_;
  write.length = 1000;
  write.remote_offset = kPool - 999;
  Status refused = fabric_->post(write);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().code, Errc::kResourceExhausted);
  write.remote_offset = 0;
  write.local_region = 1;
  EXPECT_FALSE(fabric_->post(write));
  write.local_region = 0;
  write.to.value += 1;
  EXPECT_EQ(fabric_->post(write).error().code, Errc::kNotFound);
}

TEST_F(PacedFabricTest, ARefusedPostIsWokenFor) {
  start({.post_cost = microseconds(1)});
  ASSERT_TRUE(post(1000));
  fabric_->poll(events_);
  ASSERT_FALSE(post(1000));
  EXPECT_EQ(metrics_.refusals.value(), 1U);
  EXPECT_FALSE(fabric_->busy());
  pollfd wait{.fd = fabric_->second_wait_fd(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&wait, 1, 10'000), 1);
  fabric_->poll(events_);
  EXPECT_EQ(::poll(&wait, 1, 0), 0) << "once it was looked at, it sleeps again";
  pass(microseconds(1));
  EXPECT_TRUE(post(1000));
}

// The write that says that all others have come is posted when they have.
TEST_F(PacedFabricTest, APosterThatWaitsForCompletionsLosesNothing) {
  start({.bytes_per_second = 10'000'000, .post_cost = microseconds(2)});
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(post(1000));
    pass(microseconds(2));
    drain();
  }
  while (done_ < 200) {
    pass(microseconds(100));
    done_ += static_cast<int>(fabric_->poll(events_));
  }
  EXPECT_TRUE(post(0));
  EXPECT_EQ(metrics_.lost_nanoseconds.value(), 0U);
}

TEST_F(PacedFabricTest, ADemandThatWentAwayIsNotCaughtUp) {
  start({.post_cost = microseconds(1)});
  ASSERT_TRUE(post(1000));
  fabric_->poll(events_);
  ASSERT_FALSE(post(1000));  // and never tried again: its transfer was cancelled
  pollfd wait{.fd = fabric_->second_wait_fd(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&wait, 1, 10'000), 1);
  pass(microseconds(1));
  for (int turns = 0; turns < 5; ++turns) fabric_->poll(events_);
  pass(milliseconds(100));
  EXPECT_EQ(post_all(1000), 1);
  EXPECT_EQ(metrics_.lost_nanoseconds.value(), 0U);
}

TEST_F(PacedFabricTest, AReadTakesTheLinkAsAWriteDoes) {
  start({.bytes_per_second = 1'000'000'000, .post_cost = microseconds(2)}, Access::kRead);
  Read read;
  read.from = to_;
  read.length = 1000;
  ASSERT_TRUE(fabric_->post_read(read));
  EXPECT_EQ(metrics_.busy_nanoseconds.value(), 1000U);
  EXPECT_EQ(metrics_.posting_nanoseconds.value(), 2000U);
  fabric_->poll(events_);
  const Status refused = fabric_->post_read(read);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kResourceExhausted);
  pass(microseconds(2));
  EXPECT_TRUE(fabric_->post_read(read));
}

TEST_F(PacedFabricTest, AnIdleLinkSavesNothingUp) {
  start({.bytes_per_second = 1'000'000'000});
  ASSERT_TRUE(post(1000));
  for (int turns = 0; turns < 5; ++turns) fabric_->poll(events_);
  pass(milliseconds(4));
  EXPECT_EQ(post_all(1000), 1 + kQueue);
  EXPECT_EQ(done_, 1);
}

TEST_F(PacedFabricTest, AWriteIsNoLongerThanTheLinkCarriesInAMoment) {
  start({.bytes_per_second = 1'000'000'000});
  EXPECT_EQ(fabric_->capabilities().write_bytes_max, 100'000U);
  start({.bytes_per_second = 1000});
  EXPECT_EQ(fabric_->capabilities().write_bytes_max, PacedFabric::kWriteBytesLeast);
  start({});
  EXPECT_EQ(fabric_->capabilities().write_bytes_max,
            make_null_fabric()->capabilities().write_bytes_max);
}

TEST_F(PacedFabricTest, WhatTheRealFabricRefusesTakesNoTime) {
  start({.bytes_per_second = 1'000'000'000});
  const Status refused = post(kPool + 1);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().code, Errc::kResourceExhausted);
  EXPECT_EQ(metrics_.busy_nanoseconds.value(), 0U);
  EXPECT_TRUE(post(1000));
}

}  // namespace
}  // namespace baton::fabric::paced
