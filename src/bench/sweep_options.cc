#include "bench/sweep_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/nearest.h"
#include "bench/goodput.h"
#include "bench/summary.h"
#include "bench/sweep_modes.h"
#include "http/client.h"

namespace baton::bench {
namespace {

constexpr std::uint32_t kIterationsMax = 1000;

tl::unexpected<Error> bad(std::string_view flag, std::string_view wanted, std::string_view value) {
  return fail(Errc::kInvalidArgument,
              fmt::format("{} must be {}, and is '{}'", flag, wanted, value));
}

// Separated by commas or blanks, as variables of a shell are.
std::vector<std::string> items_of(std::string text) {
  std::replace(text.begin(), text.end(), ',', ' ');
  return split_list(text, ' ');
}

// A point named twice would be run twice, into one file.
template <typename T>
Status add_new(std::string_view flag, T value, const std::string& item, std::vector<T>& out) {
  if (std::ranges::find(out, value) != out.end()) return bad(flag, "each given once", item);
  out.push_back(std::move(value));
  return {};
}

template <typename T>
Status read_numbers(std::string_view flag, const std::string& text, double least, double most,
                    std::vector<T>& out) {
  for (const std::string& item : items_of(text)) {
    const std::optional<double> value = to_number(item);
    const bool is_whole = std::is_floating_point_v<T> || (value && *value == std::floor(*value));
    if (!value || *value < least || *value > most || !is_whole) {
      return bad(flag, fmt::format("numbers from {} to {}", least, most), item);
    }
    if (Status status = add_new(flag, static_cast<T>(*value), item, out); !status) return status;
  }
  if (out.empty()) return bad(flag, "at least one number", text);
  return {};
}

Status read_modes(const SweepOptions& o, SweepGrid& grid) {
  for (const std::string& name : items_of(o.modes)) {
    if (find_mode(name) != nullptr) {
      if (Status status = add_new("--modes", name, name, grid.modes); !status) return status;
      continue;
    }
    const std::vector<std::string> known = mode_names();
    const std::string nearest = nearest_word(name, known);
    return bad("--modes", fmt::format("some of {}", fmt::join(known, ", ")),
               nearest.empty() ? name : fmt::format("{}', did you mean '{}", name, nearest));
  }
  if (grid.modes.empty()) return bad("--modes", "at least one mode", o.modes);
  return {};
}

Status check_choices(const SweepOptions& o) {
  const auto one_of = [](std::string_view flag, std::string_view value, std::string_view a,
                         std::string_view b) -> Status {
    if (value == a || value == b) return {};
    return bad(flag, fmt::format("{} or {}", a, b), value);
  };
  if (Status s = one_of("--backend", o.backend, "timed", "cpu"); !s) return s;
  if (Status s = one_of("--prefill", o.prefill, "computed", "cached"); !s) return s;
  if (Status s = one_of("--first-token", o.first_token, "decode", "prefill"); !s) return s;
  if (o.iterations == 0 || o.iterations > kIterationsMax) {
    return bad("--iterations", fmt::format("from 1 to {}", kIterationsMax),
               std::to_string(o.iterations));
  }
  if (!(o.point_seconds > 0 && o.point_seconds <= 86400)) {
    return bad("--point-seconds", "above 0 and at most 86400", fmt::format("{}", o.point_seconds));
  }
  if (o.posting_cost && (o.backend != "timed" || !(*o.posting_cost >= 0))) {
    return bad("--posting-cost", "0 or more microseconds, of --backend timed",
               fmt::format("{}", *o.posting_cost));
  }
  const auto slo = parse_goodput(o.goodput);
  return slo ? Status() : tl::unexpected<Error>(slo.error());
}

Status check_urls(const SweepOptions& o) {
  for (const auto& [flag, url] : {std::pair{"--router-url", &o.router_url},
                                  {"--prefill-url", &o.prefill_url},
                                  {"--decode-url", &o.decode_url}}) {
    if (url->empty()) continue;
    const auto parsed = http::parse_url(*url);
    if (!parsed)
      return fail(Errc::kInvalidArgument, fmt::format("{} {}", flag, parsed.error().message));
  }
  return {};
}

// Running servers have one mode, and nobody can make another of them.
Status check_running(const SweepOptions& o, const SweepGrid& grid) {
  const bool has_pair = !o.prefill_url.empty() || !o.decode_url.empty();
  if (has_pair && o.router_url.empty() && (o.prefill_url.empty() || o.decode_url.empty())) {
    return fail(Errc::kInvalidArgument,
                "--prefill-url and --decode-url belong together, unless --router-url is given");
  }
  const bool is_running = o.is_running();
  const bool is_told = o.prefill_tp_size != 0 || o.prefill_pp_size != 0 ||
                       o.prefill_side_channel_port != 0 || !o.prefill_engine_id.empty() ||
                       !o.prefill_kv_host.empty();
  if (is_told && (o.prefill_url.empty() || o.decode_url.empty())) {
    return fail(Errc::kInvalidArgument,
                "--prefill-tp-size, --prefill-pp-size, --prefill-engine-id, --prefill-kv-host and "
                "--prefill-side-channel-port (also as PREFILL_...) are compared with running "
                "servers: name them with --prefill-url and --decode-url");
  }
  if (is_running && !o.serve_flags.empty()) {
    return bad("--serve-flag", "absent: running servers have their flags", o.serve_flags.front());
  }
  if (is_running && !o.model.empty()) {
    return bad("--model", "absent: running servers have their model", o.model);
  }
  if (is_running && grid.modes.size() != 1) {
    return bad("--modes", "the one mode of the running servers", o.modes);
  }
  if (is_running || o.backend == "timed") return {};
  if (o.model.empty()) {
    return fail(Errc::kInvalidArgument, "--backend cpu needs --model, a GGUF file or its name");
  }
  if (o.prefill == "cached") {
    return fail(Errc::kInvalidArgument,
                "--prefill cached needs --backend timed: of random prompts a real model has "
                "nothing cached");
  }
  return {};
}

}  // namespace

Result<SweepGrid> read_grid(const SweepOptions& o) {
  SweepGrid grid;
  Status read = check_choices(o);
  if (read) read = read_modes(o, grid);
  if (read) read = read_numbers("--qps-list", o.qps_list, 1e-3, 1e5, grid.qps);
  if (read) read = read_numbers("--input-lens", o.input_lens, 1, 1e7, grid.input_lens);
  if (read) read = read_numbers("--output-lens", o.output_lens, 1, 1e7, grid.output_lens);
  if (read) read = check_urls(o);
  if (read) read = check_running(o, grid);
  if (!read) return tl::unexpected<Error>(read.error());
  for (const std::string& name : grid.modes) {
    if (find_mode(name)->needs_timed && o.backend != "timed" && o.router_url.empty()) {
      return bad("--modes", "modes that --backend cpu has", name);
    }
  }
  return grid;
}

}  // namespace baton::bench
