#include "bench/sweep_plan.h"

#include <fmt/format.h>

#include <cmath>

#include "base/random.h"
#include "serving/json.h"

namespace baton::bench {
namespace {

using serving::find;
using serving::Json;

constexpr double kStartSeconds = 4;  // servers up and down again
constexpr double kTailSeconds = 4;   // the last requests, after the last arrival

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

Result<Kept> keep_result(std::string_view text, const SweepPoint& point,
                         const SweepOptions& options) {
  const Result<Json> file = serving::parse_json(text);
  const Json* baton = file && file->is_object() ? find(*file, "baton") : nullptr;
  if (baton == nullptr || !baton->is_object() || serving::uint_or(*baton, "schema", 0) != 1) {
    return Kept::kNo;
  }
  const bool is_timed = options.backend == "timed";
  Status status = same(*baton, "seed", point.seed);
  if (status) status = same(*file, "num_prompts", point.num_prompts);
  if (status) status = same(*baton, "first_token", options.first_token);
  if (status) status = same(*baton, "prefill", options.prefill);
  if (status) status = same(*baton, "profile", is_timed ? Json(options.profile) : Json(nullptr));
  if (!status) return tl::unexpected<Error>(status.error());
  return find(*baton, "void") == nullptr ? Kept::kYes : Kept::kNo;
}

}  // namespace baton::bench
