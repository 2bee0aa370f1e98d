#include "agent/owner.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/failure_log.h"
#include "base/log.h"
#include "wire/messages.h"

namespace baton {
namespace {

constexpr std::uint64_t kWakeTag = 1;
constexpr std::uint64_t kFabricTag = 2;

// What a plain peer of a TLS listener hears, in words that it understands.
std::vector<std::byte> plain_refusal() {
  wire::Refuse refuse;
  refuse.field = "control channel";
  refuse.ours = "TLS 1.3";
  refuse.theirs = "plain";
  refuse.text = "connections must be secured with keys of this pool";
  wire::Encoder encoder;
  const auto frame = encoder.encode(refuse);
  return {frame.begin(), frame.end()};
}

template <typename... Fs>
struct Overload : Fs... {
  using Fs::operator()...;
};
template <typename... Fs>
Overload(Fs...) -> Overload<Fs...>;

}  // namespace

Owner::Owner(const OwnerOptions& options, const handover::Config& config, Poller poller,
             std::unique_ptr<fabric::Fabric> fabric)
    : options_(options),
      config_(config),
      poller_(std::move(poller)),
      fabric_(std::move(fabric)),
      hasher_(config_.geometry),
      decode_(config_, *this, metrics_),
      prefill_(config_, *this, metrics_) {}

Result<std::unique_ptr<Owner>> Owner::create(const OwnerOptions& options,
                                             const handover::Config& config,
                                             std::unique_ptr<fabric::Fabric> fabric) {
  auto poller = Poller::create();
  if (!poller) return tl::unexpected(poller.error());
  std::unique_ptr<Owner> owner(new Owner(options, config, std::move(*poller), std::move(fabric)));
  ChannelOptions channel_options = options.channel;
  channel_options.plain_refusal = plain_refusal();
  auto channel =
      ControlChannel::create(channel_options, options.host, options.port, owner->poller_, *owner);
  if (!channel) return tl::unexpected(channel.error());
  owner->channel_ = std::move(*channel);
  auto added = owner->poller_.add(owner->wake_.fd(), EPOLLIN, kWakeTag);
  if (added) added = owner->poller_.add(owner->fabric_->wait_fd(), EPOLLIN, kFabricTag);
  if (const int fd = owner->fabric_->second_wait_fd(); added && fd >= 0) {
    added = owner->poller_.add(fd, EPOLLIN, kFabricTag);
  }
  if (!added) return tl::unexpected(added.error());
  owner->thread_ = std::thread([raw = owner.get()] { raw->run(); });
  return owner;
}

Owner::~Owner() {
  if (!thread_.joinable()) return;
  stop_.store(true);
  wake_.wake();
  thread_.join();
}

// --- from other threads ---

bool Owner::submit(Submission&& submission) {
  const bool decode = std::holds_alternative<Registration>(submission);
  const bool prefill = std::holds_alternative<ExpectCall>(submission) ||
                       std::holds_alternative<ReadyPiece>(submission);
  if (decode) submitted_decode_.fetch_add(1);
  if (prefill) submitted_prefill_.fetch_add(1);
  if (!submissions_.try_push(std::move(submission))) {
    if (decode) submitted_decode_.fetch_sub(1);
    if (prefill) submitted_prefill_.fetch_sub(1);
    return false;
  }
  wake_.wake();
  return true;
}

std::uint32_t Owner::open_prefill() const {
  return open_prefill_.load() + submitted_prefill_.load() + events_.waiting();
}

std::uint32_t Owner::open_decode() const {
  return open_decode_.load() + submitted_decode_.load() + events_.waiting();
}

// --- the loop ---

void Owner::run() {
  ::pthread_setname_np(::pthread_self(), "baton-owner");
  idle_since_ = now_ = now();
  while (!stop_.load(std::memory_order_relaxed)) {
    if (turn()) {
      idle_since_ = now_;
    } else if (now_ - idle_since_ >= options_.spin) {
      rest();
    }
  }
  drain();
}

// One look at everything; true: there is more to do at once. No step takes longer than one slice of
// copying.
bool Owner::turn() {
  now_ = now();
  bool more = look_at_sockets(Duration{0});
  more |= channel_->handle_backlog(now_);
  more |= move_bytes();
  decode_.on_time(now_);
  prefill_.on_time(now_);
  more |= prefill_.work(now_);
  more |= decode_.work(now_);
  channel_->flush(now_);
  publish();
  return more;
}

void Owner::rest() {
  wake_.about_to_sleep();
  if (submissions_.size() == 0 && !stop_.load() && !fabric_->busy()) {
    const Time until = next_deadline();
    look_at_sockets(until == kNever ? Poller::kForever : until - now_);
  }
  wake_.awake();
  idle_since_ = now();
}

Time Owner::next_deadline() const {
  return std::min({channel_->next_deadline(), decode_.next_deadline(), prefill_.next_deadline()});
}

bool Owner::take_submissions() {
  if (batch_next_ == batch_.size()) {
    submissions_.take_all(batch_);
    batch_next_ = 0;
  }
  const std::size_t end = std::min(batch_.size(), batch_next_ + kSubmissionsPerTurn);
  while (batch_next_ < end) submit_to_sides(batch_[batch_next_++]);
  if (batch_next_ < batch_.size()) return true;
  batch_.clear();
  batch_next_ = 0;
  return false;
}

void Owner::submit_to_sides(Submission& submission) {
  std::visit(Overload{
                 [&](ClaimCall& call) { decode_.claim(call.transfer, call.peer, now_); },
                 [&](Registration& call) {
                   decode_.register_blocks(std::move(call), now_);
                   open_decode_.store(decode_.open_transfers());
                   submitted_decode_.fetch_sub(1);
                 },
                 [&](WithdrawCall& call) { decode_.withdraw(call.transfer, now_); },
                 [&](ExpectCall& call) {
                   prefill_.expect(call.transfer, call.prompt_tokens, now_);
                   open_prefill_.store(prefill_.open_transfers());
                   submitted_prefill_.fetch_sub(1);
                 },
                 [&](ReadyPiece& call) {
                   prefill_.ready(std::move(call), now_);
                   open_prefill_.store(prefill_.open_transfers());
                   submitted_prefill_.fetch_sub(1);
                 },
                 [&](CancelCall& call) {
                   decode_.cancel(call.transfer, now_);
                   prefill_.cancel(call.transfer, now_);
                 },
                 [&](DrainCall&) {
                   decode_.drain(now_);
                   prefill_.drain(now_);
                 },
                 [&](AbandonCall&) {
                   decode_.abandon(now_);
                   prefill_.abandon(now_);
                 },
             },
             submission);
}

// True: submissions are left over. What the engine said before a peer's message was sent is known
// before that message is, so submissions are taken between the look and the reading. Time-outs are
// judged by the time before the look, so that bytes which came while this thread was stopped count.
bool Owner::look_at_sockets(Duration timeout) {
  const auto events = poller_.wait(timeout);
  const Time looked = now_;
  if (timeout > Duration{0}) now_ = now();
  const bool more = !stopping_ && take_submissions();
  for (const epoll_event& event : events) {
    if (event.data.u64 == kWakeTag) {
      wake_.drain();
    } else if (event.data.u64 != kFabricTag) {
      channel_->handle(event.data.u64, event.events, now_);
    }
  }
  channel_->handle_timers(looked);
  return more;
}

bool Owner::move_bytes() {
  const std::size_t count = fabric_->poll(fabric_events_);
  now_ = now();
  for (std::size_t i = 0; i < count; ++i) hand_to_sides(fabric_events_[i]);
  return count == fabric_events_.size() || fabric_->busy();
}

void Owner::hand_to_sides(const fabric::FabricEvent& event) {
  if (deaf_) return;
  note_carrier(event);
  config_.mode == Mode::kPull ? hand_to_pullers(event) : hand_to_pushers(event);
}

// Push: P posts writes, D lets it.
void Owner::hand_to_pushers(const fabric::FabricEvent& event) {
  using Kind = fabric::FabricEvent::Kind;
  const auto outbound = static_cast<handover::Outbound>(event.outbound.value);
  const auto inbound = static_cast<handover::Inbound>(event.inbound.value);
  switch (event.kind) {
    case Kind::kConnected:
      return prefill_.on_connected(outbound, now_);
    case Kind::kConnectFailed:
      return prefill_.on_connect_failed(outbound, event.error, now_);
    case Kind::kWriteDone:
      return prefill_.on_write_done(event.context, now_);
    case Kind::kWriteFailed:
      return prefill_.on_write_failed(event.context, event.error, now_, event.over);
    case Kind::kOutboundClosed:
      return prefill_.on_outbound_closed(outbound, now_);
    case Kind::kImmediate:
      return decode_.on_immediate(inbound, event.immediate, now_);
    case Kind::kInboundFenced:
      return decode_.on_fenced(inbound, now_);
    case Kind::kReadDone:
    case Kind::kReadFailed:
      BATON_CHECK(false, "a completion of a read that nobody posted");
  }
}

// Pull: D posts reads, P lets it.
void Owner::hand_to_pullers(const fabric::FabricEvent& event) {
  using Kind = fabric::FabricEvent::Kind;
  const auto outbound = static_cast<handover::Outbound>(event.outbound.value);
  switch (event.kind) {
    case Kind::kConnected:
      return decode_.on_connected(outbound, now_);
    case Kind::kConnectFailed:
      return decode_.on_connect_failed(outbound, event.error, now_);
    case Kind::kReadDone:
      return decode_.on_read_done(event.context, now_);
    case Kind::kReadFailed:
      return decode_.on_read_failed(event.context, event.error, now_, event.over);
    case Kind::kOutboundClosed:
      return decode_.on_outbound_closed(outbound, now_);
    case Kind::kInboundFenced:
      return prefill_.on_fenced(static_cast<handover::Inbound>(event.inbound.value), now_);
    case Kind::kImmediate:  // a writer that was never let in
      return metrics_.immediates_unknown.add();
    case Kind::kWriteDone:
    case Kind::kWriteFailed:
      BATON_CHECK(false, "a completion of a write that nobody posted");
  }
}

void Owner::publish() {
  open_prefill_.store(prefill_.open_transfers(), std::memory_order_relaxed);
  open_decode_.store(decode_.open_transfers(), std::memory_order_relaxed);
}

// The end, within options_.drain: nothing new is posted, what is posted completes while the
// caller's memory is still there, our writers are told to stop and given the time to say that they
// have, and peers hear the reason.
void Owner::drain() {
  stopping_ = true;
  now_ = now();
  const Time until = now_ + options_.drain;
  decode_.abandon(now_);
  const auto quiet = [this] {
    return prefill_.writes_in_flight() == 0 && decode_.quarantined_blocks() == 0;
  };
  while (now_ < until && !quiet()) turn_while_draining();
  if (!quiet()) {
    log::warning("the agent ends with {} writes under way and {} blocks that writers may touch",
                 prefill_.writes_in_flight(), decode_.quarantined_blocks());
  }
  decode_.shutdown(now_);
  prefill_.shutdown(now_);
  deaf_ = true;
  const Time last_words = now_ + options_.drain / 4;
  do {
    turn_while_draining();
  } while (now_ < last_words && channel_->has_unsent());
}

void Owner::turn_while_draining() {
  const bool copying = move_bytes();
  channel_->flush(now_);
  look_at_sockets(copying || deaf_ ? Duration{0} : Duration{std::chrono::milliseconds(1)});
  now_ = now();
  if (!deaf_) decode_.on_time(now_);
}

// --- control channel ---

void Owner::on_open(ConnId conn, bool dialed) {
  if (deaf_) return;
  if (dialed) {
    decode_.on_link_up(conn.value, now_);
  } else {
    prefill_.on_link_accepted(conn.value, now_);
  }
}

// A certificate is for certain engine ids, and a peer that says another one in its greeting is
// refused before anything is done for it [I10].
bool Owner::greets_under_its_name(ConnId conn, const wire::Frame& frame) {
  if (frame.type != wire::MessageType::kHello && frame.type != wire::MessageType::kHelloAck) {
    return true;
  }
  const auto message = wire::decode(frame);
  if (!message) return true;  // refused for that
  const auto* hello = std::get_if<wire::Hello>(&*message);
  const auto* ack = std::get_if<wire::HelloAck>(&*message);
  if (hello == nullptr && ack == nullptr) return true;
  const std::string& engine_id = hello != nullptr ? hello->from.engine_id : ack->from.engine_id;
  const std::string problem = channel_->name_problem(conn, engine_id);
  if (problem.empty()) return true;
  metrics_.unauthenticated_peers.add();
  on_bad_stream(conn, Error{Errc::kMismatch, problem});
  channel_->close_after_flush(conn, now_);
  return false;
}

void Owner::on_frame(ConnId conn, const wire::Frame& frame) {
  if (deaf_ || !greets_under_its_name(conn, frame)) return;
  if (conn.dialed()) {
    decode_.on_frame(conn.value, frame, now_);
  } else {
    prefill_.on_frame(conn.value, frame, now_);
  }
}

void Owner::on_bad_stream(ConnId conn, const Error& error) {
  if (deaf_) return;
  log::failure(log::Level::kWarning, "bad_stream",
               {{"from", channel_->peer_text(conn)}, {"text", error.message}});
  if (conn.dialed()) {
    decode_.on_bad_stream(conn.value, error, now_);
  } else {
    prefill_.on_bad_stream(conn.value, error, now_);
  }
}

void Owner::on_close(ConnId conn, CloseReason reason, const std::string& text) {
  if (deaf_) return;
  if (reason == CloseReason::kHalfFrame || reason == CloseReason::kNotReading) {
    metrics_.refused_messages.add();
  }
  if (reason == CloseReason::kUnauthenticated) metrics_.unauthenticated_peers.add();
  if (reason == CloseReason::kCrowded) metrics_.refused_connections.add();
  log::debug("control connection {}: {}: {}", conn.value, to_string(reason), text);
  if (conn.dialed() && reason == CloseReason::kUnauthenticated) {
    // Dialling again would not help: the keys are other ones.
    decode_.on_bad_stream(conn.value, Error{Errc::kMismatch, text}, now_);
  } else if (conn.dialed()) {
    decode_.on_link_down(conn.value, text, now_);
  } else {
    prefill_.on_link_down(conn.value, text, now_);
  }
}

void Owner::on_turned_away(const std::string& from, CloseReason reason, const std::string& text) {
  const bool unauthenticated = reason == CloseReason::kUnauthenticated;
  if (unauthenticated) metrics_.unauthenticated_peers.add();
  if (reason == CloseReason::kCrowded) metrics_.refused_connections.add();
  log::failure(log::Level::kWarning,
               unauthenticated ? "unauthenticated_peer" : "connection_refused",
               {{"from", from}, {"text", fmt::format("{}: {}", to_string(reason), text)}});
}

handover::LinkId Owner::dial(const PeerAddress& peer) {
  return channel_->dial(peer.host, peer.port, now_).value;
}

void Owner::hang_up(handover::LinkId link) {
  channel_->close_after_flush(ConnId{link}, now_);
}

void Owner::send(handover::LinkId link, std::span<const std::byte> frame) {
  channel_->send(ConnId{link}, frame, now_);
}

void Owner::trust(handover::LinkId link) {
  channel_->admit(ConnId{link}, now_);
}

// --- fabric ---

Result<handover::Port::InboundOffer> Owner::open_for(const PeerId& peer, fabric::Access access) {
  auto inbound = fabric_->open_inbound(peer, access);
  if (!inbound) return tl::unexpected(inbound.error());
  carriers_in_[inbound->id] = {peer.engine_id, {}};
  return InboundOffer{static_cast<handover::Inbound>(inbound->id.value), std::move(inbound->offer)};
}

Result<handover::Port::InboundOffer> Owner::open_inbound(const PeerId& writer) {
  return open_for(writer, fabric::Access::kWrite);
}

Result<handover::Port::InboundOffer> Owner::open_source(const PeerId& reader) {
  return open_for(reader, fabric::Access::kRead);
}

void Owner::fence_inbound(handover::Inbound inbound) {
  fabric_->fence_inbound(fabric::InboundId{static_cast<std::uint32_t>(inbound)});
}

Result<handover::Outbound> Owner::connect(const PeerId& receiver, std::span<const std::byte> offer,
                                          std::span<const Region> regions) {
  auto outbound = fabric_->connect(receiver, offer, regions);
  if (!outbound) return tl::unexpected(outbound.error());
  carriers_out_[*outbound] = {receiver.engine_id, {}};
  return static_cast<handover::Outbound>(outbound->value);
}

void Owner::close_outbound(handover::Outbound outbound) {
  fabric_->close_outbound(fabric::OutboundId{static_cast<std::uint32_t>(outbound)});
}

Status Owner::post(const handover::WriteOp& write) {
  fabric::Write out;
  out.to = fabric::OutboundId{static_cast<std::uint32_t>(write.to)};
  out.local_region = write.local_region;
  out.local_offset = write.local_offset;
  out.remote_region = write.remote_region;
  out.remote_offset = write.remote_offset;
  out.length = write.length;
  out.immediate = write.immediate;
  out.context = write.context;
  return fabric_->post(out);
}

Status Owner::post_read(const handover::ReadOp& read) {
  fabric::Read out;
  out.from = fabric::OutboundId{static_cast<std::uint32_t>(read.from)};
  out.local_region = read.local_region;
  out.local_offset = read.local_offset;
  out.remote_region = read.remote_region;
  out.remote_offset = read.remote_offset;
  out.length = read.length;
  out.context = read.context;
  return fabric_->post_read(out);
}

void Owner::note_carrier(const fabric::FabricEvent& event) {
  using Kind = fabric::FabricEvent::Kind;
  if (event.kind == Kind::kConnected) {
    name_carrier(carriers_out_[event.outbound], event);
  } else if (event.kind == Kind::kImmediate) {
    name_carrier(carriers_in_[event.inbound], event);
  } else if (event.kind == Kind::kConnectFailed || event.kind == Kind::kOutboundClosed) {
    carriers_out_.erase(event.outbound);
  } else if (event.kind == Kind::kInboundFenced) {
    carriers_in_.erase(event.inbound);
  }
}

void Owner::name_carrier(Carrier& carrier, const fabric::FabricEvent& event) const {
  if (!carrier.name.empty()) return;
  carrier.name = event.carrier.empty() ? config_.fabric : std::string(event.carrier);
}

std::string Owner::carrier_of(const Event& event) const {
  const auto find = [&](const auto& carriers) {
    return std::find_if(carriers.rbegin(), carriers.rend(),  // the newest first
                        [&](const auto& entry) { return entry.second.engine_id == event.peer; });
  };
  const bool posts = (event.side == Side::kPrefill) == (config_.mode == Mode::kPush);
  if (posts) {
    const auto out = find(carriers_out_);
    return out == carriers_out_.rend() ? std::string() : out->second.name;
  }
  const auto in = find(carriers_in_);
  if (in == carriers_in_.rend()) return {};
  if (config_.mode == Mode::kPush) return in->second.name;
  // A reader says nothing here that would name it: there are no immediates in pull.
  const auto carrier = fabric_->carrier_of(in->first);
  return carrier.empty() ? config_.fabric : std::string(carrier);
}

std::uint64_t Owner::hash_block(std::uint16_t group, BlockId block) {
  return hasher_.hash_block(group, block);
}

// --- engine ---

// A failed end is logged by whoever takes the event: it knows the request as well.
void Owner::deliver(Event&& event) {
  if (stopping_) return;
  event.times.told = now().time_since_epoch().count();
  event.fabric = carrier_of(event);
  events_.push(std::move(event));
}

}  // namespace baton
