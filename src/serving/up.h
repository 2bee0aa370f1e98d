// `baton up`: prefill, decode and router as three child processes of this one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "serving/process.h"

namespace baton::serving {

struct UpOptions {
  std::string model = "smollm2";
  std::string host = "127.0.0.1";  // of the router; the instances stay on loopback
  std::uint16_t port = 8000;       // 0: any free one, as the following
  std::uint16_t prefill_port = 8100;
  std::uint16_t decode_port = 8200;
  std::string first_token = "prefill";
  std::string mode = "push";
  std::string kv_load_failure_policy = "fail";
  std::vector<std::string> model_names;  // of the curl line; empty: the model as typed
  std::vector<std::string> serve_flags;  // for both instances, as typed
  double drain_timeout = 10;
};

// Until SIGINT or SIGTERM, or until a child ends, which is told with its reason. Children end with
// this process, whatever ends it. hold_stop_signals() comes first.
Exit run_up(const UpOptions& options);

}  // namespace baton::serving
