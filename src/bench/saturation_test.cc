#include "bench/saturation.h"

#include <gtest/gtest.h>

#include <vector>

namespace baton::bench {
namespace {

using std::chrono::milliseconds;

// One server of P, each prompt of which takes `prefill`; D then takes 20 ms to the second token and
// a second to the last. Requests come every `gap`.
std::vector<RequestResult> served(int count, milliseconds gap, milliseconds prefill) {
  std::vector<RequestResult> out;
  Duration idle_from = Duration::zero();
  for (int i = 0; i < count; ++i) {
    RequestResult r;
    r.ok = true;
    r.sent = r.due = gap * i;
    idle_from = std::max(idle_from, r.sent) + prefill;
    r.first = idle_from;
    r.second = idle_from + milliseconds(20);
    r.last = idle_from + milliseconds(1020);
    r.output_len = 3;
    out.push_back(r);
  }
  return out;
}

TEST(Saturation, says_that_a_queue_grew_and_by_how_much) {
  // 64 requests in 8 s, and P can do 5 a second.
  const Arrivals a = arrivals_of(served(64, milliseconds(125), milliseconds(200)));
  EXPECT_DOUBLE_EQ(a.offered_per_s.value(), 8);
  EXPECT_DOUBLE_EQ(a.answered_per_s.value(), 5);
  EXPECT_EQ(a.open_at_last_arrival, 29U);
  EXPECT_LT(a.first_quarter_ms.value(), 900);
  EXPECT_GT(a.last_quarter_ms.value(), 4000);
  EXPECT_EQ(is_saturated(a), true);
}

TEST(Saturation, long_answers_and_requests_that_are_still_open_are_none) {
  // Every request takes 1.5 s where 4 come a second: 5 are always open, and none waits.
  const Arrivals a = arrivals_of(served(32, milliseconds(250), milliseconds(240)));
  EXPECT_DOUBLE_EQ(a.answered_per_s.value(), 4);
  EXPECT_EQ(a.open_at_last_arrival, 5U);
  EXPECT_EQ(is_saturated(a), false);
}

TEST(Saturation, a_burst_at_the_end_of_a_light_run_is_none) {
  auto results = served(8, milliseconds(1000), milliseconds(300));
  // The last two come together: the later one waits for the other.
  results[7].sent = results[6].sent;
  results[7].first = *results[6].first + milliseconds(300);
  results[7].second = *results[6].second + milliseconds(300);
  results[7].last = *results[6].last + milliseconds(300);
  EXPECT_EQ(is_saturated(arrivals_of(results)), false);
}

TEST(Saturation, of_a_d_that_queues_shows_though_p_answers_the_first_token) {
  auto results = served(64, milliseconds(125), milliseconds(50));
  for (int i = 0; i < 64; ++i) {
    *results[static_cast<std::size_t>(i)].second += milliseconds(75) * i;
    *results[static_cast<std::size_t>(i)].last += milliseconds(75) * i;
  }
  EXPECT_EQ(is_saturated(arrivals_of(results)), true);
}

TEST(Saturation, is_not_known_of_few_requests_or_of_one_moment) {
  EXPECT_FALSE(is_saturated(arrivals_of(served(7, milliseconds(1), milliseconds(500)))));
  EXPECT_FALSE(is_saturated(arrivals_of(served(64, milliseconds(0), milliseconds(500)))));
  EXPECT_FALSE(is_saturated(arrivals_of({})));
  auto failed = served(8, milliseconds(1), milliseconds(500));
  failed[3].ok = false;
  EXPECT_FALSE(is_saturated(arrivals_of(failed)));
}

}  // namespace
}  // namespace baton::bench
