// Running instances that a sweep is told to take (--prefill-url, --decode-url): what they say of
// themselves against what the sweep was told. A result must not carry a name that the servers do
// not bear.
#pragma once

#include "baton/result.h"
#include "bench/sweep_modes.h"
#include "bench/sweep_options.h"
#include "serving/instance_info.h"

namespace baton::bench {

struct RunningPair {
  serving::InstanceInfo prefill, decode;
};

// Asks both at GET /baton/instance, some seconds each at most. kUnavailable, naming the URL: nobody
// answers, or not as an instance does.
Result<RunningPair> ask_running_pair(const SweepOptions& options);

// What was not said (SweepOptions::given) is what P says of itself. Pure.
SweepOptions adopt(const RunningPair& pair, const SweepOptions& options);

// kInvalidArgument: every value of the sweep that the servers contradict, one a line, each with
// both values. Pure.
Status check_running_pair(const RunningPair& pair, const SweepMode& mode,
                          const SweepOptions& options);

}  // namespace baton::bench
