#include "bench/running_pair.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string>

#include "base/printable.h"
#include "bench/instances.h"
#include "http/client.h"
#include "serving/json.h"

namespace baton::bench {
namespace {

using serving::InstanceInfo;
using serving::Json;

using Problems = std::vector<std::string>;

constexpr std::size_t kShownMax = 300;  // bytes of one text of a server

Result<InstanceInfo> ask(std::string_view flag, std::string url) {
  while (url.ends_with('/')) url.pop_back();
  http::Call call;
  call.url = url + "/baton/instance";
  call.timeout = std::chrono::seconds(5);
  const auto answer = http::fetch(std::move(call));
  if (!answer) {
    return fail(Errc::kUnavailable, fmt::format("{} {}: {}; is it started, and its port open?",
                                                flag, url, answer.error().message));
  }
  Result<InstanceInfo> info =
      answer->status == 200
          ? serving::parse_instance_info(answer->body)
          : fail(Errc::kUnavailable, fmt::format("it answers {}", answer->status));
  if (info) return info;
  return fail(Errc::kUnavailable, fmt::format("{} {} is no `baton serve`: GET /baton/instance: {}",
                                              flag, url, info.error().message));
}

std::string shown(const std::string& text) {
  return text.empty() ? "(none)" : printable(text, kShownMax);
}

void add(std::string_view what, std::string_view given, std::string_view side,
         const std::string& said, Problems& problems) {
  problems.push_back(fmt::format("{} {}, and {} says {}", what, given, side, shown(said)));
}

std::string text(std::optional<double> number) {
  return number ? fmt::format("{:g}", *number) : "";
}

// What both must be alike in, as words; "": it does not say.
struct Fact {
  std::string_view name;
  std::string (*of)(const InstanceInfo&);
};
std::string profile_of(const InstanceInfo& i) {
  return i.emulation ? i.emulation->profile : "";
}
std::string prefill_of(const InstanceInfo& i) {
  return i.emulation ? i.emulation->prefill : "";
}
std::string posting_cost_of(const InstanceInfo& i) {
  return i.emulation ? text(i.emulation->posting_cost_us) : "";
}
constexpr Fact kShared[] = {
    {"profile", profile_of},
    {"profile's numbers (hash)",
     [](const InstanceInfo& i) { return i.emulation ? i.emulation->profile_hash : ""; }},
    {"prefill", prefill_of},
    {"KV bytes scale",
     [](const InstanceInfo& i) { return i.emulation ? text(i.emulation->kv_bytes_scale) : ""; }},
    {"posting cost (us)", posting_cost_of},
    {"transfer style", [](const InstanceInfo& i) { return i.transfer_style; }},
    {"model (fingerprint of its weights)", [](const InstanceInfo& i) { return i.weights; }}};

void check_alike(const RunningPair& pair, Problems& problems) {
  for (const Fact& fact : kShared) {
    const std::string p = fact.of(pair.prefill), d = fact.of(pair.decode);
    if (p.empty() || d.empty() || p == d) continue;
    problems.push_back(
        fmt::format("{}: prefill says {}, and decode says {}", fact.name, shown(p), shown(d)));
  }
}

std::string names_of(const InstanceInfo& i) {
  return fmt::format("{}", fmt::join(i.models, ", "));
}

// A router lists what both serve: without a common name every request would be answered with 404.
void check_names(const RunningPair& pair, Problems& problems) {
  const auto& p = pair.prefill.models;
  const auto& d = pair.decode.models;
  const bool common = std::find_first_of(p.begin(), p.end(), d.begin(), d.end()) != p.end();
  if (p.empty() || d.empty() || common) return;
  problems.push_back(fmt::format("served model name: prefill says {}, and decode says {}",
                                 shown(names_of(pair.prefill)), shown(names_of(pair.decode))));
}

void compare(std::string_view what, std::string_view given, std::string_view side,
             const std::string& said, Problems& problems) {
  if (!said.empty() && said != given) add(what, given, side, said, problems);
}

void check_slots(std::string_view side, const InstanceInfo& info, const SweepOptions& o,
                 Problems& problems) {
  if (!o.given.max_num_seqs || info.max_num_seqs == 0) return;
  const bool fits =
      o.max_num_seqs == 0 ? info.max_num_seqs >= kNoSlotLimit : info.max_num_seqs == o.max_num_seqs;
  if (fits) return;
  const std::string given = o.max_num_seqs == 0
                                ? fmt::format("0 (no limit: {} or more)", kNoSlotLimit)
                                : std::to_string(o.max_num_seqs);
  add("--max-num-seqs", given, side, std::to_string(info.max_num_seqs), problems);
}

void check_side(std::string_view side, const InstanceInfo& info, const SweepMode& mode,
                const SweepOptions& o, Problems& problems) {
  check_slots(side, info, o, problems);
  const auto& names = info.models;
  if (o.given.served_model_name && !names.empty() &&
      std::find(names.begin(), names.end(), o.served_model_name) == names.end()) {
    add("--served-model-name", o.served_model_name, side, names_of(info), problems);
  }
  const bool is_timed = o.backend == "timed";
  if (is_timed == info.emulated.empty()) {
    add("--backend", o.backend, side, is_timed ? "that it computes itself" : info.emulated,
        problems);
    return;
  }
  if (!is_timed) return;
  // What was not given is P's word: unlike ones are named by check_alike().
  if (o.given.profile) compare("--profile", o.profile, side, profile_of(info), problems);
  if (o.given.prefill) compare("--prefill", o.prefill, side, prefill_of(info), problems);
  if (o.posting_cost) {
    compare("--posting-cost", text(o.posting_cost), side, posting_cost_of(info), problems);
  }
  if (!mode.transfer_style.empty()) {
    compare("transfer style", mode.transfer_style, side, info.transfer_style, problems);
  }
}

void check_mode(std::string_view side, const InstanceInfo& info, const SweepMode& mode,
                Problems& problems) {
  if (info.mode == mode.router_mode) return;
  add("mode", fmt::format("{} ({})", mode.name, mode.router_mode), side, info.mode, problems);
}

void check_one(const InstanceInfo& info, const SweepMode& mode, const SweepOptions& o,
               Problems& problems) {
  if (!mode.is_local) {
    problems.push_back(fmt::format(
        "mode {}, and --router-url is one instance, which hands nothing over: it is 'local'",
        mode.name));
  }
  // No hand-over tells what it remembered.
  if (info.prefix_caching.value_or(false) && o.prefill == "computed") {
    problems.emplace_back(
        "prompts are to be computed, and the instance keeps prefixes: start it with "
        "--no-enable-prefix-caching");
  }
  check_side("the instance", info, mode, o, problems);
}

Json side_json(const InstanceInfo& info) {
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? Json(nullptr) : Json(text);
  };
  const auto number = [](std::uint64_t value) { return value == 0 ? Json(nullptr) : Json(value); };
  const auto& e = info.emulation;
  return {{"model", text_or_null(info.weights)},
          {"max_num_seqs", number(info.max_num_seqs)},
          {"kv_blocks", number(info.blocks_total)},
          {"prefix_caching", info.prefix_caching ? Json(*info.prefix_caching) : Json(nullptr)},
          {"threads", info.threads ? Json(*info.threads) : Json(nullptr)},
          {"pull_loop", text_or_null(info.pull_loop)},
          {"transfer_style", text_or_null(info.transfer_style)},
          {"kv_bytes_scale", e ? Json(e->kv_bytes_scale) : Json(nullptr)},
          {"link_bytes_per_second", e ? Json(e->link_bytes_per_second) : Json(nullptr)},
          {"posting_cost_us", e ? Json(e->posting_cost_us) : Json(nullptr)}};
}

// The coordinates of P that the article's scripts are given. Here P says them itself.
void check_given(const InstanceInfo& p, const SweepOptions& o, Problems& problems) {
  const auto number = [&problems](std::string_view flag, std::uint32_t given, std::uint32_t said,
                                  const std::string& why) {
    if (given == 0 || given == said) return;
    add(flag, std::to_string(given), "prefill", fmt::format("{}{}", said, why), problems);
  };
  // One rank of the published model is what an emulated instance is.
  const std::string why = p.emulated.empty() ? "" : fmt::format(" ({})", p.emulated);
  number("--prefill-tp-size", o.prefill_tp_size, p.tp_size, why);
  number("--prefill-pp-size", o.prefill_pp_size, p.pp_size, why);
  number("--prefill-side-channel-port", o.prefill_side_channel_port, p.handover_port, "");
  const auto text = [&problems](std::string_view flag, const std::string& given,
                                const std::string& said) {
    if (!given.empty() && given != said) add(flag, given, "prefill", said, problems);
  };
  text("--prefill-engine-id", o.prefill_engine_id, p.engine_id);
  text("--prefill-kv-host", o.prefill_kv_host, p.handover_host);
}

Status verdict(const Problems& problems) {
  if (problems.empty()) return {};
  return fail(Errc::kInvalidArgument, fmt::format("{}", fmt::join(problems, "\n")));
}

// What is named as a router may be an instance itself.
std::vector<RunningPair> ask_one(const SweepOptions& options) {
  auto info = ask("--router-url", options.router_url);
  if (!info) return {};
  return {{*info, *info, true}};
}

}  // namespace

Result<std::vector<RunningPair>> ask_running(const SweepOptions& options) {
  const Instances instances =
      find_instances(options.router_url, options.prefill_url, options.decode_url);
  if (instances.prefill.empty() || instances.decode.empty()) return ask_one(options);
  const bool is_named = !options.prefill_url.empty() && !options.decode_url.empty();
  const auto ask_side = [&](const char* flag, const std::set<std::string>& urls,
                            std::vector<InstanceInfo>& side) -> Status {
    for (const std::string& url : urls) {
      auto info = ask(is_named ? flag : "--router-url lists", url);
      if (!info) return tl::unexpected<Error>(info.error());
      side.push_back(std::move(*info));
    }
    return {};
  };
  std::vector<InstanceInfo> prefill, decode;
  Status asked = ask_side("--prefill-url", instances.prefill, prefill);
  if (asked) asked = ask_side("--decode-url", instances.decode, decode);
  if (!asked) return tl::unexpected<Error>(asked.error());
  std::vector<RunningPair> out;
  for (std::size_t i = 0; i < std::max(prefill.size(), decode.size()); ++i) {
    out.push_back({prefill[i % prefill.size()], decode[i % decode.size()], false});
  }
  return out;
}

SweepOptions adopt(const RunningPair& pair, const SweepOptions& options) {
  SweepOptions out = options;
  const InstanceInfo& p = pair.prefill;
  if (!out.given.backend) out.backend = p.emulated.empty() ? "cpu" : "timed";
  if (!out.given.profile) out.profile = profile_of(p);
  if (!out.given.prefill) out.prefill = p.emulated.empty() ? "computed" : prefill_of(p);
  if (!out.given.max_num_seqs) out.max_num_seqs = pair.decode.max_num_seqs;
  out.server_build = builds_in_words({{"prefill", "", p}, {"decode", "", pair.decode}});
  if (p.emulation) out.profile_hash = p.emulation->profile_hash;
  out.servers = (pair.is_one ? Json{{"local", side_json(p)}}
                             : Json{{"prefill", side_json(p)}, {"decode", side_json(pair.decode)}})
                    .dump();
  return out;
}

Status check_running_pair(const RunningPair& pair, const SweepMode& mode,
                          const SweepOptions& options) {
  Problems problems;
  if (pair.is_one) {
    check_one(pair.prefill, mode, options, problems);
    return verdict(problems);
  }
  if (!pair.prefill.can_prefill()) {
    add("--prefill-url", "needs kv_producer or kv_both", "it", pair.prefill.role, problems);
  }
  if (!pair.decode.can_decode()) {
    add("--decode-url", "needs kv_consumer or kv_both", "it", pair.decode.role, problems);
  }
  check_mode("prefill", pair.prefill, mode, problems);
  check_mode("decode", pair.decode, mode, problems);
  check_side("prefill", pair.prefill, mode, options, problems);
  check_side("decode", pair.decode, mode, options, problems);
  // D posts the reads.
  if (!mode.pull_loop.empty()) {
    compare("pull loop", mode.pull_loop, "decode", pair.decode.pull_loop, problems);
  }
  check_names(pair, problems);
  check_alike(pair, problems);
  check_given(pair.prefill, options, problems);
  return verdict(problems);
}

}  // namespace baton::bench
