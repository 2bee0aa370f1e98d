#include "sim/random_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "sim/traffic.h"
#include "wire/messages.h"

namespace baton::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

class RandomRun {
 public:
  RandomRun(std::uint64_t seed, const Mix& mix, Journal& journal, StateCount* states)
      : mix_(mix),
        journal_(journal),
        states_(states),
        choices_(seed),
        world_(mix.settings, choices_, seed, journal),
        traffic_(world_) {}

  void run() {
    for (std::uint32_t i = 0; i < mix_.prefills; ++i) add_instance(Role::kProducer);
    for (std::uint32_t i = 0; i < mix_.decodes; ++i) add_instance(Role::kConsumer);
    for (std::uint32_t i = 0; i < mix_.both; ++i) add_instance(Role::kBoth);
    if (mix_.odd) odd_ = world_.add_instance(Role::kConsumer, mix_.ranks, true);
    world_.weather = mix_.weather;
    for (std::uint32_t i = 0; i < mix_.requests; ++i) {
      world_.later(within(mix_.fault_phase), [this] { request(); });
    }
    schedule_faults();
    const Time end = world_.now() + mix_.fault_phase;
    while (world_.now() < end && !journal_.failed()) {
      world_.run_until(std::min(end, world_.now() + milliseconds(5)));
      if (states_ != nullptr) states_->add(world_.fingerprint());
    }
    if (!journal_.failed()) quiet();
  }

 private:
  std::uint64_t pick(std::uint64_t n) { return choices_.pick(n); }
  Duration within(Duration length) {
    return microseconds(pick(static_cast<std::uint64_t>(length / microseconds(1)) + 1));
  }
  Duration between(int from_ms, int to_ms) {
    return milliseconds(from_ms) + within(milliseconds(to_ms - from_ms));
  }

  void add_instance(Role role);
  std::uint32_t some_instance(const std::vector<std::uint32_t>& among,
                              std::uint32_t but = UINT32_MAX);
  std::uint32_t some_process();
  void request();
  Plan plan();
  void schedule_faults();
  void schedule(std::uint32_t count, void (RandomRun::*fault)());
  void crash();
  void stall();
  void stall_engine();
  void cut() { world_.cut_any(); }
  void cut_one_way();
  void cut_data();
  void hostile();
  void leave();
  void join();
  void router_dies() { traffic_.router_dies(static_cast<std::uint32_t>(pick(mix_.routers))); }
  void quiet();
  void restart_writers();
  bool is_last_writer(std::uint32_t index) const;
  Duration all_end_within() const;
  void probe();
  void probe_round(std::uint32_t shift);

  const Mix mix_;
  Journal& journal_;
  StateCount* states_;
  SeededChoices choices_;
  World world_;
  Traffic traffic_;
  std::vector<std::uint32_t> prefills_, decodes_;
  std::optional<std::uint32_t> odd_;
  wire::Encoder encoder_;
  std::uint32_t next_request_ = 1;
};

// ---- requests ----

void RandomRun::add_instance(Role role) {
  const std::uint32_t index = world_.add_instance(role, mix_.ranks);
  if (role != Role::kConsumer) prefills_.push_back(index);
  if (role != Role::kProducer) decodes_.push_back(index);
}

// One that takes requests, if there is one.
std::uint32_t RandomRun::some_instance(const std::vector<std::uint32_t>& among, std::uint32_t but) {
  const auto first = static_cast<std::size_t>(pick(among.size()));
  std::optional<std::uint32_t> away;
  for (std::size_t i = 0; i < among.size(); ++i) {
    const std::uint32_t index = among[(first + i) % among.size()];
    if (index == but) continue;
    if (world_.instance(index).alive && !world_.instance(index).leaving) return index;
    if (!away) away = index;
  }
  return away.value();
}

Plan RandomRun::plan() {
  Plan p;
  p.number = next_request_++;
  p.prefill = some_instance(prefills_);
  p.decode = some_instance(decodes_, p.prefill);
  p.other_decode = some_instance(decodes_, p.prefill);
  if (odd_ && pick(4) == 0) p.decode = p.other_decode = *odd_;
  const std::size_t parts = choices_.chance(mix_.parts) ? 2 + pick(2) : 1;
  for (std::size_t i = 0; i < parts; ++i) {
    p.prompts.push_back(static_cast<std::uint32_t>(1 + pick(parts > 1 ? 16 : 40)));
  }
  if (choices_.chance(mix_.prefix_hits)) {
    p.reused_blocks = pick(4) == 0 ? 1000 : static_cast<std::uint32_t>(1 + pick(4));
  }
  p.piece_tokens = static_cast<std::uint32_t>(4 * (1 + pick(10)));
  p.claims = pick(4) != 0;
  p.knows_incarnation = pick(3) != 0;
  p.recompute = choices_.chance(mix_.recompute);
  p.decode_refuses = choices_.chance(mix_.refusals);
  p.first_token_from_prefill = pick(2) == 0;
  if (choices_.chance(mix_.preempts)) {
    p.preempt = static_cast<Preempt>(1 + pick(3));
    p.preempt_after = within(milliseconds(30));
  }
  if (choices_.chance(mix_.prefill_preempts)) p.prefill_preempt_after = within(milliseconds(30));
  if (choices_.chance(mix_.clients_gone)) p.client_gone_after = within(milliseconds(80));
  const int slow = choices_.chance(mix_.slow_engines) ? 20 : 1;
  p.prefill_delay = within(milliseconds(10 * slow));
  p.decode_delay = within(milliseconds(10 * slow));
  p.piece_time = within(milliseconds(4 * slow));
  p.decode_time = within(milliseconds(15 * slow));
  if (choices_.chance(mix_.patient)) p.request_timeout = std::chrono::hours(1);
  return p;
}

void RandomRun::request() {
  traffic_.start(plan(), static_cast<std::uint32_t>(pick(mix_.routers)));
}

// ---- faults ----

void RandomRun::schedule(std::uint32_t count, void (RandomRun::*fault)()) {
  for (std::uint32_t i = 0; i < count; ++i) {
    world_.later(within(mix_.fault_phase), [this, fault] { (this->*fault)(); });
  }
}

void RandomRun::schedule_faults() {
  schedule(mix_.cuts, &RandomRun::cut);
  schedule(mix_.one_way_cuts, &RandomRun::cut_one_way);
  schedule(mix_.data_cuts, &RandomRun::cut_data);
  schedule(mix_.crashes, &RandomRun::crash);
  schedule(mix_.stalls, &RandomRun::stall);
  schedule(mix_.engine_stalls, &RandomRun::stall_engine);
  schedule(mix_.hostile, &RandomRun::hostile);
  schedule(mix_.leaves, &RandomRun::leave);
  schedule(mix_.joins, &RandomRun::join);
  schedule(mix_.router_deaths, &RandomRun::router_dies);
}

std::uint32_t RandomRun::some_process() {
  const auto& inst = world_.instance(static_cast<std::uint32_t>(pick(world_.instances())));
  return inst.ranks[pick(inst.ranks.size())];
}

void RandomRun::crash() {
  const auto index = static_cast<std::uint32_t>(pick(world_.instances()));
  if (!world_.instance(index).alive || world_.instance(index).leaving) return;
  traffic_.instance_gone(index);
  world_.crash(index);
  world_.later(within(milliseconds(60)), [this, index] { world_.start(index); });
}

void RandomRun::stall() {
  world_.stall(some_process(),
               within(pick(2) == 0 ? milliseconds(60)
                                   : std::min(mix_.fault_phase, Duration(milliseconds(700)))));
}

void RandomRun::stall_engine() {
  world_.stall_engine(static_cast<std::uint32_t>(pick(world_.instances())),
                      within(milliseconds(200)));
}

void RandomRun::cut_one_way() {
  const std::uint32_t from = some_process();
  const std::uint32_t to = some_process();
  if (from != to) world_.cut_one_way(from, to, within(milliseconds(400)));
}

void RandomRun::cut_data() {
  const std::uint32_t writer = some_instance(prefills_);
  Process* from = world_.rank(writer, static_cast<std::uint32_t>(pick(mix_.ranks)));
  const std::uint32_t receiver = some_instance(decodes_, writer);
  Process* to = world_.rank(receiver, static_cast<std::uint32_t>(pick(mix_.ranks)));
  if (from == nullptr || to == nullptr) return;
  // Most end soon; some outlast what P bears.
  const bool outlasts = world_.choices.pick(8) == 0;
  world_.hold_data(from->place.number, to->place.number,
                   within(outlasts ? 4 * world_.settings.peer_timeout : milliseconds(300)));
}

// A registration that P must refuse: it names a block outside of D's pool, one twice, or too few.
// P has finished blocks for it, so that it would write at once if it took it.
void RandomRun::hostile() {
  const std::uint32_t prefill = some_instance(prefills_);
  Process* p = world_.rank(prefill, 0);
  Process* d = world_.rank(some_instance(decodes_, prefill), 0);
  if (p == nullptr || d == nullptr || p->stalled || p->leaving) return;
  const std::uint32_t size = world_.settings.block_size;
  const TransferId id{pick(1U << 30) + 1, Traffic::kForeign + next_request_++};
  if (!p->begin_prefill(id, 2 * size)) return;
  p->compute_piece(id, 2 * size, std::nullopt);
  p->turn();
  const std::uint32_t pool = world_.settings.pool_blocks;
  std::vector<BlockId> ids{0, static_cast<BlockId>(pool + pick(1000))};
  if (pick(3) == 0) ids[1] = ids[0];
  if (pick(3) == 0) ids.resize(1);
  wire::Register message;
  message.transfer = id;
  message.range = {0, 2 * size};
  message.prompt_tokens = 2 * size;
  message.num_groups = 1;
  message.block_ids[0] = ids;
  message.num_grants = 1;
  message.grant = {{}, {1, 1}, (1ULL << 40) + pick(1000), 4};
  message.deadline = world_.settings.transfer_timeout;
  world_.forge(d->place.number, p->place.number, encoder_.encode(message));
}

// SIGTERM: no new requests, and the agents drain; what runs may end, then what is left is ended and
// the process goes.
void RandomRun::leave() {
  const auto& among = pick(2) == 0 ? prefills_ : decodes_;
  const std::uint32_t index = some_instance(among);
  std::size_t others = 0;
  for (const std::uint32_t other : among) {
    if (world_.instance(other).alive && !world_.instance(other).leaving) ++others;
  }
  if (others < 2 || world_.instance(index).leaving || !world_.instance(index).alive) return;
  world_.instance(index).leaving = true;
  for (std::uint32_t rank = 0; rank < mix_.ranks; ++rank) {
    if (Process* p = world_.rank(index, rank); p != nullptr) {
      p->drain();
      if (!p->stalled) p->turn();
    }
  }
  const Duration grace = within(milliseconds(100));
  world_.later(grace, [this, index] { traffic_.drain(index); });
  world_.later(grace + within(milliseconds(50)), [this, index] {
    if (!world_.instance(index).alive) return;
    traffic_.instance_gone(index);
    world_.leave(index);
  });
}

void RandomRun::join() {
  const std::uint64_t role = pick(mix_.both > 0 ? 3 : 2);
  journal_.mark(Mark::instance_joined);
  add_instance(role == 0 ? Role::kProducer : role == 1 ? Role::kConsumer : Role::kBoth);
}

// ---- afterwards ----

void RandomRun::quiet() {
  world_.heal();
  for (std::uint32_t i = 0; i < world_.instances(); ++i) {
    if (!world_.instance(i).alive) world_.start(i);
  }
  const Settings& s = world_.settings;
  const Duration bound = all_end_within();
  world_.run_until(world_.now() + bound,
                   [this] { return traffic_.all_finished() && world_.idle(); });
  if (traffic_.all_finished() && !world_.idle() && !s.fence_on_request) {
    // Where nothing but its death fences a writer, blocks that it may still write to wait for that,
    // however long it takes [I1]; then they must come back.
    restart_writers();
    world_.run_until(world_.now() + bound, [this] { return world_.idle(); });
  }
  if (!traffic_.all_finished() || !world_.idle()) {
    world_.fault(Checker::kBound,
                 fmt::format("not ended {} ms after the last fault: {} requests{}",
                             bound / milliseconds(1), traffic_.open(), world_.what_is_left()));
  }
  traffic_.check_at_end();
  if (!journal_.failed()) probe();
  world_.check_at_end();
}

// The router's deadline ends every request; from there on the table of bounds counts. Without that
// deadline D's engine ends its wait for blocks, and those that it lets in may wait like that again.
Duration RandomRun::all_end_within() const {
  const Duration bound = Plan{}.request_timeout + milliseconds(200) + world_.all_ends_within();
  return mix_.patient == 0 ? bound : bound + next_request_ * world_.settings.transfer_total;
}

void RandomRun::restart_writers() {
  for (const std::uint32_t index : prefills_) {
    if (!world_.instance(index).alive || is_last_writer(index)) continue;
    traffic_.instance_gone(index);
    world_.crash(index);
    world_.start(index);
  }
}

// Everybody who wrote to it was restarted before, so that its own blocks are back if it stays. Not
// where a D is left to which it wrote.
bool RandomRun::is_last_writer(std::uint32_t index) const {
  const bool writes_only = std::find(decodes_.begin(), decodes_.end(), index) == decodes_.end();
  const bool others_are_new = std::all_of(decodes_.begin(), decodes_.end(), [this](auto d) {
    return std::find(prefills_.begin(), prefills_.end(), d) != prefills_.end();
  });
  return index == prefills_.back() && !writes_only && others_are_new;
}

// Between every P and every D, with a decode side that queues for longer than P's lease.
void RandomRun::probe() {
  // A handshake whose first word was lost stands until the peer counts as silent.
  const Settings& s = world_.settings;
  world_.run_until(world_.now() + s.peer_timeout + s.reconnect_grace + milliseconds(10));
  const std::size_t rounds = mix_.both > 0 ? std::max(prefills_.size(), decodes_.size()) : 1;
  for (std::uint32_t shift = 0; shift < rounds && !journal_.failed(); ++shift) probe_round(shift);
}

// Where instances are P and D, in both directions at once.
void RandomRun::probe_round(std::uint32_t shift) {
  std::vector<std::uint32_t> probes;
  for (std::size_t i = 0; i < std::max(prefills_.size(), decodes_.size()); ++i) {
    Plan p;
    p.prefill = prefills_[i % prefills_.size()];
    p.decode = decodes_[(i + shift) % decodes_.size()];
    if (p.prefill == p.decode) continue;
    p.number = next_request_++;
    if (!world_.instance(p.prefill).alive || !world_.instance(p.decode).alive) continue;
    if (world_.instance(p.prefill).leaving || world_.instance(p.decode).leaving) continue;
    p.prompts = {9};
    p.decode_delay = {};
    p.queue_at_decode = i == 0 && shift == 0 ? Duration(world_.settings.lease) * 3 / 2 : Duration{};
    probes.push_back(p.number);
    traffic_.start(p, mix_.routers);
  }
  world_.run_until(world_.now() + milliseconds(2500),
                   [this] { return traffic_.all_finished() && world_.idle(); });
  for (const std::uint32_t number : probes) {
    const Traffic::Result& result = traffic_.result(number);
    if (result.answered && !result.recomputed) continue;
    world_.fault(Checker::kProbe, fmt::format("plain request {} failed after the faults, status {}",
                                              number, result.status));
  }
  if (!world_.idle()) world_.fault(Checker::kIdle, "something is left of plain requests");
}

}  // namespace

void run_random(std::uint64_t seed, const Mix& mix, Journal& journal, StateCount* states) {
  RandomRun(seed, mix, journal, states).run();
}

}  // namespace baton::sim
