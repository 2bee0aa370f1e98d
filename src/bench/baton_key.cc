#include "bench/baton_key.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/saturation.h"
#include "serving/host_info.h"
#include "serving/json.h"
#include "serving/version.h"

namespace baton::bench {
namespace {

using serving::Json;

constexpr int kSchema = 1;

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json text_or_null(const std::string& text) {
  return text.empty() ? Json(nullptr) : Json(text);
}

Json shape(const Samples& samples) {
  return {{"mean", or_null(samples.mean())},
          {"p50", or_null(samples.percentile(50))},
          {"p90", or_null(samples.percentile(90))},
          {"p99", or_null(samples.percentile(99))}};
}

Json shape_with_spread(const Samples& samples) {
  return {{"mean", or_null(samples.mean())},        {"median", or_null(samples.median())},
          {"std", or_null(samples.stddev())},       {"p50", or_null(samples.percentile(50))},
          {"p90", or_null(samples.percentile(90))}, {"p99", or_null(samples.percentile(99))}};
}

const Handover* handover_of(const BenchRun& run, const RequestResult& result) {
  const auto it = run.records.by_transfer.find(result.transfer_id);
  return it == run.records.by_transfer.end() ? nullptr : &it->second;
}

ClientMoments moments_of(const BenchRun& run, const RequestResult& result) {
  const std::int64_t zero = run.load.start.time_since_epoch().count();
  return {zero + result.sent.count(), result.first ? zero + result.first->count() : 0};
}

// Of the answered requests, in their order.
std::vector<const Handover*> handovers(const BenchRun& run) {
  std::vector<const Handover*> out;
  for (const RequestResult& result : run.load.results) {
    const Handover* handover = result.ok ? handover_of(run, result) : nullptr;
    if (handover != nullptr) out.push_back(handover);
  }
  return out;
}

using Part = std::optional<double> HandoverSplit::*;
constexpr std::pair<const char*, Part> kParts[] = {
    {"front_end", &HandoverSplit::front_end},
    {"decode_front_end", &HandoverSplit::decode_front_end},
    {"queue", &HandoverSplit::queue},
    {"prefill_queue", &HandoverSplit::prefill_queue},
    {"prefill", &HandoverSplit::prefill},
    {"register_wait", &HandoverSplit::register_wait},
    {"match", &HandoverSplit::match},
    {"post", &HandoverSplit::post},
    {"wire", &HandoverSplit::wire},
    {"detect", &HandoverSplit::detect},
    {"first_step", &HandoverSplit::first_step},
    {"total", &HandoverSplit::total},
    {"first_token", &HandoverSplit::first_token}};

Samples samples_of(const std::vector<HandoverSplit>& splits, Part part) {
  std::vector<double> values;
  for (const HandoverSplit& split : splits) {
    if (split.*part) values.push_back(*(split.*part));
  }
  return Samples(std::move(values));
}

// A part that no request has is absent: the mode has none.
void add_splits(const BenchRun& run, Json& out) {
  std::vector<HandoverSplit> splits;
  for (const RequestResult& result : run.load.results) {
    const Handover* handover = result.ok ? handover_of(run, result) : nullptr;
    if (handover != nullptr) splits.push_back(split_of(*handover, moments_of(run, result)));
  }
  Json parts = Json::object();
  for (const auto& [name, part] : kParts) {
    const Samples samples = samples_of(splits, part);
    if (samples.size() > 0) parts[name] = shape(samples);
  }
  out["handover_ms"] = std::move(parts);
  out["block_hold_ms"] = shape(samples_of(splits, &HandoverSplit::block_hold));
}

void add_bytes(const BenchRun& run, Json& out) {
  const MovedBytes bytes = moved_bytes(run);
  out["bytes"] = {{"moved", or_null(bytes.moved)}, {"expected", or_null(bytes.expected)}};
  std::uint64_t writes = 0, runs = 0;
  for (const Handover* handover : handovers(run)) {
    writes += handover->writes;
    runs += handover->runs;
  }
  out["writes"] = writes == 0 ? Json(nullptr) : Json(writes);
  out["runs"] = runs == 0 ? Json(nullptr) : Json(runs);
}

Interval whole_run(const BenchRun& run) {
  const std::int64_t begin = run.load.start.time_since_epoch().count();
  return {begin, begin + run.load.duration.count()};
}

// The share of the run during which at least one request was between these moments.
template <typename Begin, typename End>
Json busy_share(const BenchRun& run, Begin begin, End end) {
  std::vector<Interval> intervals;
  for (const Handover* h : handovers(run)) {
    const Interval i = {begin(*h), end(*h)};
    if (i.begin != 0 && i.end >= i.begin) intervals.push_back(i);
  }
  const Interval whole = whole_run(run);
  if (intervals.empty() || whole.end <= whole.begin) return nullptr;
  return static_cast<double>(covered(std::move(intervals), whole)) /
         static_cast<double>(whole.end - whole.begin);
}

// An emulated link counts its own time.
Json link_share(const BenchRun& run) {
  const double seconds = std::chrono::duration<double>(run.load.duration).count();
  return seconds > 0 ? Json(*run.counters.link_busy / seconds) : Json(nullptr);
}

// What an emulation cost this machine: where `overrun_s`, `late_s` and `link_lost_s` are small, the
// figures are the profile's.
Json emulation_json(const PointInfo& point, const Counters& c) {
  if (!point.emulated) return nullptr;
  return {{"overrun_s", or_null(c.overrun_time)}, {"late_s", or_null(c.late_time)},
          {"link_lost_s", or_null(c.link_lost)},  {"step_s", or_null(c.step_time)},
          {"fill_s", or_null(c.fill_time)},       {"check_s", or_null(c.check_time)}};
}

// Blocks, as sampled during the load. `full`: the longest request of it would not have fitted in.
Json pool_json(const std::optional<PoolUse>& use, const BenchRun& run, bool with_answer) {
  if (!use) return nullptr;
  std::uint64_t tokens = 0;
  for (const RequestResult& r : run.load.results) {
    tokens = std::max(tokens, std::uint64_t{r.input_len} + (with_answer ? r.output_len : 0));
  }
  return {{"blocks", use->blocks}, {"most_used", use->most_used}, {"full", is_full(*use, tokens)}};
}

void add_load(const PointInfo& point, const BenchRun& run, Json& out) {
  std::vector<Interval> slots;
  for (const Handover* h : handovers(run)) {
    // One that still waits for its KV cache takes blocks, and no slot.
    if (h->decode.first_step != 0) slots.push_back({h->decode.first_step, h->decode.ended});
  }
  const auto used = occupancy(slots, whole_run(run));
  out["slots"] = {{"max", used ? Json(used->max) : Json(nullptr)},
                  {"mean", used ? Json(used->mean) : Json(nullptr)},
                  {"p99", used ? Json(used->p99) : Json(nullptr)}};
  out["kv_pool"] = {{"prefill", pool_json(run.prefill_pool, run, false)},
                    {"decode", pool_json(run.decode_pool, run, true)}};
  const auto moving_from = [](const Handover& h) {
    return h.prefill.first_write != 0 ? h.prefill.first_write : h.decode.first_write;
  };
  const auto landed = [](const Handover& h) {
    return h.decode.last_byte != 0 ? h.decode.last_byte : h.prefill.last_byte;
  };
  out["link"] = {{"rate_bytes_per_s", or_null(point.link_rate)},
                 {"busy_share",
                  run.counters.link_busy ? link_share(run) : busy_share(run, moving_from, landed)}};
  out["compute"] = {
      {"prefill_busy_share", busy_share(
                                 run, [](const Handover& h) { return h.prefill.first_step; },
                                 [](const Handover& h) { return h.prefill.computed; })},
      {"decode_busy_share", busy_share(
                                run, [](const Handover& h) { return h.decode.first_step; },
                                [](const Handover& h) { return h.decode.last_token; })}};
  out["emulation"] = emulation_json(point, run.counters);
  out["machine"] = {{"cpu_busy_share", or_null(run.cpu_busy_share)},
                    {"cpu_throttled_s", or_null(run.cpu_throttled_s)}};
}

std::string first_fact(const BenchRun& run, std::string InstanceFacts::* fact) {
  for (const auto* side : {&run.records.decode, &run.records.prefill}) {
    for (const InstanceFacts& facts : *side) {
      if (!(facts.*fact).empty()) return facts.*fact;
    }
  }
  return "";
}

Json host_json(const serving::InstanceInfo::Host& host) {
  return {{"host", text_or_null(host.name)},
          {"kernel", text_or_null(host.kernel)},
          {"cpu", text_or_null(host.cpu)},
          {"cores", host.cores == 0 ? Json(nullptr) : Json(host.cores)}};
}

// Each by its own word: on two hosts there are two machines, and may be two builds.
Json instances_json(const BenchRun& run) {
  Json out = Json::array();
  for (const ServerSaid& server : run.servers) {
    const serving::InstanceInfo& info = server.info;
    Json one = {{"side", server.side}, {"url", server.url}};
    one.update(host_json(info.host));
    one["fabric"] = text_or_null(info.fabric);
    // "auto" takes shared memory where it can: what a run used is beside this list.
    one["provider"] = info.fabric == "shm" ? Json(nullptr) : text_or_null(info.fabric_provider);
    one["libfabric"] = text_or_null(info.libfabric_version);
    one["version"] = text_or_null(info.version);
    one["build"] = text_or_null(info.build);
    out.push_back(std::move(one));
  }
  return out;
}

std::string first_profile_hash(const BenchRun& run) {
  for (const ServerSaid& server : run.servers) {
    const auto& emulation = server.info.emulation;
    if (emulation && !emulation->profile_hash.empty()) return emulation->profile_hash;
  }
  return "";
}

std::string server_version(const BenchRun& run) {
  for (const ServerSaid& server : run.servers) {
    if (!server.info.version.empty()) return server.info.version;
  }
  return first_fact(run, &InstanceFacts::version);
}

// Headers may carry keys.
std::vector<std::string> without_secrets(std::vector<std::string> words) {
  constexpr std::string_view kFlag = "--header";
  bool is_header = false;
  for (std::string& word : words) {
    if (word.starts_with("--")) is_header = word == kFlag || word.starts_with("--header=");
    if (!is_header || word == kFlag) continue;
    const std::size_t from = word.starts_with("--") ? kFlag.size() + 1 : 0;
    const std::size_t value = word.find('=', from);
    if (value != word.npos) word.replace(value + 1, word.npos, "...");
  }
  return words;
}

Json environment(const PointInfo& point, const BenchOptions& options, const BenchRun& run) {
  std::string fabric;
  for (const Handover* handover : handovers(run)) {
    if (!handover->fabric.empty()) fabric = handover->fabric;
  }
  if (fabric.empty()) fabric = first_fact(run, &InstanceFacts::fabric);
  const bool has_provider = fabric != "shm";
  return {{"driver", host_json(serving::host_info())},
          {"servers", point.servers_are_elsewhere ? "elsewhere" : "on the driver's host"},
          {"fabric", text_or_null(fabric)},
          {"provider",
           has_provider ? text_or_null(first_fact(run, &InstanceFacts::provider)) : Json(nullptr)},
          {"versions",
           {{"bench", serving::version()},
            {"bench_build", serving::build_identity()},
            {"server", text_or_null(server_version(run))},
            {"server_build", text_or_null(builds_in_words(run.servers))}}},
          {"instances", instances_json(run)},
          {"flags",
           {{"prefill", point.prefill_flags},
            {"decode", point.decode_flags},
            {"route", point.route_flags},
            {"bench", without_secrets(options.as_typed)}}}};
}

Json spans_json(const BenchRun& run, const RequestResult& result) {
  Json out = Json::array();
  const std::int64_t zero = run.load.start.time_since_epoch().count();
  const auto ms = [zero](std::int64_t at) { return static_cast<double>(at - zero) / 1e6; };
  out.push_back({{"side", "client"},
                 {"name", "request"},
                 {"start_ms", RequestResult::ms(result.sent)},
                 {"end_ms", result.last ? Json(RequestResult::ms(*result.last)) : Json(nullptr)}});
  const Handover* handover = handover_of(run, result);
  if (handover == nullptr) return out;
  for (const Span& span : spans_of(*handover, moments_of(run, result))) {
    out.push_back({{"side", span.side},
                   {"name", span.name},
                   {"start_ms", ms(span.start)},
                   {"end_ms", ms(span.end)}});
  }
  return out;
}

Json request_json(const BenchRun& run, const RequestResult& r) {
  const auto if_ok = [&r](double value) { return r.ok ? Json(value) : Json(nullptr); };
  return {
      {"id", r.transfer_id.empty() ? r.request_id : r.transfer_id},
      {"request_id", r.request_id},
      {"arrival_ms", RequestResult::ms(r.sent)},
      {"due_ms", RequestResult::ms(r.due)},
      {"ttft_ms", r.first ? Json(r.ttft_ms()) : Json(nullptr)},
      {"tpot_ms", r.ok && r.output_len > 1 ? Json(r.tpot_ms()) : Json(nullptr)},
      {"e2el_ms", if_ok(r.e2el_ms())},
      {"second_token_ms", r.second ? Json(RequestResult::ms(*r.second - r.sent)) : Json(nullptr)},
      {"input_len", r.input_len},
      {"output_len", r.output_len},
      {"error", r.ok ? Json(nullptr) : Json(fmt::format("{}: {}", r.cause, r.error))},
      {"spans", spans_json(run, r)}};
}

Json goodput_json(const BenchRun& run) {
  if (!run.slo.is_set()) return nullptr;
  const double seconds = std::chrono::duration<double>(run.load.duration).count();
  Json slo = Json::object();
  if (run.slo.ttft) slo["ttft"] = *run.slo.ttft;
  if (run.slo.tpot) slo["tpot"] = *run.slo.tpot;
  if (run.slo.e2el) slo["e2el"] = *run.slo.e2el;
  return {{"slo", std::move(slo)},
          {"requests_per_s", static_cast<double>(run.metrics.good) / seconds}};
}

// Stands on every figure that is made of it.
std::string emulated_label(const PointInfo& point, double scale) {
  if (!point.emulated) return "";
  return fmt::format("emulated: {}, bytes / {:g}{}{}", point.profile, scale,
                     point.variant.empty() ? "" : ", ", point.variant);
}

void add_arrivals(const BenchRun& run, Json& out) {
  const Arrivals a = arrivals_of(run.load.results);
  out["saturated"] = or_null(is_saturated(a));
  out["arrivals"] = {{"offered_per_s", or_null(a.offered_per_s)},
                     {"answered_per_s", or_null(a.answered_per_s)},
                     {"open_at_last_arrival", a.open_at_last_arrival},
                     {"open_if_quick", a.open_if_quick},
                     {"quickest_ms", or_null(a.quickest_ms)},
                     {"first_quarter_ms", or_null(a.first_quarter_ms)},
                     {"last_quarter_ms", or_null(a.last_quarter_ms)}};
}

void add_lateness(const BenchRun& run, Json& out) {
  out["arrival_lateness_ms"] = {{"p50", or_null(run.metrics.lateness.median())},
                                {"p99", or_null(run.metrics.lateness.percentile(99))},
                                {"max", or_null(run.metrics.lateness.max())}};
  out["most_open"] = run.load.most_open;
}

}  // namespace

MovedBytes moved_bytes(const BenchRun& run) {
  MovedBytes out;
  std::uint64_t moved = 0, expected = 0, block_size = 0;
  for (const InstanceFacts& facts : run.records.decode) {
    block_size = std::max(block_size, facts.block_size.value_or(0));
  }
  std::size_t known = 0;
  for (const RequestResult& result : run.load.results) {
    if (!result.ok) continue;
    if (result.transfer_id.empty()) {
      ++out.not_handed_over;
      continue;
    }
    const Handover* h = handover_of(run, result);
    if (h == nullptr || !h->has_decode) {
      ++out.missing;
      continue;
    }
    ++known;
    out.cached_at_prefill += h->prefill.cached_tokens;
    out.cached_at_decode += h->decode.cached_tokens;
    // Whoever moved them has counted them: P writes in push, D reads in pull.
    const std::uint64_t crossed = h->prefill.first_write != 0 ? h->prefill.bytes : h->decode.bytes;
    const std::uint64_t whole = bytes_of_full_prompt(*h, block_size);
    if (crossed != whole || crossed == 0) ++out.unlike;
    moved += crossed;
    expected += whole;
  }
  if (known == 0) return out;
  out.moved = moved;
  if (block_size > 0) out.expected = expected;
  return out;
}

Json baton_key(const PointInfo& point, const BenchOptions& options, const BenchRun& run) {
  const double scale = run.counters.scale.value_or(1);
  Json out = {{"schema", kSchema},
              {"mode", text_or_null(point.mode)},
              {"qps", or_null(point.qps)},
              {"input_len", or_null(point.input_len)},
              {"output_len", or_null(point.output_len)},
              {"iteration", or_null(point.iteration)},
              {"seed", options.seed},
              {"first_token", text_or_null(point.first_token)},
              {"prefill", text_or_null(point.prefill)},
              {"emulated", point.emulated},
              {"profile", text_or_null(point.profile)},
              {"profile_hash", text_or_null(first_profile_hash(run))},
              {"scale", scale},
              {"label", emulated_label(point, scale)},
              {"settings", point.settings.empty() ? Json(nullptr) : Json::parse(point.settings)},
              {"variant", text_or_null(point.variant)},
              {"void", text_or_null(point.void_reason)}};
  add_arrivals(run, out);
  out["second_token_ms"] = shape_with_spread(run.metrics.second_token);
  out["goodput"] = goodput_json(run);
  add_splits(run, out);
  add_bytes(run, out);
  add_load(point, run, out);
  Json failures = Json::object();
  for (const auto& [cause, count] : run.metrics.failures) failures[cause] = count;
  out["failures"] = std::move(failures);
  add_lateness(run, out);
  out["record_troubles"] = run.records.troubles;
  out["environment"] = environment(point, options, run);
  Json requests = Json::array();
  for (const RequestResult& r : run.load.results) requests.push_back(request_json(run, r));
  out["requests"] = std::move(requests);
  return out;
}

}  // namespace baton::bench
