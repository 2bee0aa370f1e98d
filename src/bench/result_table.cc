#include <fmt/format.h>

#include <cmath>

#include "bench/baton_key.h"
#include "bench/result_file.h"
#include "bench/saturation.h"

namespace baton::bench {
namespace {

constexpr int kWidth = 50;

void line(std::string& out, std::string_view name, std::string_view value) {
  out += fmt::format("{:<40} {:<9}\n", name, value);
}

void line(std::string& out, std::string_view name, std::optional<double> value) {
  line(out, name, value ? fmt::format("{:.2f}", *value) : std::string("-"));
}

void add_metric(std::string& out, std::string_view title, std::string_view name,
                const Samples& samples, const std::vector<double>& percents) {
  out += fmt::format("{:-^{}}\n", title, kWidth);
  line(out, fmt::format("Mean {} (ms):", name), samples.mean());
  line(out, fmt::format("Median {} (ms):", name), samples.median());
  for (const double percent : percents) {
    line(out, fmt::format("P{} {} (ms):", percent_word(percent), name),
         samples.percentile(percent));
  }
}

void add_totals(std::string& out, const BenchRun& run) {
  const Metrics& m = run.metrics;
  const double s = std::chrono::duration<double>(run.load.duration).count();
  const auto rate = [s](std::uint64_t n) { return s > 0 ? static_cast<double>(n) / s : 0; };
  line(out, "Successful requests:", std::to_string(m.completed));
  line(out, "Failed requests:", std::to_string(m.failed));
  for (const auto& [cause, count] : m.failures) line(out, "  " + cause, std::to_string(count));
  line(out, "Benchmark duration (s):", s);
  line(out, "Total input tokens:", std::to_string(m.total_input_tokens));
  line(out, "Total generated tokens:", std::to_string(m.total_output_tokens));
  line(out, "Request throughput (req/s):", rate(m.completed));
  if (run.slo.is_set()) line(out, "Request goodput (req/s):", rate(m.good));
  line(out, "Output token throughput (tok/s):", rate(m.total_output_tokens));
  line(out, "Total token throughput (tok/s):", rate(m.total_input_tokens + m.total_output_tokens));
  line(out, "Most open requests:", std::to_string(run.load.most_open));
  line(out, "Arrivals late, P99 (ms):", m.lateness.percentile(99));
}

void add_handover(std::string& out, const BenchRun& run) {
  const MovedBytes bytes = moved_bytes(run);
  if (!bytes.moved) return;
  std::vector<double> totals, holds;
  for (const auto& [id, handover] : run.records.by_transfer) {
    const HandoverSplit split = split_of(handover);
    if (split.total) totals.push_back(*split.total);
    if (split.block_hold) holds.push_back(*split.block_hold);
  }
  out += fmt::format("{:-^{}}\n", "Hand-over", kWidth);
  line(out, "MB moved:", static_cast<double>(*bytes.moved) / 1e6);
  const Samples total(std::move(totals)), hold(std::move(holds));
  line(out, "Prompt computed to D's step, P50 (ms):", total.percentile(50));
  line(out, "Prompt computed to D's step, P99 (ms):", total.percentile(99));
  line(out, "P's blocks held after it, P50 (ms):", hold.percentile(50));
}

}  // namespace

std::string result_table(const PointInfo& point, const BenchOptions& options, const BenchRun& run) {
  const Metrics& m = run.metrics;
  const std::vector<double> percents = parse_percentiles(options.metric_percentiles).value();
  std::string out = fmt::format("{:=^{}}\n", " Serving Benchmark Result ", kWidth);
  if (point.emulated) line(out, "emulated:", point.profile);
  add_totals(out, run);
  const std::vector<std::string> names = parse_metric_names(options.percentile_metrics).value();
  for (const std::string& name : names) {
    if (name == "ttft") {
      add_metric(out, "Time to First Token", "TTFT", m.ttft, percents);
      line(out, "Median time to second token (ms):", m.second_token.median());
    }
    if (name == "tpot") {
      add_metric(out, "Time per Output Token (excl. 1st token)", "TPOT", m.tpot, percents);
    }
    if (name == "itl") add_metric(out, "Inter-token Latency", "ITL", m.itl, percents);
    if (name == "e2el") add_metric(out, "End-to-end Latency", "E2EL", m.e2el, percents);
  }
  add_handover(out, run);
  out += std::string(kWidth, '=') + "\n";
  const Arrivals arrivals = arrivals_of(run.load.results);
  if (is_saturated(arrivals).value_or(false)) {
    out += "Saturated: " + saturation_in_words(arrivals) + "\n";
  }
  if (!point.void_reason.empty()) out += "This run does not count: " + point.void_reason + "\n";
  for (const std::string& trouble : run.records.troubles) out += "no records: " + trouble + "\n";
  return out;
}

}  // namespace baton::bench
