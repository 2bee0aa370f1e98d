// `baton route`: the router as a process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "serving/process.h"
#include "serving/router.h"

namespace baton::serving {

struct RouteOptions {
  std::vector<std::string> prefill;  // base URLs
  std::vector<std::string> decode;
  std::string first_token = "prefill";
  std::string mode = "auto";
  std::uint32_t decode_slots = 0;  // 0: twice each decode instance's max_num_seqs
  std::uint32_t conversations = 4096;
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;
  double request_timeout = 600;  // seconds, as the following
  double idle_timeout = 120;
  double connect_timeout = 2;
  double peer_timeout = 5;
  double drain_timeout = 30;
  double transfer_timeout = 0;  // 0: as each decode instance has it
  std::size_t transfer_records = 1024;
  int announce_fd = -1;
};

// Every fault at once, one a line.
Result<RouterOptions> router_options(const RouteOptions& options);

// Routes until SIGINT or SIGTERM. hold_stop_signals() comes first.
Exit run_route(const RouteOptions& options);

}  // namespace baton::serving
