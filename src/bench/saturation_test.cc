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

TEST(Saturation, shows_while_answers_still_end_nearly_as_often_as_requests_come) {
  // P does 7.4 a second of 8: the last of 64 in 8 s waits 0.7 s longer than the first, and the
  // rates alone would not tell.
  auto results = served(64, milliseconds(125), milliseconds(136));
  for (RequestResult& r : results) *r.last -= milliseconds(300);
  const Arrivals a = arrivals_of(results);
  EXPECT_GT(a.answered_per_s.value(), 0.9 * a.offered_per_s.value());
  EXPECT_GT(a.last_quarter_ms.value(), 2 * a.first_quarter_ms.value());
  EXPECT_EQ(is_saturated(a), true);
}

TEST(Saturation, shows_in_a_run_whose_answers_all_end_together_after_the_last_arrival) {
  // One every 1.8 s, and all share one engine until the end: each ends faster the later it came,
  // and they end more often than they came.
  std::vector<RequestResult> results = served(8, milliseconds(1800), milliseconds(300));
  for (std::size_t i = 0; i < 8; ++i) {
    RequestResult& r = results[i];
    r.second = r.sent + milliseconds(4700 + 200 * i);
    r.last = milliseconds(17700 + 40 * i);
  }
  const Arrivals a = arrivals_of(results);
  EXPECT_GT(a.answered_per_s.value(), a.offered_per_s.value());
  EXPECT_EQ(a.open_at_last_arrival, 7U);
  EXPECT_LE(a.open_if_quick, 3U);
  EXPECT_EQ(is_saturated(a), true);
}

TEST(Saturation, a_run_shorter_than_one_answer_leaves_all_open_and_is_none) {
  const Arrivals a = arrivals_of(served(8, milliseconds(125), milliseconds(100)));
  EXPECT_EQ(a.open_at_last_arrival, 7U);
  EXPECT_EQ(a.open_if_quick, 7U);
  EXPECT_EQ(is_saturated(a), false);
}

TEST(Saturation, a_burst_in_which_the_last_ones_wait_for_each_other_is_none) {
  // Ten come a second apart, and the last six at once: those wait 300 ms longer each.
  auto results = served(16, milliseconds(1000), milliseconds(300));
  for (std::size_t i = 10; i < 16; ++i) {
    RequestResult& r = results[i];
    r.sent = results[10].sent;
    r.first = r.sent + milliseconds(300) * (i - 9);
    r.second = *r.first + milliseconds(20);
    r.last = *r.first + milliseconds(1020);
  }
  const Arrivals a = arrivals_of(results);
  EXPECT_GT(a.last_quarter_ms.value() - a.first_quarter_ms.value(), 0.075 * 10'000)
      << "the waits alone would say that it is";
  EXPECT_EQ(is_saturated(a), false);
}

// P can do 9.1 a second of 10, and an answer takes 4 s: the growth is small beside an answer.
TEST(Saturation, shows_however_long_the_answers_are) {
  auto results = served(80, milliseconds(100), milliseconds(110));
  for (RequestResult& r : results) *r.last += milliseconds(3000);
  const Arrivals a = arrivals_of(results);
  EXPECT_LT(a.last_quarter_ms.value() - a.first_quarter_ms.value(), 0.5 * a.quickest_ms.value());
  EXPECT_EQ(is_saturated(a), true);
}

// The same growth of waits in a run ten times as long: no more than what clustered arrivals do.
TEST(Saturation, of_a_long_run_asks_for_more_growth) {
  auto results = served(80, milliseconds(1000), milliseconds(300));
  for (std::size_t i = 40; i < 80; ++i) {
    *results[i].second += milliseconds(600);
    *results[i].last += milliseconds(600);
  }
  EXPECT_EQ(is_saturated(arrivals_of(results)), false);
}

TEST(Saturation, waits_of_a_few_milliseconds_may_double_without_one) {
  auto results = served(16, milliseconds(1000), milliseconds(20));
  for (std::size_t i = 8; i < 16; ++i) *results[i].second += milliseconds(40);
  EXPECT_GT(arrivals_of(results).last_quarter_ms.value(), 79);
  EXPECT_EQ(is_saturated(arrivals_of(results)), false);
}

TEST(Saturation, short_answers_of_a_mixed_load_are_no_measure_for_the_long_ones) {
  // Every other answer takes 5 s and comes every second: 5 are open, and nobody waits.
  auto results = served(20, milliseconds(500), milliseconds(100));
  for (std::size_t i = 0; i < 20; i += 2) {
    results[i].output_len = 500;
    *results[i].last += milliseconds(4000);
    results[i + 1].last = *results[i + 1].second;
  }
  EXPECT_GT(arrivals_of(results).quickest_ms.value(), 5000);
  EXPECT_EQ(is_saturated(arrivals_of(results)), false);
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
