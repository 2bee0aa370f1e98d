#include "fabric/paced/pacer.h"

#include <gtest/gtest.h>

namespace baton::fabric::paced {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Time kStart{seconds(1000)};

struct PacerTest : ::testing::Test {
  Counter busy, lost;
  Pacer pacer{busy, lost};
};

TEST_F(PacerTest, WhatBeginsMakesTheNextOneWait) {
  EXPECT_TRUE(pacer.may_begin(kStart, false));
  pacer.take(microseconds(30));
  pacer.take(microseconds(20));
  EXPECT_EQ(pacer.free_at(), kStart + microseconds(50));
  EXPECT_FALSE(pacer.may_begin(kStart + microseconds(49), true));
  EXPECT_TRUE(pacer.may_begin(kStart + microseconds(50), true));
  EXPECT_EQ(busy.value(), 50'000U);
  EXPECT_EQ(lost.value(), 0U);
}

TEST_F(PacerTest, AnIdleOneSavesNothingUp) {
  EXPECT_TRUE(pacer.may_begin(kStart, false));
  pacer.take(milliseconds(1));
  const Time later = kStart + seconds(60);
  EXPECT_TRUE(pacer.may_begin(later, false));
  pacer.take(milliseconds(1));
  EXPECT_FALSE(pacer.may_begin(later, false));
  EXPECT_EQ(pacer.free_at(), later + milliseconds(1));
  EXPECT_EQ(lost.value(), 0U);
}

TEST_F(PacerTest, AUserWhoComesLateCatchesUp) {
  EXPECT_TRUE(pacer.may_begin(kStart, false));
  pacer.take(microseconds(10));
  // 3 ms late: what would have gone in that time goes at once, and no more than that.
  const Time late = kStart + microseconds(10) + milliseconds(3);
  int begun = 0;
  for (; pacer.may_begin(late, true); ++begun) pacer.take(microseconds(10));
  EXPECT_EQ(begun, 301);  // 300 in the 3 ms, and the one that begins now
  EXPECT_EQ(lost.value(), 0U);
}

TEST_F(PacerTest, BeyondTheCatchUpTimeIsLostAndSaidSo) {
  EXPECT_TRUE(pacer.may_begin(kStart, false));
  pacer.take(microseconds(10));
  EXPECT_TRUE(pacer.may_begin(kStart + microseconds(10) + milliseconds(25), true));
  EXPECT_EQ(lost.value(), 20'000'000U);
  EXPECT_EQ(pacer.free_at(), kStart + microseconds(10) + milliseconds(20));
}

TEST_F(PacerTest, BeginsNoEarlierThanItIsTold) {
  pacer.not_before(kStart + milliseconds(2));
  EXPECT_FALSE(pacer.may_begin(kStart, false));
  pacer.not_before(kStart);
  EXPECT_EQ(pacer.free_at(), kStart + milliseconds(2));
}

TEST(Pacing, TurnsBytesIntoTimeAndBack) {
  EXPECT_EQ(ByteTime(1'000'000'000).of(1'000'000), milliseconds(1));
  EXPECT_EQ(ByteTime(42'600'000'000).of(512), Duration(12));
  EXPECT_EQ(ByteTime(0).of(512), Duration(0));
  // 512 MiB of one rank of a 16k prompt on 42.6 GB/s.
  EXPECT_EQ(ByteTime(42'600'000'000).of(512ULL << 20) / microseconds(1), 12'602);
  EXPECT_EQ(ByteTime(1).of(1ULL << 32), std::chrono::seconds(1LL << 32));
  EXPECT_EQ(bytes_in(microseconds(100), 1'000'000'000), 100'000U);
  EXPECT_EQ(bytes_in(Duration(1), 1), 1U);
}

// 128 bytes take 1.506 ns of 85 GB/s: to whole nanoseconds they would be a third too slow.
TEST(Pacing, ManyShortOnesTakeAsLongAsAllTheirBytes) {
  ByteTime link(85'000'000'000);
  Duration sum{0};
  for (int i = 0; i < 850'000; ++i) sum += link.of(128);
  EXPECT_EQ(sum, Duration(1'280'000));
}

}  // namespace
}  // namespace baton::fabric::paced
