#include "bench/sweep_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "base/random.h"
#include "bench/summary.h"
#include "bench/sweep_modes.h"
#include "serving/json.h"
#include "serving/version.h"

namespace baton::bench {
namespace {

using serving::find;
using serving::Json;

// As measured on two cores: servers up and down again with their warm-up, and a token of the last
// answers, after the last arrival. A model has to be read.
struct Pace {
  double start_s, token_s;
};
constexpr Pace kEmulated = {1.8, 0.008};
constexpr Pace kReal = {5, 0.025};

// By --serve-flag, else one a core.
std::uint64_t told_threads(const SweepOptions& o) {
  constexpr std::string_view kFlag = "--threads";
  for (std::size_t i = 0; i < o.serve_flags.size(); ++i) {
    std::string_view word = o.serve_flags[i];
    if (!word.starts_with(kFlag)) continue;
    word.remove_prefix(kFlag.size());
    if (word.empty() && i + 1 < o.serve_flags.size()) word = o.serve_flags[i + 1];
    if (word.starts_with('=')) word.remove_prefix(1);
    const std::optional<double> count = to_number(word);
    if (count && *count >= 1) return static_cast<std::uint64_t>(*count);
  }
  return std::max(1U, std::thread::hardware_concurrency());
}

// Points differ in it, modes do not.
std::uint64_t seed_of(const SweepPoint& point, std::uint64_t seed) {
  Rng rng(seed);
  std::uint64_t out = rng.next();
  for (const std::uint64_t part :
       {static_cast<std::uint64_t>(std::llround(point.qps * 1000)), std::uint64_t{point.input_len},
        std::uint64_t{point.output_len}, std::uint64_t{point.iteration}}) {
    out = Rng(out ^ part).next();
  }
  return out >> 16;  // every reader of JSON numbers takes 48 bits
}

constexpr std::string_view kElsewhere = "another --results-dir, or --force";

Status same(const Json& file, std::string_view key, const Json& wanted, std::string path = "",
            std::string_view remedy = kElsewhere) {
  const Json* found = find(file, key);
  const Json value = found == nullptr ? Json(nullptr) : *found;
  if (value == wanted) return {};
  path += key;
  if (value.is_object() && wanted.is_object()) {
    for (auto it = wanted.begin(); it != wanted.end(); ++it) {
      if (Status status = same(value, it.key(), it.value(), path + ".", remedy); !status)
        return status;
    }
  }
  return fail(Errc::kMismatch,
              fmt::format("it was made with {} {}, and this sweep has {}: {}", path,
                          serving::shown(value), serving::shown(wanted), remedy));
}

// Points of two builds, or of a profile before and after a change of it, are no one experiment.
Status same_makers(const Json& baton, const SweepOptions& o) {
  constexpr std::string_view kRemedy =
      "another --results-dir, --force to run the point again, or --allow-other-build to keep it";
  const Json none = Json::object();
  const auto member = [&none](const Json& object, std::string_view key) -> const Json& {
    const Json* found = find(object, key);
    return found != nullptr && found->is_object() ? *found : none;
  };
  const Json& versions = member(member(baton, "environment"), "versions");
  Status status = same(versions, "bench_build", serving::build_identity(), "", kRemedy);
  if (status && !o.server_build.empty()) {
    status = same(versions, "server_build", o.server_build, "", kRemedy);
  }
  if (status && !o.profile_hash.empty()) {
    status = same(baton, "profile_hash", o.profile_hash, "", kRemedy);
  }
  return status;
}

// How many threads computed, of real compute: on this host own servers have a core each only if
// they are told so.
std::string threads_in_words(const SweepOptions& o) {
  if (known_backend(o) != "cpu") return "";
  const auto words = [](std::uint64_t n) {
    return fmt::format("{} thread{}", n, n == 1 ? "" : "s");
  };
  if (!o.is_running()) return words(told_threads(o)) + " an instance";
  if (o.servers.empty()) return "";
  const Json said = Json::parse(o.servers);
  const auto of = [&said](const char* side) {
    const Json* instance = find(said, side);
    return instance == nullptr ? 0 : serving::uint_or(*instance, "threads", 0);
  };
  if (const std::uint64_t one = of("local"); one != 0) return words(one) + " an instance";
  const std::uint64_t p = of("prefill"), d = of("decode");
  if (p == 0 || d == 0) return "";
  if (p == d) return words(p) + " an instance";
  return fmt::format("prefill {}, decode {}", words(p), words(d));
}

// Begins with the next mode every time, and goes backwards every other time: no mode always comes
// last, or after the same one.
std::vector<std::string> order_of(std::vector<std::string> modes, std::uint32_t iteration) {
  const std::size_t first = (iteration - 1) % modes.size();
  std::ranges::rotate(modes, modes.begin() + static_cast<std::ptrdiff_t>(first));
  if (iteration % 2 == 0) std::ranges::reverse(modes.begin() + 1, modes.end());
  return modes;
}

}  // namespace

std::string SweepPoint::name() const {
  return fmt::format("{}_qps{}_in{}_out{}_iter{}", mode, qps, input_len, output_len, iteration);
}

std::vector<SweepPoint> sweep_points(const SweepGrid& grid, const SweepOptions& options) {
  std::vector<SweepPoint> out;
  const auto add = [&](SweepPoint point) {
    const double wanted = std::ceil(point.qps * options.point_seconds);
    point.num_prompts = std::max(options.min_prompts, static_cast<std::uint32_t>(wanted));
    point.seed = seed_of(point, options.seed);
    for (const std::string& mode : order_of(grid.modes, point.iteration)) {
      point.mode = mode;
      out.push_back(point);
    }
  };
  for (std::uint32_t iteration = 1; iteration <= options.iterations; ++iteration) {
    for (const std::uint32_t output : grid.output_lens) {
      for (const std::uint32_t input : grid.input_lens) {
        for (const double qps : grid.qps) add({"", qps, input, output, iteration, 0, 0});
      }
    }
  }
  return out;
}

Duration expected_time(const SweepPoint& point, const SweepOptions& options) {
  const Pace pace = known_backend(options) == "cpu" ? kReal : kEmulated;
  const double seconds =
      point.num_prompts / point.qps + pace.start_s + point.output_len * pace.token_s;
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

BenchOptions bench_options(const SweepPoint& point, const SweepOptions& options,
                           const std::string& base_url) {
  BenchOptions out;
  out.base_url = base_url;
  out.mode = point.mode;
  out.random_input_len = point.input_len;
  out.random_output_len = point.output_len;
  out.num_prompts = point.num_prompts;
  out.num_warmups = options.num_warmups;
  out.request_rate = point.qps;
  out.seed = point.seed;
  out.request_timeout = options.request_timeout;
  out.ready_check_timeout_sec = 60;
  out.goodput = options.goodput;
  out.disable_tqdm = options.disable_tqdm;
  out.prefill_url = options.prefill_url;
  out.decode_url = options.decode_url;
  out.save_detailed = true;
  out.result_dir = options.results_dir;
  out.result_filename = point.name() + ".json";
  out.as_typed = options.as_typed;
  return out;
}

std::string known_backend(const SweepOptions& o) {
  return o.is_running() && o.servers.empty() && !o.given.backend ? "" : o.backend;
}

std::string known_profile(const SweepOptions& o) {
  const bool is_known = !o.is_running() || !o.servers.empty() || o.given.profile;
  return is_known && known_backend(o) == "timed" ? o.profile : "";
}

std::string known_prefill(const SweepOptions& o) {
  return o.is_running() && o.servers.empty() && !o.given.prefill ? "" : o.prefill;
}

std::string known_first_token(const SweepOptions& o) {
  return !o.router_url.empty() && !o.given.first_token ? "" : o.first_token;
}

Json sweep_settings(const SweepOptions& o) {
  const auto text = [](const std::string& value) {
    return value.empty() ? Json(nullptr) : Json(value);
  };
  // 0 that running servers were adopted with: they did not say; else: no limit.
  const bool is_slots_known =
      !o.is_running() || o.given.max_num_seqs || (!o.servers.empty() && o.max_num_seqs != 0);
  return {{"backend", text(known_backend(o))},
          {"model", text(o.model)},
          {"profile", text(known_profile(o))},
          {"prefill", text(known_prefill(o))},
          {"first_token", text(known_first_token(o))},
          {"servers", o.servers.empty() ? Json(nullptr) : Json::parse(o.servers)},
          {"max_num_seqs", is_slots_known ? Json(o.max_num_seqs) : Json(nullptr)},
          {"posting_cost_us", o.posting_cost ? Json(*o.posting_cost) : Json(nullptr)},
          {"point_seconds", o.point_seconds},
          {"num_warmups", o.num_warmups},
          {"serve_flags", o.serve_flags},
          {"goodput", o.goodput},
          {"request_timeout_s", o.request_timeout}};
}

std::string sweep_variant(const SweepOptions& o) {
  std::vector<std::string> out;
  const bool is_told = !o.is_running() || o.given.max_num_seqs;
  const bool is_without = is_told ? o.max_num_seqs == 0 : o.max_num_seqs >= kNoSlotLimit;
  if (is_without) out.emplace_back("no slot limit");
  if (o.posting_cost) out.push_back(fmt::format("posting cost {:g} us", *o.posting_cost));
  const std::string threads = threads_in_words(o);
  if (!threads.empty()) out.push_back(threads);
  return fmt::format("{}", fmt::join(out, ", "));
}

Result<Kept> keep_result(std::string_view text, const SweepPoint& point,
                         const SweepOptions& options) {
  const Result<Json> file = serving::parse_json(text);
  const Json* baton = file && file->is_object() ? find(*file, "baton") : nullptr;
  if (baton == nullptr || !baton->is_object() || serving::uint_or(*baton, "schema", 0) != 1) {
    return Kept::kNo;
  }
  Status status = same(*baton, "seed", point.seed);
  if (status) status = same(*file, "num_prompts", point.num_prompts);
  const Json none = Json::object();
  const Json* settings = find(*baton, "settings");
  if (settings == nullptr || !settings->is_object()) settings = &none;
  const Json wanted = sweep_settings(options);
  for (auto it = wanted.begin(); status && it != wanted.end(); ++it) {
    status = same(*settings, it.key(), it.value());
  }
  if (!status) return tl::unexpected<Error>(status.error());
  if (find(*baton, "void") != nullptr) return Kept::kNo;
  if (!options.allow_other_build) status = same_makers(*baton, options);
  if (!status) return tl::unexpected<Error>(status.error());
  return Kept::kYes;
}

}  // namespace baton::bench
