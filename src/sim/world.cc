#include "sim/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "wire/frame.h"

namespace baton::sim {
namespace {

using handover::LinkId;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Time kStart{std::chrono::hours(10)};  // room for clocks that are behind
constexpr Duration kRetryStalled = milliseconds(5);
constexpr Duration kFixedDelay = microseconds(10);
constexpr std::uint64_t kStepsMax = 5'000'000;

fabric::sim::Options fabric_options(const Settings& s) {
  fabric::sim::Options out;
  out.delivery_complete = s.delivery_complete;
  out.failed_writes_final = s.failed_writes_final;
  out.fence_on_request = s.fence_on_request;
  out.fence_on_crash = s.fence_on_crash;
  out.write_failures_per_1000 = s.write_failures;
  out.connect_failures_per_1000 = s.connect_failures;
  out.writes_in_flight_max = s.writes_in_flight_max;
  out.write_bytes_max = s.write_bytes_max;
  out.immediates_max = s.immediates_max;
  out.pieces_max = s.pieces_max;
  out.landing.max = s.data_delay_max;
  out.completion.max = s.data_delay_max;
  out.immediate.max = s.immediate_delay_max;
  if (s.fixed_delays) {
    for (fabric::sim::Delay* d :
         {&out.connect, &out.landing, &out.completion, &out.immediate, &out.fence}) {
      *d = {kFixedDelay, kFixedDelay};
    }
  }
  return out;
}

char letter_of(Role role) {
  switch (role) {
    case Role::kProducer:
      return 'p';
    case Role::kConsumer:
      return 'd';
    case Role::kBoth:
      return 'b';
  }
  return '?';
}

std::size_t slot_of(wire::MessageType type) {
  return std::min<std::size_t>(static_cast<std::size_t>(type), 31);
}

}  // namespace

World::World(const Settings& s, Choices& c, std::uint64_t seed, Journal& j)
    : settings(s),
      choices(c),
      journal(j),
      network(seed ^ 0x5EED, fabric_options(s)),
      now_(kStart),
      keep_last_(s.fixed_delays) {
  network.advance_to(now_);
}

World::~World() = default;

// ---- time ----

void World::later(Duration delay, std::function<void()> what) {
  queue_.emplace(ItemKey{now_ + delay, next_item_++}, std::move(what));
}

Duration World::delay() {
  if (settings.fixed_delays) return kFixedDelay;
  return microseconds(
      5 + choices.pick(static_cast<std::uint64_t>(
              std::max<Duration>(weather.delay_max, microseconds(1)) / microseconds(1))));
}

Time World::next_time() const {
  Time next = network.next_due();
  if (!queue_.empty()) next = std::min(next, queue_.begin()->first.first);
  for (const Process* process : living_) {
    if (!process->stalled) next = std::min(next, process->next_deadline());
  }
  return next;
}

void World::run_item() {
  const auto first = queue_.begin();
  now_ = std::max(now_, first->first.first);
  const auto what = std::move(first->second);
  queue_.erase(first);
  what();
}

void World::turn_all() {
  for (std::size_t i = 0; i < living_.size(); ++i) {
    Process& process = *living_[i];
    if (process.alive && !process.stalled) process.turn();
  }
}

void World::run_until(Time end, const std::function<bool()>& over) {
  while (!over || !over()) {
    if (++steps_ > kStepsMax) return fault(Checker::kQueues, "the run never rests");
    const Time next = next_time();
    if (next >= end) {
      now_ = std::max(now_, end);
      network.advance_to(now_);
      return;
    }
    now_ = std::max(now_, next);
    network.advance_to(now_);
    for (std::size_t i = 0; i < living_.size(); ++i) {
      Process& process = *living_[i];
      if (!process.alive || process.stalled) continue;
      if (process.fabric->busy() || process.next_deadline() <= now_ || !process.queue_has_room()) {
        process.turn();
      }
    }
    while (!queue_.empty() && queue_.begin()->first.first <= now_) run_item();
  }
}

// What is due first, then the rest of the queue, then the rest of the fabric's actions.
void World::fire(std::size_t index) {
  ++steps_;
  const bool queue_first = !queue_.empty() && queue_.begin()->first.first <= network.next_due();
  const std::size_t queued = queue_.size();
  std::size_t from_queue = SIZE_MAX;
  std::size_t from_network = SIZE_MAX;
  if (queue_first) {
    index < queued ? from_queue = index : from_network = index - queued;
  } else if (index == 0) {
    from_network = 0;
  } else {
    index <= queued ? from_queue = index - 1 : from_network = index - queued;
  }
  if (from_queue != SIZE_MAX) {
    auto item = queue_.extract(std::next(queue_.begin(), static_cast<std::ptrdiff_t>(from_queue)));
    now_ = std::max(now_, item.key().first);
    item.mapped()();
  } else {
    network.fire(from_network);
    now_ = std::max(now_, network.now());
  }
  turn_all();
}

bool World::pass_time() {
  Time next = kNever;
  for (const Process* process : living_) next = std::min(next, process->next_deadline());
  if (next == kNever) return false;
  now_ = std::max(now_, next);
  turn_all();
  return true;
}

void World::leap(Duration by) {
  now_ += by;
  std::map<ItemKey, std::function<void()>> moved;
  for (auto& [key, what] : queue_)
    moved.emplace(ItemKey{key.first + by, key.second}, std::move(what));
  queue_ = std::move(moved);
  turn_all();
}

// ---- processes ----

std::uint32_t World::add_instance(Role role, std::uint32_t ranks, bool odd) {
  const auto index = static_cast<std::uint32_t>(instances_.size());
  Instance& added = instances_.emplace_back();
  added.role = role;
  added.engine_id = fmt::format("{}{}", letter_of(role), index);
  added.odd = odd;
  added.ranks.resize(ranks);
  start(index);
  return index;
}

handover::Config World::config_for(const Instance& instance, std::uint32_t rank,
                                   std::uint64_t incarnation) {
  handover::Config out;
  out.id = {fmt::format("{}.{}", instance.engine_id, rank), incarnation};
  out.role = instance.role;
  out.mode = settings.mode;
  out.version_max = instance.version_max;
  out.verify_blocks = settings.verify;
  out.peer_timeout = settings.peer_timeout;
  out.lease = settings.lease;
  out.lease_renewal = settings.lease_renewal;
  out.transfer_timeout = settings.transfer_timeout;
  out.transfer_total = settings.transfer_total;
  out.resend_min = settings.resend_min;
  out.resend_max = settings.resend_max;
  out.reconnect_grace = settings.reconnect_grace;
  out.transfers_max = settings.transfers_max;
  out.peers_max = settings.peers_max;
  out.ends_remembered_max = settings.ends_remembered_max;
  out.quarantine_blocks_max = settings.quarantine_blocks_max;
  out.fabric = "sim";
  out.delivery_complete = settings.delivery_complete;
  out.failed_writes_final = settings.failed_writes_final;
  out.writes_in_flight_max = settings.writes_in_flight_max;
  out.write_bytes_max = settings.write_bytes_max;
  out.immediates_max = settings.immediates_max;
  return out;
}

void World::make_process(std::uint32_t index, std::uint32_t rank) {
  Instance& inst = instances_[index];
  const handover::Config config = config_for(inst, rank, next_incarnation_++);
  Process::Place place;
  place.number = static_cast<std::uint32_t>(processes_.size());
  place.instance = index;
  place.rank = rank;
  place.short_name = fmt::format("{}/{}", config.id.engine_id, inst.lives);
  if (settings.skew_max.count() > 0) {
    const auto span = static_cast<std::uint64_t>(settings.skew_max / milliseconds(1));
    place.skew = milliseconds(choices.pick(2 * span + 1)) - settings.skew_max;
    journal.mark(Mark::clock_skew);
  }
  Pool pool(settings.layers, settings.pool_blocks, settings.block_size, settings.token_bytes,
            inst.role == Role::kProducer ? 0 : (index % 2) * 16,
            inst.role == Role::kProducer ? kGarbage : kPoison);
  if (inst.odd) pool.geometry.model = "another";
  place.odd = inst.odd;
  auto endpoint = network.make_endpoint(config.id);
  inst.ranks[rank] = place.number;
  processes_.push_back(std::make_unique<Process>(*this, std::move(place), config, std::move(pool),
                                                 std::move(endpoint)));
  living_.push_back(processes_.back().get());
}

void World::start(std::uint32_t index) {
  Instance& inst = instances_[index];
  if (inst.alive) return;
  if (++inst.lives > 1) journal.mark(Mark::restart);
  inst.version_max = choices.chance(settings.version_1) ? wire::kVersionMin : wire::kVersion;
  for (std::uint32_t rank = 0; rank < inst.ranks.size(); ++rank) make_process(index, rank);
  inst.alive = true;
  inst.leaving = false;
}

Process* World::rank(std::uint32_t index, std::uint32_t rank) {
  const Instance& inst = instances_[index];
  return inst.alive ? alive(inst.ranks[rank]) : nullptr;
}

PeerAddress World::address(std::uint32_t index, std::uint32_t rank, bool with_incarnation) {
  const Process& p = process(instances_[index].ranks[rank]);
  return {"sim", static_cast<std::uint16_t>(index * 16 + rank + 1), p.config.id.engine_id,
          with_incarnation ? p.config.id.incarnation : 0};
}

std::optional<std::uint32_t> World::number_of(const PeerId& id) const {
  for (const Process* process : living_) {
    if (process->config.id == id) return process->place.number;
  }
  return std::nullopt;
}

void World::end_process(Process& process) {
  process.alive = false;
  process.stop_machines();
  network.crash(process.config.id);
  std::erase(living_, &process);
  close_links(process.place.number);
}

void World::close_links(std::uint32_t number) {
  for (auto& [id, link] : links_) {
    const LinkId which = id;
    std::uint32_t other = 0;
    if (link.dialler == number && link.dialler_open) {
      link.dialler_open = false;
      other = link.acceptor;
    } else if (link.acceptor == number && link.acceptor_open) {
      link.acceptor_open = false;
      other = link.dialler;
    } else {
      continue;
    }
    later(delay(), [this, other, which] { down(other, which, "closed by the peer"); });
  }
}

void World::crash(std::uint32_t index) {
  Instance& inst = instances_[index];
  if (!inst.alive) return;
  inst.alive = false;
  for (const std::uint32_t number : inst.ranks) {
    Process& p = process(number);
    if (!p.alive) continue;
    if (p.prefill && p.prefill->writes_in_flight() > 0) journal.mark(Mark::crash_in_flight);
    end_process(p);
    watch_crash(number);
  }
}

void World::leave(std::uint32_t index) {
  Instance& inst = instances_[index];
  if (!inst.alive) return;
  inst.alive = false;
  journal.mark(Mark::instance_left);
  for (const std::uint32_t number : inst.ranks) {
    Process& p = process(number);
    if (!p.alive) continue;
    if (p.prefill && p.prefill->writes_in_flight() > 0) journal.mark(Mark::shutdown_in_flight);
    if (!p.prefill) {
      p.decode->shutdown(p.clock());
      end_process(p);
      continue;
    }
    if (p.decode) p.decode->abandon(p.clock());
    p.prefill->shutdown(p.clock());
    p.leaving = true;
    later(milliseconds(1), [this, number] { end_once_drained(number, 100); });
  }
}

// What is posted completes first: P's memory is read until then [I2]. Where the process is D as
// well, its own writers are given the time to say that they have stopped.
void World::end_once_drained(std::uint32_t number, int tries) {
  Process& process = *processes_[number];
  if (!process.alive) return;
  if (!process.stalled) process.turn();
  const bool quiet = process.prefill->writes_in_flight() == 0 &&
                     (!process.decode || process.decode->quarantined_blocks() == 0);
  if (tries > 0 && !quiet) {
    return later(milliseconds(2), [this, number, tries] { end_once_drained(number, tries - 1); });
  }
  if (process.decode) process.decode->shutdown(process.clock());
  end_process(process);
}

Duration World::all_ends_within() const {
  return handover::everything_ends_within(processes_.front()->config);
}

// The table's bound, and what the channel here adds to it.
Duration World::within(handover::BoundId id) const {
  return handover::within(id, processes_.front()->config) + 2 * weather.delay_max +
         milliseconds(20);
}

// Each survivor learns of a dead process within the table's bounds [I4]: the connection closes and
// does not come back, or the one that was being made never answers.
void World::watch_crash(std::uint32_t number) {
  const Time since = now_;
  const Duration bound =
      within(handover::BoundId::kRegisteredSilence) +
      handover::within(handover::BoundId::kRegisteredLinkClosed, processes_.front()->config);
  later(bound, [this, number, since] { check_crash(number, since); });
}

void World::check_crash(std::uint32_t number, Time since) {
  for (Process* survivor : living_) {
    if (!survivor->decode || survivor->stalled || survivor->engine_stalled || survivor->leaving ||
        survivor->stalled_until >= since) {
      continue;
    }
    survivor->turn();
    for (const auto& [key, held] : survivor->held()) {
      if (held.ends > 0 || held.peer != number || held.since > since) continue;
      fault(Checker::kBound,
            fmt::format(
                "{}: transfer {} has not ended {} us after its prefill process died or stood still",
                survivor->config.id.engine_id, key.first.low, (now_ - since) / microseconds(1)));
    }
  }
}

// Who waits for a process that stands still knows within the peer time-out [I4]. A second copy of a
// message that comes late would be a sign of life.
void World::watch_silence(std::uint32_t number, Duration length) {
  const Duration bound = within(handover::BoundId::kRegisteredSilence) + settings.reconnect_grace;
  if (weather.duplicate > 0 || length <= bound) return;
  later(bound, [this, number, since = now_] {
    if (processes_[number]->alive && processes_[number]->stalled) check_crash(number, since);
  });
}

void World::stall(std::uint32_t number, Duration length) {
  Process* p = alive(number);
  if (p == nullptr || p->stalled) return;
  p->stalled = true;
  p->stalled_until = now_ + length;
  journal.mark(Mark::process_stalled);
  watch_silence(number, length);
  later(length, [this, number] {
    Process* process = alive(number);
    if (process == nullptr || !process->stalled) return;
    process->stalled = false;
    process->stalled_until = now_;
    process->turn();
  });
}

void World::stall_engine(std::uint32_t index, Duration length) {
  const Instance& inst = instances_[index];
  if (!inst.alive) return;
  journal.mark(Mark::engine_stalled);
  for (const std::uint32_t number : inst.ranks) {
    process(number).engine_stalled = true;
    later(length, [this, number] {
      process(number).engine_stalled = false;
      if (Process* p = alive(number); p != nullptr && !p->stalled) p->turn();
    });
  }
}

// ---- the control channel ----

LinkId World::new_link(std::uint32_t dialler, const PeerAddress& to) {
  const LinkId id = next_link_++;
  const std::uint32_t index = (to.port - 1U) / 16;
  Process* target = index < instances_.size() ? rank(index, (to.port - 1U) % 16) : nullptr;
  links_[id] = {dialler, target == nullptr ? 0 : target->place.number, true, false};
  if (target == nullptr) {
    later(delay(), [this, dialler, id] { down(dialler, id, "connection refused"); });
  } else {
    later(delay(), [this, id] { connected(id); });
  }
  return id;
}

void World::connected(LinkId id) {
  Link& link = links_.at(id);
  Process* acceptor = alive(link.acceptor);
  if (!link.dialler_open) return;
  if (acceptor == nullptr || acceptor->leaving) return down(link.dialler, id, "connection refused");
  link.acceptor_open = true;
  acceptor->prefill->on_link_accepted(id, acceptor->clock());
  Process* dialler = alive(link.dialler);
  if (dialler == nullptr || !dialler->decode) return;
  dialler->decode->on_link_up(id, dialler->clock());
  if (!dialler->stalled) dialler->turn();
}

void World::down(std::uint32_t number, LinkId id, const char* why) {
  Link& link = links_.at(id);
  Process* p = alive(number);
  bool& open = link.dialler == number ? link.dialler_open : link.acceptor_open;
  if (p == nullptr || !open) return;
  if (p->stalled) {
    later(kRetryStalled, [this, number, id, why] { down(number, id, why); });
    return;
  }
  open = false;
  if (link.dialler == number) {
    p->decode->on_link_down(id, why, p->clock());
  } else {
    p->prefill->on_link_down(id, why, p->clock());
  }
  p->turn();
}

void World::hang_up(std::uint32_t number, LinkId id) {
  Link& link = links_.at(id);
  const bool is_dialler = link.dialler == number;
  (is_dialler ? link.dialler_open : link.acceptor_open) = false;
  const std::uint32_t other = is_dialler ? link.acceptor : link.dialler;
  later(delay(), [this, other, id] { down(other, id, "closed by the peer"); });
}

void World::forge(std::uint32_t from, std::uint32_t to, std::span<const std::byte> frame) {
  for (const auto& [id, link] : links_) {
    if (link.dialler != from || link.acceptor != to || !link.acceptor_open) continue;
    journal.mark(Mark::hostile_register);
    return carry(from, id, frame);
  }
}

void World::cut(LinkId id) {
  const auto found = links_.find(id);
  if (found == links_.end()) return;
  const Link link = found->second;
  journal.mark(Mark::link_cut);
  later(delay(), [this, id, n = link.dialler] { down(n, id, "reset"); });
  later(delay(), [this, id, n = link.acceptor] { down(n, id, "reset"); });
}

// The newest connection in the exhaustive scheduler, any in the random one.
void World::cut_any() {
  if (next_link_ == 1) return;
  cut(settings.fixed_delays ? next_link_ - 1 : 1 + choices.pick(next_link_ - 1));
}

void World::cut_one_way(std::uint32_t from, std::uint32_t to, Duration length) {
  one_way_[{from, to}] = now_ + length;
  journal.mark(Mark::one_way_cut);
}

void World::hold_data(std::uint32_t from, std::uint32_t to, Duration length) {
  if (!held_data_.insert({from, to}).second) return;
  const PeerId writer = process(from).config.id;
  const PeerId receiver = process(to).config.id;
  network.hold(writer, receiver, true);
  journal.mark(Mark::data_cut);
  later(length, [this, from, to, writer, receiver] {
    if (held_data_.erase({from, to}) != 0) network.hold(writer, receiver, false);
  });
}

void World::heal() {
  weather = Weather{};
  lose_next = {};
  lose_immediates = 0;
  skip_immediates = 0;
  repeat_immediates = Duration(-1);
  on_post = nullptr;
  one_way_.clear();
  network.set_failures(0, 0);
  for (const auto& [from, to] : held_data_) {
    network.hold(process(from).config.id, process(to).config.id, false);
  }
  held_data_.clear();
  for (Process* p : living_) {
    if (p->stalled) p->stalled_until = now_;
    p->stalled = p->engine_stalled = false;
  }
  turn_all();
}

void World::carry(std::uint32_t number, LinkId id, std::span<const std::byte> frame) {
  const Link& link = links_.at(id);
  const std::uint32_t to = link.dialler == number ? link.acceptor : link.dialler;
  if (!(link.dialler == number ? link.dialler_open : link.acceptor_open)) return;
  if (const auto until = one_way_.find({number, to});
      until != one_way_.end() && now_ < until->second) {
    return;
  }
  if (choices.chance(weather.drop)) {
    std::uint16_t type = 0;
    std::memcpy(&type, frame.data() + 6, 2);
    if (static_cast<wire::MessageType>(type) == wire::MessageType::kFinal) {
      journal.mark(Mark::lost_final);
    }
    return;
  }
  auto words = std::make_shared<std::vector<std::uint64_t>>((frame.size() + 7) / 8);
  std::memcpy(words->data(), frame.data(), frame.size());
  const bool damaged = choices.chance(weather.corrupt);
  const bool twice = choices.chance(weather.duplicate);
  later(delay(), [this, to, id, words, size = frame.size(), damaged] {
    deliver(to, id, words, size, damaged);
  });
  if (!twice) return;
  // The second copy may be very late, after the link or even the attempt is gone.
  journal.mark(Mark::late_duplicate);
  later(delay() * 50,
        [this, to, id, words, size = frame.size()] { deliver(to, id, words, size, false); });
}

void World::deliver(std::uint32_t to, LinkId id, const Bytes& words, std::size_t size,
                    bool damaged) {
  Process* p = alive(to);
  if (p == nullptr) return;
  if (p->stalled) {
    later(kRetryStalled,
          [this, to, id, words, size, damaged] { deliver(to, id, words, size, damaged); });
    return;
  }
  if (damaged) return deliver_damaged(*p, id, words, size);
  const auto* bytes = reinterpret_cast<const std::byte*>(words->data());
  wire::Frame frame;
  std::uint16_t type = 0;
  std::memcpy(&type, bytes + 6, 2);
  frame.type = static_cast<wire::MessageType>(type);
  frame.payload = std::span(bytes + wire::kHeaderBytes, size - wire::kHeaderBytes);
  const std::size_t slot = slot_of(frame.type);
  Line line;
  line.at = now_;
  std::copy_n(p->place.short_name.begin(),
              std::min(p->place.short_name.size(), line.process.size() - 1), line.process.begin());
  line.event = lose_next[slot] > 0 ? "message lost" : "message";
  line.word = wire::to_string(frame.type);
  line.number = id;
  journal.note(line);
  if (lose_next[slot] > 0) {
    --lose_next[slot];
    if (frame.type == wire::MessageType::kFinal) journal.mark(Mark::lost_final);
    return;
  }
  if (keep_last_) last_[slot] = {id, to, *words, size};
  const std::uint64_t stale = p->metrics.stale_messages.value();
  p->receive(id, links_.at(id).dialler == to, frame);
  if (p->metrics.stale_messages.value() != stale) journal.mark(Mark::stale_message);
  if (!p->stalled) p->turn();
}

// The envelope's checksum must refuse it; the receiver then gives the connection up.
void World::deliver_damaged(Process& p, LinkId id, const Bytes& words, std::size_t size) {
  std::vector<std::byte> bytes(size);
  std::memcpy(bytes.data(), words->data(), size);
  const std::size_t at = choices.pick(size);
  bytes[at] ^= static_cast<std::byte>(1U << choices.pick(8));
  wire::FrameReader reader(wire::kFrameBytesMax);
  for (std::size_t done = 0; done < size;) {
    const std::span<std::byte> room = reader.prepare();
    const std::size_t n = std::min(room.size(), size - done);
    std::memcpy(room.data(), bytes.data() + done, n);
    reader.commit(n);
    done += n;
  }
  const auto frame = reader.next();
  if (frame && *frame) {
    return fault(Checker::kMessages, fmt::format("a frame with bit {} damaged was taken", at * 8));
  }
  if (frame) return cut(id);  // its length was hit: the stream stands still until it breaks
  journal.mark(Mark::corrupt_refused);
  const Link& link = links_.at(id);
  if (!(link.dialler == p.place.number ? link.dialler_open : link.acceptor_open)) return;
  if (link.dialler == p.place.number) {
    p.decode->on_bad_stream(id, frame.error(), p.clock());
  } else {
    p.prefill->on_bad_stream(id, frame.error(), p.clock());
  }
  p.turn();
}

void World::repeat_last(wire::MessageType type) {
  const LastMessage& last = last_[slot_of(type)];
  if (last.size == 0) return;
  journal.mark(Mark::late_duplicate);
  const auto words = std::make_shared<const std::vector<std::uint64_t>>(last.words);
  later(delay(), [this, words, to = last.to, id = last.link, size = last.size] {
    deliver(to, id, words, size, false);
  });
}

// ---- the end ----

bool World::idle() {
  return std::all_of(living_.begin(), living_.end(),
                     [](const Process* p) { return p->leaving || p->quiet(); });
}

std::string World::what_is_left() {
  std::string out;
  for (const Process* p : living_) {
    if (!p->leaving && !p->quiet()) out += "; " + p->what_is_left();
  }
  return out;
}

std::uint64_t World::fingerprint() const {
  std::uint64_t hash = queue_.size() * 31 + network.pending();
  const auto add = [&hash](std::uint64_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 32;
  };
  for (const Process* p : living_) {
    add(p->place.instance * 64 + p->place.rank);
    p->fingerprint(add);
  }
  return hash;
}

// What a process says of its connections, both of its roles together, is what stands.
void World::check_connections(const Process& process) {
  const auto stands = std::count_if(links_.begin(), links_.end(), [&](const auto& entry) {
    const Link& link = entry.second;
    const bool its = link.dialler == process.place.number || link.acceptor == process.place.number;
    return its && link.dialler_open && link.acceptor_open;
  });
  if (process.metrics.peers_connected.value() == stands) return;
  fault(Checker::kBooks,
        fmt::format("{}: peers_connected is {}, {} connections stand", process.config.id.engine_id,
                    process.metrics.peers_connected.value(), stands));
}

void World::check_at_end() {
  for (Process* p : living_) {
    if (p->leaving) continue;
    p->check_at_end();
    check_connections(*p);
  }
  if (network.stats().immediates_overrun != 0) {
    fault(Checker::kBooks, "an immediate was lost: credits were exceeded");
  }
}

}  // namespace baton::sim
