// One run of the load against running servers, with everything that is known of it afterwards.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "baton/result.h"
#include "bench/instances.h"
#include "bench/load.h"
#include "bench/machine.h"
#include "bench/metrics.h"
#include "bench/options.h"
#include "bench/records.h"

namespace baton::bench {

struct BenchRun {
  LoadRun load;
  Metrics metrics;
  Slo slo;
  std::string model_id;
  std::string date;  // "20261130-090000", local time at the start
  Records records;
  std::vector<ServerSaid> servers;
  Counters counters;  // of the run alone: what an instance counted before is not in them
  std::optional<PoolUse> prefill_pool, decode_pool;  // the fullest of each side; local: the latter
  std::optional<double> cpu_busy_share;
  std::optional<double> cpu_throttled_s;  // that a CPU quota took from the driver's control group
};

// Waits until the server is ready (a GET of its models), runs, then asks for the records. Errors:
// wrong options, an unreadable trace, a server that does not get ready within
// --ready-check-timeout-sec, a vocabulary that nobody names. Failed requests are no error.
Result<BenchRun> run_bench(const BenchOptions& options);

}  // namespace baton::bench
