#include "agent/control_channel.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/check.h"
#include "base/failure_log.h"

namespace baton {
namespace {

constexpr Duration kAcceptPause = std::chrono::milliseconds(100);
constexpr std::string_view kNoTlsHere =
    "the peer speaks TLS, and this side has neither certificates nor a key";

bool would_block(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

Status check_exposure(const ChannelOptions& options, const std::string& host,
                      const tcp::Address& address) {
  if (address.is_loopback() || options.tls || options.insecure) return {};
  return fail(Errc::kInvalidArgument,
              fmt::format("control channel host '{}' ({}) can be reached by other hosts, and "
                          "whoever connects may read and write KV blocks: give certificates or a "
                          "pre-shared key for TLS, or say insecure",
                          host, address.to_string()));
}

}  // namespace

std::string_view to_string(CloseReason reason) {
  switch (reason) {
    case CloseReason::kDialFailed:
      return "no connection";
    case CloseReason::kPeerClosed:
      return "closed by peer";
    case CloseReason::kSilent:
      return "peer silent";
    case CloseReason::kHalfFrame:
      return "half a frame";
    case CloseReason::kNotReading:
      return "peer does not read";
    case CloseReason::kNotAdmitted:
      return "no handshake in time";
    case CloseReason::kCrowded:
      return "too many connections";
    case CloseReason::kUnauthenticated:
      return "not authenticated";
  }
  return "?";
}

struct ControlChannel::Connection {
  enum class State : std::uint8_t {
    kWaiting,   // to be dialled at `since`
    kDialing,   // looked up or connecting
    kSecuring,  // TLS handshake
    kOpen,
    kClosing,  // last words
    kGone,
  };

  std::string dialed_text() const { return fmt::format("{}:{}", host, port); }

  ConnId id;
  Stream stream;
  tcp::Address address;
  std::string host;  // dialled ones: as it was asked for
  std::uint16_t port = 0;
  State state = State::kOpen;
  bool stranger = false;  // accepted and not admitted
  bool admitted = false;
  bool in_gate = false;  // accepted and counted by address
  std::uint32_t watched = EPOLLIN;
  bool in_backlog = false;
  bool in_unflushed = false;
  wire::FrameReader input;
  std::size_t unframed = 0;  // bytes read that no frame handed out has covered
  std::byte first_byte{};    // that it ever sent
  ByteBuffer output;
  Time since{};          // of this state
  Time last_in{};        // a byte came
  Time frame_begun{};    // the first byte of the frame that is still incomplete
  Time last_progress{};  // the socket took output, or there was none waiting
};

ControlChannel::ControlChannel(const ChannelOptions& options, Poller& poller, ChannelUser& user)
    : options_(options), poller_(poller), user_(user), gate_(options.gate) {}

ControlChannel::~ControlChannel() {
  for (auto& [id, conn] : connections_) {
    if (conn->stream.is_open()) poller_.remove(conn->stream.fd());
  }
  poller_.remove(resolver_.fd());
  if (listener_) poller_.remove(listener_.get());
}

Result<std::unique_ptr<ControlChannel>> ControlChannel::create(const ChannelOptions& options,
                                                               const std::string& host,
                                                               std::uint16_t port, Poller& poller,
                                                               ChannelUser& user) {
  auto address = tcp::resolve(host, port);
  if (!address) return tl::unexpected(address.error());
  if (auto ok = check_exposure(options, host, *address); !ok) return tl::unexpected(ok.error());
  auto listener = tcp::listen(*address);
  if (!listener) return tl::unexpected(listener.error());
  std::unique_ptr<ControlChannel> channel(new ControlChannel(options, poller, user));
  channel->listener_ = std::move(*listener);
  channel->listen_port_ = tcp::local_address(channel->listener_.get()).port();
  channel->loopback_ = address->is_loopback();
  const auto added = poller.add(channel->listener_.get(), EPOLLIN, kListenerTag);
  if (!added) return tl::unexpected(added.error());
  const auto resolver = poller.add(channel->resolver_.fd(), EPOLLIN, kResolverTag);
  if (!resolver) return tl::unexpected(resolver.error());
  return channel;
}

ControlChannel::Connection* ControlChannel::find(ConnId conn) const {
  const auto it = connections_.find(conn.value);
  return it == connections_.end() ? nullptr : it->second.get();
}

ControlChannel::Connection& ControlChannel::add(bool dialed, Time now) {
  auto owned = std::make_unique<Connection>();
  Connection& conn = *owned;
  last_id_ += 2;
  conn.id = ConnId{last_id_ | (dialed ? 1U : 0U)};
  conn.since = conn.last_in = conn.last_progress = now;
  connections_.emplace(conn.id.value, std::move(owned));
  counters_.connections.set(static_cast<std::int64_t>(connections_.size()));
  return conn;
}

// --- opening ---

void ControlChannel::accept_some(Time now) {
  for (std::uint32_t i = 0; i < options_.accepts_per_turn; ++i) {
    tcp::Address from;
    int error = 0;
    UniqueFd fd = tcp::accept(listener_.get(), from, error);
    if (!fd) {
      // Out of descriptors or memory: the connection stays in the backlog and the listener stays
      // readable, so look away for a while instead of spinning.
      if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
        log::failure(log::Level::kError, "cannot_accept",
                     {{"text", std::generic_category().message(error)}});
        pause_accepting(now);
      }
      if (would_block(error) || !accepting_) return;
      continue;  // that one connection was aborted before it was taken
    }
    counters_.accepted.add();
    if (!take_accepted(std::move(fd), from, now)) counters_.dropped_strangers.add();
  }
}

bool ControlChannel::take_accepted(UniqueFd fd, const tcp::Address& from, Time now) {
  if (const std::string why = gate_.enter(from, now); !why.empty()) {
    user_.on_turned_away(from.to_string(), CloseReason::kCrowded, why);
    return false;
  }
  if (stranger_count_ >= options_.strangers_max) make_place_for_stranger();
  if (connections_.size() >= options_.connections_max) {
    gate_.leave(from);
    user_.on_turned_away(
        from.to_string(), CloseReason::kCrowded,
        fmt::format("{} connections stand, {} may", connections_.size(), options_.connections_max));
    return false;
  }
  Connection& conn = add(false, now);
  conn.stream.open(std::move(fd));
  conn.address = from;
  conn.in_gate = true;
  if (!poller_.add(conn.stream.fd(), EPOLLIN, conn.id.value)) {
    forget(conn);
    return false;
  }
  while (!strangers_.empty()) {
    const Connection* oldest = find(strangers_.front());
    if (oldest != nullptr && oldest->stranger) break;
    strangers_.pop_front();
  }
  conn.stranger = true;
  ++stranger_count_;
  strangers_.push_back(conn.id);
  wake_by(now + options_.stranger_timeout);
  if (options_.tls) {
    secure(conn, tls::Side::kAccept, now);
  } else {
    open(conn, now);
  }
  return true;
}

// Frames from here on.
void ControlChannel::open(Connection& conn, Time now) {
  if (conn.id.dialed()) backoff_.succeeded(conn.dialed_text());
  if (conn.id.dialed()) conn.since = now;
  conn.state = Connection::State::kOpen;
  conn.last_in = conn.last_progress = now;
  watch(conn, EPOLLIN);
  counters_.opened.add();
  wake_by(deadline_of(conn));
  user_.on_open(conn.id, conn.id.dialed());
}

void ControlChannel::pause_accepting(Time now) {
  accepting_ = false;
  accept_again_ = now + kAcceptPause;
  poller_.modify(listener_.get(), 0, kListenerTag);
  wake_by(accept_again_);
}

void ControlChannel::make_place_for_stranger() {
  while (!strangers_.empty()) {
    Connection* oldest = find(strangers_.front());
    strangers_.pop_front();
    if (oldest == nullptr || !oldest->stranger) continue;
    drop(*oldest, CloseReason::kCrowded, "made room for a newer connection before its handshake");
    return;
  }
}

ConnId ControlChannel::dial(const std::string& host, std::uint16_t port, Time now) {
  Connection& conn = add(true, now);
  conn.state = Connection::State::kWaiting;
  conn.host = host;
  conn.port = port;
  conn.since = backoff_.next_try(conn.dialed_text(), now);
  counters_.dialed.add();
  wake_by(conn.since);
  return conn.id;
}

void ControlChannel::start_dial(Connection& conn, Time now) {
  conn.since = now;
  conn.state = Connection::State::kDialing;
  wake_by(now + options_.connect_timeout);
  if (const auto address = tcp::parse(conn.host, conn.port)) {
    return connect_to(conn, *address, now);
  }
  if (!resolver_.ask(conn.id.value, conn.host, conn.port)) {
    fail_dial(conn, "too many host names are being looked up", now);
  }
}

void ControlChannel::take_resolved(Time now) {
  for (auto& answer : resolver_.take()) {
    Connection* conn = find(ConnId{answer.tag});
    if (conn == nullptr || conn->state != Connection::State::kDialing) continue;
    if (answer.address) {
      connect_to(*conn, *answer.address, now);
    } else {
      fail_dial(*conn, answer.address.error().message, now);
    }
  }
}

void ControlChannel::connect_to(Connection& conn, const tcp::Address& address, Time now) {
  if (!address.is_loopback() && !options_.tls && !options_.insecure) {
    return fail_dial(conn,
                     "it is on another host, and no plain connection leaves this one: give both "
                     "sides certificates or a pre-shared key for TLS, or say insecure",
                     now);
  }
  auto fd = tcp::start_connect(address);
  if (!fd) return fail_dial(conn, fd.error().message, now);
  conn.stream.open(std::move(*fd));
  conn.address = address;
  conn.watched = EPOLLOUT;
  const auto added = poller_.add(conn.stream.fd(), EPOLLOUT, conn.id.value);
  if (!added) return fail_dial(conn, added.error().message, now);
}

void ControlChannel::finish_dial(Connection& conn, Time now) {
  const int error = tcp::connect_error(conn.stream.fd());
  if (error != 0) return fail_dial(conn, std::strerror(error), now);
  conn.since = now;
  if (options_.tls) return secure(conn, tls::Side::kDial, now);
  open(conn, now);
}

// ---- TLS ----

void ControlChannel::secure(Connection& conn, tls::Side side, Time now) {
  conn.state = Connection::State::kSecuring;
  conn.stream.secure(options_.tls, side);
  wake_by(deadline_of(conn));
  if (side == tls::Side::kDial) step_handshake(conn, now);
}

void ControlChannel::step_handshake(Connection& conn, Time now) {
  // The rest stays readable and has its turn.
  if (handshake_steps_ >= options_.handshake_steps_per_turn) return;
  ++handshake_steps_;
  counters_.handshake_steps.add();
  if (!conn.id.dialed() && is_plain_peer(conn, now)) return;
  switch (conn.stream.session()->handshake()) {
    case tls::Io::kDone:
      return open(conn, now);
    case tls::Io::kWantRead:
      return watch(conn, EPOLLIN);
    case tls::Io::kWantWrite:
      return watch(conn, EPOLLIN | EPOLLOUT);
    case tls::Io::kEnd:
      return fail_handshake(conn, CloseReason::kPeerClosed, conn.stream.why(), now);
    case tls::Io::kFailed:
      return fail_handshake(conn, CloseReason::kUnauthenticated, conn.stream.why(), now);
  }
}

// Whoever begins with anything but a TLS record is told why it is closed, in the only words that it
// can understand.
bool ControlChannel::is_plain_peer(Connection& conn, Time now) {
  if (conn.first_byte != std::byte{}) return false;
  std::byte first{};
  if (::recv(conn.stream.fd(), &first, 1, MSG_PEEK) != 1) return false;
  conn.first_byte = first;
  if (first == tls::kHandshakeRecord) return false;
  conn.stream.drop_tls();
  conn.output.append(options_.plain_refusal);
  fail_handshake(conn, CloseReason::kUnauthenticated, "it speaks no TLS, which is required here",
                 now);
  return true;
}

void ControlChannel::fail_handshake(Connection& conn, CloseReason reason, const std::string& text,
                                    Time now) {
  if (conn.id.dialed()) {
    backoff_.failed(conn.dialed_text(), now);
    const std::string why = fmt::format("no secure connection to {}: {}", conn.dialed_text(), text);
    return drop(conn, reason == CloseReason::kPeerClosed ? CloseReason::kDialFailed : reason, why);
  }
  counters_.dropped_strangers.add();
  user_.on_turned_away(conn.address.to_string(), reason, text);
  end_with_last_words(conn, now);
}

void ControlChannel::fail_dial(Connection& conn, const std::string& text, Time now) {
  backoff_.failed(conn.dialed_text(), now);
  drop(conn, CloseReason::kDialFailed,
       fmt::format("cannot connect to {}: {}", conn.dialed_text(), text));
}

void ControlChannel::admit(ConnId id, Time now) {
  Connection* conn = find(id);
  if (conn == nullptr || conn->state != Connection::State::kOpen) return;
  if (conn->stranger) --stranger_count_;
  conn->stranger = false;
  conn->admitted = true;
  conn->input.set_limit(wire::kFrameBytesMax);
  conn->last_in = now;
  wake_by(deadline_of(*conn));
}

bool ControlChannel::is_open(ConnId id) const {
  const Connection* conn = find(id);
  return conn != nullptr && conn->state == Connection::State::kOpen;
}

std::string ControlChannel::name_problem(ConnId id, const std::string& engine_id) const {
  const Connection* conn = find(id);
  const tls::Session* session = conn == nullptr ? nullptr : conn->stream.session();
  if (session == nullptr || session->may_be(engine_id)) return {};
  return fmt::format("engine_id is '{}', and the certificate is for {}", engine_id,
                     session->peer_names());
}

std::string ControlChannel::peer_text(ConnId id) const {
  const Connection* conn = find(id);
  return conn == nullptr ? "(gone)" : conn->address.to_string();
}

// --- input ---

void ControlChannel::handle(std::uint64_t tag, std::uint32_t events, Time now) {
  if (tag == kResolverTag) {
    take_resolved(now);
    return bury();
  }
  if (tag == kListenerTag) {
    accept_some(now);
    return bury();
  }
  Connection* conn = find(ConnId{tag});
  if (conn == nullptr) return;
  switch (conn->state) {
    case Connection::State::kWaiting:
      break;
    case Connection::State::kDialing:
      finish_dial(*conn, now);
      break;
    case Connection::State::kSecuring:
      step_handshake(*conn, now);
      break;
    case Connection::State::kClosing:
      if ((events & EPOLLOUT) != 0) write_some(*conn, now);
      if (conn->state == Connection::State::kClosing) discard_input(*conn);
      break;
    case Connection::State::kOpen:
      if ((events & EPOLLOUT) != 0) write_some(*conn, now);
      if (conn->state == Connection::State::kOpen && (events & ~EPOLLOUT) != 0) {
        read_some(*conn, now);
      }
      break;
    case Connection::State::kGone:
      break;
  }
  bury();
}

void ControlChannel::read_some(Connection& conn, Time now) {
  // What waits for its turn as whole frames is not added to: the socket's own buffer then slows the
  // sender down.
  if (conn.in_backlog) return;
  std::size_t budget = options_.read_bytes_per_turn;
  tls::Io io = tls::Io::kDone;
  // What TLS holds decrypted is taken in any case: no descriptor announces it.
  while (budget > 0 || conn.stream.has_pending()) {
    const auto room = conn.input.prepare();
    const std::size_t wanted = budget > 0 ? std::min(room.size(), budget) : room.size();
    std::size_t bytes = 0;
    io = conn.stream.read(room.first(wanted), bytes);
    if (io != tls::Io::kDone) break;
    if (conn.unframed == 0) {
      conn.frame_begun = now;
      wake_by(now + options_.peer_timeout);
    }
    if (conn.first_byte == std::byte{}) conn.first_byte = room.front();
    conn.input.commit(bytes);
    conn.unframed += bytes;
    conn.last_in = now;
    counters_.bytes_in.add(bytes);
    budget -= std::min(budget, bytes);
    if (bytes < wanted && conn.stream.session() == nullptr) break;
  }
  take_frames(conn, now);
  if (conn.state == Connection::State::kOpen && !conn.in_backlog) end_input(conn, io, now);
}

void ControlChannel::end_input(Connection& conn, tls::Io io, Time now) {
  if (io == tls::Io::kEnd) return drop(conn, CloseReason::kPeerClosed, conn.stream.why());
  if (io != tls::Io::kFailed) return;
  // Before the peers have greeted each other this is the listener's word on who dialled.
  if (conn.admitted) {
    counters_.dropped_hostile.add();
    return drop(conn, CloseReason::kPeerClosed, conn.stream.why());
  }
  if (conn.id.dialed()) backoff_.failed(conn.dialed_text(), now);
  drop(conn, CloseReason::kUnauthenticated, conn.stream.why());
}

void ControlChannel::take_frames(Connection& conn, Time now) {
  for (std::uint32_t taken = 0; conn.state == Connection::State::kOpen && conn.unframed > 0;
       ++taken) {
    // Whether another whole frame is there is asked next time: asking would take it.
    if (taken == options_.frames_per_turn) {
      backlog_.push_back(conn.id);
      conn.in_backlog = true;
      return;
    }
    const auto frame = conn.input.next();
    if (!frame) return refuse_stream(conn, frame.error(), now);
    if (!frame->has_value()) return;
    conn.unframed -= wire::kHeaderBytes + (*frame)->payload.size();
    conn.frame_begun = now;
    counters_.frames_in.add();
    user_.on_frame(conn.id, **frame);
  }
}

void ControlChannel::refuse_stream(Connection& conn, const Error& error, Time now) {
  counters_.dropped_hostile.add();
  if (conn.first_byte == tls::kHandshakeRecord && conn.stream.session() == nullptr) {
    user_.on_bad_stream(conn.id, Error{Errc::kMismatch, std::string(kNoTlsHere)});
  } else {
    user_.on_bad_stream(conn.id, error);
  }
  close_after_flush(conn.id, now);
}

bool ControlChannel::handle_backlog(Time now) {
  if (backlog_.empty()) return false;
  scratch_.swap(backlog_);
  backlog_.clear();
  for (const ConnId id : scratch_) {
    Connection* conn = find(id);
    if (conn == nullptr) continue;
    conn->in_backlog = false;
    take_frames(*conn, now);
  }
  bury();
  return !backlog_.empty();
}

// After our last words the peer's are read and thrown away until it closes: a close with unread
// input would be a reset, and could destroy those last words on their way.
void ControlChannel::discard_input(Connection& conn) {
  std::array<std::byte, 16384> trash;
  for (int i = 0; i < 4; ++i) {
    const ssize_t got = ::recv(conn.stream.fd(), trash.data(), trash.size(), 0);
    if (got > 0) continue;
    if (got == 0 || !would_block(errno)) forget(conn);
    return;
  }
}

// --- output ---

void ControlChannel::send(ConnId id, std::span<const std::byte> frame, Time now) {
  Connection* conn = find(id);
  if (conn == nullptr || conn->state != Connection::State::kOpen) return;
  if (conn->output.empty()) conn->last_progress = now;
  // Past the bound nothing more is queued; flush() then drops the connection, outside of its user's
  // calls.
  if (conn->output.size() <= options_.output_max) conn->output.append(frame);
  counters_.frames_out.add();
  if (!conn->in_unflushed) unflushed_.push_back(id);
  conn->in_unflushed = true;
}

void ControlChannel::flush(Time now) {
  if (unflushed_.empty()) return;
  scratch_.swap(unflushed_);
  unflushed_.clear();
  for (const ConnId id : scratch_) {
    Connection* conn = find(id);
    if (conn == nullptr) continue;
    conn->in_unflushed = false;
    if ((conn->watched & EPOLLOUT) == 0) write_some(*conn, now);
    if (conn->state == Connection::State::kOpen && conn->output.size() > options_.output_max) {
      drop(*conn, CloseReason::kNotReading,
           fmt::format("{} bytes wait to be read, {} may", conn->output.size(),
                       options_.output_max));
    }
  }
  bury();
}

void ControlChannel::write_some(Connection& conn, Time now) {
  std::size_t budget = 4 * options_.read_bytes_per_turn;
  while (!conn.output.empty() && budget > 0) {
    const auto bytes = conn.output.readable();
    std::size_t sent = 0;
    const tls::Io io = conn.stream.write(bytes.first(std::min(bytes.size(), budget)), sent);
    if (io == tls::Io::kWantRead || io == tls::Io::kWantWrite) break;
    if (io != tls::Io::kDone) {
      // What the peer said before it went may still wait to be read: let the reader find the end.
      conn.output = {};
      break;
    }
    conn.output.consume(sent);
    conn.last_progress = now;
    budget -= sent;
    counters_.bytes_out.add(sent);
  }
  watch(conn, conn.output.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT);
  if (!conn.output.empty()) wake_by(now + options_.peer_timeout);
  if (conn.state == Connection::State::kClosing && conn.output.empty()) conn.stream.end_output();
}

void ControlChannel::watch(Connection& conn, std::uint32_t events) {
  if (conn.watched == events) return;
  conn.watched = events;
  poller_.modify(conn.stream.fd(), events, conn.id.value);
}

bool ControlChannel::has_unsent() const {
  for (const auto& [id, conn] : connections_) {
    if (!conn->output.empty()) return true;
  }
  return false;
}

// --- time ---

Time ControlChannel::deadline_of(const Connection& conn) const {
  switch (conn.state) {
    case Connection::State::kWaiting:
      return conn.since;
    case Connection::State::kDialing:
      return conn.since + options_.connect_timeout;
    case Connection::State::kSecuring:
      return conn.since + (conn.id.dialed() ? options_.connect_timeout : options_.stranger_timeout);
    case Connection::State::kClosing:
      return conn.since + options_.linger;
    case Connection::State::kGone:
      return kNever;
    case Connection::State::kOpen:
      break;
  }
  Time deadline = kNever;
  if (!conn.admitted) deadline = conn.since + options_.stranger_timeout;
  if (conn.admitted) deadline = conn.last_in + options_.peer_timeout;
  if (conn.unframed > 0) deadline = std::min(deadline, conn.frame_begun + options_.peer_timeout);
  if (!conn.output.empty()) {
    deadline = std::min(deadline, conn.last_progress + options_.peer_timeout);
  }
  return deadline;
}

void ControlChannel::check(Connection& conn, Time now) {
  if (now < deadline_of(conn)) return;
  const auto seconds = [&](Time since) {
    return std::chrono::duration<double>(now - since).count();
  };
  switch (conn.state) {
    case Connection::State::kWaiting:
      return start_dial(conn, now);
    case Connection::State::kDialing:
      return fail_dial(conn, fmt::format("no answer within {:.1f} s", seconds(conn.since)), now);
    case Connection::State::kSecuring:
      return fail_handshake(
          conn, conn.id.dialed() ? CloseReason::kPeerClosed : CloseReason::kNotAdmitted,
          fmt::format("no TLS handshake within {:.1f} s", seconds(conn.since)), now);
    case Connection::State::kClosing:
      return forget(conn);
    case Connection::State::kGone:
      return;
    case Connection::State::kOpen:
      break;
  }
  if (!conn.admitted && now >= conn.since + options_.stranger_timeout) {
    return drop(conn, CloseReason::kNotAdmitted,
                fmt::format("no handshake within {:.1f} s", seconds(conn.since)));
  }
  if (conn.admitted && now >= conn.last_in + options_.peer_timeout) {
    return drop(conn, CloseReason::kSilent,
                fmt::format("nothing heard for {:.1f} s", seconds(conn.last_in)));
  }
  // Whole frames that wait for their turn here are no fault of the peer.
  if (conn.unframed > 0 && !conn.in_backlog && now >= conn.frame_begun + options_.peer_timeout) {
    return drop(conn, CloseReason::kHalfFrame,
                fmt::format("{} bytes of a frame, unfinished for {:.1f} s", conn.unframed,
                            seconds(conn.frame_begun)));
  }
  if (!conn.output.empty() && now >= conn.last_progress + options_.peer_timeout) {
    return drop(conn, CloseReason::kNotReading,
                fmt::format("{} bytes unread for {:.1f} s", conn.output.size(),
                            seconds(conn.last_progress)));
  }
}

void ControlChannel::handle_timers(Time now) {
  handshake_steps_ = 0;
  if (now < next_check_) return;
  if (now >= accept_again_) {
    accepting_ = true;
    accept_again_ = kNever;
    poller_.modify(listener_.get(), EPOLLIN, kListenerTag);
  }
  std::vector<ConnId> all;
  all.reserve(connections_.size());
  for (const auto& [id, conn] : connections_) all.push_back(conn->id);
  for (const ConnId id : all) {
    if (Connection* conn = find(id)) check(*conn, now);
  }
  next_check_ = accept_again_;
  for (const auto& [id, conn] : connections_) wake_by(deadline_of(*conn));
  bury();
}

// --- closing ---

void ControlChannel::close(ConnId id) {
  if (Connection* conn = find(id)) forget(*conn);
}

void ControlChannel::close_after_flush(ConnId id, Time now) {
  Connection* conn = find(id);
  if (conn == nullptr || conn->state == Connection::State::kClosing) return;
  if (conn->state != Connection::State::kOpen) return forget(*conn);
  end_with_last_words(*conn, now);
}

void ControlChannel::end_with_last_words(Connection& conn, Time now) {
  conn.state = Connection::State::kClosing;
  conn.since = now;
  if (!conn.in_unflushed) unflushed_.push_back(conn.id);
  conn.in_unflushed = true;
  wake_by(now + options_.linger);
}

void ControlChannel::drop(Connection& conn, CloseReason reason, const std::string& text) {
  if (conn.state == Connection::State::kClosing) return forget(conn);  // its reason was told
  switch (reason) {
    case CloseReason::kHalfFrame:
    case CloseReason::kNotReading:
      counters_.dropped_hostile.add();
      break;
    case CloseReason::kNotAdmitted:
    case CloseReason::kCrowded:
    case CloseReason::kUnauthenticated:
      counters_.dropped_strangers.add();
      break;
    case CloseReason::kDialFailed:
    case CloseReason::kPeerClosed:
    case CloseReason::kSilent:
      break;
  }
  const ConnId id = conn.id;
  // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): may lie in what is forgotten
  const std::string copy = text;
  const bool known = id.dialed() || conn.state == Connection::State::kOpen;
  const std::string from = known ? std::string() : conn.address.to_string();
  forget(conn);
  if (known) return user_.on_close(id, reason, copy);
  user_.on_turned_away(from, reason, copy);
}

void ControlChannel::forget(Connection& conn) {
  if (conn.state == Connection::State::kGone) return;
  if (conn.stream.is_open()) poller_.remove(conn.stream.fd());
  conn.stream.close();
  if (conn.in_gate) gate_.leave(conn.address);
  conn.state = Connection::State::kGone;
  if (conn.stranger) --stranger_count_;
  conn.stranger = false;
  counters_.closed.add();
  const auto it = connections_.find(conn.id.value);
  graveyard_.push_back(std::move(it->second));
  connections_.erase(it);
  counters_.connections.set(static_cast<std::int64_t>(connections_.size()));
}

void ControlChannel::bury() {
  graveyard_.clear();
}

}  // namespace baton
