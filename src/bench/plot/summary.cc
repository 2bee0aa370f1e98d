#include "bench/plot/summary.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace baton::bench::plot {
namespace {

void collect_axes(const std::vector<ResultSet>& sets, Summary& out) {
  std::set<std::uint64_t> inputs;
  std::set<std::pair<std::uint64_t, double>> panels;
  for (const ResultSet& set : sets) {
    for (const ResultFile& result : set.results) {
      inputs.insert(result.at.input_len);
      panels.emplace(result.at.output_len, result.at.qps);
    }
  }
  out.input_lens.assign(inputs.begin(), inputs.end());
  for (const auto& [output_len, qps] : panels) out.panels.push_back({qps, output_len});
}

std::size_t panel_of(const Summary& summary, const GridPoint& at) {
  const auto it = std::ranges::find_if(summary.panels, [&](const Panel& panel) {
    return panel.qps == at.qps && panel.output_len == at.output_len;
  });
  return static_cast<std::size_t>(it - summary.panels.begin());
}

}  // namespace

Summary summarise(const std::vector<ResultSet>& sets) {
  Summary out;
  collect_axes(sets, out);
  std::map<std::tuple<std::size_t, std::size_t, std::uint64_t>, std::size_t> known;
  for (std::size_t source = 0; source < sets.size(); ++source) {
    const std::size_t first_series = out.series.size();
    for (const std::string& mode : sets[source].modes) out.series.push_back({mode, source});
    for (const ResultFile& result : sets[source].results) {
      const auto place = std::ranges::find(sets[source].modes, result.mode);
      const std::size_t series =
          first_series + static_cast<std::size_t>(place - sets[source].modes.begin());
      const std::size_t panel = panel_of(out, result.at);
      const auto [it, is_new] =
          known.try_emplace({series, panel, result.at.input_len}, out.groups.size());
      if (is_new) out.groups.push_back({series, panel, result.at.input_len, {}});
      out.groups[it->second].results.push_back(out.results.size());
      out.group_of.push_back(it->second);
      out.results.push_back(&result);
    }
  }
  return out;
}

std::optional<Average> average(const Summary& summary, const Group& group, Metric metric,
                               Stat stat) {
  Average out;
  double sum = 0;
  for (const std::size_t index : group.results) {
    const ResultFile& result = *summary.results[index];
    const auto value = result.values.at(metric, stat);
    if (!result.void_reason.empty() || !value) continue;
    out.min = out.n == 0 ? *value : std::min(out.min, *value);
    out.max = out.n == 0 ? *value : std::max(out.max, *value);
    sum += *value;
    ++out.n;
  }
  if (out.n == 0) return {};
  out.mean = sum / static_cast<double>(out.n);
  return out;
}

bool has_values(const Summary& summary, Metric metric, Stat stat) {
  return std::ranges::any_of(summary.results, [&](const ResultFile* result) {
    return result->values.at(metric, stat).has_value();
  });
}

}  // namespace baton::bench::plot
