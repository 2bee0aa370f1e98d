#include "serving/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "serving/json.h"

namespace baton::serving {
namespace {

constexpr int kRouter = 1, kPrefill = 2, kDecode = 3;                        // pid
constexpr int kPhases = 1, kHandover = 2, kSteps = 3, kPLeg = 2, kDLeg = 3;  // tid

double microseconds(std::int64_t ns) {
  return static_cast<double>(ns) / 1000;
}

// A monotonic clock's: within 36 years of its zero, so that sums and differences of three fit.
// Whatever else a record says did not happen.
constexpr std::int64_t kLatest = std::int64_t{1} << 60;

std::optional<std::int64_t> time_in(const Json& value) {
  if (!value.is_number_integer()) return {};
  if (value.is_number_unsigned() &&
      value.get<std::uint64_t>() > static_cast<std::uint64_t>(kLatest)) {
    return {};
  }
  const auto time = value.get<std::int64_t>();
  if (time < -kLatest || time > kLatest) return {};
  return time;
}

std::int64_t time_or_none(const Json& object, std::string_view key) {
  const Json* value = find(object, key);
  return value == nullptr ? 0 : time_in(*value).value_or(0);
}

// The times of one record, moved to the router's clock. 0: did not happen.
class Times {
 public:
  Times(const Json* times, std::int64_t offset) : times_(times), offset_(offset) {}
  std::int64_t at(std::string_view key) const {
    const std::int64_t time = times_ == nullptr ? 0 : time_or_none(*times_, key);
    return time == 0 ? 0 : time + offset_;
  }
  std::vector<std::int64_t> list(std::string_view key) const {
    std::vector<std::int64_t> out;
    const Json* values = times_ == nullptr ? nullptr : find(*times_, key);
    if (values == nullptr || !values->is_array()) return out;
    for (const Json& value : *values) {
      if (const auto time = time_in(value)) out.push_back(*time + offset_);
    }
    return out;
  }

 private:
  const Json* times_;
  std::int64_t offset_;
};

class Trace {
 public:
  void name_process(int pid, const std::string& name) {
    meta(pid, 0, "process_name", {{"name", name}});
    meta(pid, 0, "process_sort_index", {{"sort_index", pid}});
  }
  void name_lane(int pid, int tid, std::string_view name) {
    meta(pid, tid, "thread_name", {{"name", name}});
    meta(pid, tid, "thread_sort_index", {{"sort_index", tid}});
  }
  // Nothing where one of the ends is not known.
  void span(int pid, int tid, std::string_view name, std::int64_t from, std::int64_t to,
            Json args = Json::object()) {
    if (from == 0 || to == 0 || to < from) return;
    events_.push_back({{"ph", "X"},
                       {"name", name},
                       {"cat", "baton"},
                       {"pid", pid},
                       {"tid", tid},
                       {"ts", microseconds(from)},
                       {"dur", microseconds(to - from)},
                       {"args", std::move(args)}});
  }
  void instant(int pid, int tid, std::string_view name, std::int64_t at) {
    if (at == 0) return;
    events_.push_back({{"ph", "i"},
                       {"name", name},
                       {"cat", "baton"},
                       {"s", "t"},
                       {"pid", pid},
                       {"tid", tid},
                       {"ts", microseconds(at)}});
  }
  // From a moment in one process to what it caused in another.
  void arrow(std::string_view name, int from_pid, int from_tid, std::int64_t from, int to_pid,
             int to_tid, std::int64_t to) {
    if (from == 0 || to == 0) return;
    const int id = ++arrows_;
    const auto end = [&](std::string_view ph, int pid, int tid, std::int64_t at) {
      Json event = {{"ph", ph},   {"name", name}, {"cat", "flow"},         {"id", id},
                    {"pid", pid}, {"tid", tid},   {"ts", microseconds(at)}};
      if (ph == "f") event["bp"] = "e";
      events_.push_back(std::move(event));
    };
    end("s", from_pid, from_tid, from);
    end("f", to_pid, to_tid, to);
  }
  Json take() { return std::move(events_); }

 private:
  void meta(int pid, int tid, std::string_view name, Json args) {
    events_.push_back(
        {{"ph", "M"}, {"name", name}, {"pid", pid}, {"tid", tid}, {"args", std::move(args)}});
  }

  Json events_ = Json::array();
  int arrows_ = 0;
};

// Spans that fill [begin, end] without gaps: each begins where the last one ended. A moment that
// did not happen (0) is that of the phase in which the request ended.
struct Phase {
  std::string_view name;
  std::int64_t until = 0;
};
void add_phases(Trace& trace, int pid, std::int64_t begin, std::int64_t end,
                std::span<const Phase> phases) {
  std::int64_t from = begin;
  for (const Phase& phase : phases) {
    const std::int64_t until = phase.until == 0 ? end : std::min(phase.until, end);
    if (until > from) trace.span(pid, kPhases, phase.name, from, until);
    from = std::max(from, until);
  }
}

Json facts(const Json& record) {
  Json args = Json::object();
  for (const char* key : {"request_id",
                          "trace_id",
                          "span_id",
                          "parent_span_id",
                          "fabric",
                          "binding",
                          "attempt",
                          "registrations",
                          "outcome",
                          "cause",
                          "text",
                          "peer",
                          "end",
                          "bytes",
                          "bytes_planned",
                          "writes",
                          "runs",
                          "blocks",
                          "prompt_tokens",
                          "computed_prompt_tokens",
                          "completion_tokens"}) {
    if (const Json* value = find(record, key); value != nullptr) args[key] = *value;
  }
  return args;
}

struct Side {
  Json record;
  std::int64_t offset = 0;
  std::string clock;    // how its clock was mapped
  std::string trouble;  // why there is no record
  Times times() const { return Times(find(record, "times"), offset); }
};

void map_clock(const TraceSource& source, const Json& page, std::string_view own_boot_id,
               Side& side) {
  const Json* clock = find(page, "clock");
  const std::string boot = clock == nullptr ? "" : text_or(*clock, "boot_id", "");
  if (clock == nullptr || (!boot.empty() && boot == own_boot_id)) {
    side.clock = "same host, same clock";
    return;
  }
  const std::int64_t middle = source.sent + (source.received - source.sent) / 2;
  side.offset = middle - time_or_none(*clock, "monotonic_ns");
  side.clock = fmt::format("other host, moved by {:.3f} ms, may be off by {:.3f} ms either way",
                           static_cast<double>(side.offset) / 1e6,
                           static_cast<double>(source.received - source.sent) / 2e6);
}

Side read_side(const TraceSource& source, std::string_view own_boot_id) {
  Side side;
  side.trouble = source.trouble;
  if (!side.trouble.empty()) return side;
  const Result<Json> page = parse_json(source.body);
  const Json* list = page ? find(*page, "transfers") : nullptr;
  if (list == nullptr || !list->is_array()) {
    side.trouble = "its answer is no list of records";
    return side;
  }
  for (const Json& record : *list) {
    if (text_or(record, "side", "") == source.name) side.record = record;
  }
  if (side.record.is_null()) {
    side.trouble = "it has no record: the request is under way there, never came, or is forgotten";
    return side;
  }
  map_clock(source, *page, own_boot_id, side);
  return side;
}

void add_router(Trace& trace, const Json& record, const Times& times, const Times& prefill,
                const Times& decode) {
  trace.name_lane(kRouter, kPhases, "phases");
  trace.name_lane(kRouter, kPLeg, "prefill leg");
  trace.name_lane(kRouter, kDLeg, "decode leg");
  const std::int64_t arrived = times.at("arrived"), ended = times.at("ended");
  trace.span(kRouter, kPhases, "request", arrived, ended, facts(record));
  const std::array<Phase, 2> phases = {Phase{"waiting for the first byte", times.at("first_byte")},
                                       {"answering", 0}};
  add_phases(trace, kRouter, arrived, ended, phases);
  const auto leg = [&](int tid, std::string_view name, const Times& at) {
    const std::int64_t end = at.at("ended") == 0 ? ended : std::min(at.at("ended"), ended);
    trace.span(kRouter, tid, name, at.at("dispatched"), end);
    trace.instant(kRouter, tid, "answer begins", at.at("answered"));
    trace.instant(kRouter, tid, "first token", at.at("first_token"));
  };
  leg(kPLeg, "prefill leg", prefill);
  leg(kDLeg, "decode leg", decode);
}

void add_prefill(Trace& trace, const Json& record, const Times& times) {
  trace.name_lane(kPrefill, kPhases, "phases");
  trace.name_lane(kPrefill, kHandover, "hand-over");
  trace.name_lane(kPrefill, kSteps, "pieces");
  const std::int64_t begin = times.at("submitted"), end = times.at("ended");
  const std::vector<std::int64_t> pieces = times.list("pieces_ready");
  const std::int64_t computed = pieces.empty() ? 0 : pieces.back();
  trace.span(kPrefill, kPhases, "request", begin, end, facts(record));
  const std::array<Phase, 3> phases = {
      Phase{"queue", times.at("first_step")}, {"prefill", computed}, {"hand-over", 0}};
  add_phases(trace, kPrefill, begin, end, phases);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::int64_t from = i == 0 ? times.at("first_step") : pieces[i - 1];
    trace.span(kPrefill, kSteps, fmt::format("piece {}", i), from, pieces[i]);
  }
  trace.instant(kPrefill, kSteps, "first token", times.at("first_token"));
  const std::int64_t ready = times.at("ready"), registered = times.at("registered");
  const std::int64_t matched = ready == 0 || registered == 0 ? 0 : std::max(ready, registered);
  trace.instant(kPrefill, kHandover, "registration came", registered);
  trace.instant(kPrefill, kHandover, "first piece ready", ready);
  trace.span(kPrefill, kHandover, ready < registered ? "waiting for D" : "waiting for P",
             std::min(ready, registered), matched);
  trace.span(kPrefill, kHandover, "match", matched, times.at("first_write"));
  trace.span(kPrefill, kHandover, "write", times.at("first_write"), times.at("last_byte"));
}

void add_decode(Trace& trace, const Json& record, const Times& times) {
  trace.name_lane(kDecode, kPhases, "phases");
  trace.name_lane(kDecode, kHandover, "hand-over");
  const std::int64_t begin = times.at("submitted"), end = times.at("ended");
  trace.span(kDecode, kPhases, "request", begin, end, facts(record));
  const std::array<Phase, 4> phases = {Phase{"queue", times.at("started")},
                                       {"hand-over", times.at("told")},
                                       {"to the first token", times.at("first_token")},
                                       {"decode", 0}};
  add_phases(trace, kDecode, begin, end, phases);
  trace.span(kDecode, kHandover, "registered", times.at("registered"), times.at("told"));
  trace.span(kDecode, kHandover, "detect", std::max(times.at("last_byte"), times.at("final_came")),
             times.at("told"));
  trace.instant(kDecode, kHandover, "last immediate", times.at("last_byte"));
  trace.instant(kDecode, kHandover, "final message", times.at("final_came"));
  trace.instant(kDecode, kPhases, "first step", times.at("first_step"));
}

}  // namespace

std::string leg_url(std::string_view record, std::string_view leg) {
  const Result<Json> parsed = parse_json(record);
  const Json* of_leg = parsed ? find(*parsed, leg) : nullptr;
  return of_leg == nullptr ? "" : text_or(*of_leg, "url", "");
}

std::string trace_json(std::string_view record_text, std::span<const TraceSource> sources,
                       std::string_view own_boot_id) {
  const Json record = parse_json(record_text).value_or(Json::object());
  const auto leg_times = [&record](const char* leg) {
    const Json* of_leg = find(record, leg);
    return Times(of_leg == nullptr ? nullptr : find(*of_leg, "times"), 0);
  };
  const Times router(find(record, "times"), 0);
  const Times prefill_leg = leg_times("prefill"), decode_leg = leg_times("decode");
  Trace trace;
  trace.name_process(kRouter, "router");
  add_router(trace, record, router, prefill_leg, decode_leg);
  Json other = {{"transfer_id", text_or(record, "transfer_id", "")},
                {"trace_id", text_or(record, "trace_id", "")},
                {"time_unit", "microseconds of the router's CLOCK_MONOTONIC"}};
  Times p(nullptr, 0), d(nullptr, 0);
  std::vector<Side> sides;
  sides.reserve(sources.size());
  for (const TraceSource& source : sources) {
    const Side& side = sides.emplace_back(read_side(source, own_boot_id));
    other[source.name] = side.trouble.empty() ? side.clock : "missing: " + side.trouble;
    if (!side.trouble.empty()) continue;
    const bool is_prefill = source.name == "prefill";
    trace.name_process(is_prefill ? kPrefill : kDecode,
                       source.name + " " + text_or(side.record, "engine_id", ""));
    (is_prefill ? p : d) = side.times();
    is_prefill ? add_prefill(trace, side.record, p) : add_decode(trace, side.record, d);
  }
  trace.arrow("dispatch", kRouter, kPLeg, prefill_leg.at("dispatched"), kPrefill, kPhases,
              p.at("submitted"));
  trace.arrow("dispatch", kRouter, kDLeg, decode_leg.at("dispatched"), kDecode, kPhases,
              d.at("submitted"));
  trace.arrow("registration", kDecode, kHandover, d.at("registered"), kPrefill, kHandover,
              p.at("registered"));
  trace.arrow("blocks", kPrefill, kHandover, p.at("first_write"), kDecode, kHandover,
              d.at("last_byte"));
  trace.arrow("first token", kPrefill, kSteps, p.at("first_token"), kRouter, kPLeg,
              prefill_leg.at("first_token"));
  trace.arrow("first token", kDecode, kPhases, d.at("first_token"), kRouter, kDLeg,
              decode_leg.at("first_token"));
  return to_text(Json{
      {"displayTimeUnit", "ms"}, {"otherData", std::move(other)}, {"traceEvents", trace.take()}});
}

}  // namespace baton::serving
