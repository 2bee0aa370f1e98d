// What one seed's world is and which faults it has. Swarm testing: each seed switches every kind
// of fault on or off and chooses its strength, so that rare ones meet alone as well as together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/world.h"

namespace baton::sim {

struct Mix {
  Settings settings;
  Weather weather;
  bool large = false;
  std::uint32_t prefills = 1;
  std::uint32_t decodes = 1;
  std::uint32_t both = 0;  // instances that are P and D
  std::uint32_t ranks = 1;
  std::uint32_t requests = 6;
  std::uint32_t routers = 2;
  Duration fault_phase = std::chrono::milliseconds(400);
  // Events during the faults.
  std::uint32_t cuts = 0;
  std::uint32_t one_way_cuts = 0;
  std::uint32_t data_cuts = 0;
  std::uint32_t crashes = 0;
  std::uint32_t stalls = 0;
  std::uint32_t engine_stalls = 0;
  std::uint32_t leaves = 0;
  std::uint32_t joins = 0;
  std::uint32_t router_deaths = 0;
  std::uint32_t hostile = 0;  // registrations that no honest D sends
  bool odd = false;           // a D with another model tries to take part
  // Of requests, out of 1000.
  std::uint32_t preempts = 0;
  std::uint32_t prefill_preempts = 0;
  std::uint32_t clients_gone = 0;
  std::uint32_t prefix_hits = 0;
  std::uint32_t refusals = 0;
  std::uint32_t parts = 0;
  std::uint32_t recompute = 500;
  std::uint32_t slow_engines = 0;
  std::uint32_t patient = 0;  // their client and router wait for ever

  std::vector<std::string> faults() const;  // names of what is on
};

Mix draw_mix(std::uint64_t seed, bool large);

}  // namespace baton::sim
