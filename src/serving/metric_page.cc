#include "serving/metric_page.h"

#include <prometheus/text_serializer.h>

#include <limits>
#include <sstream>

#include "base/failure_log.h"

namespace baton::serving {

prometheus::ClientMetric& MetricPage::add(const std::string& name, const std::string& help,
                                          prometheus::MetricType type, const Labels& labels) {
  if (families_.empty() || families_.back().name != name) {
    families_.push_back({name, help, type, {}});
  }
  prometheus::ClientMetric& metric = families_.back().metric.emplace_back();
  for (const Labels* list : {static_cast<const Labels*>(&common_), &labels}) {
    for (const auto& [label, value] : *list) metric.label.push_back({label, value});
  }
  return metric;
}

void MetricPage::counter(const std::string& name, const std::string& help, double value,
                         Labels labels) {
  add(name, help, prometheus::MetricType::Counter, labels).counter.value = value;
}

void MetricPage::gauge(const std::string& name, const std::string& help, double value,
                       Labels labels) {
  add(name, help, prometheus::MetricType::Gauge, labels).gauge.value = value;
}

void MetricPage::histogram(const std::string& name, const std::string& help,
                           const Histogram& value) {
  prometheus::ClientMetric& metric = add(name, help, prometheus::MetricType::Histogram, {});
  const auto bounds = value.bounds();
  std::uint64_t total = 0;
  for (std::size_t i = 0; i <= bounds.size(); ++i) {
    total += value.count(i);
    const double bound = i < bounds.size() ? bounds[i] : std::numeric_limits<double>::infinity();
    metric.histogram.bucket.push_back({total, bound});
  }
  metric.histogram.sample_count = total;
  metric.histogram.sample_sum = value.sum();
}

void add_failures(MetricPage& page) {
  const std::vector<log::FailureCount> counts = log::failure_counts();
  for (const log::FailureCount& count : counts) {
    page.counter("baton_failures_total", "Failures by cause, each of which is a line of the log.",
                 static_cast<double>(count.total), {{"cause", count.cause}});
  }
  for (const log::FailureCount& count : counts) {
    page.counter("baton_failure_lines_suppressed_total",
                 "Failures whose line was left out because too many of the cause came at once.",
                 static_cast<double>(count.suppressed), {{"cause", count.cause}});
  }
}

std::string MetricPage::text() const {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families_);
  return std::move(out).str();
}

}  // namespace baton::serving
