// One rank's process: the shipped machines, their port over the fake fabric and the world's
// channel, the two bounded queues that stand between an engine and its agent, and the books of the
// engine's blocks. The books are the checkers' view: what is held by whom, how often it ended, how
// many bytes were posted for it.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabric/fabric.h"
#include "handover/decode_side.h"
#include "handover/port.h"
#include "handover/prefill_side.h"
#include "layout/block_hash.h"
#include "sim/journal.h"
#include "sim/pattern.h"

namespace baton::sim {

class World;
class Process;

// What an engine does when its agent tells it something. Called from the process' turn, after the
// books were kept; never while the process or its engine is stalled.
class Engines {
 public:
  virtual ~Engines() = default;
  virtual void decode_ended(Process& process, const Event& event) = 0;
  virtual void prefill_ended(Process& process, const Event& event) = 0;
};

class Process final : public handover::Port {
 public:
  struct Place {
    std::uint32_t number = 0;
    std::uint32_t instance = 0;
    std::uint32_t rank = 0;
    Duration skew{};  // its clock less the world's
    bool odd = false;
    std::string short_name;
  };
  using Key = std::pair<TransferId, baton::Attempt>;
  // D: the blocks of one attempt.
  struct Held {
    TokenRange range;
    std::vector<BlockId> blocks;
    std::uint32_t peer = UINT32_MAX;  // number of the process that was named, if by incarnation
    Time since{};
    std::uint64_t announcement = 0;  // pull: what it was told to read
    int ends = 0;
    bool gone = false;  // given back
    bool done = false;
    std::uint64_t posted = 0;         // bytes that a writer posted into them
    std::uint64_t posts = 0;          // with an immediate
    std::uint64_t registrations = 0;  // Registers seen on the way
    std::uint64_t bytes_at_end = 0;   // digest of its blocks, if they were held back
  };

  Process(World& world, Place place, const handover::Config& config, Pool pool,
          std::unique_ptr<fabric::Fabric> fabric);
  ~Process() override;

  const Place place;
  handover::Config config;
  Pool pool;
  AgentMetrics metrics;
  std::unique_ptr<fabric::Fabric> fabric;
  std::optional<handover::DecodeSide> decode;
  std::optional<handover::PrefillSide> prefill;
  bool alive = true;
  bool stalled = false;                               // its owner thread
  bool engine_stalled = false;                        // takes no events, and makes no calls
  bool leaving = false;                               // its end need not be clean
  bool draining = false;                              // takes nothing new
  Time stalled_until{};                               // world's clock: when its last stall ended
  std::chrono::milliseconds registration_deadline{};  // D: its registrations'; 0: the Config's

  Time clock() const;  // its own
  // Everything that waits: fabric, submissions, time, work, events.
  void turn();
  Time next_deadline() const;  // on the world's clock
  // As the agent: what came on a link that this process dialled is for D, on others for P.
  void receive(handover::LinkId link, bool dialled, const wire::Frame& frame);
  void stop_machines();
  void drain();  // as SIGTERM does: the agent takes nothing new, what runs goes on

  // The engine's calls. They wait in the agent's bounded queue; what does not fit waits at the
  // engine, in order.
  void submit(std::function<void(Process&, Time)> call);
  void cancel(TransferId transfer, Time now);  // from its queue; whichever side has it
  bool queue_has_room() const { return submissions_.size() < kQueue && backlog_.empty(); }

  // D: false if the pool has no room.
  bool room_for(TokenRange range) const;
  void reserve_and_register(const Key& key, const PeerAddress& peer, TokenRange range,
                            std::uint32_t prompt, std::uint32_t peer_number,
                            const std::optional<SourceBlocks>& source = {});
  void check_received(const Key& key, std::string_view when);
  void release_done(const Key& key);
  const std::map<Key, Held>& held() const { return held_; }

  // P: takes blocks for the whole prompt, then computes and hands in piece by piece.
  bool begin_prefill(TransferId transfer, std::uint32_t prompt);
  // Pull: a caller uses the id of a request that is over once more, and gets its blocks again if
  // they are free. False: the transfer is not over here, or there is no room.
  bool reuse_id(TransferId transfer);
  void compute_piece(TransferId transfer, std::uint32_t tokens, std::optional<TokenId> first_token);
  void expect(TransferId transfer, std::uint32_t tokens, Time now);
  void drop_prompt(TransferId transfer);  // nothing of it was handed in: its blocks are free
  void abandon_prefill(TransferId transfer);
  bool prefill_running(TransferId transfer) const;    // its blocks are not free yet
  bool prefill_computing(TransferId transfer) const;  // pieces are missing
  bool prefill_handed_in(TransferId transfer) const;
  // Pull: what P says of its finished blocks, once its agent has them.
  std::optional<SourceBlocks> announced(TransferId transfer) const;

  void fingerprint(const std::function<void(std::uint64_t)>& add) const;
  bool quiet() const;  // every book is closed and every table empty
  std::string what_is_left() const;
  void check_at_end();

  // Port.
  handover::LinkId dial(const PeerAddress& peer) override;
  void hang_up(handover::LinkId link) override;
  void send(handover::LinkId link, std::span<const std::byte> frame) override;
  void trust(handover::LinkId) override {}
  Result<InboundOffer> open_inbound(const PeerId& writer) override;
  Result<InboundOffer> open_source(const PeerId& reader) override;
  void fence_inbound(handover::Inbound inbound) override;
  Result<handover::Outbound> connect(const PeerId& receiver, std::span<const std::byte> offer,
                                     std::span<const Region> regions) override;
  void close_outbound(handover::Outbound outbound) override;
  Status post(const handover::WriteOp& write) override;
  Status post_read(const handover::ReadOp& read) override;
  void posted(TransferId) override {}
  std::uint64_t hash_block(std::uint16_t group, BlockId block) override;
  void deliver(Event&& event) override;

 private:
  static constexpr std::size_t kQueue = 16;

  struct Prompt {  // P: blocks of one request
    std::uint32_t tokens = 0;
    std::uint32_t computed = 0;
    std::uint64_t announcement = 0;  // pull
    std::vector<BlockId> blocks;
    std::vector<BlockId> had;  // once they were given back
    bool handed_in = false;
    bool over = false;
    Outcome outcome = Outcome::kDone;  // once it is over
    bool last = false;
    // Between these two ends the lease, on this process' clock.
    Time renewed_surely{};
    Time renewed_maybe{};
  };
  struct Posted {  // a write or read that has not completed
    std::uint64_t context = 0;
    std::uint32_t peer = UINT32_MAX;  // number of the process at the other end
    std::uint32_t first = 0;
    std::uint32_t last = 0;
    bool used = false;
  };

  void note(const char* event, TransferId transfer = {}, std::string_view word = {},
            std::uint64_t number = 0) const;
  void fault(Checker checker, std::string text) const;
  void handle(const fabric::FabricEvent& event);
  void handle_pull(const fabric::FabricEvent& event);
  void on_immediate(const fabric::FabricEvent& event);
  std::uint64_t completed(std::uint64_t context);
  template <typename Op, typename FabricOp, typename Post>
  Result<std::uint32_t> hand_in(const Op& op, FabricOp& out, Post&& post);
  std::uint32_t take_posted();
  void keep_posted(std::uint32_t slot, std::uint64_t context, std::uint32_t region,
                   std::uint64_t offset, std::uint64_t length);
  void count_peer(std::uint32_t slot, handover::Outbound through);
  std::uint32_t peer_through(handover::Outbound through) const;
  void check_place(std::uint32_t region, std::uint64_t offset, std::uint64_t length) const;
  void count_post(const handover::WriteOp& op);
  void take_events();
  void on_decode_event(const Event& event);
  void on_prefill_event(const Event& event);
  void check_done(const Event& event, Held& held);
  void check_vouched(const Event& event, const Held& held) const;
  void check_lease(const Event& event, const Prompt& p);
  void mark_cause(const Event& event) const;
  void watch(const wire::Frame& frame);
  void give_back(Held& held);
  void check_quarantine();
  void check_unwritten(BlockId block) const;
  void check_computed(TransferId transfer, const Prompt& p) const;
  std::byte free_fill() const { return decode ? kPoison : kGarbage; }

  World& world_;
  layout::BlockHasher hasher_;
  std::deque<std::function<void(Process&, Time)>> submissions_;
  std::deque<std::function<void(Process&, Time)>> backlog_;
  std::deque<Event> events_;
  std::size_t calls_ = 0;  // of the engine, since it took its events
  std::map<Key, Held> held_;
  std::vector<Held*> owner_;  // D: by block
  std::uint64_t quarantined_ = 0;
  std::uint64_t open_held_ = 0;  // D: attempts that hold blocks, or have not ended
  std::map<TransferId, Prompt> prompts_;
  std::uint64_t open_prompts_ = 0;
  std::vector<Posted> posted_;
  std::vector<std::uint32_t> posted_free_;
  std::vector<std::uint32_t> posted_of_;              // by block
  std::map<std::uint32_t, std::uint32_t> posted_to_;  // by number of the process
  std::vector<std::pair<handover::Outbound, std::uint32_t>> receivers_;
  Time last_completion_{};
  bool fencing_ = false;
  std::uint64_t announcements_ = 0;
  std::map<TransferId, Epoch> registered_;  // P: the grant that came last
};

}  // namespace baton::sim
