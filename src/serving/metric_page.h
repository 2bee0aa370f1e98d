// A page of metrics in Prometheus' text form, built line by line from this project's counters.
// Heavy (prometheus-cpp): for .cc files only.
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <utility>
#include <vector>

#include "base/metrics.h"

namespace baton::serving {

class MetricPage {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  explicit MetricPage(Labels common) : common_(std::move(common)) {}

  void counter(const std::string& name, const std::string& help, double value, Labels labels = {});
  void gauge(const std::string& name, const std::string& help, double value, Labels labels = {});
  void histogram(const std::string& name, const std::string& help, const Histogram& value);

  std::string text() const;

 private:
  prometheus::ClientMetric& add(const std::string& name, const std::string& help,
                                prometheus::MetricType type, const Labels& labels);

  Labels common_;
  std::vector<prometheus::MetricFamily> families_;
};

// What log::failure() counted in this process.
void add_failures(MetricPage& page);

}  // namespace baton::serving
