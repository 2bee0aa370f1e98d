// Several prefill and decode processes in one thread under a virtual clock: the shipped state
// machines over the fake fabric, with small engines above and a control channel that delays,
// reorders, drops, doubles and cuts. Everything comes from one seed. First faults, then quiet: in
// the quiet all that was accepted must end within its bound.
//
// Checkers look from outside: memory contents by pattern, block books of the engines, one end an
// attempt.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "fabric/sim/sim_fabric.h"
#include "handover/config.h"

namespace baton::handover::testing {

struct WorldOptions {
  std::uint32_t prefills = 2;
  std::uint32_t decodes = 2;
  std::uint32_t requests = 16;
  bool delivery_complete = true;
  bool fence_on_request = true;
  bool verify = false;
  std::uint32_t drop_per_1000 = 0;       // of control messages
  std::uint32_t duplicate_per_1000 = 0;  // likewise
  Duration message_delay_max = std::chrono::milliseconds(2);
  std::uint32_t cuts = 0;     // connections that break
  std::uint32_t crashes = 0;  // processes that die and come back
  std::uint32_t stalls = 0;   // stretches in which a process neither runs nor answers
  std::uint32_t cancels_per_1000 = 0;
  std::uint32_t write_failures_per_1000 = 0;
  std::uint32_t ends_remembered_max = 1024;
};

struct WorldReport {
  std::vector<std::string> faults;              // what a checker found; empty: nothing
  std::map<std::string, std::uint64_t> counts;  // "decode done", "decode failed(peer_died)", ...
  std::uint64_t trace_hash = 0;
  Duration last_end{};  // after the quiet began, when the last thing ended
};

// `trace`: prints a line for each thing that happens.
WorldReport run_world(std::uint64_t seed, const WorldOptions& options, bool trace = false);

}  // namespace baton::handover::testing
