#include "bench/plot/result_file.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

#include "bench/plot/requests.h"
#include "bench/plot/text_file.h"

namespace baton::bench::plot {
namespace {

constexpr std::uint64_t kSchema = 1;
constexpr std::array<std::string_view, 4> kDistribution = {"mean", "p50", "p90", "p99"};
constexpr std::array<std::string_view, 13> kPhases = {
    "front_end",  "decode_front_end", "queue",      "prefill_queue",
    "prefill",    "register_wait",    "match",      "post",
    "wire",       "detect",           "first_step", "total",
    "first_token"};

// Takes "_qps8" and its like off the end of the name.
template <typename Number>
bool take_back(std::string_view& name, std::string_view tag, Number& value) {
  const std::size_t at = name.rfind(tag);
  if (at == std::string_view::npos) return false;
  const std::string_view digits = name.substr(at + tag.size());
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) return false;
  name = name.substr(0, at);
  return true;
}

Json or_null(const std::optional<double>& value) {
  return value ? Json(*value) : Json(nullptr);
}

// The shape that every distribution of ours has.
Json distribution(Fields fields) {
  if (!fields.present()) return nullptr;
  Json out = Json::object();
  for (const std::string_view key : kDistribution) {
    out[std::string(key)] = or_null(fields.number(key));
  }
  return out;
}

Json numbers(Fields fields, std::initializer_list<std::string_view> keys) {
  if (!fields.present()) return nullptr;
  Json out = Json::object();
  for (const std::string_view key : keys) out[std::string(key)] = or_null(fields.number(key));
  return out;
}

std::optional<double> number_of(const Json& object, std::string_view key) {
  const auto it = object.is_object() ? object.find(std::string(key)) : object.end();
  return it != object.end() && it->is_number() ? std::optional(it->get<double>()) : std::nullopt;
}

void take(Values& values, Metric metric, const Json& spread) {
  values.at(metric, Stat::kMean) = number_of(spread, "mean");
  values.at(metric, Stat::kMedian) = number_of(spread, "p50");
  values.at(metric, Stat::kP90) = number_of(spread, "p90");
  values.at(metric, Stat::kP99) = number_of(spread, "p99");
}

// vllm bench serve's: mean_ttft_ms, median_ttft_ms, p99_ttft_ms. Which percentiles there are is a
// flag of it.
Json vllm_distribution(Fields& top, std::string_view metric) {
  const auto median = top.number(fmt::format("median_{}_ms", metric));
  const auto p50 = top.number(fmt::format("p50_{}_ms", metric));
  return {{"mean", or_null(top.number(fmt::format("mean_{}_ms", metric)))},
          {"p50", or_null(median ? median : p50)},
          {"p90", or_null(top.number(fmt::format("p90_{}_ms", metric)))},
          {"p99", or_null(top.number(fmt::format("p99_{}_ms", metric)))}};
}

// What makes it a result of vllm bench serve's at all.
void read_top(Fields& top, ResultFile& result, Json& detail) {
  top.need_count("completed");
  top.need_number("duration");
  for (const char* key : {"mean_ttft_ms", "mean_tpot_ms"}) {
    if (top.present() && !top.raw()->contains(key)) top.complain(key, "is missing");
  }
  for (const char* key : {"completed", "failed", "duration", "num_prompts", "request_throughput",
                          "output_throughput"}) {
    detail[key] = or_null(top.number(key));
  }
  detail["date"] = top.text("date").value_or("");
  for (const char* metric : {"ttft", "tpot", "itl", "e2el"}) {
    detail[metric] = vllm_distribution(top, metric);
  }
  take(result.values, Metric::kTtft, detail["ttft"]);
  take(result.values, Metric::kTpot, detail["tpot"]);
  for (const Stat stat : kStats) {
    result.values.at(Metric::kGoodput, stat) = top.number("request_goodput");
  }
}

template <typename T>
void must_equal(Fields& baton, std::string_view key, const T& there, const T& in_name) {
  if (there != in_name) {
    baton.complain(key, fmt::format("is {}, but the file's name says {}", there, in_name));
  }
}

void read_point(Fields& baton, ResultFile& result) {
  const std::uint64_t schema = baton.need_count("schema");
  if (schema != kSchema) {
    baton.complain("schema", fmt::format("is {}, and {} is read", schema, kSchema));
  }
  must_equal(baton, "mode", printable(baton.need_text("mode")), printable(result.mode));
  must_equal(baton, "qps", baton.need_number("qps"), result.at.qps);
  must_equal(baton, "input_len", baton.need_count("input_len"), result.at.input_len);
  must_equal(baton, "output_len", baton.need_count("output_len"), result.at.output_len);
  must_equal(baton, "iteration", baton.need_count("iteration"), result.at.iteration);
  result.seed = baton.count("seed");
}

// What is within an object has the names of both: "servers.decode.max_num_seqs".
void add_settings(const std::string& path, const Json& object,
                  std::map<std::string, std::string>& out) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) {
      add_settings(path + key + ".", value, out);
    } else {
      out[path + key] = to_text(value);
    }
  }
}

void read_setting(Fields& baton, Setting& setting) {
  // Null: of running servers that nobody could ask.
  setting.first_token = baton.text("first_token");
  setting.prefill = baton.text("prefill");
  setting.variant = baton.text("variant").value_or("");
  const Fields all = baton.object("settings");
  if (all.present()) add_settings("", *all.raw(), setting.all);
  setting.emulated = baton.need_flag("emulated");
  const auto scale = baton.number("scale");
  if (!setting.emulated) return;
  // An emulated point that cannot say of what must not be drawn as if it were one.
  setting.profile = baton.need_text("profile");
  setting.scale = scale.value_or(0);
  if (setting.scale < 1) baton.complain("scale", "is missing or below 1, but emulated is true");
}

void read_void(Fields& baton, ResultFile& result) {
  Fields bytes = baton.object("bytes");
  const auto moved = bytes.count("moved");
  const auto expected = bytes.count("expected");
  if (const auto reason = baton.text("void")) {
    result.void_reason = reason->empty() ? "no reason given" : *reason;
  } else if (moved && expected && *moved != *expected) {
    result.void_reason = fmt::format("bytes moved {}, expected {}", *moved, *expected);
  }
}

// As a sweep holds its own: what was answered says nothing of what was not, and of none the means
// are written as zero. Older files have no "failed".
void void_if_failed(Fields& top, ResultFile& result) {
  const auto completed = top.count("completed");
  if (!result.void_reason.empty() || !completed) return;
  const auto sent = top.count("num_prompts");
  const std::uint64_t unanswered = sent && *sent > *completed ? *sent - *completed : 0;
  const std::uint64_t failed = top.count("failed").value_or(unanswered);
  if (failed > 0) {
    result.void_reason = fmt::format("{} of {} requests failed", failed, *completed + failed);
  } else if (*completed == 0) {
    result.void_reason = "no request was answered";
  }
}

Json texts(Fields fields) {
  if (!fields.present()) return nullptr;
  Json out = Json::object();
  for (const auto& [key, value] : fields.raw()->items()) {
    out[key] = value.is_string() ? value : Json(to_text(value));
  }
  return out;
}

Json failures(Fields fields) {
  if (!fields.present()) return nullptr;
  Json out = Json::object();
  for (const auto& [cause, n] : fields.raw()->items()) out[cause] = or_null(fields.number(cause));
  return out;
}

Json handover(Fields fields) {
  if (!fields.present()) return nullptr;
  Json out = Json::object();
  for (const std::string_view phase : kPhases) {
    Json spread = distribution(fields.object(phase));
    if (!spread.is_null()) out[std::string(phase)] = std::move(spread);
  }
  return out;
}

void read_explanation(Fields& baton, Json& detail) {
  detail["handover"] = handover(baton.object("handover_ms"));
  detail["block_hold"] = distribution(baton.object("block_hold_ms"));
  detail["second_token"] = distribution(baton.object("second_token_ms"));
  detail["bytes"] = numbers(baton.object("bytes"), {"moved", "expected"});
  detail["slots"] = numbers(baton.object("slots"), {"max", "mean", "p99"});
  Fields pool = baton.object("kv_pool");
  for (const char* side : {"prefill", "decode"}) {
    Fields of_side = pool.object(side);
    Json& out = detail["kv_pool"][side] = numbers(of_side, {"blocks", "most_used"});
    if (!out.is_null()) out["full"] = of_side.flag("full").value_or(false);
  }
  detail["link"] = numbers(baton.object("link"), {"rate_bytes_per_s", "busy_share"});
  detail["compute"] = numbers(baton.object("compute"), {"prefill_busy_share", "decode_busy_share"});
  detail["machine"] = numbers(baton.object("machine"), {"cpu_busy_share"});
  detail["arrivals"] = numbers(baton.object("arrivals"),
                               {"offered_per_s", "answered_per_s", "open_at_last_arrival"});
  detail["writes"] = or_null(baton.number("writes"));
  detail["runs"] = or_null(baton.number("runs"));
  detail["failures"] = failures(baton.object("failures"));
  detail["environment"] = texts(baton.object("environment"));
  Fields goodput = baton.object("goodput");
  detail["slo"] = texts(goodput.object("slo"));
}

void read_baton(Fields& baton, ResultFile& result, Json& detail) {
  read_point(baton, result);
  read_setting(baton, result.setting);
  read_void(baton, result);
  result.saturated = baton.flag("saturated").value_or(false);
  read_explanation(baton, detail);
  take(result.values, Metric::kSecondToken, detail["second_token"]);
  if (detail["handover"].is_object() && detail["handover"].contains("total")) {
    take(result.values, Metric::kHandover, detail["handover"]["total"]);
  }
  if (const auto goodput = baton.object("goodput").number("requests_per_s")) {
    for (const Stat stat : kStats) result.values.at(Metric::kGoodput, stat) = *goodput;
  }
}

}  // namespace

std::optional<FileName> parse_file_name(std::string_view name) {
  constexpr std::string_view kEnd = ".json";
  if (!name.ends_with(kEnd)) return {};
  name.remove_suffix(kEnd.size());
  FileName out;
  if (!take_back(name, "_iter", out.at.iteration) || !take_back(name, "_out", out.at.output_len) ||
      !take_back(name, "_in", out.at.input_len) || !take_back(name, "_qps", out.at.qps)) {
    return {};
  }
  if (name.empty() || !std::isfinite(out.at.qps) || out.at.qps <= 0) return {};
  out.mode = name;
  return out;
}

std::string emulated_label(const Setting& setting) {
  if (!setting.emulated) return {};
  return fmt::format("emulated: {}, bytes / {}{}{}", setting.profile, setting.scale,
                     setting.variant.empty() ? "" : ", ", setting.variant);
}

Result<ResultFile> parse_result(std::string_view file_name, const FileName& name,
                                std::string_view text, std::size_t requests_max) {
  const std::string shown = printable(file_name);
  const Result<Json> json = parse_json(text);
  if (!json) return fail(json.error().code, fmt::format("{}: {}", shown, json.error().message));
  ResultFile result;
  result.name = file_name;
  result.mode = name.mode;
  result.at = name.at;
  Json detail = Json::object();
  std::string complaint;
  Fields top(&*json, "", complaint);
  read_top(top, result, detail);
  Fields baton = top.object("baton");
  result.requests_json = "[]";
  if (baton.present()) {
    read_baton(baton, result, detail);
    result.requests_json = to_text(read_requests(baton, requests_max, complaint));
    const Json* all = baton.find("requests");
    detail["requests"] = all == nullptr ? 0 : all->size();
  }
  void_if_failed(top, result);
  if (!complaint.empty()) return fail(Errc::kCorrupt, fmt::format("{}: {}", shown, complaint));
  result.detail_json = to_text(detail);
  return result;
}

}  // namespace baton::bench::plot
