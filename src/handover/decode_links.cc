// D's connections: who is dialled when, the handshake, silence, and what the loss of a peer means
// for its attempts.
#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "base/check.h"
#include "base/failure_log.h"
#include "handover/decode_impl.h"
#include "handover/greeting.h"

namespace baton::handover {
namespace {

constexpr Duration kFirstRedial = std::chrono::milliseconds(20);

bool same_place(const PeerAddress& a, const PeerAddress& b) {
  return a.port == b.port && a.host == b.host && a.engine_id == b.engine_id;
}

}  // namespace

// ---- the table of peers ----

std::uint32_t DecodeSide::Impl::peer_for(const PeerAddress& address, Time now) {
  std::uint32_t found = kNone;
  for (std::uint32_t i = 0; i < peers.size() && found == kNone; ++i) {
    const Peer& peer = peers[i];
    if (peer.state == Peer::State::kFree) continue;
    // One process may be known by several addresses, and a second session would end the first.
    const bool same = peer.open && peer.id.engine_id == address.engine_id &&
                      peer.id.incarnation == address.incarnation;
    if (!same && !same_place(peer.address, address)) continue;
    const std::uint64_t have = peer.id.incarnation;
    const bool fits =
        have == 0 ? peer.address.incarnation == 0 || peer.address.incarnation == address.incarnation
                  : address.incarnation == have || (address.incarnation == 0 && peer.open);
    if (fits) found = i;
  }
  if (found == kNone) found = new_peer(address);
  // An attempt under way keeps its own time: registrations must not put off each other's failure.
  if (found != kNone && peers[found].trying_since == kNever &&
      peers[found].state == Peer::State::kIdle) {
    peers[found].hopeless = false;
    dial(found, now);
  }
  return found;
}

std::uint32_t DecodeSide::Impl::new_peer(const PeerAddress& address) {
  for (int round = 0; round < 2; ++round) {
    for (std::uint32_t i = 0; i < peers.size(); ++i) {
      if (peers[i].state != Peer::State::kFree) continue;
      peers[i] = Peer{};
      peers[i].state = Peer::State::kIdle;
      peers[i].address = address;
      return i;
    }
    if (!make_room_for_peer()) break;
  }
  return kNone;
}

// A connection that nobody uses gives its place to a new one.
bool DecodeSide::Impl::make_room_for_peer() {
  for (std::uint32_t i = 0; i < peers.size(); ++i) {
    Peer& peer = peers[i];
    if (peer.users != 0 || peer.state == Peer::State::kFree) continue;
    if (peer.state == Peer::State::kReady) metrics.peers_connected.add(-1);
    if (peer.link != kNoLink) port.hang_up(peer.link);
    if (peer.inbound) port.fence_inbound(*peer.inbound);
    peer.way.close(port);
    peer_timers.clear(i);
    peer = Peer{};
    return true;
  }
  return false;
}

void DecodeSide::Impl::free_peer_if_unused(std::uint32_t index) {
  Peer& peer = peers[index];
  if (peer.state != Peer::State::kIdle || peer.users != 0 || peer.open) return;
  peer_timers.clear(index);
  peer = Peer{};
}

std::uint32_t DecodeSide::Impl::peer_of(LinkId link) const {
  if (link == kNoLink) return kNone;
  for (std::uint32_t i = 0; i < peers.size(); ++i) {
    if (peers[i].state != Peer::State::kFree && peers[i].link == link) return i;
  }
  return kNone;
}

bool DecodeSide::Impl::ready(const Attempt& a) const {
  return peers[a.peer].state == Peer::State::kReady;
}

// ---- connecting ----

void DecodeSide::Impl::dial(std::uint32_t index, Time now) {
  Peer& peer = peers[index];
  peer.state = Peer::State::kDialing;
  peer.dial_at = kNever;
  peer.link = port.dial(peer.address);
  if (peer.trying_since == kNever) peer.trying_since = now;
  set_peer_timer(index, now);
}

void DecodeSide::Impl::on_link_up(LinkId link, Time now) {
  const std::uint32_t index = peer_of(link);
  if (index == kNone || peers[index].state != Peer::State::kDialing) return;
  peers[index].state = Peer::State::kHandshake;
  send_hello(index, now);
  set_peer_timer(index, now);
}

void DecodeSide::Impl::on_link_down(LinkId link, std::string_view why, Time now) {
  const std::uint32_t index = peer_of(link);
  if (index == kNone) return;
  Peer& peer = peers[index];
  peer.link = kNoLink;
  if (peer.state == Peer::State::kReady) {
    metrics.peers_connected.add(-1);
    peer.state = Peer::State::kIdle;
    peer.trying_since = now;
    peer.dial_gap = Duration{};
    if (peer.users == 0) return give_up(index, Cause::kPeerDied, why, now);
    peer.dial_at = now;
    set_peer_timer(index, now);
    return;
  }
  const Cause cause = peer.open ? Cause::kPeerDied : Cause::kPeerUnreachable;
  peer.state = Peer::State::kIdle;
  retry_or_give_up(index, cause, why, now);
}

void DecodeSide::Impl::retry_or_give_up(std::uint32_t index, Cause cause, std::string_view why,
                                        Time now) {
  Peer& peer = peers[index];
  if (now >= peer.trying_since + config.reconnect_grace) return give_up(index, cause, why, now);
  peer.dial_gap = std::max(kFirstRedial, peer.dial_gap * 2);
  peer.dial_at = now + peer.dial_gap;
  set_peer_timer(index, now);
}

// The session with this peer is over: whoever waits for it is told, and what its writer may still
// touch is fenced.
void DecodeSide::Impl::give_up(std::uint32_t index, Cause cause, std::string_view why, Time now) {
  Peer& peer = peers[index];
  if (pull()) tell_given_up(index, why, now);
  if (peer.state == Peer::State::kReady) metrics.peers_connected.add(-1);
  if (peer.link != kNoLink) port.hang_up(peer.link);
  peer.link = kNoLink;
  peer.state = Peer::State::kIdle;
  if (peer.open) metrics.peers_lost.add();
  peer.open = false;
  if (peer.inbound) port.fence_inbound(*peer.inbound);
  peer.inbound.reset();
  peer.offer.clear();
  peer.way.close(port);
  const std::string text = fmt::format("peer {} at {}:{}: {}", peer.address.engine_id,
                                       peer.address.host, peer.address.port, why);
  ++peer.users;  // keeps the row while its users go
  for (std::uint32_t i = 0; i < attempts.size(); ++i) {
    const Attempt& a = attempts[i];
    if (a.phase == Phase::kFree || a.peer != index) continue;
    if (a.phase == Phase::kWaiting) end(i, Outcome::kFailed, cause, text, true, now);
    if (a.phase == Phase::kRegistered) end(i, Outcome::kFailed, cause, text, false, now);
    if (a.phase == Phase::kWithdrawing) {
      end(i, Outcome::kCancelled, Cause::kCancelledHere, text, false, now);
    }
  }
  for (std::size_t i = claims.size(); i-- > 0;) {
    if (claims[i].peer == index) drop_claim(claims[i].transfer, false, now);
  }
  --peer.users;
  // What is left is quarantined: the peer may have been stopped and come back to say that it has
  // drained.
  peer.trying_since = kNever;
  peer.dial_gap = Duration{};
  peer.dial_at = peer.users > 0 && !peer.hopeless ? now + config.resend_max : kNever;
  peer.renew_at = kNever;
  set_peer_timer(index, now);
  free_peer_if_unused(index);
}

// ---- the handshake ----

void DecodeSide::Impl::send_hello(std::uint32_t index, Time now) {
  Peer& peer = peers[index];
  wire::Hello out = greeting(config);
  if (!peer.open) peer.session = next_session++;
  out.session = peer.session;
  out.connection = peer.connection = next_connection++;
  out.expected.engine_id = peer.address.engine_id;
  out.expected.incarnation =
      peer.id.incarnation != 0 ? peer.id.incarnation : peer.address.incarnation;
  send(peer, out, now);
}

void DecodeSide::Impl::refuse_peer(std::uint32_t index, const std::string& field,
                                   const std::string& ours, const std::string& theirs, Time now,
                                   std::string_view we) {
  wire::Refuse message;
  message.field = field;
  message.ours = ours;
  message.theirs = theirs;
  message.text = "handshake refused by the decode side";
  send(peers[index], message, now);
  metrics.refused_peers.add();
  give_up(index, Cause::kRefused,
          fmt::format("handshake refused: {}: {} {}, theirs is {}", field, we, ours, theirs), now);
}

void DecodeSide::Impl::on_hello_ack(std::uint32_t index, const wire::HelloAck& ack, Time now) {
  const PeerAddress address = peers[index].address;
  // Who was met once is known by that name, whether or not the address said one.
  const std::string name =
      peers[index].id.incarnation != 0 ? peers[index].id.engine_id : address.engine_id;
  if (!name.empty() && ack.from.engine_id != name) {
    return refuse_peer(index, "engine_id", name, ack.from.engine_id, now, "we asked for");
  }
  if (const auto mismatch = wire::check_handshake(greeting(config), ack, Role::kProducer)) {
    return refuse_peer(index, mismatch->field, mismatch->ours, mismatch->theirs, now);
  }
  const std::uint64_t expected =
      peers[index].id.incarnation != 0 ? peers[index].id.incarnation : address.incarnation;
  if (expected != 0 && expected != ack.from.incarnation) {
    return refuse_peer(index, "incarnation", fmt::format("{:016x}", expected),
                       fmt::format("{:016x}", ack.from.incarnation), now, "we asked for");
  }
  Result<layout::CopyPlan> plan = layout::CopyPlan::compile(config.geometry, ack.geometry);
  if (!plan) return refuse_peer(index, "geometry", "", plan.error().message, now);
  if (!config.merge_runs) plan->keep_blocks_apart();
  if (const auto warning = layout::find_warning(config.geometry, ack.geometry)) {
    log::failure(log::Level::kWarning, "tokens_may_differ",
                 {{"peer", ack.from.to_string()}, {"text", warning->to_string()}});
  }
  index = join_same(index, ack.from);
  Peer& peer = peers[index];
  peer.id = ack.from;
  if (!peer.open) {  // reads under way keep to what their session began with
    peer.geometry = ack.geometry;
    peer.plan = std::move(*plan);
  }
  peer.verify = config.verify_blocks && ack.verify;
  peer.version = wire::spoken_version(greeting(config), ack);
  peer.memory = peer.version >= wire::kMemorySince ? ack.connection : 0;
  peer.ping_gap = Duration(std::min(config.peer_timeout, ack.peer_timeout)) / 4;
  peer.ping_gap = std::max(peer.ping_gap, Duration(std::chrono::milliseconds(1)));
  peer.renew_gap = std::max(Duration(std::min(config.lease_renewal, ack.lease / 3)),
                            Duration(std::chrono::milliseconds(1)));
  fail_other_incarnations(index, now);
  if (forgot_session(index)) {
    return give_up(index, Cause::kUnknownTransfer, "it forgot what was registered there", now);
  }
  if (!open_session(index, now)) return;
  for (std::uint32_t i = 0; i < attempts.size(); ++i) {
    Attempt& a = attempts[i];
    if (a.phase == Phase::kFree || a.peer != index) continue;
    if (a.wanted_incarnation != 0 && a.wanted_incarnation != ack.from.incarnation &&
        a.phase == Phase::kWaiting) {
      end(i, Outcome::kFailed, Cause::kPeerRestarted,
          fmt::format("incarnation: wanted is {:016x}, {:016x} answers", a.wanted_incarnation,
                      ack.from.incarnation),
          true, now);
      continue;
    }
    if (a.phase == Phase::kVerifying) continue;
    a.resend_gap = Duration{};
    repeat(i, now);
  }
  tell_disowned(index, now);
  send_renewals(index, now);
  set_peer_timer(index, now);
}

// Two rows may turn out to be one incarnation: one that was given up and has come back. The older
// row takes over.
std::uint32_t DecodeSide::Impl::join_same(std::uint32_t index, const PeerId& id) {
  for (std::uint32_t other = 0; other < peers.size(); ++other) {
    if (other == index || peers[other].state == Peer::State::kFree || peers[other].id != id) {
      continue;
    }
    Peer& into = peers[other];
    Peer& from = peers[index];
    // It was never met under another identity, and of this one `other` holds the only session.
    BATON_CHECK(!from.open, "[I1] a session of {} would be lost", id.to_string());
    if (into.link != kNoLink) port.hang_up(into.link);
    if (into.state == Peer::State::kReady) metrics.peers_connected.add(-1);
    into.link = from.link;
    into.session = from.session;
    into.connection = from.connection;
    into.state = from.state;
    into.users += from.users;
    into.rows += from.rows;
    into.credits += from.credits;
    into.way.in_flight += from.way.in_flight;
    into.heard = from.heard;
    into.spoke = from.spoke;
    for (Attempt& a : attempts) {
      if (a.phase != Phase::kFree && a.peer == index) a.peer = other;
    }
    for (Claim& claim : claims) {
      if (claim.peer == index) claim.peer = other;
    }
    peer_timers.clear(index);
    from = Peer{};
    return other;
  }
  return index;
}

// P has dropped its record of us within a session that goes on here: it knows no longer which of
// our grants it wrote, so that none of them can go on, and none can be given back by its word [I1].
bool DecodeSide::Impl::forgot_session(std::uint32_t index) const {
  const Peer& peer = peers[index];
  return peer.open && peer.memory > peer.session_connection;
}

bool DecodeSide::Impl::open_session(std::uint32_t index, Time now) {
  Peer& peer = peers[index];
  if (!peer.open && !pull()) {
    Result<Port::InboundOffer> opened = port.open_inbound(peer.id);
    if (!opened) {
      give_up(index, Cause::kFabric, opened.error().message, now);
      return false;
    }
    peer.inbound = opened->id;
    peer.offer = std::move(opened->offer);
  }
  if (!peer.open) peer.session_connection = peer.connection;
  peer.offered = false;
  peer.open = true;
  peer.state = Peer::State::kReady;
  peer.hopeless = false;
  peer.trying_since = kNever;
  peer.dial_gap = Duration{};
  peer.dial_at = kNever;
  peer.renew_at = now + peer.renew_gap;
  metrics.peers_connected.add(1);
  port.trust(peer.link);
  if (!pull()) send_offer(index, now);
  return true;
}

void DecodeSide::Impl::send_offer(std::uint32_t index, Time now) {
  peers[index].offered_at = now;
  send(peers[index], wire::Offer{peers[index].offer}, now);
}

// With a Register that has to be repeated: the offer may be what was lost. P knows it by its bytes.
void DecodeSide::Impl::offer_again(std::uint32_t index, Time now) {
  if (pull()) return;
  if (now >= peers[index].offered_at + config.resend_min) send_offer(index, now);
}

// Another process answers where an older incarnation was: that one is gone.
void DecodeSide::Impl::fail_other_incarnations(std::uint32_t index, Time now) {
  for (std::uint32_t i = 0; i < peers.size(); ++i) {
    const Peer& other = peers[i];
    if (i == index || other.state == Peer::State::kFree || other.id.incarnation == 0 ||
        !same_place(other.address, peers[index].address)) {
      continue;
    }
    peers[i].hopeless = true;
    if (other.open || other.link != kNoLink) {
      give_up(i, Cause::kPeerRestarted, "another incarnation answers there", now);
    }
  }
}

// The process ends: nobody dials it again, and who waits for it is told.
void DecodeSide::Impl::on_goodbye(std::uint32_t index, const wire::Goodbye& goodbye, Time now) {
  peers[index].hopeless = true;
  give_up(index, Cause::kShutdown, goodbye.text, now);
}

void DecodeSide::Impl::on_refused(std::uint32_t index, const wire::Refuse& refuse, Time now) {
  Peer& peer = peers[index];
  if (peer.state == Peer::State::kReady) {
    log::failure(log::Level::kWarning, "refused_by_peer",
                 {{"peer", peer.id.to_string()}, {"field", refuse.field}, {"text", refuse.text}});
    return;
  }
  metrics.refused_peers.add();
  const bool restarted = refuse.field == "incarnation";
  if (restarted) peer.hopeless = true;
  give_up(index, restarted ? Cause::kPeerRestarted : Cause::kRefused,
          fmt::format("handshake refused by the prefill side: {}: theirs is {}, ours is {}",
                      refuse.field, refuse.ours, refuse.theirs),
          now);
}

// ---- messages ----

void DecodeSide::Impl::on_frame(LinkId link, const wire::Frame& frame, Time now) {
  const std::uint32_t index = peer_of(link);
  if (index == kNone) {
    metrics.stale_messages.add();  // of a connection that was given up [I6]
    return;
  }
  Peer& peer = peers[index];
  std::uint32_t unknown_fields = 0;
  const Result<wire::Message> message = wire::decode(frame, &unknown_fields);
  metrics.unknown_fields.add(unknown_fields);
  peer.heard = now;
  if (!message) {
    metrics.refused_messages.add();
    if (frame.type == wire::MessageType::kRefuse) return;
    wire::Refuse refuse;
    refuse.field = to_string(frame.type);
    refuse.text = message.error().message;
    send(peer, refuse, now);
    return;
  }
  dispatch(index, *message, now);
}

void DecodeSide::Impl::dispatch(std::uint32_t index, const wire::Message& message, Time now) {
  const bool ready = peers[index].state == Peer::State::kReady;
  std::visit(
      [&](const auto& m) {
        using M = std::decay_t<decltype(m)>;
        if constexpr (std::is_same_v<M, wire::Refuse>) {
          on_refused(index, m, now);
        } else if constexpr (std::is_same_v<M, wire::HelloAck>) {
          if (peers[index].state == Peer::State::kHandshake) on_hello_ack(index, m, now);
        } else if (!ready) {
          metrics.stale_messages.add();
        } else if constexpr (std::is_same_v<M, wire::RegisterState>) {
          on_register_state(index, m, now);
        } else if constexpr (std::is_same_v<M, wire::Final>) {
          on_final(index, m, now);
        } else if constexpr (std::is_same_v<M, wire::Stopped>) {
          on_stopped(index, m, now);
        } else if constexpr (std::is_same_v<M, wire::Offer>) {
          if (!pull()) return metrics.refused_messages.add();  // there it is D that offers
          on_offer(index, m, now);
        } else if constexpr (std::is_same_v<M, wire::Ping>) {
          send(peers[index], wire::Pong{m.token}, now);
        } else if constexpr (std::is_same_v<M, wire::Goodbye>) {
          if (peers[index].version >= wire::kGoodbyeSince) return on_goodbye(index, m, now);
          metrics.unknown_fields.add();
        } else if constexpr (std::is_same_v<M, std::monostate>) {
          metrics.unknown_fields.add();
        } else if constexpr (!std::is_same_v<M, wire::Pong>) {
          metrics.refused_messages.add();  // a message that only D sends
        }
      },
      message);
}

void DecodeSide::Impl::on_bad_stream(LinkId link, const Error& error, Time now) {
  const std::uint32_t index = peer_of(link);
  if (index == kNone) return;
  metrics.refused_messages.add();
  wire::Refuse refuse;
  refuse.field = "frame";
  refuse.text = error.message;
  send(peers[index], refuse, now);
  give_up(index, Cause::kRefused, error.message, now);
}

void DecodeSide::Impl::send_renewals(std::uint32_t index, Time now) {
  Peer& peer = peers[index];
  std::vector<TransferId> ids;
  const auto flush = [&] {
    if (!ids.empty()) send(peer, wire::Renew{ids}, now);
    ids.clear();
  };
  const auto add = [&](TransferId id) {
    ids.push_back(id);
    if (ids.size() == wire::kRenewalsMax) flush();
  };
  for (const Claim& claim : claims) {
    if (claim.peer == index && !claim.given_up) add(claim.transfer);
  }
  if (open > 0) {
    for (const Attempt& a : attempts) {
      const bool wants = a.phase == Phase::kRegistered || a.phase == Phase::kWaiting;
      if (wants && a.peer == index) add(a.transfer);
    }
  }
  flush();
}

void DecodeSide::Impl::send_ping(std::uint32_t index, Time now) {
  wire::Ping ping;
  ping.token = next_token++;
  ping.oldest_epoch = next_epoch;
  const bool idle = free_rows.size() == attempts.size();
  for (const Attempt& a : idle ? std::span<const Attempt>() : std::span<const Attempt>(attempts)) {
    if (a.phase != Phase::kFree && a.peer == index) {
      ping.oldest_epoch = std::min(ping.oldest_epoch, a.epoch);
    }
  }
  send(peers[index], ping, now);
}

// ---- time ----

Time DecodeSide::Impl::peer_deadline(const Peer& peer) const {
  switch (peer.state) {
    case Peer::State::kFree:
      return kNever;
    case Peer::State::kIdle:
      if (!peer.open) return peer.dial_at;
      return std::min(peer.dial_at, peer.trying_since + config.reconnect_grace);
    case Peer::State::kDialing:
    case Peer::State::kHandshake:
      return peer.trying_since + (peer.open ? config.reconnect_grace : config.peer_timeout);
    case Peer::State::kReady:
      return std::min({peer.heard + config.peer_timeout, peer.spoke + peer.ping_gap, peer.renew_at,
                       peer.way.deadline(config.peer_timeout)});
  }
  return kNever;
}

void DecodeSide::Impl::set_peer_timer(std::uint32_t index, Time) {
  peer_timers.set(index, peer_deadline(peers[index]));
}

void DecodeSide::Impl::peer_time(std::uint32_t index, Time now) {
  Peer& peer = peers[index];
  if (peer.state == Peer::State::kReady) {
    if (now >= peer.heard + config.peer_timeout) {
      return give_up(index, Cause::kPeerSilent,
                     fmt::format("nothing heard for {} ms", config.peer_timeout.count()), now);
    }
    if (now >= peer.spoke + peer.ping_gap) send_ping(index, now);
    if (now >= peer.renew_at) {
      send_renewals(index, now);
      peer.renew_at = now + peer.renew_gap;
    }
    way_time(index, now);
    if (peer.state != Peer::State::kReady) return;
  } else if (peer.state == Peer::State::kIdle) {
    if (peer.open && now >= peer.trying_since + config.reconnect_grace) {
      return give_up(index, Cause::kPeerDied, "the connection closed and did not come back", now);
    }
    if (now >= peer.dial_at) return dial(index, now);
  } else if (peer.state != Peer::State::kFree) {
    const auto limit = peer.open ? config.reconnect_grace : config.peer_timeout;
    if (now >= peer.trying_since + limit) {
      const Cause cause = peer.open                               ? Cause::kPeerDied
                          : peer.state == Peer::State::kHandshake ? Cause::kPeerSilent
                                                                  : Cause::kPeerUnreachable;
      return give_up(index, cause, fmt::format("no handshake within {} ms", limit.count()), now);
    }
  }
  set_peer_timer(index, now);
}

}  // namespace baton::handover
