// Mean, median, spread and percentiles, as numpy computes them for `vllm bench serve`.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "baton/result.h"

namespace baton::bench {

// Values of one quantity. Nothing is known of an empty one: every answer is then absent.
class Samples {
 public:
  Samples() = default;
  explicit Samples(std::vector<double> values);

  std::size_t size() const { return sorted_.size(); }
  std::optional<double> mean() const;
  std::optional<double> stddev() const;  // of the population
  std::optional<double> max() const;
  // Between neighbours by their distance; `percent` from 0 to 100.
  std::optional<double> percentile(double percent) const;
  std::optional<double> median() const { return percentile(50); }

 private:
  std::vector<double> sorted_;
};

// "50,90,99.9"; each from 0 to 100.
Result<std::vector<double>> parse_percentiles(std::string_view text);
// "ttft,tpot,itl,e2el" or some of them.
Result<std::vector<std::string>> parse_metric_names(std::string_view text);
// "99" for 99, "99.9" for 99.9: the digits of a result key.
std::string percent_word(double percent);

std::vector<std::string> split_list(std::string_view text, char separator);
// The whole text as a number; absent if it is none.
std::optional<double> to_number(std::string_view text);

}  // namespace baton::bench
