#include "bench/serve_command.h"

#include <fmt/format.h>

#include <cstdio>

#include "bench/bench_run.h"
#include "bench/result_file.h"

namespace baton::bench {

using serving::complain;
using serving::Exit;

namespace {

constexpr char kWho[] = "baton bench serve";

Exit exit_for(const Error& error) {
  const bool is_usage = error.code == Errc::kInvalidArgument || error.code == Errc::kNotFound;
  return is_usage ? Exit::kUsage : Exit::kOther;
}

// Before an hour of load; the place last, as it makes the folder.
Status check_before(const BenchOptions& options, bool save) {
  if (Status checked = check_options(options); !checked || !save) return checked;
  return check_result_dir(options);
}

}  // namespace

Exit run_bench_serve(const BenchOptions& options) {
  const bool save = options.save_result || options.save_detailed;
  if (const Status ready = check_before(options, save); !ready) {
    complain(kWho, ready.error().message);
    return Exit::kUsage;
  }
  const Result<BenchRun> run = run_bench(options);
  if (!run) {
    complain(kWho, run.error().message);
    return exit_for(run.error());
  }
  PointInfo point = point_of(options, *run);
  point.void_reason = void_reason(point, options, *run);
  const std::string text = save || options.json ? result_json(point, options, *run) : "";
  std::fputs(options.json ? text.c_str() : result_table(point, options, *run).c_str(), stdout);
  if (save) {
    const std::string path = result_path(options, *run);
    if (const Status written = write_file(path, text); !written) {
      complain(kWho, written.error().message);
      return Exit::kOther;
    }
    if (!options.json) fmt::print("result: {}\n", path);
  }
  return run->metrics.completed > 0 ? Exit::kOk : Exit::kOther;
}

}  // namespace baton::bench
