// Iterations averaged, panels and lines in order.
#include "bench/plot/summary.h"

#include <gmock/gmock.h>

#include "bench/plot/testing/results.h"

namespace baton::bench::plot {
namespace {

using ::testing::ElementsAre;
using testing::result_file;

ResultFile with_ttft(std::uint64_t iteration, std::optional<double> ttft) {
  ResultFile result = result_file("push", {8, 1024, 128, iteration});
  result.values.at(Metric::kTtft, Stat::kMean) = ttft;
  return result;
}

std::vector<ResultSet> one_group(std::vector<ResultFile> results) {
  return {{"a", {"push"}, std::move(results)}};
}

TEST(Average, IsOverTheIterationsWithLeastAndMost) {
  const auto sets = one_group({with_ttft(1, 10), with_ttft(2, 40), with_ttft(3, 25)});
  const Summary summary = summarise(sets);
  ASSERT_EQ(summary.groups.size(), 1U);
  const auto value = average(summary, summary.groups[0], Metric::kTtft, Stat::kMean);
  ASSERT_TRUE(value);
  EXPECT_EQ(value->mean, 25);
  EXPECT_EQ(value->min, 10);
  EXPECT_EQ(value->max, 40);
  EXPECT_EQ(value->n, 3U);
}

TEST(Average, LeavesOutVoidResultsAndMissingValues) {
  auto results = std::vector{with_ttft(1, 10), with_ttft(2, 1000), with_ttft(3, std::nullopt)};
  results[1].void_reason = "bytes";
  const auto sets = one_group(std::move(results));
  const Summary summary = summarise(sets);
  const auto value = average(summary, summary.groups[0], Metric::kTtft, Stat::kMean);
  ASSERT_TRUE(value);
  EXPECT_EQ(value->mean, 10);
  EXPECT_EQ(value->n, 1U);
}

TEST(Average, OfNothingIsNothing) {
  auto results = std::vector{with_ttft(1, 10)};
  results[0].void_reason = "bytes";
  const auto sets = one_group(std::move(results));
  const Summary summary = summarise(sets);
  EXPECT_FALSE(average(summary, summary.groups[0], Metric::kTtft, Stat::kMean));
  EXPECT_TRUE(has_values(summary, Metric::kTtft, Stat::kMean));
}

TEST(Summary, HasAPanelARateAndOutputLengthAndALineAModeAndFolder) {
  std::vector<ResultSet> sets;
  for (const char* folder : {"a", "b"}) {
    ResultSet set{folder, {"pull", "push"}, {}};
    for (const char* mode : {"pull", "push"}) {
      for (const GridPoint& at : {GridPoint{8, 2048, 128, 1}, GridPoint{1, 1024, 128, 1},
                                  GridPoint{1, 1024, 1, 1}, GridPoint{1, 1024, 1, 2}}) {
        set.results.push_back(result_file(mode, at));
      }
    }
    sets.push_back(std::move(set));
  }
  const Summary summary = summarise(sets);
  ASSERT_EQ(summary.panels.size(), 3U);
  EXPECT_EQ(summary.panels[0].output_len, 1U);
  EXPECT_EQ(summary.panels[1].qps, 1);
  EXPECT_EQ(summary.panels[2].qps, 8);
  EXPECT_THAT(summary.input_lens, ElementsAre(1024, 2048));
  EXPECT_EQ(summary.series.size(), 4U);
  EXPECT_EQ(summary.results.size(), 16U);
  EXPECT_EQ(summary.groups.size(), 12U);
  for (std::size_t i = 0; i < summary.results.size(); ++i) {
    const Group& group = summary.groups[summary.group_of[i]];
    EXPECT_THAT(group.results, ::testing::Contains(i));
    EXPECT_EQ(summary.series[group.series].mode, summary.results[i]->mode);
    EXPECT_EQ(summary.panels[group.panel].qps, summary.results[i]->at.qps);
  }
}

}  // namespace
}  // namespace baton::bench::plot
