#include "bench/plot/metric.h"

namespace baton::bench::plot {
namespace {

struct MetricText {
  Metric metric;
  std::string_view name, field;
};
constexpr std::array kMetricTexts = {
    MetricText{Metric::kTtft, "ttft", "mean_ttft_ms"},
    MetricText{Metric::kTpot, "tpot", "mean_tpot_ms"},
    MetricText{Metric::kSecondToken, "second-token", "baton.second_token_ms"},
    MetricText{Metric::kGoodput, "goodput", "baton.goodput.requests_per_s"},
    MetricText{Metric::kHandover, "handover", "baton.handover_ms.total"}};
constexpr std::array<std::string_view, kStats.size()> kStatNames = {"mean", "median", "p90", "p99"};

}  // namespace

std::string_view name_of(Metric metric) {
  return kMetricTexts[static_cast<std::size_t>(metric)].name;
}

std::string_view field_of(Metric metric) {
  return kMetricTexts[static_cast<std::size_t>(metric)].field;
}

std::string_view name_of(Stat stat) {
  return kStatNames[static_cast<std::size_t>(stat)];
}

std::optional<Metric> metric_named(std::string_view name) {
  for (const MetricText& text : kMetricTexts) {
    if (text.name == name) return text.metric;
  }
  return {};
}

std::optional<Stat> stat_named(std::string_view name) {
  for (const Stat stat : kStats) {
    if (name_of(stat) == name) return stat;
  }
  return {};
}

}  // namespace baton::bench::plot
