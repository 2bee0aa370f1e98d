#include "base/failure_log.h"

#include <gtest/gtest.h>

namespace baton::log {
namespace {

constexpr Time kStart{std::chrono::hours(1)};

TEST(FailureLog, FieldsAreQuotedWhereAReaderNeedsIt) {
  EXPECT_EQ(field_text({"cause", "peer_died"}), "cause=peer_died");
  EXPECT_EQ(field_text({"text", "two words"}), "text=\"two words\"");
  EXPECT_EQ(field_text({"text", "a=\"b\" \\"}), "text=\"a=\\\"b\\\" \\\\\"");
  EXPECT_EQ(field_text({"text", std::string("x\ny\x01", 4)}), "text=\"x\\ny\\x01\"");
}

TEST(FailureLog, AStormOfOneCauseIsCutAndItsNumberTold) {
  FailureLimiter limiter;
  for (std::uint32_t i = 0; i < FailureLimiter::kLinesMax; ++i) {
    EXPECT_TRUE(limiter.admit("fabric", kStart).tell);
  }
  for (int i = 0; i < 25; ++i) EXPECT_FALSE(limiter.admit("fabric", kStart).tell);
  EXPECT_TRUE(limiter.admit("deadline", kStart).tell) << "another cause is not hidden";

  const auto later = limiter.admit("fabric", kStart + FailureLimiter::kWindow);
  EXPECT_TRUE(later.tell);
  EXPECT_EQ(later.suppressed, 25U);
  EXPECT_EQ(limiter.admit("fabric", kStart + FailureLimiter::kWindow).suppressed, 0U);
}

TEST(FailureLog, WhatWasCutIsToldWithTheNextFailureOfAnyCause) {
  FailureLimiter limiter;
  for (std::uint32_t i = 0; i < FailureLimiter::kLinesMax + 3; ++i) limiter.admit("fabric", kStart);
  EXPECT_TRUE(limiter.admit("deadline", kStart).others.empty()) << "its window is still open";
  const auto later = limiter.admit("deadline", kStart + FailureLimiter::kWindow);
  ASSERT_EQ(later.others.size(), 1U);
  EXPECT_EQ(later.others[0], std::pair(std::string("fabric"), std::uint64_t{3}));
}

TEST(FailureLog, EveryFailureIsCountedAndTheTableStaysSmall) {
  FailureLimiter limiter;
  for (std::uint32_t i = 0; i < 30; ++i) limiter.admit("fabric", kStart);
  for (int i = 0; i < 500; ++i) limiter.admit("cause " + std::to_string(i), kStart);
  std::uint64_t total = 0, suppressed = 0;
  for (const FailureCount& count : limiter.counts()) {
    total += count.total;
    suppressed += count.suppressed;
  }
  EXPECT_EQ(total, 530U);
  EXPECT_GE(suppressed, 20U);
  EXPECT_LE(limiter.counts().size(), FailureLimiter::kCausesMax + 1);
}

}  // namespace
}  // namespace baton::log
