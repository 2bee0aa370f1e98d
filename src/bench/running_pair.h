// Running instances that a sweep is told to take (--prefill-url, --decode-url, or those that
// --router-url lists): what they say of themselves against what the sweep was told. A result must
// not carry a name that the servers do not bear.
#pragma once

#include <vector>

#include "baton/result.h"
#include "bench/sweep_modes.h"
#include "bench/sweep_options.h"
#include "serving/instance_info.h"

namespace baton::bench {

struct RunningPair {
  serving::InstanceInfo prefill, decode;
  bool is_one = false;  // --router-url is no router: both are the one instance that it names
};

// Asks each at GET /baton/instance, some seconds at most. Where a router has several, every one of
// them is in some pair. Empty: a server that lists none and is none, as one that is none of ours.
// kUnavailable, naming the URL: an instance does not answer, or not as one does.
Result<std::vector<RunningPair>> ask_running(const SweepOptions& options);

// What was not said (SweepOptions::given) is what P says of itself, the slots what D does; and
// SweepOptions::servers is filled. Pure.
SweepOptions adopt(const RunningPair& pair, const SweepOptions& options);

// kInvalidArgument: every value of the sweep or of its mode's name that the servers contradict, and
// every one in which P and D contradict each other, one a line, each with both values. What one of
// them does not say contradicts nothing. Pure.
Status check_running_pair(const RunningPair& pair, const SweepMode& mode,
                          const SweepOptions& options);

}  // namespace baton::bench
