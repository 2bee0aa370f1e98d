// The inside of PrefillSide, shared by its source files: prefill_side.cc (engine and time),
// prefill_links.cc (peers and their outbounds), rendezvous.cc (registrations meet finished blocks),
// push.cc (the writes), lend.cc (pull: blocks that D reads).
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "handover/ended_book.h"
#include "handover/index_map.h"
#include "handover/prefill_side.h"
#include "handover/timer_heap.h"
#include "handover/turns.h"
#include "handover/way.h"
#include "layout/copy_plan.h"
#include "wire/messages.h"
#include "wire/validate.h"

namespace baton::handover {

struct PrefillSide::Impl {
  static constexpr std::uint32_t kNone = UINT32_MAX;

  // One request as P knows it: what its engine said, and the registration that stands. Made by
  // whichever comes first.
  struct Transfer {
    bool used = false;
    TransferId id;
    bool known = false;  // the engine expects it or handed in blocks
    std::optional<std::uint32_t> prompt_tokens;
    bool has_pieces = false;
    TokenRange ready;  // of the pieces so far
    bool last = false;
    std::optional<TokenId> first_token;
    std::uint64_t announcement = 0;            // pull, once `last`
    std::vector<std::vector<BlockId>> blocks;  // by group, from ready.begin on
    std::uint32_t push = kNone;                // the registration that stands
    std::uint32_t in_flight = 0;  // writes posted from these blocks, of all registrations [I2]
    std::optional<baton::Attempt> highest;  // ever accepted
    std::uint32_t holder = kNone;           // the peer whose claim or registration came last
    bool met = false;                       // a registration met the engine's word
    // D's word that came before everything else: a claim (`holder`), or that it is over.
    std::uint32_t early_by = kNone;  // the peer whose quota the row counts against
    bool cancelled = false;
    Time early_until = kNever;
    Time lease = kNever;
    // The end, while writes are still out.
    bool ending = false;
    Outcome outcome = Outcome::kDone;
    Cause cause = Cause::kNone;
    std::string text;
    // Of the registration that stood last, for the event.
    std::string peer_name;
    baton::Attempt number;
    TokenRange range;
    std::uint64_t bytes = 0;
    std::uint64_t bytes_planned = 0;
    std::uint32_t writes = 0;
    std::uint32_t runs = 0;
    Timeline times;
  };

  // One registration that P took. It stands until it is done, or is stopped and lives on until its
  // writes are in.
  enum class Phase : std::uint8_t { kFree, kStanding, kStopping };
  struct Push {
    Phase phase = Phase::kFree;
    std::uint32_t generation = 0;
    std::uint32_t peer = kNone;
    std::uint32_t session = 0;  // of the peer's outbound
    std::uint32_t transfer = kNone;
    wire::Key key;
    TokenRange range;
    std::uint32_t prompt_tokens = 0;
    std::vector<std::vector<BlockId>> remote;  // by group
    std::uint32_t blocks = 0;
    std::uint32_t credits = 0;
    std::uint32_t counted = 0;  // by D, as far as told
    Time deadline = kNever;     // while no request here matches
    bool unmatched = false;     // counts in its peer's `unmatched`
    bool checked = false;       // against the pieces
    bool taken = false;         // pull: D has read everything
    // Progress. Blocks are positions in the request.
    std::uint32_t next_block = 0;  // planned up to here
    layout::RunCursor cursor;
    std::uint32_t stretch_begin = 0;
    std::uint32_t stretch_end = 0;
    std::optional<layout::Run> held;  // planned and not yet accepted by the fabric
    std::uint32_t in_flight = 0;
    std::uint32_t immediates = 0;
    std::uint32_t writes = 0;
    std::uint32_t runs = 0;
    layout::Run last;  // posted
    std::uint64_t bytes = 0;
    std::uint64_t bytes_planned = 0;
    std::vector<std::vector<std::uint64_t>> hashes;  // by group, as far as computed
    bool unclean = false;                            // a write failed and may still land
    bool final_sent = false;
    Cause cause = Cause::kNone;
    std::string text;
  };

  struct Peer {
    bool used = false;
    PeerId id;
    LinkId link = kNoLink;
    Geometry geometry;
    layout::CopyPlan plan;
    bool verify = false;
    Way way;                        // push
    std::optional<Inbound> source;  // pull: through which it may read
    std::vector<std::byte> source_offer;
    std::uint32_t session = 0;            // ours: counts what was dropped
    std::uint64_t decode_session = 0;     // as D's Hello says
    std::uint64_t decode_connection = 0;  // likewise
    std::uint64_t first_connection = 0;   // since which this row remembers everything
    std::uint16_t version = 0;            // spoken
    bool unclean = false;                 // ends that an empty book would answer wrongly [I1]
    Time heard = kNever;
    Time spoke = kNever;
    Time down_since = kNever;
    Duration ping_gap{};
    bool lost = false;  // given up; its row and its book stay until the place is needed
    Time lost_at = kNever;
    std::uint32_t pushes = 0;
    std::uint32_t unmatched = 0;  // of them, without a request here
    std::uint32_t early = 0;      // claims and cancels without a request here
    std::uint64_t blocks = 0;     // named by its registrations
    std::unique_ptr<EndedBook> ended;
  };
  // A connection that has not said Hello yet.
  struct Stranger {
    LinkId link = kNoLink;
    Time until = kNever;
  };
  struct GrantKey {
    std::uint32_t peer = 0;
    Epoch epoch = 0;
    bool operator==(const GrantKey&) const = default;
  };
  struct GrantHash {
    std::size_t operator()(const GrantKey& k) const {
      return static_cast<std::size_t>(k.epoch * 0x9E3779B97F4A7C15ULL ^ k.peer);
    }
  };
  // A transfer that is over here, so that a registration that comes too late is answered at once.
  struct Recent {
    TransferId id;
    Cause cause = Cause::kNone;
  };

  Impl(const Config& config, Port& port, AgentMetrics& metrics);

  // prefill_side.cc
  void expect(TransferId id, std::uint32_t prompt_tokens, Time now);
  void ready(ReadyPiece&& piece, Time now);
  void cancel(TransferId id, Time now);
  void on_time(Time now);
  void drain(Time now);
  void abandon(Time now);
  void shutdown(Time now);
  std::uint32_t transfer_for(TransferId id);
  bool is_known(TransferId id) const;
  void know(std::uint32_t index);
  void refuse_request(TransferId id, Cause cause, std::string text);
  void end_cancelled(std::uint32_t index, Time now);
  bool is_early(const Transfer& t) const { return t.early_by != kNone; }
  void note_early(TransferId id, std::uint32_t peer, bool is_cancelled, Time now);
  void clear_early(Transfer& t);
  std::string piece_fault(const Transfer& t, const ReadyPiece& piece);
  void append(Transfer& t, ReadyPiece&& piece, Time now);
  void end_transfer(std::uint32_t index, Outcome outcome, Cause cause, std::string text, Time now);
  void finish_transfer(std::uint32_t index, Time now);
  void remember(TransferId id, Cause cause);
  void forget_recent(TransferId id);
  void free_transfer(std::uint32_t index);
  void set_transfer_timer(std::uint32_t index);
  void transfer_time(std::uint32_t index, Time now);
  void renew_lease(Transfer& t, Time now);
  Event event_for(const Transfer& t, Time now) const;

  // prefill_links.cc
  void on_link_accepted(LinkId link, Time now);
  void on_link_down(LinkId link, Time now);
  void on_frame(LinkId link, const wire::Frame& frame, Time now);
  void on_bad_stream(LinkId link, const Error& error, Time now);
  void on_stranger(std::size_t index, const Result<wire::Message>& message, Time now);
  void on_hello(LinkId link, const wire::Hello& theirs, Time now);
  void refuse_link(LinkId link, wire::Refuse refuse);
  std::uint32_t peer_of(LinkId link) const;
  std::uint32_t peer_for(const PeerId& id, Time now);
  void admit(std::uint32_t index, LinkId link, const wire::Hello& theirs, layout::CopyPlan&& plan,
             Time now);
  void dispatch(std::uint32_t index, const wire::Message& message, Time now);
  void on_offer(std::uint32_t index, const wire::Offer& offer, Time now);
  void connect(std::uint32_t index, Time now);
  void drop_session(std::uint32_t index, Cause cause, const std::string& text, Time now);
  void count_connected(std::int32_t more);
  void lose(std::uint32_t index, Cause cause, std::string_view why, Time now);
  void forget_peer(std::uint32_t index);
  bool may_forget(const Peer& peer) const;
  void on_goodbye(std::uint32_t index, const wire::Goodbye& goodbye, Time now);
  std::uint32_t peer_of(Outbound outbound) const;
  void on_connected(Outbound outbound, Time now);
  void on_connect_failed(Outbound outbound, std::string_view error, Time now);
  void connect_failed(std::uint32_t index, std::string_view error, Time now);
  void on_renew(std::uint32_t index, const wire::Renew& renew, Time now);
  void peer_time(std::uint32_t index, Time now);
  void strangers_time(Time now);
  Time peer_deadline(const Peer& peer) const;
  template <typename M>
  void send(std::uint32_t index, const M& message, Time now) {
    Peer& peer = peers[index];
    if (peer.link == kNoLink) return;  // D asks again when it is back
    port.send(peer.link, encoder.encode(message));
    peer.spoke = now;
  }

  // rendezvous.cc
  void on_register(std::uint32_t peer, const wire::Register& message, Time now);
  bool answer_known(std::uint32_t peer, const wire::Register& message, Time now);
  std::string quota_fault(std::uint32_t peer, const wire::Register& message) const;
  void match(Push& p);
  bool give_way(std::uint32_t peer, std::uint32_t transfer, const wire::Register& message,
                Time now);
  void take(std::uint32_t peer, std::uint32_t transfer, const wire::Register& message, Time now);
  void turn_away(std::uint32_t peer, const wire::Key& key, Cause cause, std::string text, Time now);
  void answer_record(std::uint32_t peer, const EndRecord& record, Time now);
  void send_state(std::uint32_t push, Time now);
  void send_stopped(std::uint32_t push, bool drained, Time now);
  void send_final(std::uint32_t push, Time now);
  void on_cancel(std::uint32_t peer, const wire::Cancel& message, Time now);
  void on_claim_cancelled(std::uint32_t peer, const wire::Cancel& message, Time now);
  void on_credit(std::uint32_t peer, const wire::Credit& message);
  void meet(std::uint32_t transfer, Time now);
  bool fits_pieces(std::uint32_t push, Time now);
  void stop(std::uint32_t push, Cause cause, std::string text, Time now);
  void stop_unmatched(std::uint32_t push, Cause cause, std::string text, Time now);
  void end_push(std::uint32_t push, Outcome outcome, Cause cause, const std::string& text,
                Time now);
  void drained(std::uint32_t push, Time now);
  void forget_if_empty(std::uint32_t transfer);
  std::uint32_t push_by(std::uint32_t peer, const wire::Key& key);
  void free_push(std::uint32_t push);
  EndRecord record_of(const Push& p) const;

  // push.cc
  bool work(Time now);
  using Step = Turns::Step;
  Step step(std::uint32_t push, std::uint64_t& hash_budget, Time now);
  Step post_run(std::uint32_t push, Time now);
  Step finish(std::uint32_t push, Time now);
  bool next_stretch(std::uint32_t push);
  bool hash_stretch(std::uint32_t push, std::uint64_t& hash_budget);
  bool room_for(const Push& p) const;
  void check_standing(const Push& p) const;
  Status post(std::uint32_t push, WriteOp op, Time now);
  void done(std::uint32_t push, Time now);
  void on_write_done(std::uint64_t context, Time now);
  void on_write_failed(std::uint64_t context, std::string_view error, Time now, bool over);
  std::uint32_t write_over(std::uint64_t context, Time now);
  void note_posted(std::uint32_t peer, Time now);
  void after_write(std::uint32_t push, Time now);
  layout::BlockLists lists_of(const Push& p) const;

  // lend.cc
  bool pull() const { return config.mode == Mode::kPull; }
  Status open_source(std::uint32_t index);
  void send_source(std::uint32_t index, Time now);
  std::string lending_fault(std::uint32_t peer, const wire::Register& message) const;
  std::string source_fault(const Push& p) const;
  Step lend(std::uint32_t push, std::uint64_t& hash_budget, Time now);

  const Config config;
  Port& port;
  AgentMetrics& metrics;
  wire::Encoder encoder;
  wire::DuplicateFinder own_duplicates;             // in what our engine hands in
  std::optional<wire::DuplicateFinder> duplicates;  // as large as the largest peer's pool
  std::uint32_t duplicates_size = 0;

  std::vector<Transfer> transfers;
  std::vector<std::uint32_t> free_transfers;
  IndexMap<TransferId> transfer_of;
  std::vector<Push> pushes;
  std::deque<std::uint32_t> free_pushes;
  IndexMap<GrantKey, GrantHash> push_of;
  std::vector<Peer> peers;
  std::vector<Stranger> strangers;
  Turns runnable;  // pushes that may have something to post
  std::deque<Recent> recents;
  IndexMap<TransferId> recent_of;
  std::uint32_t recents_dropped = 0;
  TimerHeap transfer_timers;
  TimerHeap peer_timers;  // one more than peers: the last is the strangers'

  std::uint32_t known = 0;  // transfers that the engine knows
  std::uint32_t early = 0;  // rows that hold only a claim or a cancel
  std::uint32_t in_flight = 0;
  std::uint32_t peers_connected = 0;
  std::uint64_t next_token = 1;
  bool progress = false;  // of the work() under way
  bool draining = false;
  bool stopping = false;
};

}  // namespace baton::handover
