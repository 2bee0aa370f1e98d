// The inside of DecodeSide, shared by its source files: decode_side.cc (engine and time),
// decode_links.cc (connections and peers), decode_attempts.cc (slots, messages, completion,
// quarantine), reads.cc (pull: the reads).
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "handover/decode_side.h"
#include "handover/index_map.h"
#include "handover/timer_heap.h"
#include "handover/turns.h"
#include "handover/way.h"
#include "layout/copy_plan.h"
#include "wire/messages.h"
#include "wire/validate.h"

namespace baton::handover {

struct DecodeSide::Impl {
  static constexpr std::uint32_t kNone = UINT32_MAX;

  // One registration; its row in `attempts_` is its completion slot's index. It ends for the engine
  // long before its row is free if its writer has yet to drain.
  enum class Phase : std::uint8_t {
    kFree,
    kWaiting,      // the peer is not connected: nothing was sent
    kRegistered,   // P was told
    kVerifying,    // everything landed, hashes are being compared
    kWithdrawing,  // the engine took it back; ends when P has drained
    kQuarantined,  // ended for the engine; blocks wait for the writer to drain or for the fence
                   // [I1]
                   // Pull: the peer's part is over, and reads of our own are still out.
  };
  // Pull: the reads of one registration.
  struct Reading {
    std::vector<std::vector<BlockId>> source;  // P's blocks of the range, by group
    std::uint64_t announcement = 0;
    layout::RunCursor cursor;
    std::optional<layout::Run> held;  // planned and not yet accepted by the fabric
    Outbound through{};
    std::uint32_t in_flight = 0;
    std::uint32_t posted = 0;
    std::uint32_t runs = 0;
    layout::Run last;  // posted
    std::uint64_t bytes = 0;
    bool all_posted = false;
    bool taken = false;    // everything has been read, and P was told
    bool unclean = false;  // a read failed and may still land
    bool stopped = false;  // P said that it is over
  };
  struct Attempt {
    Phase phase = Phase::kFree;
    std::uint32_t generation = 0;
    std::uint32_t peer = kNone;
    std::uint64_t wanted_incarnation = 0;
    std::optional<Inbound> inbound;  // through which the writer may write, once it was told
    TransferId transfer;
    baton::Attempt number;
    Epoch epoch = 0;
    TokenRange range;
    std::uint32_t prompt_tokens = 0;
    std::vector<std::vector<BlockId>> block_ids;
    std::uint32_t blocks = 0;  // over all groups
    std::uint64_t bytes_planned = 0;
    std::uint32_t credits = 0;
    Duration patience{};  // the deadline as a duration: P's word that it is at work starts it anew
    Time deadline = kNever;
    Time last_deadline = kNever;        // no word of P's moves it behind this
    std::uint64_t told_connection = 0;  // on which P first heard of the grant
    Time grant_by = kNever;  // held back, the peer's quarantine is full: refused at this time
    Time resend_at = kNever;
    Duration resend_gap{};
    // Completion.
    std::uint32_t counted = 0;
    std::uint32_t reported = 0;  // of `counted`, told to P
    bool final_known = false;
    std::uint32_t final_immediates = 0;
    std::uint32_t final_writes = 0;
    std::optional<TokenId> first_token;
    std::vector<std::uint64_t> hashes;
    std::uint32_t verified = 0;
    // The end.
    Cause cause = Cause::kNone;
    std::string text;
    bool keep = false;                                // of the Cancel that is repeated
    std::optional<std::uint32_t> drained_immediates;  // P drained; so many must have been counted
    Time counted_by = kNever;  // they are missing: the writer is fenced at this time
    Timeline times;
    Reading reading;
  };

  struct Peer {
    enum class State : std::uint8_t { kFree, kIdle, kDialing, kHandshake, kReady };
    State state = State::kFree;
    PeerAddress address;
    PeerId id;  // incarnation 0: not known yet
    LinkId link = kNoLink;
    // A session lasts from a handshake until the peer is given up; a connection may come back
    // within it.
    bool open = false;
    std::optional<Inbound> inbound;  // push: through which it may write
    std::vector<std::byte> offer;
    Way way;               // pull: to its memory, whose shape is `geometry`
    bool offered = false;  // pull: on the connection of the last handshake
    Geometry geometry;
    layout::CopyPlan plan;
    std::uint64_t session = 0;
    std::uint64_t connection = 0;          // of the last Hello
    std::uint64_t session_connection = 0;  // on which the session began
    std::uint64_t memory = 0;   // the first connection of ours that P remembers; 0: it did not say
    std::uint16_t version = 0;  // spoken, once ready
    Time heard = kNever;
    Time spoke = kNever;
    Time trying_since = kNever;  // without a connection since then
    Time dial_at = kNever;
    Duration dial_gap{};
    Time renew_at = kNever;
    Time offered_at{};
    Duration ping_gap{};
    Duration renew_gap{};
    bool verify = false;
    bool hopeless = false;  // another incarnation answers there: do not dial for quarantine's sake
    std::uint32_t quarantined = 0;  // blocks
    std::uint32_t rows = 0;         // attempts of any phase, against rows_of_peer_max
    std::uint32_t credits = 0;      // of those, against credits_of_peer_max
    std::uint32_t users = 0;        // attempts and claims
  };
  struct Claim {
    TransferId transfer;
    std::uint32_t peer = kNone;
    bool given_up = false;  // no longer a claim: P is told so as soon as it is connected
  };

  Impl(const Config& config, Port& port, AgentMetrics& metrics);

  // decode_side.cc
  void claim(TransferId transfer, const PeerAddress& address, Time now);
  void register_blocks(Registration&& registration, Time now);
  void withdraw(TransferId transfer, Time now);
  void cancel(TransferId transfer, Time now);
  void on_time(Time now);
  bool work(Time now);
  void drain();
  void abandon(Time now);
  void shutdown(Time now);
  bool may_begin(TransferId transfer) const;
  void drop_claim(TransferId transfer, bool tell, Time now);
  bool room_for_claim(Time now);
  void disown(TransferId transfer, std::uint32_t peer, Time now);
  void tell_disowned(std::uint32_t peer, Time now);
  bool make_way(const Registration& registration, Time now);
  std::string over_quota(const Peer& peer) const;
  void fill(Attempt& a, Registration&& registration, std::uint32_t peer, Time now);
  void refuse_registration(Registration&& registration, Outcome outcome, Cause cause,
                           std::string text, Time now);

  // decode_links.cc
  std::uint32_t peer_for(const PeerAddress& address, Time now);
  std::uint32_t new_peer(const PeerAddress& address);
  bool make_room_for_peer();
  void free_peer_if_unused(std::uint32_t index);
  std::uint32_t peer_of(LinkId link) const;
  void dial(std::uint32_t index, Time now);
  void on_link_up(LinkId link, Time now);
  void on_link_down(LinkId link, std::string_view why, Time now);
  void retry_or_give_up(std::uint32_t index, Cause cause, std::string_view why, Time now);
  void give_up(std::uint32_t index, Cause cause, std::string_view why, Time now);
  void on_frame(LinkId link, const wire::Frame& frame, Time now);
  void on_bad_stream(LinkId link, const Error& error, Time now);
  void dispatch(std::uint32_t index, const wire::Message& message, Time now);
  void on_hello_ack(std::uint32_t index, const wire::HelloAck& ack, Time now);
  void on_refused(std::uint32_t index, const wire::Refuse& refuse, Time now);
  std::uint32_t join_same(std::uint32_t index, const PeerId& id);
  bool forgot_session(std::uint32_t index) const;
  bool open_session(std::uint32_t index, Time now);
  void fail_other_incarnations(std::uint32_t index, Time now);
  void on_goodbye(std::uint32_t index, const wire::Goodbye& goodbye, Time now);
  void refuse_peer(std::uint32_t index, const std::string& field, const std::string& ours,
                   const std::string& theirs, Time now, std::string_view we = "ours is");
  void send_hello(std::uint32_t index, Time now);
  void send_offer(std::uint32_t index, Time now);
  void offer_again(std::uint32_t index, Time now);
  void send_renewals(std::uint32_t index, Time now);
  void send_ping(std::uint32_t index, Time now);
  void peer_time(std::uint32_t index, Time now);
  void set_peer_timer(std::uint32_t index, Time now);
  Time peer_deadline(const Peer& peer) const;
  bool ready(const Attempt& a) const;
  template <typename M>
  void send(Peer& peer, const M& message, Time now) {
    port.send(peer.link, encoder.encode(message));
    peer.spoke = now;
  }

  // decode_attempts.cc
  wire::Key key_of(std::uint32_t index) const;
  std::uint32_t find(std::uint32_t peer, const wire::Key& key);
  void send_register(std::uint32_t index, Time now);
  void grant(std::uint32_t index, Time now);
  void unhold(Attempt& a);
  void grant_held(std::uint32_t peer, Time now);
  void send_cancel(std::uint32_t index, Time now);
  void repeat(std::uint32_t index, Time now);
  void on_register_state(std::uint32_t peer, const wire::RegisterState& message, Time now);
  void on_final(std::uint32_t peer, const wire::Final& message, Time now);
  void on_stopped(std::uint32_t peer, const wire::Stopped& message, Time now);
  void on_immediate(Inbound inbound, std::uint32_t immediate, Time now);
  void on_fenced(Inbound inbound, Time now);
  std::string final_fault(const Attempt& a, const Peer& peer, const wire::Final& message) const;
  void check_complete(std::uint32_t index, Time now);
  bool verify_some(std::uint32_t index, std::uint64_t& budget, Time now);
  void complete(std::uint32_t index, Time now);
  void note_drained(std::uint32_t index, const wire::Stopped& message, Time now);
  void count_quarantined(std::uint32_t peer, std::int64_t blocks);
  void stop_registered(std::uint32_t index, const wire::Stopped& message, Time now);
  void grant_again(std::uint32_t index, Time now);
  // Ends the attempt for the engine; its row stays (quarantined) unless `released`.
  void end(std::uint32_t index, Outcome outcome, Cause cause, std::string text, bool released,
           Time now);
  void quarantine(std::uint32_t index, Time now);
  bool drained(const Attempt& a) const;
  void release(std::uint32_t index, Time now);
  void free_row(std::uint32_t index);
  Event event_for(const Attempt& a, Event::Kind kind, Outcome outcome, Cause cause, Time now) const;
  void set_attempt_timer(std::uint32_t index);
  void attempt_time(std::uint32_t index, Time now);

  // reads.cc
  bool pull() const { return config.mode == Mode::kPull; }
  void on_offer(std::uint32_t index, const wire::Offer& offer, Time now);
  void on_connected(Outbound outbound, Time now);
  void on_connect_failed(Outbound outbound, std::string_view error, Time now);
  void on_read_done(std::uint64_t context, Time now);
  void on_read_failed(std::uint64_t context, std::string_view error, Time now, bool over);
  void on_outbound_closed(Outbound outbound, Time now);
  std::uint32_t peer_of(Outbound outbound) const;
  void connect(std::uint32_t index, Time now);
  void wake_readers(std::uint32_t index);
  void connect_failed(std::uint32_t index, std::string_view error, Time now);
  void begin_reading(std::uint32_t index, Time now);
  bool read_some(Time now);
  Turns::Step read_next(std::uint32_t index, Time now);
  bool room_for_read(const Way& way) const;
  Turns::Step post_read(std::uint32_t index, Time now);
  bool next_run(Attempt& a);
  std::uint32_t read_over(std::uint64_t context, Time now);
  void after_read(std::uint32_t index, Time now);
  void all_read(std::uint32_t index, Time now);
  void source_stopped(std::uint32_t index, const wire::Stopped& message, Time now);
  void tell_given_up(std::uint32_t index, std::string_view why, Time now);
  void way_time(std::uint32_t index, Time now);
  static bool reads_over(const Attempt& a) {
    return a.reading.in_flight == 0 && !a.reading.unclean;
  }

  const Config config;
  Port& port;
  AgentMetrics& metrics;
  wire::Encoder encoder;
  wire::DuplicateFinder duplicates;
  std::uint32_t quarantine_max;
  // A peer that never drains keeps its rows and credits for ever: never all of them.
  std::uint32_t rows_of_peer_max;
  std::uint32_t credits_of_peer_max;

  std::vector<Attempt> attempts;
  std::deque<std::uint32_t> free_rows;  // oldest first: generations of a slot lie far apart
  IndexMap<TransferId> live;            // transfer -> its attempt that has not ended for the engine
  std::vector<Peer> peers;
  std::vector<Claim> claims;      // dense
  IndexMap<TransferId> claim_of;  // transfer -> index in claims
  std::vector<std::uint32_t> verifying;
  Turns readers;  // pull: attempts that may have something to post
  TimerHeap attempt_timers;
  TimerHeap peer_timers;

  Epoch next_epoch = 1;
  std::uint32_t credits_free;
  std::uint32_t open = 0;
  std::uint32_t quarantined = 0;
  std::uint32_t held = 0;  // attempts that are held back
  std::uint32_t reads_in_flight = 0;
  std::uint32_t reads_of_peer_max = 0;  // of the round of work() under way
  std::uint64_t next_token = 1;
  bool draining = false;
  std::set<TransferId> drain_allows;  // what was known when drain() came
  std::deque<TransferId> withdrawn;   // the last few: their engine claims them again
  std::uint64_t next_session = 1;
  std::uint64_t next_connection = 1;
};

}  // namespace baton::handover
