// The inside of the fake fabric: who is connected to whom, the writes and reads under way, and what
// may happen next. Reads are in sim_reads.cc, the rest in sim_core.cc.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/unique_fd.h"
#include "fabric/region_table.h"
#include "fabric/sim/sim_fabric.h"

namespace baton::fabric::sim {

using EndpointKey = std::uint32_t;
using WriteKey = std::uint64_t;
using ReadKey = std::uint64_t;
// (from, to): what crosses goes that way
using Link = std::pair<PeerId, PeerId>;

struct InboundState {
  PeerId peer;
  Access access = Access::kWrite;
  std::uint64_t token = 0;
  bool fence_asked = false;
  // Who writes or reads here: set at the first connection, kept after it closed.
  std::optional<std::pair<EndpointKey, std::uint32_t>> connection;
};

struct OutboundState {
  PeerId peer;
  Access access = Access::kWrite;
  RegionTable remote;
  EndpointKey target = 0;
  std::uint32_t inbound = 0;
  std::uint64_t token = 0;
  bool connected = false;
  bool closing = false;
  bool close_scheduled = false;
  std::uint32_t in_flight = 0;
  std::string error;
};

struct EndpointState {
  PeerId self;
  bool alive = true;
  RegionTable table;
  std::vector<std::byte*> bases;
  std::deque<FabricEvent> events;
  UniqueFd event_fd;  // made when first asked for
  std::uint32_t in_flight = 0;
  std::uint32_t immediates_waiting = 0;
  std::map<std::uint32_t, InboundState> inbounds;
  std::map<std::uint32_t, OutboundState> outbounds;
};

struct WriteState {
  EndpointKey from = 0;
  EndpointKey target = 0;
  std::uint32_t inbound = 0;
  Link link;
  Write write;
  bool fails = false;
  bool completion_scheduled = false;
  bool completed = false;
  std::uint32_t pieces_total = 0;
  std::uint32_t pieces_to_land = 0;
  std::uint32_t actions = 0;  // pending ones; at 0 and completed the write is forgotten
  bool copied_out = false;    // the source may have changed: what still lands comes from `copy`
  std::vector<std::byte> copy;
};

struct ReadState {
  EndpointKey from = 0;  // the reader
  EndpointKey source = 0;
  std::uint32_t inbound = 0;  // at the source
  Link way_there;             // reader to source: the demand
  Link way_back;              // source to reader: the bytes
  Read read;
  bool fails = false;
  bool over = false;  // a failed one: nothing lands after its completion
  bool completion_scheduled = false;
  bool completed = false;
  std::uint32_t pieces_total = 0;
  std::uint32_t pieces_to_land = 0;
  std::uint32_t actions = 0;     // pending ones; at 0 and completed the read is forgotten
  std::vector<std::byte> taken;  // as pieces of it were at the source when they were taken
};

struct Action {
  enum class Kind : std::uint8_t {
    kConnect,
    kLand,
    kImmediate,
    kComplete,
    kTake,      // a read's piece leaves the source
    kLandRead,  // and arrives at the reader
    kCompleteRead,
    kClosed,
    kFence
  };
  Kind kind = Kind::kLand;
  WriteKey write = 0;  // kLand, kImmediate, kComplete
  ReadKey read = 0;    // kTake, kLandRead, kCompleteRead
  std::uint32_t piece = 0;
  std::uint64_t offset = 0;  // of the piece within the write or read
  std::uint64_t length = 0;
  EndpointKey endpoint = 0;  // kConnect, kClosed: who connects; kFence: who offered
  std::uint32_t id = 0;      // of the outbound or the inbound there
  Link link;
};

class Network::Core {
 public:
  Core(std::uint64_t seed, const Options& options);

  EndpointKey add_endpoint(const PeerId& self);
  void crash(EndpointKey key);
  std::optional<EndpointKey> find_alive(const PeerId& self) const;

  // The port, for endpoint `key`.
  Status register_regions(EndpointKey key, std::span<const Region> regions);
  Result<Fabric::Inbound> open_inbound(EndpointKey key, const PeerId& peer, Access access);
  void fence_inbound(EndpointKey key, InboundId inbound);
  Result<OutboundId> connect(EndpointKey key, const PeerId& peer, std::span<const std::byte> offer,
                             std::span<const Region> regions);
  void close_outbound(EndpointKey key, OutboundId outbound);
  Status post(EndpointKey key, const Write& write);
  Status post_read(EndpointKey key, const Read& read);
  std::size_t poll(EndpointKey key, std::span<FabricEvent> out);
  bool has_events(EndpointKey key) const { return !endpoints_.at(key).events.empty(); }
  int wait_fd(EndpointKey key);

  // The driver.
  std::string describe(std::size_t index) const;
  void fire(std::size_t index);
  void advance_to(Time now);
  bool step();
  std::size_t pending() const { return actions_.size(); }
  Time now() const { return now_; }
  Time next_due() const { return actions_.empty() ? kNever : actions_.begin()->first.first; }
  void fence(const PeerId& receiver, const PeerId& writer);
  void fail_writes(const Link& link, std::uint32_t count) { to_fail_[link] += count; }
  void fail_reads(const Link& link, std::uint32_t count) { reads_to_fail_[link] += count; }
  void set_failures(std::uint32_t writes_per_1000, std::uint32_t connects_per_1000) {
    options_.write_failures_per_1000 = writes_per_1000;
    options_.connect_failures_per_1000 = connects_per_1000;
  }
  void hold(const Link& link, bool held);

  const Capabilities& capabilities() const { return capabilities_; }
  const Stats& stats() const { return stats_; }

 private:
  using ActionKey = std::pair<Time, std::uint64_t>;
  using Actions = std::map<ActionKey, Action>;

  Duration draw(const Delay& delay);
  void schedule(const Delay& delay, Action action);
  void run(Actions::iterator at);
  void act_connect(const Action& action);
  bool is_over(const WriteState& write) const;
  void act_land(const Action& action);
  void act_immediate(const Action& action);
  void act_complete(const Action& action);
  void act_take(const Action& action);
  void act_land_read(const Action& action);
  void act_complete_read(const Action& action);
  void act_closed(const Action& action);

  // What post() and post_read() have in common: the outbound, once nothing speaks against it.
  Result<OutboundState*> find_open(EndpointKey key, Access access, const Write& op);
  bool draw_failure(std::map<Link, std::uint32_t>& forced, const Link& link);

  void push(EndpointKey key, FabricEvent event);
  void schedule_landing(WriteKey key, WriteState& write);
  void schedule_completion(WriteKey key, WriteState& write);
  void landed_all(WriteKey key, WriteState& write);
  void copy_out(WriteState& write);
  void release(WriteKey key, WriteState& write);
  void schedule_pieces(ReadKey key, ReadState& read);
  void schedule_completion(ReadKey key, ReadState& read);
  void make_fail(ReadState& read);
  bool is_over(const ReadState& read) const { return read.fails && read.completed && read.over; }
  void release(ReadKey key, ReadState& read);
  void break_reads(EndpointKey key, std::uint32_t outbound);
  std::string describe_read(const Action& action) const;
  void break_outbound(EndpointKey key, std::uint32_t outbound, const std::string& why);
  void close_if_idle(EndpointKey key, std::uint32_t id, OutboundState& outbound);
  void connect_failed(EndpointKey key, std::uint32_t id, std::string why);
  void do_fence(EndpointKey key, std::uint32_t inbound);
  // Drops pending actions for which `doomed` says so.
  template <typename Predicate>
  void purge(Predicate doomed);

  Rng rng_;
  Options options_;
  Capabilities capabilities_;
  Time now_{};
  std::uint64_t next_action_ = 1;
  WriteKey next_write_ = 1;
  ReadKey next_read_ = 1;
  EndpointKey next_endpoint_ = 1;
  std::uint32_t next_handle_ = 1;
  std::map<EndpointKey, EndpointState> endpoints_;
  std::map<WriteKey, WriteState> writes_;
  std::map<ReadKey, ReadState> reads_;
  Actions actions_;
  std::map<Link, std::vector<Action>> held_;
  std::map<Link, std::uint32_t> to_fail_;
  std::map<Link, std::uint32_t> reads_to_fail_;
  Stats stats_;
};

}  // namespace baton::fabric::sim
