#include "bench/records.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "base/boot_id.h"
#include "base/clock.h"
#include "http/client.h"
#include "serving/json.h"
#include "serving/transfer_log.h"

namespace baton::bench {
namespace {

using serving::find;
using serving::Json;

constexpr Duration kPatience = std::chrono::seconds(10);
constexpr Duration kPrefillBehind = std::chrono::seconds(2);
constexpr Duration kPause = std::chrono::milliseconds(20);

std::int64_t integer(const Json& object, std::string_view key) {
  const Json* value = find(object, key);
  return value != nullptr && value->is_number_integer() ? value->get<std::int64_t>() : 0;
}

std::optional<std::uint64_t> maybe_uint(const Json& object, std::string_view key) {
  const Json* value = find(object, key);
  if (value == nullptr || !value->is_number_unsigned()) return {};
  return value->get<std::uint64_t>();
}

// The times of one record on this host's clock.
class Times {
 public:
  Times(const Json& record, std::int64_t offset) : times_(find(record, "times")), offset_(offset) {}
  std::int64_t at(std::string_view key) const {
    const std::int64_t time = times_ == nullptr ? 0 : integer(*times_, key);
    return time == 0 ? 0 : time + offset_;
  }
  std::int64_t last_piece() const {
    const Json* pieces = times_ == nullptr ? nullptr : find(*times_, "pieces_ready");
    if (pieces == nullptr || !pieces->is_array() || pieces->empty()) return 0;
    const Json& last = pieces->back();
    return last.is_number_integer() ? last.get<std::int64_t>() + offset_ : 0;
  }

 private:
  const Json* times_;
  std::int64_t offset_;
};

void read_router(const Json& record, const Times& times, std::int64_t offset, Handover& out) {
  out.has_router = true;
  if (const Json* leg = find(record, "decode"); leg != nullptr && leg->is_object()) {
    const Times of_decode(*leg, offset);
    out.router.decode_asked = of_decode.at("dispatched");
    out.router.decode_first_token = of_decode.at("first_token");
  }
  out.router.arrived = times.at("arrived");
  out.router.first_byte = times.at("first_byte");
  out.router.ended = times.at("ended");
}

// In pull D alone knows it: D reads.
void read_fabric(const Json& record, Handover& out) {
  const std::string fabric = serving::text_or(record, "fabric", "");
  if (!fabric.empty()) out.fabric = fabric;
}

void read_prefill(const Json& record, const Times& times, Handover& out) {
  out.has_prefill = true;
  out.prefill.submitted = times.at("submitted");
  out.prefill.started = times.at("started");
  out.prefill.first_step = times.at("first_step");
  out.prefill.computed = times.last_piece();
  out.prefill.ready = times.at("ready");
  out.prefill.registered = times.at("registered");
  out.prefill.first_write = times.at("first_write");
  out.prefill.last_write = times.at("last_write");
  out.prefill.last_byte = times.at("last_byte");
  out.prefill.told = times.at("told");
  out.prefill.ended = times.at("ended");
  out.prefill.bytes = serving::uint_or(record, "bytes", 0);
  out.prefill.cached_tokens = serving::uint_or(record, "cached_prompt_tokens", 0);
  read_fabric(record, out);
  out.writes = std::max(out.writes, serving::uint_or(record, "writes", 0));
  out.runs = std::max(out.runs, serving::uint_or(record, "runs", 0));
}

void read_decode(const Json& record, const Times& times, Handover& out) {
  out.has_decode = true;
  out.decode.submitted = times.at("submitted");
  out.decode.started = times.at("started");
  out.decode.registered = times.at("registered");
  out.decode.first_write = times.at("first_write");
  out.decode.last_write = times.at("last_write");
  out.decode.last_byte = times.at("last_byte");
  out.decode.final_came = times.at("final_came");
  out.decode.told = times.at("told");
  out.decode.first_step = times.at("first_step");
  out.decode.first_token = times.at("first_token");
  out.decode.last_token = times.at("last_token");
  out.decode.ended = times.at("ended");
  out.decode.bytes = serving::uint_or(record, "bytes", 0);
  out.decode.bytes_planned = serving::uint_or(record, "bytes_planned", 0);
  out.decode.prompt_tokens = serving::uint_or(record, "prompt_tokens", 0);
  out.decode.cached_tokens = serving::uint_or(record, "cached_prompt_tokens", 0);
  out.decode.blocks = serving::uint_or(record, "blocks", 0);
  read_fabric(record, out);
  out.outcome = serving::text_or(record, "outcome", "");
  out.writes = std::max(out.writes, serving::uint_or(record, "writes", 0));
  out.runs = std::max(out.runs, serving::uint_or(record, "runs", 0));
}

void read_record(const Json& record, std::int64_t offset, const std::set<std::string>& wanted,
                 Records& records) {
  const std::string id = serving::text_or(record, "transfer_id", "");
  if (!wanted.contains(id)) return;
  Handover& out = records.by_transfer[id];
  const Times times(record, offset);
  const std::string side = serving::text_or(record, "side", "");
  if (side == "router") read_router(record, times, offset, out);
  if (side == "prefill") read_prefill(record, times, out);
  if (side == "decode") read_decode(record, times, out);
}

struct Fetched {
  std::string body;
  std::int64_t middle = 0;  // of the call, on our clock
};
std::optional<Fetched> get(const std::string& url, std::vector<std::string>& troubles) {
  http::Call call;
  call.url = url;
  call.timeout = kPatience;
  const Time sent = now();
  auto answer = http::fetch(std::move(call));
  if (!answer || answer->status != 200) {
    troubles.push_back(answer ? fmt::format("{}: it answered {}", url, answer->status)
                              : answer.error().message);
    return {};
  }
  return Fetched{std::move(answer->body), (sent + (now() - sent) / 2).time_since_epoch().count()};
}

// Processes of one boot share a clock; another host's is moved by what the call shows.
std::int64_t offset_of(const Json& page, std::int64_t middle) {
  const Json* clock = find(page, "clock");
  if (clock == nullptr) return 0;
  const std::string boot = serving::text_or(*clock, "boot_id", "");
  return boot == baton::boot_id() ? 0 : middle - integer(*clock, "monotonic_ns");
}

void add_leg_urls(const Json& page, const char* leg, const std::set<std::string>& wanted,
                  std::set<std::string>& urls) {
  const Json* list = find(page, "transfers");
  if (list == nullptr || !list->is_array()) return;
  for (const Json& record : *list) {
    if (!wanted.contains(serving::text_or(record, "transfer_id", ""))) continue;
    const Json* of_leg = find(record, leg);
    const std::string url = of_leg == nullptr ? "" : serving::text_or(*of_leg, "url", "");
    if (!url.empty()) urls.insert(url);
  }
}

void collect_page(const std::string& url, const std::set<std::string>& wanted, Records& out) {
  const auto page = get(url + "/debug/transfers", out.troubles);
  if (!page) return;
  const Json parsed = serving::parse_json(page->body).value_or(Json::object());
  if (!read_records(page->body, offset_of(parsed, page->middle), wanted, out)) {
    out.troubles.push_back(url + "/debug/transfers: its answer is no list of records");
  }
}

void collect_side(const std::set<std::string>& urls, const std::set<std::string>& wanted,
                  std::vector<InstanceFacts>& facts, Records& out) {
  for (const std::string& url : urls) {
    if (const auto info = get(url + "/baton/instance", out.troubles)) {
      facts.push_back(parse_instance_facts(info->body));
      facts.back().url = url;
    }
    collect_page(url, wanted, out);
  }
}

// Of what D has, done: P's records come with its last completions, which may be after D's answers.
bool is_prefill_behind(const Records& records) {
  return std::any_of(records.by_transfer.begin(), records.by_transfer.end(), [](const auto& entry) {
    const Handover& h = entry.second;
    return h.has_decode && h.outcome == "done" && !h.has_prefill;
  });
}

// A record that P has dropped already, of too many, never comes.
void wait_for_prefill(const std::set<std::string>& urls, const std::set<std::string>& wanted,
                      Records& out) {
  const Time until = now() + kPrefillBehind;
  while (is_prefill_behind(out) && out.troubles.empty() && now() < until) {
    std::this_thread::sleep_for(kPause);
    for (const std::string& url : urls) collect_page(url, wanted, out);
  }
}

}  // namespace

InstanceFacts parse_instance_facts(std::string_view body) {
  InstanceFacts out;
  const Json parsed = serving::parse_json(body).value_or(Json::object());
  if (!parsed.is_object()) return out;
  out.mode = serving::text_or(parsed, "mode", "");
  out.fabric = serving::text_or(parsed, "fabric", "");
  out.provider = serving::text_or(parsed, "fabric_provider", "");
  out.version = serving::text_or(parsed, "version", "");
  out.block_size = maybe_uint(parsed, "block_size");
  return out;
}

std::map<std::string, Counters> read_counters(const std::set<std::string>& urls) {
  std::map<std::string, Counters> out;
  std::vector<std::string> ignored;
  for (const std::string& url : urls) {
    if (const auto page = get(url + "/metrics", ignored)) out[url] = parse_counters(page->body);
  }
  return out;
}

bool read_records(std::string_view page, std::int64_t offset, const std::set<std::string>& wanted,
                  Records& records) {
  const Result<Json> parsed = serving::parse_json(page);
  const Json* list = parsed && parsed->is_object() ? find(*parsed, "transfers") : nullptr;
  if (list == nullptr || !list->is_array()) return false;
  for (const Json& record : *list) {
    if (record.is_object()) read_record(record, offset, wanted, records);
  }
  return true;
}

Records collect_records(const RecordSources& sources, const std::set<std::string>& wanted) {
  Records out;
  if (wanted.empty()) return out;
  std::set<std::string> prefill, decode;
  if (const auto page = get(sources.router + "/debug/transfers", out.troubles)) {
    const Json parsed = serving::parse_json(page->body).value_or(Json::object());
    read_records(page->body, offset_of(parsed, page->middle), wanted, out);
    add_leg_urls(parsed, "prefill", wanted, prefill);
    add_leg_urls(parsed, "decode", wanted, decode);
  }
  if (!sources.prefill.empty()) prefill = {sources.prefill};
  if (!sources.decode.empty()) decode = {sources.decode};
  collect_side(prefill, wanted, out.prefill, out);
  collect_side(decode, wanted, out.decode, out);
  if (!prefill.empty()) wait_for_prefill(prefill, wanted, out);
  return out;
}

}  // namespace baton::bench
