#include "handover/legs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::handover {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = LegAction::Kind;

class LegsTest : public ::testing::Test {
 protected:
  static Time at(int ms) { return Time{} + std::chrono::milliseconds(ms); }
  static std::vector<Kind> kinds(const Legs::Actions& actions) {
    std::vector<Kind> out;
    for (const LegAction& a : actions) out.push_back(a.kind);
    return out;
  }
  Legs make(bool from_prefill = true) {
    return Legs({from_prefill, false, at(1000), std::chrono::milliseconds(500)}, at(0));
  }
  Legs::Actions out;
};

TEST_F(LegsTest, TheFirstTokenIsForwardedOnceWhicheverLegBringsIt) {
  for (const Leg first : {Leg::kPrefill, Leg::kDecode}) {
    out.clear();
    Legs legs = make();
    legs.on_chunk(first, 0, 1, at(1), out);
    legs.on_chunk(first == Leg::kPrefill ? Leg::kDecode : Leg::kPrefill, 0, 1, at(2), out);
    legs.on_chunk(Leg::kDecode, 1, 1, at(3), out);
    legs.on_ended(Leg::kPrefill, at(4), out);
    legs.on_ended(Leg::kDecode, at(5), out);
    EXPECT_THAT(kinds(out),
                ElementsAre(Kind::kForward, Kind::kDrop, Kind::kForward, Kind::kFinish));
    EXPECT_EQ(legs.tokens_forwarded(), 2U);
  }
}

// Pull.
TEST_F(LegsTest, DecodeIsPlacedOnceAndOnlyAfterPrefill) {
  Legs legs({true, true, at(1000), std::chrono::milliseconds(500)}, at(0));
  legs.on_chunk(Leg::kPrefill, 0, 1, at(1), out);
  legs.on_prefilled(at(1), out);
  legs.on_prefilled(at(1), out);
  EXPECT_THAT(kinds(out), ElementsAre(Kind::kForward, Kind::kPlaceDecode));
  out.clear();
  legs.on_decode_started();
  legs.on_prefilled(at(2), out);
  legs.on_chunk(Leg::kDecode, 0, 1, at(2), out);
  legs.on_chunk(Leg::kDecode, 1, 1, at(3), out);
  legs.on_ended(Leg::kPrefill, at(4), out);
  legs.on_ended(Leg::kDecode, at(5), out);
  EXPECT_THAT(kinds(out), ElementsAre(Kind::kDrop, Kind::kForward, Kind::kFinish));
}

TEST_F(LegsTest, WhatIsNotStartedIsNotCancelled) {
  const auto pull = [] {
    return Legs({true, true, at(1000), std::chrono::milliseconds(500)}, at(0));
  };
  Legs no_decode = pull();  // nobody could be chosen
  no_decode.on_prefilled(at(1), out);
  no_decode.on_failed(Leg::kDecode, 503, "no decode instance is ready", at(2), out);
  ASSERT_THAT(kinds(out), ElementsAre(Kind::kPlaceDecode, Kind::kErrorResponse, Kind::kCancelLeg,
                                      Kind::kFinish));
  EXPECT_EQ(out[1].status, 503);
  EXPECT_EQ(out[2].leg, Leg::kPrefill);

  out.clear();
  Legs gone = pull();
  gone.on_client_gone(at(1), out);
  ASSERT_THAT(kinds(out), ElementsAre(Kind::kCancelLeg, Kind::kFinish));
  EXPECT_EQ(out[0].leg, Leg::kPrefill);

  out.clear();
  Legs ended = pull();
  ended.on_prefilled(at(1), out);
  ended.on_ended(Leg::kPrefill, at(2), out);
  ASSERT_THAT(kinds(out), ElementsAre(Kind::kPlaceDecode, Kind::kErrorResponse, Kind::kFinish));
  EXPECT_THAT(out[1].reason, HasSubstr("before a decode instance was chosen"));
}

TEST_F(LegsTest, AChunkThatOverlapsIsForwardedLessWhatWasSent) {
  Legs legs = make();
  legs.on_chunk(Leg::kPrefill, 0, 1, at(1), out);
  legs.on_chunk(Leg::kDecode, 0, 3, at(2), out);
  ASSERT_THAT(kinds(out), ElementsAre(Kind::kForward, Kind::kForward));
  EXPECT_EQ(out[1].skip_tokens, 1U);
  EXPECT_EQ(legs.tokens_forwarded(), 3U);
}

TEST_F(LegsTest, WithFirstTokenDecodePrefillsTokensAreDropped) {
  Legs legs = make(false);
  legs.on_chunk(Leg::kPrefill, 0, 1, at(1), out);
  legs.on_chunk(Leg::kDecode, 0, 1, at(2), out);
  EXPECT_THAT(kinds(out), ElementsAre(Kind::kDrop, Kind::kForward));
}

TEST_F(LegsTest, AFailureBeforeTheFirstByteIsAnHttpErrorAndCancelsTheOtherLeg) {
  for (const Leg leg : {Leg::kPrefill, Leg::kDecode}) {
    out.clear();
    Legs legs = make();
    legs.on_failed(leg, 0, "connection refused", at(1), out);
    ASSERT_THAT(kinds(out), ElementsAre(Kind::kErrorResponse, Kind::kCancelLeg, Kind::kFinish));
    EXPECT_EQ(out[0].status, 502);
    EXPECT_THAT(out[0].reason, HasSubstr("connection refused"));
    EXPECT_NE(out[1].leg, leg);
    EXPECT_TRUE(legs.finished());
  }
}

TEST_F(LegsTest, StatusesOfALegsServer) {
  for (const auto& [theirs, ours] : {std::pair{400, 400},
                                     {404, 404},
                                     {429, 429},
                                     {500, 502},
                                     {503, 503},
                                     {504, 504},
                                     {0, 502}}) {
    out.clear();
    make().on_failed(Leg::kDecode, theirs, "x", at(1), out);
    EXPECT_EQ(out[0].status, ours) << theirs;
  }
}

TEST_F(LegsTest, AFailureAfterTheFirstByteIsAnErrorEventNeverAFinish) {
  Legs legs = make();
  legs.on_chunk(Leg::kPrefill, 0, 1, at(1), out);
  legs.on_ended(Leg::kPrefill, at(1), out);
  out.clear();
  legs.on_failed(Leg::kDecode, 0, "it died", at(2), out);
  EXPECT_THAT(kinds(out), ElementsAre(Kind::kErrorEvent, Kind::kFinish));
}

TEST_F(LegsTest, AClientThatLeavesCancelsBothLegs) {
  Legs legs = make();
  legs.on_client_gone(at(1), out);
  EXPECT_THAT(kinds(out), ElementsAre(Kind::kCancelLeg, Kind::kCancelLeg, Kind::kFinish));
}

TEST_F(LegsTest, TheDeadlineHoldsUntilTheFirstByteThenTheIdleTimeout) {
  Legs legs = make();
  EXPECT_EQ(legs.next_deadline(), at(1000));
  legs.on_time(at(999), out);
  EXPECT_TRUE(out.empty());
  legs.on_chunk(Leg::kDecode, 0, 1, at(999), out);
  EXPECT_EQ(legs.next_deadline(), at(1499));
  out.clear();
  legs.on_time(at(1499), out);
  ASSERT_THAT(kinds(out),
              ElementsAre(Kind::kErrorEvent, Kind::kCancelLeg, Kind::kCancelLeg, Kind::kFinish));
  EXPECT_EQ(out[0].status, 504);
}

TEST_F(LegsTest, MissingTokensAreAnErrorAndNotAShorterAnswer) {
  Legs legs = make();
  legs.on_chunk(Leg::kDecode, 2, 1, at(1), out);
  EXPECT_THAT(kinds(out),
              ElementsAre(Kind::kDrop, Kind::kErrorResponse, Kind::kCancelLeg, Kind::kFinish));
}

TEST_F(LegsTest, NothingHappensAfterTheEnd) {
  Legs legs = make();
  legs.on_client_gone(at(1), out);
  out.clear();
  legs.on_failed(Leg::kDecode, 0, "x", at(2), out);
  legs.on_ended(Leg::kDecode, at(2), out);
  legs.on_time(at(5000), out);
  EXPECT_TRUE(out.empty());
  legs.on_chunk(Leg::kDecode, 0, 1, at(2), out);
  EXPECT_THAT(kinds(out), ElementsAre(Kind::kDrop));
}

}  // namespace
}  // namespace baton::handover
