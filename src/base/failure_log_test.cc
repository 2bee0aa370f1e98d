#include "base/failure_log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

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
  for (int i = 0; i < 500; ++i) limiter.admit("cause_" + std::to_string(i), kStart);
  std::uint64_t total = 0, suppressed = 0;
  for (const FailureCount& count : limiter.counts()) {
    total += count.total;
    suppressed += count.suppressed;
  }
  EXPECT_EQ(total, 530U);
  EXPECT_GE(suppressed, 20U);
  EXPECT_LE(limiter.counts().size(), FailureLimiter::kCausesMax + 1);
}

// A cause may be what another process answered.
TEST(FailureLog, ACauseThatIsNoWordIsShownAndDoesNotAct) {
  ::testing::internal::CaptureStderr();
  failure(Level::kError, "x\n2026-01-01 E all is well \x1b[2J", {{"text", "t"}});
  const std::string told = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(told.find(R"(failure cause="x\n2026-01-01 E all is well \x1b[2J" text=t)"),
            std::string::npos)
      << told;
  EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 1) << told;
  EXPECT_EQ(told.find('\x1b'), std::string::npos);
  ::testing::internal::CaptureStderr();
  failure(Level::kError, std::string(5000, 'a'), {});
  EXPECT_LT(::testing::internal::GetCapturedStderr().size(), 200U);
}

TEST(FailureLog, CausesThatAreNoWordsShareOneLimit) {
  FailureLimiter limiter;
  std::uint32_t told = 0;
  for (int i = 0; i < 30; ++i) {
    told += limiter.admit("no word " + std::to_string(i), kStart).tell ? 1 : 0;
    told += limiter.admit(std::string(100 + i, 'a'), kStart).tell ? 1 : 0;
  }
  EXPECT_EQ(told, FailureLimiter::kLinesMax);
  ASSERT_EQ(limiter.counts().size(), 1U);
  EXPECT_EQ(limiter.counts()[0].cause, "other");
}

}  // namespace
}  // namespace baton::log
