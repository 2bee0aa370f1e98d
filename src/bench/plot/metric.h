// What a figure can show of a run: the metric, and which number of its distribution.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace baton::bench::plot {

// Milliseconds, but for kGoodput: requests a second that met the SLO.
enum class Metric : std::uint8_t { kTtft, kTpot, kSecondToken, kGoodput, kHandover };
enum class Stat : std::uint8_t { kMean, kMedian, kP90, kP99 };

inline constexpr std::array kMetrics = {Metric::kTtft, Metric::kTpot, Metric::kSecondToken,
                                        Metric::kGoodput, Metric::kHandover};
inline constexpr std::array kStats = {Stat::kMean, Stat::kMedian, Stat::kP90, Stat::kP99};

// As on the command line and in the page's data: "second-token", "p90".
std::string_view name_of(Metric metric);
std::string_view name_of(Stat stat);
std::optional<Metric> metric_named(std::string_view name);
std::optional<Stat> stat_named(std::string_view name);

// Where a result file has it, for messages: "baton.second_token_ms".
std::string_view field_of(Metric metric);

// One value for each metric and statistic; what was not measured stays empty. Goodput is one number
// a run and stands under every statistic.
class Values {
 public:
  std::optional<double>& at(Metric metric, Stat stat) { return values_[index(metric, stat)]; }
  std::optional<double> at(Metric metric, Stat stat) const { return values_[index(metric, stat)]; }

 private:
  static std::size_t index(Metric metric, Stat stat) {
    return static_cast<std::size_t>(metric) * kStats.size() + static_cast<std::size_t>(stat);
  }
  std::array<std::optional<double>, kMetrics.size() * kStats.size()> values_{};
};

}  // namespace baton::bench::plot
