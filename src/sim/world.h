// The world: a virtual clock, processes over the fake fabric, and a control channel that delays,
// reorders, drops, doubles, damages and cuts. It decides nothing by itself: chance comes from
// Choices, what goes wrong from Weather and from calls.
//
// Driven by time (run_until) or item by item (pending, fire).
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "fabric/sim/sim_fabric.h"
#include "handover/bounds.h"
#include "handover/config.h"
#include "sim/choices.h"
#include "sim/journal.h"
#include "sim/process.h"

namespace baton::sim {

// What does not change while a world lives.
struct Settings {
  Mode mode = Mode::kPush;
  // The fabric.
  bool delivery_complete = true;
  bool failed_writes_final = false;
  bool fence_on_request = true;
  bool fence_on_crash = true;
  std::uint32_t pieces_max = 4;
  std::uint32_t writes_in_flight_max = 16;
  std::uint64_t write_bytes_max = 400;
  std::uint32_t immediates_max = 256;
  std::uint32_t write_failures = 0;  // a thousand
  std::uint32_t connect_failures = 0;
  Duration data_delay_max = std::chrono::milliseconds(3);
  Duration immediate_delay_max = std::chrono::milliseconds(3);
  // Pools.
  std::uint32_t layers = 3;
  std::uint32_t pool_blocks = 48;
  std::uint32_t block_size = 4;
  std::uint32_t token_bytes = 12;
  // The machines.
  bool verify = false;
  // A thousand: lives of an instance that speak version 1 and no newer one.
  std::uint32_t version_1 = 0;
  std::uint32_t transfers_max = 32;
  std::uint32_t peers_max = 8;
  std::uint32_t ends_remembered_max = 1024;
  std::uint32_t quarantine_blocks_max = 0;
  std::chrono::milliseconds peer_timeout{200};
  std::chrono::milliseconds lease{500};
  std::chrono::milliseconds lease_renewal{100};
  std::chrono::milliseconds transfer_timeout{800};
  std::chrono::milliseconds transfer_total{3200};
  std::chrono::milliseconds resend_min{10};
  std::chrono::milliseconds resend_max{80};
  std::chrono::milliseconds reconnect_grace{40};
  // Clocks of processes differ from the world's by up to this.
  Duration skew_max{};
  // Exhaustive scheduling: every delay is the same, order is chosen instead.
  bool fixed_delays = false;
};

// What goes wrong by chance, out of 1000; may change at any time.
struct Weather {
  std::uint32_t drop = 0;
  std::uint32_t duplicate = 0;
  std::uint32_t corrupt = 0;
  std::uint32_t submit_failures = 0;
  std::uint32_t lost_immediates = 0;
  std::uint32_t reused_ids = 0;  // pull: of requests that end at P without a hand-over
  Duration delay_max = std::chrono::milliseconds(2);
};

struct Instance {
  std::string engine_id;
  Role role = Role::kBoth;
  bool alive = false;
  bool leaving = false;  // gets no new requests
  bool odd = false;      // has another model: nothing may ever be handed over to it [I9]
  std::uint16_t version_max = wire::kVersion;  // of this life
  std::uint32_t lives = 0;
  std::vector<std::uint32_t> ranks;  // numbers of its processes in this life
};

class World {
 public:
  World(const Settings& settings, Choices& choices, std::uint64_t seed, Journal& journal);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const Settings settings;
  Weather weather;
  Choices& choices;
  Journal& journal;
  Engines* engines = nullptr;
  // Messages of a type that are lost when they arrive, as long as the count lasts.
  std::array<std::uint32_t, 32> lose_next{};
  int skip_immediates = 0;         // these arrive before lose_immediates counts
  Duration repeat_immediates{-1};  // each arrives once more after this time
  std::uint64_t bytes_posted = 0;
  std::uint32_t lose_immediates = 0;  // the next ones, at any receiver
  // Trials: says what becomes of a write; an error is what post() returns.
  std::function<Status(Process&, const handover::WriteOp&)> on_post;

  // Time.
  Time now() const { return now_; }
  void later(Duration delay, std::function<void()> what);
  Duration delay();
  void run_until(Time end, const std::function<bool()>& over = {});
  std::size_t pending() const { return queue_.size() + network.pending(); }
  // The index-th thing that may happen next; 0: what is due first.
  void fire(std::size_t index);
  // Nothing is pending: the clock moves to the next deadline of a process. False: there is none.
  bool pass_time();
  void leap(Duration by);  // the clock moves on, and everything pending with it
  void turn_all();

  // Instances and their processes. All ranks of an instance live and die together.
  std::uint32_t add_instance(Role role, std::uint32_t ranks, bool odd = false);
  void start(std::uint32_t instance);
  void crash(std::uint32_t instance);
  void leave(std::uint32_t instance);  // its processes end in good order, as far as they can
  Instance& instance(std::uint32_t index) { return instances_[index]; }
  std::size_t instances() const { return instances_.size(); }
  Process& process(std::uint32_t number) { return *processes_[number]; }
  Process* alive(std::uint32_t number) {
    return processes_[number]->alive ? processes_[number].get() : nullptr;
  }
  Process* rank(std::uint32_t instance, std::uint32_t rank);
  PeerAddress address(std::uint32_t instance, std::uint32_t rank, bool with_incarnation);
  std::optional<std::uint32_t> number_of(const PeerId& id) const;
  void stall(std::uint32_t number, Duration length);
  void stall_engine(std::uint32_t instance, Duration length);

  // The channel.
  handover::LinkId new_link(std::uint32_t dialler, const PeerAddress& to);
  void hang_up(std::uint32_t number, handover::LinkId link);
  void carry(std::uint32_t number, handover::LinkId link, std::span<const std::byte> frame);
  // D's process sends P this, as if it were its own; nothing happens where no connection stands.
  void forge(std::uint32_t from, std::uint32_t to, std::span<const std::byte> frame);
  void cut(handover::LinkId link);
  void cut_any();
  void cut_one_way(std::uint32_t from, std::uint32_t to, Duration length);
  void hold_data(std::uint32_t from, std::uint32_t to, Duration length);
  void repeat_last(wire::MessageType type);  // a copy of the last such message arrives once more
  void heal();                               // no cut, hold or stall is left, and no weather

  void fault(Checker checker, std::string text) { journal.fault(checker, now_, std::move(text)); }
  bool idle();
  // After the last fault, by the table of bounds [I4].
  Duration all_ends_within() const;
  std::string what_is_left();         // who is not idle, and why, in words
  std::uint64_t fingerprint() const;  // of what can be seen from outside, times left out
  void check_at_end();
  std::uint64_t steps() const { return steps_; }

  fabric::sim::Network network;

 private:
  struct Link {
    std::uint32_t dialler = 0;
    std::uint32_t acceptor = 0;
    bool dialler_open = true;
    bool acceptor_open = false;
  };
  struct LastMessage {
    handover::LinkId link = 0;
    std::uint32_t to = 0;
    std::vector<std::uint64_t> words;
    std::size_t size = 0;
  };
  using ItemKey = std::pair<Time, std::uint64_t>;
  using Bytes = std::shared_ptr<const std::vector<std::uint64_t>>;

  handover::Config config_for(const Instance& instance, std::uint32_t rank, std::uint64_t life);
  void make_process(std::uint32_t instance, std::uint32_t rank);
  void end_once_drained(std::uint32_t number, int tries);
  void end_process(Process& process);
  void close_links(std::uint32_t number);
  void run_item();
  Time next_time() const;
  void deliver(std::uint32_t to, handover::LinkId link, const Bytes& words, std::size_t size,
               bool damaged);
  void deliver_damaged(Process& process, handover::LinkId link, const Bytes& words,
                       std::size_t size);
  void down(std::uint32_t number, handover::LinkId link, const char* why);
  void connected(handover::LinkId link);
  Duration within(handover::BoundId id) const;
  void watch_silence(std::uint32_t number, Duration length);
  void watch_crash(std::uint32_t number);
  void check_crash(std::uint32_t number, Time since);
  void check_connections(const Process& process);

  Time now_{};
  std::map<ItemKey, std::function<void()>> queue_;
  std::uint64_t next_item_ = 0;
  std::uint64_t steps_ = 0;
  std::uint64_t next_incarnation_ = 1;
  std::vector<Instance> instances_;
  std::vector<std::unique_ptr<Process>> processes_;  // by number; the dead stay
  std::vector<Process*> living_;
  std::map<handover::LinkId, Link> links_;
  handover::LinkId next_link_ = 1;
  std::map<std::pair<std::uint32_t, std::uint32_t>, Time> one_way_;  // until then
  std::set<std::pair<std::uint32_t, std::uint32_t>> held_data_;
  std::array<LastMessage, 32> last_{};
  bool keep_last_ = false;
};

}  // namespace baton::sim
