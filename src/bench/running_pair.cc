#include "bench/running_pair.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "base/printable.h"
#include "http/client.h"

namespace baton::bench {
namespace {

using serving::InstanceInfo;

using Problems = std::vector<std::string>;

constexpr std::string_view kProfile = "profile ";
constexpr std::string_view kPrefill = "prefill ";
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

// The word of its emulation that follows `key`, as "transfer style " in Emulation::text(); "" if it
// says none.
std::string word_after(std::string_view key, const InstanceInfo& info) {
  const std::size_t at = info.emulated.find(key);
  if (at == std::string::npos) return "";
  const std::size_t begin = at + key.size();
  return info.emulated.substr(begin, info.emulated.find_first_of(", ", begin) - begin);
}

void check_word(std::string_view flag, std::string_view given, std::string_view key,
                std::string_view side, const InstanceInfo& info, Problems& problems) {
  const std::string said = word_after(key, info);
  if (!said.empty() && said != given) add(flag, given, side, said, problems);
}

void check_side(std::string_view side, const InstanceInfo& info, const SweepMode& mode,
                const SweepOptions& o, Problems& problems) {
  if (info.mode != mode.router_mode) {
    add("mode", fmt::format("{} ({})", mode.name, mode.router_mode), side, info.mode, problems);
  }
  const bool is_timed = o.backend == "timed";
  if (is_timed == info.emulated.empty()) {
    add("--backend", o.backend, side, is_timed ? "that it computes itself" : info.emulated,
        problems);
    return;
  }
  if (!is_timed) return;
  check_word("--profile", o.profile, kProfile, side, info, problems);
  check_word("--prefill", o.prefill, kPrefill, side, info, problems);
  if (!mode.transfer_style.empty()) {
    check_word("transfer style", mode.transfer_style, "transfer style ", side, info, problems);
  }
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

}  // namespace

Result<RunningPair> ask_running_pair(const SweepOptions& options) {
  auto prefill = ask("--prefill-url", options.prefill_url);
  if (!prefill) return tl::unexpected<Error>(prefill.error());
  auto decode = ask("--decode-url", options.decode_url);
  if (!decode) return tl::unexpected<Error>(decode.error());
  return RunningPair{std::move(*prefill), std::move(*decode)};
}

SweepOptions adopt(const RunningPair& pair, const SweepOptions& options) {
  SweepOptions out = options;
  const InstanceInfo& p = pair.prefill;
  if (!out.given.backend) out.backend = p.emulated.empty() ? "cpu" : "timed";
  const auto take = [&p](bool is_given, std::string_view key, std::string& field) {
    const std::string said = is_given ? "" : word_after(key, p);
    if (!said.empty()) field = said;
  };
  take(out.given.profile, kProfile, out.profile);
  take(out.given.prefill, kPrefill, out.prefill);
  return out;
}

Status check_running_pair(const RunningPair& pair, const SweepMode& mode,
                          const SweepOptions& options) {
  Problems problems;
  if (!pair.prefill.can_prefill()) {
    add("--prefill-url", "needs kv_producer or kv_both", "it", pair.prefill.role, problems);
  }
  if (!pair.decode.can_decode()) {
    add("--decode-url", "needs kv_consumer or kv_both", "it", pair.decode.role, problems);
  }
  check_side("prefill", pair.prefill, mode, options, problems);
  check_side("decode", pair.decode, mode, options, problems);
  check_given(pair.prefill, options, problems);
  if (problems.empty()) return {};
  return fail(Errc::kInvalidArgument, fmt::format("{}", fmt::join(problems, "\n")));
}

}  // namespace baton::bench
