// The control channel: frames to and from many peers over non-blocking TCP sockets, by the owner
// thread alone.
//
// What it promises whatever a peer does: it never waits, works a bounded amount for each peer a
// turn, holds a bounded amount of memory for each, and drops with a reason whoever sends what
// cannot be a frame, sends half of one and stops, does not read, or says nothing for the peer
// time-out. It knows nothing of what frames mean.
//
// With keys (ChannelOptions::tls) every connection begins with a TLS 1.3 handshake, in which both
// sides prove that they belong to the pool; whoever does not is turned away with a reason. Without,
// no plain connection leaves this host in either direction unless the options say `insecure` [I10].
//
// A connection is a *stranger* until its user admits it: strangers have small frames, little time
// and few places, and the oldest makes room for a new one.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "agent/backoff.h"
#include "agent/byte_buffer.h"
#include "agent/gate.h"
#include "agent/poller.h"
#include "agent/resolver.h"
#include "agent/stream.h"
#include "agent/tcp.h"
#include "agent/tls.h"
#include "base/clock.h"
#include "base/metrics.h"
#include "base/unique_fd.h"
#include "baton/result.h"
#include "wire/frame.h"

namespace baton {

// Never reused while the agent lives. Also the connection's tag in the poller, so it starts above
// the tags of others.
struct ConnId {
  std::uint64_t value = 0;
  auto operator<=>(const ConnId&) const = default;
  bool dialed() const { return (value & 1) != 0; }  // by this side; the others were accepted
};

struct ChannelOptions {
  Duration connect_timeout = std::chrono::seconds(2);
  Duration stranger_timeout = std::chrono::seconds(2);  // until admitted
  Duration peer_timeout =
      std::chrono::seconds(5);                // without a byte, or half a frame, or unread output
  Duration linger = std::chrono::seconds(1);  // last words of close_after_flush

  std::uint32_t connections_max = 1024;
  std::uint32_t strangers_max = 64;           // accepted and not admitted; part of connections_max
  std::size_t output_max = 8U * 1024 * 1024;  // waiting for one peer to read

  // Of one connection a turn; the rest waits for the next.
  std::size_t read_bytes_per_turn = 64U * 1024;
  std::uint32_t frames_per_turn = 32;
  std::uint32_t accepts_per_turn = 16;
  // Of all connections a turn: a step of a TLS handshake costs 0.02 to 0.7 ms (bench/tls_bench.cc).
  std::uint32_t handshake_steps_per_turn = 1;

  GateOptions gate;
  std::shared_ptr<const tls::Context> tls;  // null: plain
  bool insecure = false;                    // plain connections beyond this host
  // What a plain peer of a TLS listener is sent in the clear before it is closed.
  std::vector<std::byte> plain_refusal;
};

enum class CloseReason : std::uint8_t {
  kDialFailed,       // refused, unreachable, or no answer within connect_timeout
  kPeerClosed,       // orderly or by reset: its process has ended or dropped us
  kSilent,           // admitted, and not a byte for peer_timeout
  kHalfFrame,        // began one and did not finish it within peer_timeout
  kNotReading,       // output_max waits for it, or it took none for peer_timeout
  kNotAdmitted,      // a stranger for too long
  kCrowded,          // no place: too many connections or strangers, or too many a second
  kUnauthenticated,  // did not prove that it belongs to the pool, or speaks TLS to a plain listener
};
std::string_view to_string(CloseReason reason);

struct ChannelCounters {
  Counter accepted, dialed, opened, closed, frames_in, frames_out, bytes_in, bytes_out;
  Counter dropped_hostile;    // bad streams, kHalfFrame, kNotReading
  Counter dropped_strangers;  // kNotAdmitted, kCrowded, kUnauthenticated
  Counter handshake_steps;    // of TLS
  Gauge connections;
};

// Called from the channel's methods named below, never from send(), close() or dial(). May call
// every method of the channel, also for the connection at hand.
class ChannelUser {
 public:
  virtual ~ChannelUser() = default;
  virtual void on_open(ConnId conn, bool dialed) = 0;
  virtual void on_frame(ConnId conn, const wire::Frame& frame) = 0;  // valid during the call
  // What it sent cannot be cut into frames: the time for last words. It is closed after the call.
  virtual void on_bad_stream(ConnId conn, const Error& error) = 0;
  // Not for connections that this side closed. `text` is a sentence for people.
  virtual void on_close(ConnId conn, CloseReason reason, const std::string& text) = 0;
  // An accepted connection that ended before its on_open(). `from` is its address.
  virtual void on_turned_away(const std::string& from, CloseReason reason,
                              const std::string& text) = 0;
};

class ControlChannel {
 public:
  // Listens at once. `poller` and `user` outlive the channel. Errors: a bad host, one that others
  // can reach without TLS, the port in use.
  static Result<std::unique_ptr<ControlChannel>> create(const ChannelOptions& options,
                                                        const std::string& host, std::uint16_t port,
                                                        Poller& poller, ChannelUser& user);
  ~ControlChannel();

  std::uint16_t port() const { return listen_port_; }
  bool listens_on_loopback() const { return loopback_; }
  const ChannelCounters& counters() const { return counters_; }

  // on_open or on_close(kDialFailed) follows from a later turn, also when it fails at once. An
  // address that failed before is tried after a growing pause.
  ConnId dial(const std::string& host, std::uint16_t port, Time now);
  // From here on silence is a reason to close, and long frames are taken.
  void admit(ConnId conn, Time now);
  bool is_open(ConnId conn) const;
  std::string peer_text(ConnId conn) const;  // its address, for messages
  // Empty if the peer may call itself so; otherwise what its certificate says instead.
  std::string name_problem(ConnId conn, const std::string& engine_id) const;
  // Queues one frame; flush() sends it. Nothing happens for a connection that is gone.
  void send(ConnId conn, std::span<const std::byte> frame, Time now);
  void close(ConnId conn);
  // What is queued still goes out, nothing more is read, and the end comes within `linger`.
  void close_after_flush(ConnId conn, Time now);

  // A turn of the owner loop: the poller saw `events` on the descriptor with `tag`.
  void handle(std::uint64_t tag, std::uint32_t events, Time now);
  // Frames left over from earlier turns; true if some are left still: do not sleep.
  bool handle_backlog(Time now);
  // Time-outs and heartbeats; cheap when nothing is due.
  void handle_timers(Time now);
  // Sends what is queued, as far as sockets take it.
  void flush(Time now);
  // Something that was to be sent still waits here, or last words may still be read.
  bool has_unsent() const;
  // When handle_timers() has something to do next.
  Time next_deadline() const { return next_check_; }

  // The channel's own tags; connections have larger ones. Others in the same poller use smaller
  // ones.
  static constexpr std::uint64_t kResolverTag = 14;
  static constexpr std::uint64_t kListenerTag = 15;

 private:
  struct Connection;

  ControlChannel(const ChannelOptions& options, Poller& poller, ChannelUser& user);
  void accept_some(Time now);
  void pause_accepting(Time now);
  Connection* find(ConnId conn) const;
  Connection& add(bool dialed, Time now);
  bool take_accepted(UniqueFd fd, const tcp::Address& from, Time now);
  void open(Connection& conn, Time now);
  void secure(Connection& conn, tls::Side side, Time now);
  void step_handshake(Connection& conn, Time now);
  void fail_handshake(Connection& conn, CloseReason reason, const std::string& text, Time now);
  bool is_plain_peer(Connection& conn, Time now);
  void end_with_last_words(Connection& conn, Time now);
  void start_dial(Connection& conn, Time now);
  void connect_to(Connection& conn, const tcp::Address& address, Time now);
  void take_resolved(Time now);
  void finish_dial(Connection& conn, Time now);
  void fail_dial(Connection& conn, const std::string& text, Time now);
  void read_some(Connection& conn, Time now);
  void take_frames(Connection& conn, Time now);
  void refuse_stream(Connection& conn, const Error& error, Time now);
  void discard_input(Connection& conn);
  void end_input(Connection& conn, tls::Io io, Time now);
  void write_some(Connection& conn, Time now);
  void watch(Connection& conn, std::uint32_t events);
  void check(Connection& conn, Time now);
  Time deadline_of(const Connection& conn) const;
  void wake_by(Time deadline) { next_check_ = std::min(next_check_, deadline); }
  void make_place_for_stranger();
  void drop(Connection& conn, CloseReason reason, const std::string& text);
  void forget(Connection& conn);
  void bury();

  const ChannelOptions options_;
  Poller& poller_;
  ChannelUser& user_;
  ChannelCounters counters_;

  Resolver resolver_;
  Backoff backoff_;
  Gate gate_;
  std::uint32_t handshake_steps_ = 0;  // in this turn
  UniqueFd listener_;
  std::uint16_t listen_port_ = 0;
  bool loopback_ = true;
  bool accepting_ = true;
  Time accept_again_ = kNever;

  std::uint64_t last_id_ = 16;
  std::unordered_map<std::uint64_t, std::unique_ptr<Connection>> connections_;
  std::vector<std::unique_ptr<Connection>> graveyard_;  // closed during this call, perhaps in use
  std::deque<ConnId> strangers_;  // accepted, oldest first; may name gone ones
  std::uint32_t stranger_count_ = 0;
  std::vector<ConnId> backlog_;  // with whole frames left over
  std::vector<ConnId> unflushed_;
  std::vector<ConnId> scratch_;
  Time next_check_ = kNever;
};

}  // namespace baton
