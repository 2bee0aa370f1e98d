#include "bench/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::bench {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::Pair;

// Tokens at the given milliseconds since the request was sent at `sent`.
RequestResult answered(int sent, std::vector<int> tokens) {
  RequestResult r;
  r.ok = true;
  r.due = milliseconds(sent);
  r.sent = milliseconds(sent);
  r.input_len = 10;
  r.output_len = static_cast<std::uint32_t>(tokens.size());
  r.first = r.sent + milliseconds(tokens[0]);
  r.last = r.sent + milliseconds(tokens.back());
  if (tokens.size() > 1) r.second = r.sent + milliseconds(tokens[1]);
  for (std::size_t i = 1; i < tokens.size(); ++i) {
    r.gaps.push_back((tokens[i] - tokens[i - 1]) / 1e3);
  }
  return r;
}

RequestResult failed(const std::string& cause) {
  RequestResult r;
  r.cause = cause;
  return r;
}

TEST(Samples, are_numpys) {
  const Samples s({4, 1, 3, 2});
  EXPECT_DOUBLE_EQ(*s.mean(), 2.5);
  EXPECT_DOUBLE_EQ(*s.median(), 2.5);
  EXPECT_NEAR(*s.stddev(), 1.1180339887, 1e-9);
  EXPECT_DOUBLE_EQ(*s.percentile(90), 3.7);
  EXPECT_DOUBLE_EQ(*s.percentile(99), 3.97);
  EXPECT_DOUBLE_EQ(*s.percentile(0), 1);
  EXPECT_DOUBLE_EQ(*s.percentile(100), 4);
  EXPECT_DOUBLE_EQ(*Samples({7}).percentile(99), 7);
}

TEST(Samples, of_nothing_are_absent_and_not_0) {
  const Samples none;
  EXPECT_FALSE(none.mean() || none.median() || none.stddev() || none.percentile(99) || none.max());
}

// By hand: request a: tokens at 100, 110, 130 ms; b: sent at 50, tokens at 200, 240; c: one token.
TEST(Metrics, are_those_computed_by_hand) {
  const std::vector<RequestResult> results = {
      answered(0, {100, 110, 130}), answered(50, {200, 240}), answered(60, {300}),
      failed("http_503"),           failed("peer_died"),      failed("http_503")};
  const Metrics m = measure(results, {});
  EXPECT_EQ(m.completed, 3U);
  EXPECT_EQ(m.failed, 3U);
  EXPECT_EQ(m.total_input_tokens, 30U);
  EXPECT_EQ(m.total_output_tokens, 6U);
  EXPECT_DOUBLE_EQ(*m.ttft.mean(), 200);
  EXPECT_DOUBLE_EQ(*m.e2el.median(), 240);
  EXPECT_EQ(m.tpot.size(), 2U) << "one token has no time per further token";
  EXPECT_DOUBLE_EQ(*m.tpot.mean(), (15 + 40) / 2.0);
  EXPECT_EQ(m.itl.size(), 3U);
  EXPECT_DOUBLE_EQ(*m.itl.median(), 20);
  EXPECT_DOUBLE_EQ(*m.second_token.percentile(100), 240);
  EXPECT_THAT(m.failures, ElementsAre(Pair("http_503", 2), Pair("peer_died", 1)));
}

// The server's count of tokens stands, not the number of events: two tokens may share one.
TEST(Metrics, count_tokens_as_the_server_does) {
  RequestResult r = answered(0, {100, 130});
  r.output_len = 4;
  EXPECT_DOUBLE_EQ(*measure(std::vector{r}, {}).tpot.mean(), 10);
}

// Answers from 0 to 130, 50 to 290 and 290 to 1400 ms: the last begins as the second ends, and all
// touch the first second.
TEST(Metrics, peaks_are_of_answered_requests_as_in_vllm) {
  const std::vector<RequestResult> results = {answered(0, {100, 110, 130}),
                                              answered(50, {200, 240}), answered(290, {710, 1110}),
                                              failed("http_503")};
  EXPECT_EQ(most_answered_at_once(results), 3U);
  EXPECT_DOUBLE_EQ(most_tokens_a_second(results), 5);
  EXPECT_EQ(most_answered_at_once({}), 0U);
  EXPECT_DOUBLE_EQ(most_tokens_a_second({}), 0);
}

TEST(Metrics, seconds_are_counted_from_the_first_sending_and_have_both_ends_of_a_request) {
  const std::vector<RequestResult> one_after_another = {answered(500, {500, 1000}),
                                                        answered(1500, {400}), answered(2500, {1})};
  EXPECT_EQ(most_answered_at_once(one_after_another), 2U) << "the first ends as second 1 begins";
  EXPECT_EQ(most_answered_at_once(std::vector{answered(500, {999}), answered(1500, {400})}), 1U);
  EXPECT_EQ(most_answered_at_once(std::vector{answered(0, {5500}), answered(3200, {1})}), 2U)
      << "a long one is in every second between its ends";
}

TEST(Metrics, say_how_late_arrivals_were) {
  RequestResult r = answered(50, {100});
  r.due = milliseconds(47);
  EXPECT_DOUBLE_EQ(*measure(std::vector{r}, {}).lateness.max(), 3);
}

TEST(Goodput, counts_requests_that_keep_every_part_of_the_level) {
  const std::vector<RequestResult> results = {answered(0, {100, 110, 130}), answered(0, {200, 240}),
                                              answered(0, {300}), failed("http_503")};
  const auto good = [&](const std::vector<std::string>& level) {
    return measure(results, parse_goodput(level).value()).good;
  };
  EXPECT_EQ(good({"ttft:200"}), 2U);
  EXPECT_EQ(good({"ttft:199"}), 1U);
  EXPECT_EQ(good({"ttft:200", "tpot:20"}), 1U);
  EXPECT_EQ(good({"tpot:20"}), 2U) << "an answer of one token has a TPOT of 0, as in vLLM";
  EXPECT_EQ(good({"e2el:99"}), 0U);
}

}  // namespace
}  // namespace baton::bench
