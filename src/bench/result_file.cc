#include "bench/result_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "bench/baton_key.h"
#include "serving/json.h"

namespace baton::bench {
namespace {

using serving::Json;

// Of this host's cores together. Above it what is measured is the machine: an emulated engine's
// waits end late, and a real one's threads, the router and the load wait for each other.
constexpr double kBusiestCores = 0.9;
constexpr double kThrottledShare = 0.01;  // of the run, by a CPU quota

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

double seconds(const BenchRun& run) {
  return std::chrono::duration<double>(run.load.duration).count();
}

Json a_second(const BenchRun& run, double count) {
  return seconds(run) > 0 ? Json(count / seconds(run)) : Json(nullptr);
}

void add_settings(const BenchOptions& o, const BenchRun& run, Json& out) {
  out["date"] = run.date;
  out["endpoint_type"] = o.backend;
  out["backend"] = o.backend;
  out["label"] = o.label.empty() ? Json(nullptr) : Json(o.label);
  out["model_id"] = run.model_id;
  out["tokenizer_id"] = o.tokenizer.empty() ? run.model_id : o.tokenizer;
  out["num_prompts"] = run.load.results.size();
  for (const std::string& item : o.metadata) {
    const std::size_t at = item.find('=');
    out[item.substr(0, at)] = item.substr(at + 1);
  }
  out["request_rate"] = std::isinf(o.request_rate) ? Json("inf") : Json(o.request_rate);
  out["burstiness"] = std::isinf(o.burstiness) ? Json("inf") : Json(o.burstiness);
  out["max_concurrency"] = or_null(o.max_concurrency);
}

void add_totals(const BenchRun& run, Json& out) {
  const Metrics& m = run.metrics;
  out["duration"] = seconds(run);
  out["completed"] = m.completed;
  out["failed"] = m.failed;
  out["total_input_tokens"] = m.total_input_tokens;
  out["total_output_tokens"] = m.total_output_tokens;
  out["request_throughput"] = a_second(run, static_cast<double>(m.completed));
  out["request_goodput"] =
      run.slo.is_set() ? a_second(run, static_cast<double>(m.good)) : Json(nullptr);
  out["output_throughput"] = a_second(run, static_cast<double>(m.total_output_tokens));
  out["total_token_throughput"] =
      a_second(run, static_cast<double>(m.total_input_tokens + m.total_output_tokens));
  out["max_output_tokens_per_s"] = most_tokens_a_second(run.load.results);
  out["max_concurrent_requests"] = most_answered_at_once(run.load.results);
}

const Samples& metric(const Metrics& m, std::string_view name) {
  if (name == "ttft") return m.ttft;
  if (name == "tpot") return m.tpot;
  return name == "itl" ? m.itl : m.e2el;
}

void add_metrics(const BenchOptions& o, const BenchRun& run, Json& out) {
  const std::vector<double> percents = parse_percentiles(o.metric_percentiles).value();
  const std::vector<std::string> names = parse_metric_names(o.percentile_metrics).value();
  for (const std::string& name : names) {
    const Samples& samples = metric(run.metrics, name);
    out[fmt::format("mean_{}_ms", name)] = or_null(samples.mean());
    out[fmt::format("median_{}_ms", name)] = or_null(samples.median());
    out[fmt::format("std_{}_ms", name)] = or_null(samples.stddev());
    for (const double percent : percents) {
      out[fmt::format("p{}_{}_ms", percent_word(percent), name)] =
          or_null(samples.percentile(percent));
    }
  }
}

// Seconds, one entry a request, failed ones included, as `vllm bench serve --save-detailed` has it.
void add_details(const BenchRun& run, Json& out) {
  Json input = Json::array(), output = Json::array(), ttfts = Json::array(), itls = Json::array();
  Json texts = Json::array(), errors = Json::array(), starts = Json::array();
  Json latencies = Json::array(), queued = Json::array();
  for (const RequestResult& r : run.load.results) {
    input.push_back(r.input_len);
    output.push_back(r.ok ? r.output_len : 0);
    ttfts.push_back(r.first ? Json(r.ttft_ms() / 1e3) : Json(nullptr));
    itls.push_back(r.gaps);
    starts.push_back(
        std::chrono::duration<double>(run.load.start.time_since_epoch() + r.sent).count());
    latencies.push_back(r.ok ? Json(r.e2el_ms() / 1e3) : Json(nullptr));
    queued.push_back(RequestResult::ms(r.sent - r.due) / 1e3);
    texts.push_back(r.text);
    errors.push_back(r.error);
  }
  out["input_lens"] = std::move(input);
  out["output_lens"] = std::move(output);
  out["ttfts"] = std::move(ttfts);
  out["itls"] = std::move(itls);
  out["start_times"] = std::move(starts);
  out["latencies"] = std::move(latencies);
  out["queue_times"] = std::move(queued);
  out["generated_texts"] = std::move(texts);
  out["errors"] = std::move(errors);
}

// One answer of a hundred is no figure of the load that the point is named after.
std::string failures_in_words(const BenchRun& run) {
  const auto first = std::ranges::find(run.load.results, false, &RequestResult::ok);
  return fmt::format("{} of {} requests failed; the first: {}: {}", run.metrics.failed,
                     run.load.results.size(), first->cause, first->error);
}

// One that moved too much makes up for no other.
std::string unlike_in_words(const MovedBytes& bytes) {
  if (bytes.moved != bytes.expected) return "";
  return fmt::format(", but {} hand-overs did not move their own", bytes.unlike);
}

// The figures are named after a length that the server did not give. Events are no tokens: where
// the server counts none, nobody knows.
std::string short_answers(const BenchRun& run) {
  const auto is_other = [](const RequestResult& r) {
    return r.ok && r.is_counted && r.asked_len != 0 && r.output_len != r.asked_len;
  };
  const auto first = std::ranges::find_if(run.load.results, is_other);
  if (first == run.load.results.end()) return "";
  return fmt::format(
      "{} of {} answers have another length than was asked for; the first: {} tokens instead of {}",
      std::ranges::count_if(run.load.results, is_other), run.load.results.size(), first->output_len,
      first->asked_len);
}

bool is_loopback(std::string_view url) {
  const std::size_t scheme = url.find("://");
  if (scheme != url.npos) url.remove_prefix(scheme + 3);
  return url.starts_with("127.") || url.starts_with("localhost") || url.starts_with("[::1]");
}

}  // namespace

PointInfo point_of(const BenchOptions& o, const BenchRun& run) {
  PointInfo point;
  point.mode = o.mode;
  if (!std::isinf(o.request_rate)) point.qps = o.request_rate;
  if (o.dataset_name == "random") {
    point.input_len = o.random_prefix_len + o.random_input_len;
    point.output_len = o.random_output_len;
  }
  for (const InstanceFacts& facts : run.records.decode) {
    if (point.mode.empty()) point.mode = facts.mode;
  }
  point.emulated = !run.counters.profile.empty();
  point.profile = run.counters.profile;
  point.link_rate = run.counters.link_rate;
  for (const std::string& url : {root_url(o), o.prefill_url, o.decode_url}) {
    if (!url.empty() && !is_loopback(url)) point.servers_are_elsewhere = true;
  }
  return point;
}

std::string void_reason(const PointInfo& point, const BenchOptions& options, const BenchRun& run) {
  if (run.load.results.empty()) return "no request was sent";
  // First: a server that is gone says nothing of its hand-overs either.
  if (run.metrics.failed > 0) return failures_in_words(run);
  const MovedBytes bytes = moved_bytes(run);
  if (bytes.missing > 0) {
    return fmt::format(
        "{} of {} hand-overs have no record: more than the servers keep "
        "(--transfer-records)?",
        bytes.missing, run.metrics.completed);
  }
  if (point.hands_over && bytes.not_handed_over > 0) {
    return fmt::format("{} of {} answers came without a hand-over", bytes.not_handed_over,
                       run.metrics.completed);
  }
  // A P that remembers prompts computes less than what the point is named after.
  if (bytes.cached_at_prefill > 0 && point.prefill == "computed") {
    return fmt::format(
        "P found {} prompt tokens in its prefix cache, and they were to be computed: start it "
        "again, or with --no-enable-prefix-caching",
        bytes.cached_at_prefill);
  }
  if (bytes.moved && !bytes.expected && point.hands_over) {
    return "nobody says how many bytes the full prompts have";
  }
  if (bytes.expected && bytes.unlike > 0) {
    const std::string why =
        bytes.cached_at_decode == 0
            ? ""
            : fmt::format(": D found {} prompt tokens in its prefix cache", bytes.cached_at_decode);
    return fmt::format("bytes moved {}, and the full prompts have {}{}{}", *bytes.moved,
                       *bytes.expected, unlike_in_words(bytes), why);
  }
  if (const std::string why = short_answers(run); !why.empty()) return why;
  const double late = run.metrics.lateness.percentile(99).value_or(0);
  if (!options.max_concurrency && late > 100) {
    return fmt::format("the load came late: p99 {:.0f} ms", late);
  }
  if (run.cpu_busy_share.value_or(0) > kBusiestCores) {
    return fmt::format(
        "the {}cores were the limit: {:.0f} % busy, and a point that counts has at most {:.0f} %",
        point.servers_are_elsewhere ? "driver's " : "", *run.cpu_busy_share * 100,
        kBusiestCores * 100);
  }
  const double throttled = run.cpu_throttled_s.value_or(0);
  if (throttled > kThrottledShare * seconds(run)) {
    return fmt::format(
        "the cores were the limit: the CPU quota of this control group held back {:.2f} CPU "
        "seconds in a run of {:.1f} s",
        throttled, seconds(run));
  }
  if (!point.emulated) return "";
  if (!run.counters.step_time) {
    return "the emulated servers did not say whether their steps ended in time";
  }
  return emulation_trouble(run.counters, seconds(run));
}

std::string result_json(const PointInfo& point, const BenchOptions& options, const BenchRun& run) {
  Json out = Json::object();
  add_settings(options, run, out);
  add_totals(run, out);
  add_metrics(options, run, out);
  if (options.save_detailed) add_details(run, out);
  out["baton"] = baton_key(point, options, run);
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string result_path(const BenchOptions& o, const BenchRun& run) {
  std::filesystem::path path = o.result_dir.empty() ? "." : o.result_dir;
  if (!o.result_filename.empty()) return path / o.result_filename;
  std::string model = run.model_id.substr(run.model_id.find_last_of('/') + 1);
  const std::string rate = std::isinf(o.request_rate) ? "inf" : fmt::format("{}", o.request_rate);
  const std::string at_most =
      o.max_concurrency ? fmt::format("-concurrency{}", *o.max_concurrency) : "";
  return path / fmt::format("{}-{}qps{}-{}-{}.json", o.label.empty() ? o.backend : o.label, rate,
                            at_most, model, run.date);
}

Status check_result_dir(const BenchOptions& o) {
  std::filesystem::path dir = o.result_dir.empty() ? "." : o.result_dir;
  dir = (dir / o.result_filename).parent_path() / "";
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (std::filesystem::is_directory(dir, error) && ::access(dir.c_str(), W_OK) == 0) return {};
  return fail(Errc::kInvalidArgument,
              fmt::format("--result-dir: cannot write into '{}'", dir.string()));
}

Status write_file(const std::string& path, const std::string& text) {
  const std::filesystem::path target(path);
  std::error_code error;
  if (target.has_parent_path()) std::filesystem::create_directories(target.parent_path(), error);
  const std::string beside = path + ".part";
  {
    std::ofstream file(beside, std::ios::binary | std::ios::trunc);
    file << text;
    file.flush();
    if (!file) return fail(Errc::kIo, fmt::format("cannot write '{}'", beside));
  }
  std::filesystem::rename(beside, target, error);
  if (error) return fail(Errc::kIo, fmt::format("cannot write '{}': {}", path, error.message()));
  return {};
}

}  // namespace baton::bench
