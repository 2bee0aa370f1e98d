#include "sim/mix.h"

#include <algorithm>

namespace baton::sim {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

// Half of the seeds have a kind of fault; its strength is drawn.
std::uint32_t some(Rng& rng, std::uint32_t most) {
  return rng.chance(1, 2) ? 0 : static_cast<std::uint32_t>(1 + rng.below(most));
}

void draw_fabric(Rng& rng, Settings& s) {
  s.delivery_complete = rng.chance(1, 2);
  // Counting fabrics fence by closing their endpoint; those that complete on delivery may know the
  // death of the writer alone.
  s.fence_on_request = !s.delivery_complete || rng.chance(1, 2);
  // Where only the death of a writer fences it, a failed write must be over: else it would hold its
  // blocks until then.
  s.failed_writes_final = !s.fence_on_request || rng.chance(1, 8);
  s.fence_on_crash = !s.fence_on_request || rng.chance(1, 2);
  s.pieces_max = static_cast<std::uint32_t>(1 + rng.below(4));
  s.writes_in_flight_max = static_cast<std::uint32_t>(2 + rng.below(15));
  s.write_bytes_max = 48 * (1 + rng.below(8));
  s.immediates_max = static_cast<std::uint32_t>(8 << rng.below(6));
  s.data_delay_max = milliseconds(rng.chance(1, 4) ? 20 : 1 + static_cast<int>(rng.below(4)));
  s.immediate_delay_max = rng.chance(1, 4) ? Duration(milliseconds(80)) : s.data_delay_max;
  s.write_failures = rng.chance(1, 4) ? static_cast<std::uint32_t>(rng.below(30)) : 0;
  s.connect_failures = rng.chance(1, 4) ? static_cast<std::uint32_t>(rng.below(300)) : 0;
}

void draw_machines(Rng& rng, Settings& s, bool large) {
  s.verify = rng.chance(1, 4);
  s.ends_remembered_max = rng.chance(1, 4) ? static_cast<std::uint32_t>(1 + rng.below(4)) : 1024;
  s.quarantine_blocks_max =
      rng.chance(1, 4) ? static_cast<std::uint32_t>(2 + rng.below(8)) : s.pool_blocks;
  s.transfers_max = large ? 64 : rng.chance(1, 4) ? 2 : 24;
  s.peers_max = large ? 24 : 12;
  s.pool_blocks = large ? 160 : static_cast<std::uint32_t>(24 + rng.below(32));
  s.skew_max = rng.chance(1, 2) ? Duration(hours(1)) : Duration{};
}

// The most that one of them has to do with.
std::uint32_t members(const Mix& m) {
  return std::max(m.prefills, m.decodes) + m.both + m.joins + (m.odd ? 1 : 0);
}

// A pool that is being upgraded process by process, or that has room for its members and no more.
void draw_pool(Rng& rng, Mix& m) {
  if (rng.chance(1, 4)) {
    m.settings.version_1 = static_cast<std::uint32_t>(200 + rng.below(700));
    m.settings.peers_max = 96;  // P keeps a row of version 1 whose grants it must remember
    m.weather.reused_ids = 0;   // there pull's announcements have no number
  } else if (rng.chance(1, 4)) {
    m.settings.peers_max = members(m);
  }
}

// Instances that are P and D, each for the others, over one pool; pure ones may be among them. In
// small pools what each holds as P is what the other waits for as D.
void draw_both(Rng& rng, Mix& m) {
  if (!rng.chance(1, 6)) return;
  const bool full = m.settings.peers_max == members(m);
  m.both = m.large ? 3 : static_cast<std::uint32_t>(2 + rng.below(2));
  m.prefills = static_cast<std::uint32_t>(rng.below(2));
  m.decodes = static_cast<std::uint32_t>(rng.below(2));
  if (full) m.settings.peers_max = members(m);
  m.requests += m.large ? 0 : 10;
  if (!m.large && rng.chance(1, 2)) {
    m.settings.pool_blocks = static_cast<std::uint32_t>(16 + rng.below(8));
  }
  m.patient = some(rng, 1000);
  if (m.patient > 0) m.settings.transfer_total = milliseconds(1200);
}

}  // namespace

Mix draw_mix(std::uint64_t seed, bool large) {
  Rng rng(seed * 0x9E3779B97F4A7C15ULL + (large ? 1 : 0));
  Mix m;
  m.large = large;
  m.prefills = static_cast<std::uint32_t>(large ? 3 : 1 + rng.below(2));
  m.decodes = static_cast<std::uint32_t>(large ? 3 : 1 + rng.below(2));
  m.ranks = large ? 2 : rng.chance(1, 6) ? 2 : 1;
  m.requests = static_cast<std::uint32_t>(large ? 200 + rng.below(200) : 3 + rng.below(8));
  if (large) m.fault_phase = milliseconds(3000);
  if (!large && rng.chance(1, 4)) m.fault_phase = milliseconds(900);
  draw_machines(rng, m.settings, large);
  // Few slots and many requests: each slot is granted many times while old words are on their way.
  if (m.settings.transfers_max == 2) m.requests += 20;
  draw_fabric(rng, m.settings);
  const std::uint32_t scale = large ? 4 : 1;
  m.weather.drop = some(rng, 80);
  m.weather.duplicate = some(rng, 120);
  m.weather.corrupt = rng.chance(1, 4) ? static_cast<std::uint32_t>(1 + rng.below(20)) : 0;
  m.weather.submit_failures = rng.chance(1, 5) ? static_cast<std::uint32_t>(1 + rng.below(20)) : 0;
  const bool may_lose = m.settings.delivery_complete || m.settings.fence_on_request;
  m.weather.lost_immediates =
      may_lose && rng.chance(1, 8) ? static_cast<std::uint32_t>(1 + rng.below(50)) : 0;
  m.weather.delay_max = milliseconds(1 + static_cast<int>(rng.below(10)));
  m.cuts = some(rng, 3) * scale;
  m.one_way_cuts = some(rng, 2) * scale;
  m.data_cuts = some(rng, 2) * scale;
  m.crashes = some(rng, 2) * scale;
  m.stalls = some(rng, 2) * scale;
  m.engine_stalls = some(rng, 2) * scale;
  m.leaves = rng.chance(1, 4) ? 1 : 0;
  m.joins = rng.chance(1, 4) ? 1 : 0;
  m.router_deaths = rng.chance(1, 4) ? 1 : 0;
  // In a short book of ends they would push out D's own, which is its own loss and no fault.
  m.hostile = m.settings.ends_remembered_max > 64 ? some(rng, 4) : 0;
  m.odd = rng.chance(1, 8);
  m.preempts = some(rng, 600);
  m.prefill_preempts = some(rng, 400);
  m.clients_gone = some(rng, 400);
  m.prefix_hits = some(rng, 600);
  m.refusals = some(rng, 100);
  m.parts = some(rng, 500);
  m.recompute = static_cast<std::uint32_t>(rng.below(1001));
  m.slow_engines = some(rng, 400);
  if (rng.chance(1, 3)) {
    m.settings.mode = Mode::kPull;
    m.weather.lost_immediates = 0;
    m.weather.reused_ids = some(rng, 600);
  }
  draw_pool(rng, m);
  draw_both(rng, m);
  return m;
}

std::vector<std::string> Mix::faults() const {
  std::vector<std::string> out;
  const auto add = [&out](bool on, const char* name) {
    if (on) out.emplace_back(name);
  };
  add(weather.drop > 0, "drop");
  add(weather.duplicate > 0, "duplicate");
  add(weather.corrupt > 0, "corrupt");
  add(true, "delay and reorder");
  add(cuts > 0, "cut");
  add(one_way_cuts > 0, "one-way cut");
  add(data_cuts > 0, "late writes");
  add(settings.write_failures > 0, "failed writes");
  add(weather.submit_failures > 0, "writes refused at submit");
  add(settings.connect_failures > 0, "failed connects");
  add(weather.lost_immediates > 0, "lost immediates");
  add(weather.reused_ids > 0, "transfer ids used again");
  add(crashes > 0, "crash and return");
  add(stalls > 0, "stopped owner thread");
  add(engine_stalls > 0, "stopped engine");
  add(settings.transfers_max == 2 || settings.immediates_max == 8, "full tables and queues");
  add(settings.skew_max.count() > 0, "clock skew of 1 h");
  add(slow_engines > 0, "slow engines");
  add(leaves > 0, "leave");
  add(joins > 0, "join");
  add(router_deaths > 0, "router death");
  add(hostile > 0, "hostile registrations");
  add(odd, "unlike model");
  add(settings.version_1 > 0, "versions 1 and 2");
  add(settings.peers_max < (large ? 24 : 12), "no room for another peer");
  add(both > 0, "instances of both roles");
  add(patient > 0, "clients that wait for ever");
  add(clients_gone > 0, "client disconnects");
  add(preempts > 0, "preemption at D");
  add(prefill_preempts > 0, "preemption at P");
  return out;
}

}  // namespace baton::sim
