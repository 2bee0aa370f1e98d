#include "bench/plot/page_data.h"

#include <fmt/format.h>

#include "bench/plot/json_fields.h"

namespace baton::bench::plot {
namespace {

// A folder's name, short: what stands in the legend beside the mode.
std::string short_label(const ResultSet& set) {
  const std::filesystem::path path(set.label);
  const auto name = path.filename().empty() ? path.parent_path().filename() : path.filename();
  return name.empty() || name == "." ? set.label : name.string();
}

Json source_json(const ResultSet& set, const std::string& label) {
  const Setting& setting = set.results.front().setting;
  return {{"label", label},
          {"emulated", emulated_label(setting)},
          {"variant", setting.emulated ? "" : setting.variant},
          {"first_token", setting.first_token.value_or("")},
          {"prefill", setting.prefill.value_or("")},
          {"results", set.results.size()}};
}

Json values_json(const ResultFile& result) {
  Json out = Json::object();
  for (const Metric metric : kMetrics) {
    Json& stats = out[std::string(name_of(metric))];
    for (const Stat stat : kStats) {
      const auto value = result.values.at(metric, stat);
      stats[std::string(name_of(stat))] = value ? Json(*value) : Json(nullptr);
    }
  }
  return out;
}

Json averages_json(const Summary& summary, const Group& group) {
  Json out = Json::object();
  for (const Metric metric : kMetrics) {
    Json& stats = out[std::string(name_of(metric))];
    for (const Stat stat : kStats) {
      const auto value = average(summary, group, metric, stat);
      stats[std::string(name_of(stat))] = value ? Json{{"mean", value->mean},
                                                       {"min", value->min},
                                                       {"max", value->max},
                                                       {"n", value->n}}
                                                : Json(nullptr);
    }
  }
  return out;
}

Json result_json(const Summary& summary, std::size_t index) {
  const ResultFile& result = *summary.results[index];
  return {{"group", summary.group_of[index]},
          {"file", result.name},
          {"iteration", result.at.iteration},
          {"void", result.void_reason},
          {"saturated", result.saturated},
          {"values", values_json(result)},
          {"detail", Json::parse(result.detail_json)}};
}

}  // namespace

std::string page_data(const std::vector<ResultSet>& sets, const Summary& summary,
                      const View& view) {
  Json data = {{"metric", name_of(view.metric)},
               {"stat", name_of(view.stat)},
               {"input_lens", summary.input_lens}};
  // a/results beside b/results: only the whole path tells them apart.
  const bool same = sets.size() > 1 && short_label(sets[0]) == short_label(sets[1]);
  for (const ResultSet& set : sets) {
    data["sources"].push_back(source_json(set, same ? set.label : short_label(set)));
  }
  data["unlike"] = Json::array();
  if (sets.size() > 1) {
    for (const UnlikeSetting& unlike : unlike_settings(sets[0], sets[1])) {
      data["unlike"].push_back({unlike.name, unlike.ours, unlike.theirs});
    }
  }
  for (const Series& series : summary.series) {
    data["series"].push_back({{"mode", series.mode}, {"source", series.source}});
  }
  for (const Panel& panel : summary.panels) {
    data["panels"].push_back({{"qps", panel.qps}, {"output_len", panel.output_len}});
  }
  for (const Group& group : summary.groups) {
    data["groups"].push_back({{"series", group.series},
                              {"panel", group.panel},
                              {"input_len", group.input_len},
                              {"results", group.results},
                              {"averages", averages_json(summary, group)}});
  }
  for (std::size_t i = 0; i < summary.results.size(); ++i) {
    data["results"].push_back(result_json(summary, i));
  }
  return for_script(to_text(data));
}

std::string for_script(std::string_view json) {
  std::string out;
  out.reserve(json.size());
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (c == '<' || c == '>' || c == '&') {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else if (json.substr(i, 3) == "\u2028" || json.substr(i, 3) == "\u2029") {
      out += json[i + 2] == '\xA8' ? "\\u2028" : "\\u2029";
      i += 2;
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace baton::bench::plot
