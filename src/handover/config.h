// What both machines are told once. Durations are those of AgentOptions; the fabric's figures are
// its capabilities().
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/clock.h"
#include "baton/agent.h"
#include "baton/geometry.h"
#include "baton/ids.h"

namespace baton::handover {

struct Config {
  // Who we are.
  PeerId id;
  Role role = Role::kBoth;
  Mode mode = Mode::kPush;
  Geometry geometry;
  bool verify_blocks = false;

  // Time.
  std::chrono::milliseconds peer_timeout{5000};
  std::chrono::milliseconds lease{30000};
  std::chrono::milliseconds lease_renewal{5000};
  std::chrono::milliseconds transfer_timeout{60000};
  std::chrono::milliseconds resend_min{
      200};  // a message whose answer is missing is repeated, at doubling
  std::chrono::milliseconds resend_max{2000};      // distances up to this one
  std::chrono::milliseconds reconnect_grace{500};  // a lost connection may come back for this long

  // Bounds.
  std::uint32_t transfers_max = 4096;
  std::uint32_t quarantine_blocks_max = 0;  // a peer; 0: half of the pool
  std::uint32_t peers_max = 256;
  std::uint32_t ends_remembered_max = 1024;  // a peer: ends that a late duplicate is answered from

  // The fabric.
  std::string fabric = "shm";
  bool delivery_complete = true;
  bool failed_writes_final = false;
  std::uint32_t writes_in_flight_max = 256;
  std::uint64_t write_bytes_max = 1 << 20;
  std::uint32_t immediates_max = 4096;
};

}  // namespace baton::handover
