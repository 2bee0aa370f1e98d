#include "bench/sweep_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "base/random.h"
#include "serving/json.h"

namespace baton::bench {
namespace {

using serving::find;
using serving::Json;

constexpr double kStartSeconds = 2.5;  // servers up and down again, warm-up
constexpr double kTailSeconds = 1.5;   // the last requests, after the last arrival

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

Status same(const Json& file, std::string_view key, const Json& wanted) {
  const Json* found = find(file, key);
  const Json value = found == nullptr ? Json(nullptr) : *found;
  if (value == wanted) return {};
  return fail(Errc::kMismatch,
              fmt::format("it was made with {} {}, and this sweep has {}: another --results-dir, "
                          "or --force",
                          key, serving::shown(value), serving::shown(wanted)));
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
    for (const std::string& mode : grid.modes) {
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

Duration expected_time(const SweepPoint& point) {
  const double seconds = point.num_prompts / point.qps + kStartSeconds + kTailSeconds;
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
  out.ignore_eos = true;
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

Json sweep_settings(const SweepOptions& o) {
  const bool is_timed = o.backend == "timed";
  return {{"backend", o.backend},
          {"model", is_timed ? Json(nullptr) : Json(o.model)},
          {"profile", is_timed ? Json(o.profile) : Json(nullptr)},
          {"prefill", o.prefill},
          {"first_token", o.first_token},
          {"max_num_seqs", o.max_num_seqs},
          {"posting_cost_us", o.posting_cost ? Json(*o.posting_cost) : Json(nullptr)},
          {"point_seconds", o.point_seconds},
          {"num_warmups", o.num_warmups},
          {"serve_flags", o.serve_flags},
          {"goodput", o.goodput},
          {"request_timeout_s", o.request_timeout}};
}

std::string sweep_variant(const SweepOptions& o) {
  std::vector<std::string> out;
  if (o.max_num_seqs == 0) out.emplace_back("no slot limit");
  if (o.posting_cost) out.push_back(fmt::format("posting cost {:g} us", *o.posting_cost));
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
  return find(*baton, "void") == nullptr ? Kept::kYes : Kept::kNo;
}

}  // namespace baton::bench
