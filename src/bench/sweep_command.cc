#include "bench/sweep_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "bench/bench_run.h"
#include "bench/result_file.h"
#include "bench/running_pair.h"
#include "bench/saturation.h"
#include "bench/sweep_plan.h"
#include "bench/sweep_servers.h"
#include "serving/timed_backend.h"
#include "serving/version.h"

namespace baton::bench {

using serving::complain;
using serving::Exit;

namespace {

constexpr std::size_t kTransferRecordsMax = 1 << 20;  // of `baton serve --transfer-records`

constexpr char kSweep[] = "baton sweep";

// "40 s", "26 min".
std::string in_words(double seconds) {
  return seconds < 100 ? fmt::format("{:.0f} s", seconds) : fmt::format("{:.0f} min", seconds / 60);
}

double seconds(Duration d) {
  return std::chrono::duration<double>(d).count();
}

std::string result_of(const SweepPoint& point, const SweepOptions& options, const char* suffix) {
  return (std::filesystem::path(options.results_dir) / (point.name() + suffix)).string();
}

class Sweep {
 public:
  Sweep(const SweepOptions& options, std::vector<SweepPoint> points)
      : options_(options), all_(points.size()), points_(std::move(points)) {}

  // Takes out what has a result.
  Status skip_finished() {
    if (options_.force) return {};
    std::vector<SweepPoint> left;
    for (SweepPoint& point : points_) {
      const std::string path = result_of(point, options_, ".json");
      std::error_code error;
      const auto kind = std::filesystem::status(path, error).type();
      using Kind = std::filesystem::file_type;
      if (kind != Kind::not_found && kind != Kind::regular) {
        return fail(Errc::kInvalidArgument, fmt::format("'{}' is there and is no file", path));
      }
      std::ifstream file(path, std::ios::binary);
      const std::string text((std::istreambuf_iterator<char>(file)),
                             std::istreambuf_iterator<char>());
      const Result<Kept> kept = text.empty() ? Kept::kNo : keep_result(text, point, options_);
      if (!kept) return fail(kept.error().code, path + ": " + kept.error().message);
      if (*kept == Kept::kNo) left.push_back(std::move(point));
    }
    points_ = std::move(left);
    return {};
  }

  void say_what_comes() const {
    fmt::print("{} points, {} of them finished already; left: {}, about {}\n", all_,
               all_ - points_.size(), points_.size(), in_words(seconds(left_from(0))));
    if (!known_profile(options_).empty()) {
      fmt::print("emulated: compute is timed waits of profile {}\n", known_profile(options_));
    }
    std::fflush(stdout);
  }

  void say_how() const {
    for (const SweepPoint& point : points_) fmt::print("{}\n", point.name());
    for (const SweepMode& mode : all_modes()) {
      const bool asked = std::any_of(points_.begin(), points_.end(),
                                     [&mode](const SweepPoint& p) { return p.mode == mode.name; });
      if (asked) say_how(mode);
    }
  }

  Exit run() {
    std::size_t voids = 0;
    const Time began = now();
    for (std::size_t i = 0; i < points_.size(); ++i) {
      const double left = seconds(left_from(i)) * pace(now() - began, left_from(0) - left_from(i));
      fmt::print("[{}/{}, {} left] {}\n", i + 1, points_.size(), in_words(left), points_[i].name());
      std::fflush(stdout);
      const Result<std::string> void_reason = run_point(points_[i]);
      if (!void_reason) {
        complain(kSweep, fmt::format("{}: {}", points_[i].name(), void_reason.error().message));
        return Exit::kOther;  // the next one of this mode would end alike
      }
      if (void_reason->empty()) continue;
      fmt::print("  void: {}\n", *void_reason);
      ++voids;
    }
    fmt::print("{} points, {} of them void\n", points_.size(), voids);
    return voids == 0 || options_.allow_void ? Exit::kOk : Exit::kOther;
  }

 private:
  Duration left_from(std::size_t first) const {
    Duration out = Duration::zero();
    for (std::size_t i = first; i < points_.size(); ++i) out += expected_time(points_[i], options_);
    return out;
  }

  // How much longer than expected the points took so far: those of a saturated mode end late.
  static double pace(Duration spent, Duration expected) {
    return expected > Duration::zero() ? seconds(spent) / seconds(expected) : 1;
  }

  void say_how(const SweepMode& mode) const {
    const auto line = [](const std::vector<std::string>& words) {
      fmt::print("  baton {}\n", fmt::join(words, " "));
    };
    fmt::print("{}:\n", mode.name);
    if (!options_.router_url.empty()) {
      fmt::print("  {} runs already\n", options_.router_url);
      return;
    }
    if (options_.is_running()) {
      return line(route_command(mode, options_, options_.prefill_url, options_.decode_url));
    }
    if (mode.is_local) return line(local_command(options_));
    line(prefill_command(mode, options_));
    line(decode_command(mode, options_));
    line(route_command(mode, options_, "http://PREFILL", "http://DECODE"));
  }

  // Why the point is void, "" if it counts.
  Result<std::string> run_point(const SweepPoint& point) {
    const std::string log = result_of(point, options_, ".log");
    std::ofstream(log, std::ios::trunc).close();
    auto servers = SweepServers::start(*find_mode(point.mode), options_, log);
    if (!servers) return tl::unexpected<Error>(servers.error());
    BenchOptions load = bench_options(point, options_, (*servers)->base_url());
    load.prefill_url = (*servers)->prefill_url();
    load.decode_url = (*servers)->decode_url();
    const Result<BenchRun> run = run_bench(load);
    if (!run) return tl::unexpected<Error>(run.error());
    if (Status alive = (*servers)->check(); !alive) return tl::unexpected<Error>(alive.error());
    return write_results(point, load, *run, **servers, log);
  }

  Result<std::string> write_results(const SweepPoint& point, const BenchOptions& load,
                                    const BenchRun& run, const SweepServers& servers,
                                    const std::string& log) {
    PointInfo info = point_of(load, run);
    info.mode = point.mode;
    info.iteration = point.iteration;
    info.settings = sweep_settings(options_).dump();
    info.variant = sweep_variant(options_);
    info.first_token = known_first_token(options_);
    info.prefill = known_prefill(options_);
    // Of servers that nobody could ask their counters alone say it.
    if (known_backend(options_) == "timed" &&
        (!options_.is_running() || !options_.servers.empty())) {
      info.emulated = true;
      info.profile = known_profile(options_);
    }
    // Running servers of which nobody could ask may be none of ours, and say nothing.
    info.hands_over =
        !find_mode(point.mode)->is_local && (!options_.is_running() || !options_.servers.empty());
    info.prefill_flags = servers.prefill_flags();
    info.decode_flags = servers.decode_flags();
    info.route_flags = servers.route_flags();
    info.void_reason = void_reason(info, load, run);
    std::ofstream(log, std::ios::app) << result_table(info, load, run);
    if (Status written = write_file(result_path(load, run), result_json(info, load, run));
        !written) {
      return tl::unexpected<Error>(written.error());
    }
    const auto ms = [](std::optional<double> value) {
      return value ? fmt::format("{:.1f}", *value) : std::string("-");
    };
    fmt::print("  TTFT p50 {} ms, TPOT p50 {} ms, {} answered, {} failed\n",
               ms(run.metrics.ttft.median()), ms(run.metrics.tpot.median()), run.metrics.completed,
               run.metrics.failed);
    const Arrivals arrivals = arrivals_of(run.load.results);
    if (is_saturated(arrivals).value_or(false)) {
      fmt::print("  saturated: {}\n", saturation_in_words(arrivals));
    }
    for (const auto& [side, pool] :
         {std::pair{"prefill", &run.prefill_pool}, {"decode", &run.decode_pool}}) {
      if (*pool && is_full(**pool, point.input_len + point.output_len)) {
        fmt::print("  the KV pool of {} was full: {} of {} blocks\n", side, (*pool)->most_used,
                   (*pool)->blocks);
      }
    }
    return info.void_reason;
  }

  const SweepOptions& options_;
  const std::size_t all_;
  std::vector<SweepPoint> points_;
};

// Running servers say what they are, and must be what the results will say of them. Of those that
// nobody can ask nothing is said.
Exit take_running(const SweepGrid& grid, SweepOptions& options) {
  if (!options.is_running()) return Exit::kOk;
  const Result<std::vector<RunningPair>> pairs = ask_running(options);
  if (!pairs && options.dry_run) {
    // Whether a result was made with the same servers cannot be known, so all points are named.
    fmt::print("all points, finished or not: {}\n", pairs.error().message);
    options.force = true;
    return Exit::kOk;
  }
  if (!pairs) {
    complain(kSweep, pairs.error().message);
    return Exit::kOther;
  }
  if (!pairs->empty()) options = adopt(pairs->front(), options);
  for (const RunningPair& pair : *pairs) {
    const Status fits = check_running_pair(pair, *find_mode(grid.modes.front()), options);
    if (fits) continue;
    complain(kSweep, fits.error().message);
    return Exit::kUsage;
  }
  return Exit::kOk;
}

// Of own servers: what they will say of themselves.
Exit know_makers(SweepOptions& options) {
  if (options.is_running()) return Exit::kOk;
  options.server_build = serving::build_identity();
  if (options.backend != "timed") return Exit::kOk;
  Result<std::string> hash = serving::profile_hash(options.profile);
  if (!hash) {
    complain(kSweep, "--profile: " + hash.error().message);
    return Exit::kUsage;
  }
  options.profile_hash = std::move(*hash);
  return Exit::kOk;
}

}  // namespace

Exit run_sweep(const SweepOptions& as_given) {
  SweepOptions options = as_given;
  const Result<SweepGrid> grid = read_grid(options);
  if (!grid) {
    complain(kSweep, grid.error().message);
    return Exit::kUsage;
  }
  if (const Exit taken = take_running(*grid, options); taken != Exit::kOk) return taken;
  if (const Exit known = know_makers(options); known != Exit::kOk) return known;
  std::vector<SweepPoint> points = sweep_points(*grid, options);
  for (const SweepPoint& point : points) {
    options.transfer_records =
        std::max(options.transfer_records, std::size_t{point.num_prompts} + options.num_warmups);
  }
  if (options.transfer_records > kTransferRecordsMax) {
    complain(kSweep, fmt::format("a point has {} requests (--qps-list x --point-seconds, "
                                 "--min-prompts, --num-warmups), and servers keep records of at "
                                 "most {}",
                                 options.transfer_records, kTransferRecordsMax));
    return Exit::kUsage;
  }
  Sweep sweep(options, std::move(points));
  if (Status skipped = sweep.skip_finished(); !skipped) {
    complain(kSweep, skipped.error().message);
    return Exit::kUsage;
  }
  sweep.say_what_comes();
  if (options.dry_run) {
    sweep.say_how();
    return Exit::kOk;
  }
  std::error_code error;
  std::filesystem::create_directories(options.results_dir, error);
  if (error) {
    complain(kSweep, fmt::format("--results-dir '{}' cannot be made: {}", options.results_dir,
                                 error.message()));
    return Exit::kUsage;
  }
  return sweep.run();
}

}  // namespace baton::bench
