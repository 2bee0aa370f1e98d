// The points of a sweep: which there are, in which order, how each is named and loaded.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "baton/result.h"
#include "bench/options.h"
#include "bench/sweep_options.h"

namespace baton::bench {

struct SweepPoint {
  std::string mode;
  double qps = 0;
  std::uint32_t input_len = 0, output_len = 0, iteration = 1;
  std::uint32_t num_prompts = 0;
  std::uint64_t seed = 0;  // of the load; the same for every mode

  std::string name() const;  // "push_qps4_in1024_out128_iter1"
};

// All modes of a point follow each other, so that each meets the machine in the same hour; every
// iteration begins with the next of them, and every other one goes backwards.
std::vector<SweepPoint> sweep_points(const SweepGrid& grid, const SweepOptions& options);

// How long a point takes: its arrivals, the start of its servers, its last answers. Servers that
// fall behind take longer.
Duration expected_time(const SweepPoint& point, const SweepOptions& options);

// The load of a point against `base_url`.
BenchOptions bench_options(const SweepPoint& point, const SweepOptions& options,
                           const std::string& base_url);

// What is known of these: said to the sweep, or by running servers of themselves; "": by nobody.
std::string known_backend(const SweepOptions& options);
std::string known_profile(const SweepOptions& options);
std::string known_prefill(const SweepOptions& options);
std::string known_first_token(const SweepOptions& options);

// Every setting that changes a result, as each result of a sweep has it.
nlohmann::ordered_json sweep_settings(const SweepOptions& options);
// In words, those that are not the article's: "no slot limit, posting cost 0 us"; of real compute
// how many threads an instance had; "": none.
std::string sweep_variant(const SweepOptions& options);

// What a result file that is there already says.
enum class Kept : std::uint8_t { kNo, kYes };
// kNo: there is none, it was not finished, or it is void: run the point. An error: it was made with
// another seed, number of prompts or setting, or (unless allowed) by another build or of another
// content of the profile, and names it with both values.
Result<Kept> keep_result(std::string_view text, const SweepPoint& point,
                         const SweepOptions& options);

}  // namespace baton::bench
