#include "bench/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

namespace baton::bench {

Samples::Samples(std::vector<double> values) : sorted_(std::move(values)) {
  std::sort(sorted_.begin(), sorted_.end());
}

std::optional<double> Samples::mean() const {
  if (sorted_.empty()) return {};
  const double sum = std::accumulate(sorted_.begin(), sorted_.end(), 0.0);
  return sum / static_cast<double>(sorted_.size());
}

std::optional<double> Samples::stddev() const {
  if (sorted_.empty()) return {};
  const double middle = *mean();
  double squares = 0;
  for (const double value : sorted_) squares += (value - middle) * (value - middle);
  return std::sqrt(squares / static_cast<double>(sorted_.size()));
}

std::optional<double> Samples::max() const {
  if (sorted_.empty()) return {};
  return sorted_.back();
}

std::optional<double> Samples::percentile(double percent) const {
  if (sorted_.empty()) return {};
  const double place = percent / 100 * static_cast<double>(sorted_.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted_.size() - 1);
  const double share = place - static_cast<double>(below);
  return sorted_[below] + (sorted_[above] - sorted_[below]) * share;
}

std::vector<std::string> split_list(std::string_view text, char separator) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const std::size_t at = std::min(text.find(separator), text.size());
    if (at > 0) out.emplace_back(text.substr(0, at));
    text.remove_prefix(std::min(at + 1, text.size()));
  }
  return out;
}

std::optional<double> to_number(std::string_view text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != end || std::isnan(value)) return {};
  return value;
}

Result<std::vector<double>> parse_percentiles(std::string_view text) {
  std::vector<double> out;
  for (const std::string& item : split_list(text, ',')) {
    const std::optional<double> value = to_number(item);
    if (!value || *value < 0 || *value > 100) {
      return fail(
          Errc::kInvalidArgument,
          fmt::format("--metric-percentiles must be numbers from 0 to 100, and holds '{}'", item));
    }
    out.push_back(*value);
  }
  return out;
}

Result<std::vector<std::string>> parse_metric_names(std::string_view text) {
  std::vector<std::string> out = split_list(text, ',');
  for (const std::string& name : out) {
    if (name != "ttft" && name != "tpot" && name != "itl" && name != "e2el") {
      return fail(Errc::kInvalidArgument,
                  fmt::format("--percentile-metrics must be some of ttft, tpot, itl, e2el, and "
                              "holds '{}'",
                              name));
    }
  }
  return out;
}

std::string percent_word(double percent) {
  return fmt::format("{}", percent);
}

}  // namespace baton::bench
