#include "engine/timed/step_time.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/timed/testing/small_profile.h"

namespace baton::engine::timed {
namespace {

using std::chrono::microseconds;

Duration time_of(const std::vector<Part>& parts, Prefill prefill = Prefill::kComputed) {
  return step_time(small_profile(), prefill, parts);
}

TEST(StepTime, PrefillGoesByTokens) {
  EXPECT_EQ(time_of({{32, 0}}), microseconds(3200));
  EXPECT_EQ(time_of({{20, 0}, {12, 100}}), microseconds(3200));
}

TEST(StepTime, DecodeIsABaseAndSomethingForEachSequenceAndContextToken) {
  EXPECT_EQ(time_of({{1, 0}}), microseconds(3500));
  EXPECT_EQ(time_of({{1, 100}, {1, 60}}), microseconds(3000 + 2 * 500 + 1600));
}

TEST(StepTime, AMixedStepIsBoth) {
  EXPECT_EQ(time_of({{1, 100}, {10, 0}}), microseconds(3000 + 500 + 1000 + 1000));
}

TEST(StepTime, ACachedPromptTakesOneStepsTimeWhateverItsLength) {
  EXPECT_EQ(time_of({{2, 0}}, Prefill::kCached), microseconds(2000));
  EXPECT_EQ(time_of({{200, 0}, {30, 0}}, Prefill::kCached), microseconds(2000));
  EXPECT_EQ(time_of({{1, 100}}, Prefill::kCached), microseconds(4500));
}

// The most that a profile may say: the clock holds it.
TEST(StepTime, IsNeverMoreThanAClockCanHold) {
  Profile profile = small_profile();
  profile.decode_per_context_token_s = 100;
  const std::vector<Part> parts(65536, Part{1, 100'000'000});
  EXPECT_EQ(step_time(profile, Prefill::kComputed, parts), std::chrono::seconds(1'000'000));
}

TEST(StepTime, OfNothingIsNothing) {
  EXPECT_EQ(time_of({}), Duration(0));
}

}  // namespace
}  // namespace baton::engine::timed
