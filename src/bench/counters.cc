#include "bench/counters.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/metric_line.h"
#include "bench/summary.h"

namespace baton::bench {
namespace {

using Field = std::optional<double> Counters::*;
constexpr std::pair<std::string_view, Field> kFields[] = {
    {"baton_emulated_step_seconds_total", &Counters::step_time},
    {"baton_emulated_overrun_seconds_total", &Counters::overrun_time},
    {"baton_emulated_late_seconds_total", &Counters::late_time},
    {"baton_link_busy_seconds_total", &Counters::link_busy},
    {"baton_link_lost_seconds_total", &Counters::link_lost},
    {"baton_emulated_fill_seconds_total", &Counters::fill_time},
    {"baton_emulated_check_seconds_total", &Counters::check_time},
    {"baton_emulated_kv_faults_total", &Counters::kv_faults},
    {"baton_pull_posting_timeouts_total", &Counters::posting_timeouts},
};
constexpr std::string_view kInfo = "baton_emulation_info";

// Shares above which an emulated figure is this machine's rather than the profile's.
constexpr double kLostShare = 0.01;  // of the run
constexpr double kLateShare = 0.05;  // of the steps' time: what the system's timers cost

void read_line(std::string_view line, Counters& out) {
  const std::string_view name = line.substr(0, line.find_first_of("{ "));
  if (name == kInfo) {
    out.profile = metric_label(line, "profile");
    out.scale = to_number(metric_label(line, "kv_bytes_scale"));
    out.link_rate = to_number(metric_label(line, "link_bytes_per_second"));
  }
  for (const auto& [known, field] : kFields) {
    if (name == known) out.*field = to_number(line.substr(line.rfind(' ') + 1));
  }
}

}  // namespace

Counters parse_counters(std::string_view page) {
  Counters out;
  for (const std::string& line : split_list(page, '\n')) {
    if (!line.starts_with('#')) read_line(line, out);
  }
  return out;
}

Counters since(const Counters& before, const Counters& after) {
  Counters out = after;
  for (const auto& [name, field] : kFields) {
    if (!(out.*field)) continue;
    if (before.*field && *(before.*field) <= *(out.*field)) {
      *(out.*field) -= *(before.*field);
    } else {
      (out.*field).reset();
    }
  }
  return out;
}

Counters gained(const std::map<std::string, Counters>& before,
                const std::map<std::string, Counters>& after) {
  const auto page_of = [](const std::map<std::string, Counters>& pages, const std::string& url) {
    const auto found = pages.find(url);
    return found == pages.end() ? Counters{} : found->second;
  };
  std::map<std::string, Counters> all = after;
  all.insert(before.begin(), before.end());
  Counters out;
  bool all_told = true;
  for (const auto& [url, page] : all) {
    const Counters one = since(page_of(before, url), page_of(after, url));
    all_told = all_told && one.step_time.has_value();
    out = together(out, one);
  }
  // What one of them did not tell is not made up for by the others.
  if (!all_told) out.step_time.reset();
  return out;
}

Counters together(const Counters& a, const Counters& b) {
  Counters out = a;
  if (out.profile.empty()) out.profile = b.profile;
  if (!out.scale) out.scale = b.scale;
  if (!out.link_rate) out.link_rate = b.link_rate;
  for (const auto& [name, field] : kFields) {
    if (b.*field) out.*field = (a.*field).value_or(0) + *(b.*field);
  }
  return out;
}

std::string emulation_trouble(const Counters& c, double run_seconds) {
  if (c.kv_faults.value_or(0) > 0) {
    return fmt::format("{:.0f} prompts arrived with wrong KV", *c.kv_faults);
  }
  const double overrun = c.overrun_time.value_or(0), lost = c.link_lost.value_or(0);
  if (overrun > kLostShare * run_seconds) {
    return fmt::format(
        "the cores were the limit: steps took {:.2f} s longer than the profile's "
        "in a run of {:.1f} s",
        overrun, run_seconds);
  }
  if (lost > kLostShare * run_seconds) {
    return fmt::format(
        "the cores were the limit: the link stood still for {:.2f} s of {:.1f} s "
        "although something waited for it",
        lost, run_seconds);
  }
  if (c.posting_timeouts.value_or(0) > 0) {
    return fmt::format(
        "{:.0f} steps went on before their reads were posted: no engine loop any more",
        *c.posting_timeouts);
  }
  const double late = c.late_time.value_or(0), steps = c.step_time.value_or(0);
  if (late > kLateShare * steps) {
    return fmt::format("the cores were the limit: steps of {:.2f} s ended {:.2f} s late", steps,
                       late);
  }
  return "";
}

}  // namespace baton::bench
