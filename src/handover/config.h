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
#include "wire/frame.h"

namespace baton::handover {

struct Config {
  // Who we are.
  PeerId id;
  Role role = Role::kBoth;
  Mode mode = Mode::kPush;
  Geometry geometry;
  bool verify_blocks = false;
  bool merge_runs = true;
  // The newest protocol this side offers: below wire::kVersion while a pool is being upgraded.
  std::uint16_t version_max = wire::kVersion;

  // Time.
  std::chrono::milliseconds peer_timeout{5000};
  std::chrono::milliseconds lease{30000};
  std::chrono::milliseconds lease_renewal{5000};
  // D's patience from the last word of P's that it is at work, and the most that all such words
  // together can make of it, from registration.
  std::chrono::milliseconds transfer_timeout{60000};
  std::chrono::milliseconds transfer_total{600000};
  std::chrono::milliseconds resend_min{
      200};  // a message whose answer is missing is repeated, at doubling
  std::chrono::milliseconds resend_max{2000};      // distances up to this one
  std::chrono::milliseconds reconnect_grace{500};  // a lost connection may come back for this long

  // Bounds.
  std::uint32_t transfers_max = 4096;
  std::uint32_t quarantine_blocks_max = 0;  // a peer; 0: half of the pool
  std::uint32_t peers_max = 256;
  std::uint32_t ends_remembered_max = 1024;  // a peer: ends that a late duplicate is answered from

  // Quotas of one decode peer at P; what is past them is refused and counted, others are served on.
  std::uint32_t registrations_max = 0;      // open ones; 0: transfers_max
  std::uint32_t unmatched_max = 1024;       // of those, without a request here
  std::uint64_t registered_blocks_max = 0;  // named by them, all groups; 0: twice the peer's pool
  std::uint32_t claims_max = 1024;          // claims and cancels that came before their request

  // The fabric.
  std::string fabric = "shm";
  bool delivery_complete = true;
  bool failed_writes_final = false;
  std::uint32_t writes_in_flight_max = 256;
  std::uint64_t write_bytes_max = 1 << 20;
  std::uint32_t immediates_max = 4096;
};

}  // namespace baton::handover
