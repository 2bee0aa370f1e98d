#include "baton/ids.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(TransferId, TextFormRoundTrips) {
  const TransferId id{0x0123456789abcdefULL, 0xfedcba9876543210ULL};
  EXPECT_EQ(id.to_string(), "0123456789abcdeffedcba9876543210");
  EXPECT_EQ(TransferId::parse(id.to_string()), id);
}

TEST(TransferId, RefusesWhatIsNotThirtyTwoLowerCaseHexDigits) {
  EXPECT_FALSE(TransferId::parse(""));
  EXPECT_FALSE(TransferId::parse("0123456789abcdeffedcba987654321"));
  EXPECT_FALSE(TransferId::parse("0123456789abcdeffedcba98765432100"));
  EXPECT_FALSE(TransferId::parse("0123456789ABCDEFfedcba9876543210"));
  EXPECT_FALSE(TransferId::parse("0123456789abcdeffedcba98765432-0"));
}

TEST(TransferId, RandomOnesDiffer) {
  EXPECT_NE(TransferId::random(), TransferId::random());
}

TEST(Slot, ImmediateRoundTripsAtTheEdges) {
  for (const Slot slot : {Slot{0, 0}, Slot{Slot::kIndexMask, 0}, Slot{0, Slot::kGenerationMask},
                          Slot{Slot::kIndexMask, Slot::kGenerationMask}, Slot{77, 5}}) {
    EXPECT_EQ(Slot::from_immediate(slot.to_immediate()), slot);
  }
}

TEST(Attempt, ANewBindingOutranksAnyAttemptOfTheOldOne) {
  EXPECT_LT((Attempt{1, 9}), (Attempt{2, 0}));
  EXPECT_LT((Attempt{1, 0}), (Attempt{1, 1}));
}

}  // namespace
}  // namespace baton
