// P's peers: who may connect, where their memory is, silence, and what the loss of one means.
#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "base/check.h"
#include "base/failure_log.h"
#include "handover/greeting.h"
#include "handover/prefill_impl.h"

namespace baton::handover {

// ---- connections that have not said who they are ----

void PrefillSide::Impl::on_link_accepted(LinkId link, Time now) {
  if (stopping || strangers.size() >= peers.size()) return port.hang_up(link);
  strangers.push_back({link, now + config.peer_timeout});
  peer_timers.set(static_cast<std::uint32_t>(peers.size()), strangers.front().until);
}

void PrefillSide::Impl::strangers_time(Time now) {
  while (!strangers.empty() && strangers.front().until <= now) {
    wire::Refuse refuse;
    refuse.field = "handshake";
    refuse.text = fmt::format("no Hello within {} ms", config.peer_timeout.count());
    const LinkId link = strangers.front().link;
    strangers.erase(strangers.begin());
    refuse_link(link, refuse);
  }
  peer_timers.set(static_cast<std::uint32_t>(peers.size()),
                  strangers.empty() ? kNever : strangers.front().until);
}

void PrefillSide::Impl::refuse_link(LinkId link, wire::Refuse refuse) {
  metrics.refused_peers.add();
  log::failure(log::Level::kWarning, "refused_peer",
               {{"field", refuse.field},
                {"ours", refuse.ours},
                {"theirs", refuse.theirs},
                {"text", refuse.text}});
  port.send(link, encoder.encode(refuse));
  port.hang_up(link);
}

void PrefillSide::Impl::on_stranger(std::size_t index, const Result<wire::Message>& message,
                                    Time now) {
  const LinkId link = strangers[index].link;
  strangers.erase(strangers.begin() + static_cast<std::ptrdiff_t>(index));
  wire::Refuse refuse;
  refuse.field = "handshake";
  if (!message) {
    metrics.refused_messages.add();
    refuse.text = message.error().message;
    return refuse_link(link, refuse);
  }
  const auto* hello = std::get_if<wire::Hello>(&*message);
  if (hello == nullptr) {
    metrics.refused_messages.add();
    refuse.text = "the first message must be Hello";
    return refuse_link(link, refuse);
  }
  on_hello(link, *hello, now);
}

void PrefillSide::Impl::on_hello(LinkId link, const wire::Hello& theirs, Time now) {
  wire::Refuse refuse;
  refuse.text = "handshake refused by the prefill side";
  if (const auto mismatch = wire::check_handshake(greeting(config), theirs, Role::kConsumer)) {
    refuse.field = mismatch->field;
    refuse.ours = mismatch->ours;
    refuse.theirs = mismatch->theirs;
    return refuse_link(link, refuse);
  }
  Result<layout::CopyPlan> plan = layout::CopyPlan::compile(config.geometry, theirs.geometry);
  if (!plan) {
    refuse.field = "geometry";
    refuse.text = plan.error().message;
    return refuse_link(link, refuse);
  }
  if (!config.merge_runs) plan->keep_blocks_apart();
  const std::uint32_t index = peer_for(theirs.from, now);
  if (index == kNone) {
    refuse.field = "peers";
    refuse.ours = fmt::format("at most {}", peers.size());
    refuse.theirs = "one more";
    return refuse_link(link, refuse);
  }
  if (const auto warning = layout::find_warning(config.geometry, theirs.geometry)) {
    log::failure(log::Level::kWarning, "tokens_may_differ",
                 {{"peer", theirs.from.to_string()}, {"text", warning->to_string()}});
  }
  admit(index, link, theirs, std::move(*plan), now);
}

// The row of an incarnation, old or new. An older incarnation of the same engine whose connection
// is gone is dead. A lost one may come back to ask what became of its grants, and is answered from
// its book [I1], so its row is kept until the place is needed.
std::uint32_t PrefillSide::Impl::peer_for(const PeerId& id, Time now) {
  for (std::uint32_t i = 0; i < peers.size(); ++i) {
    if (peers[i].used && !peers[i].lost && peers[i].id.engine_id == id.engine_id &&
        peers[i].id.incarnation != id.incarnation && peers[i].link == kNoLink) {
      lose(i, Cause::kPeerRestarted, "another incarnation connected", now);
    }
  }
  std::uint32_t free_row = kNone;
  std::uint32_t longest_lost = kNone;
  for (std::uint32_t i = 0; i < peers.size(); ++i) {
    if (peers[i].used && peers[i].id == id) return i;
    if (!peers[i].used) {
      if (free_row == kNone) free_row = i;
    } else if (may_forget(peers[i]) &&
               (longest_lost == kNone || peers[i].lost_at < peers[longest_lost].lost_at)) {
      longest_lost = i;
    }
  }
  if (free_row != kNone || longest_lost == kNone) return free_row;
  forget_peer(longest_lost);
  return longest_lost;
}

// A peer of version 1 cannot be told that its grants are forgotten, so that it would believe what
// an empty book says of them: it is kept if that would be wrong [I1].
bool PrefillSide::Impl::may_forget(const Peer& peer) const {
  return peer.lost && peer.pushes == 0 && (!peer.unclean || peer.version >= wire::kMemorySince);
}

void PrefillSide::Impl::admit(std::uint32_t index, LinkId link, const wire::Hello& theirs,
                              layout::CopyPlan&& plan, Time now) {
  Peer& peer = peers[index];
  const bool fresh = !peer.used;
  if (fresh) {
    peer.used = true;
    peer.id = theirs.from;
    // One incarnation has one geometry: a later Hello of it cannot change what lists are checked
    // against.
    peer.geometry = theirs.geometry;
    peer.plan = std::move(plan);
    peer.ended = std::make_unique<EndedBook>(config.ends_remembered_max);
    peer.first_connection = theirs.connection;
    const std::uint32_t pool = wire::largest_pool(peer.geometry);
    if (!duplicates || pool > duplicates_size) {
      duplicates.emplace(pool);
      duplicates_size = pool;
    }
  }
  if (!fresh && theirs.connection <= peer.decode_connection) {
    port.hang_up(link);  // an older connection whose Hello was read late, or a replayed Hello [I6]
    metrics.stale_messages.add();
    return;
  }
  if (theirs.session != peer.decode_session) {
    // D gave us up in between and may have reused every block that it had granted [I1].
    drop_session(index, Cause::kPeerDied, "the decode side began a new session", now);
  }
  if (pull()) {
    if (const auto opened = open_source(index); !opened) {
      lose(index, Cause::kFabric, opened.error().message, now);
      wire::Refuse refuse;
      refuse.field = "fabric";
      refuse.text = opened.error().message;
      return refuse_link(link, std::move(refuse));
    }
  }
  peer.decode_session = theirs.session;
  peer.decode_connection = theirs.connection;
  if (peer.link != kNoLink) {
    port.hang_up(peer.link);  // the newer connection stands
  } else {
    count_connected(1);
  }
  peer.link = link;
  peer.lost = false;
  peer.down_since = kNever;
  peer.heard = now;
  peer.verify = config.verify_blocks && theirs.verify;
  peer.ping_gap = std::max(Duration(std::min(config.peer_timeout, theirs.peer_timeout)) / 4,
                           Duration(std::chrono::milliseconds(1)));
  port.trust(link);
  wire::HelloAck ack{greeting(config)};
  ack.version = peer.version = wire::spoken_version(greeting(config), theirs);
  if (peer.version >= wire::kMemorySince) ack.connection = peer.first_connection;
  ack.expected = theirs.from;
  send(index, ack, now);
  if (pull()) send_source(index, now);
  peer_timers.set(index, peer_deadline(peer));
}

// ---- messages ----

std::uint32_t PrefillSide::Impl::peer_of(LinkId link) const {
  for (std::uint32_t i = 0; i < peers.size(); ++i) {
    if (peers[i].used && peers[i].link == link) return i;
  }
  return kNone;
}

void PrefillSide::Impl::on_frame(LinkId link, const wire::Frame& frame, Time now) {
  if (stopping) return;
  std::uint32_t unknown_fields = 0;
  const Result<wire::Message> message = wire::decode(frame, &unknown_fields);
  metrics.unknown_fields.add(unknown_fields);
  for (std::size_t i = 0; i < strangers.size(); ++i) {
    if (strangers[i].link == link) return on_stranger(i, message, now);
  }
  const std::uint32_t index = peer_of(link);
  if (index == kNone) {
    metrics.stale_messages.add();  // of a connection that a newer one replaced [I6]
    return;
  }
  peers[index].heard = now;
  if (message) return dispatch(index, *message, now);
  metrics.refused_messages.add();
  if (frame.type == wire::MessageType::kRefuse) return;
  wire::Refuse refuse;
  refuse.field = to_string(frame.type);
  refuse.text = message.error().message;
  send(index, refuse, now);
}

void PrefillSide::Impl::dispatch(std::uint32_t index, const wire::Message& message, Time now) {
  std::visit(
      [&](const auto& m) {
        using M = std::decay_t<decltype(m)>;
        if constexpr (std::is_same_v<M, wire::Offer>) {
          if (pull()) return metrics.refused_messages.add();  // there it is P that offers
          on_offer(index, m, now);
        } else if constexpr (std::is_same_v<M, wire::Register>) {
          on_register(index, m, now);
        } else if constexpr (std::is_same_v<M, wire::Cancel>) {
          on_cancel(index, m, now);
        } else if constexpr (std::is_same_v<M, wire::Credit>) {
          on_credit(index, m);
        } else if constexpr (std::is_same_v<M, wire::Renew>) {
          on_renew(index, m, now);
        } else if constexpr (std::is_same_v<M, wire::Ping>) {
          peers[index].ended->raise_floor(m.oldest_epoch);
          send(index, wire::Pong{m.token}, now);
        } else if constexpr (std::is_same_v<M, wire::Refuse>) {
          log::failure(
              log::Level::kWarning, "refused_by_peer",
              {{"peer", peers[index].id.to_string()}, {"field", m.field}, {"text", m.text}});
        } else if constexpr (std::is_same_v<M, wire::Hello>) {
          metrics.stale_messages.add();  // said twice on one connection
        } else if constexpr (std::is_same_v<M, wire::Goodbye>) {
          if (peers[index].version >= wire::kGoodbyeSince) return on_goodbye(index, m, now);
          metrics.unknown_fields.add();
        } else if constexpr (std::is_same_v<M, std::monostate>) {
          metrics.unknown_fields.add();
        } else if constexpr (!std::is_same_v<M, wire::Pong>) {
          metrics.refused_messages.add();  // a message that only P sends
        }
      },
      message);
}

void PrefillSide::Impl::on_bad_stream(LinkId link, const Error& error, Time now) {
  metrics.refused_messages.add();
  wire::Refuse refuse;
  refuse.field = "frame";
  refuse.text = error.message;
  for (std::size_t i = 0; i < strangers.size(); ++i) {
    if (strangers[i].link != link) continue;
    strangers.erase(strangers.begin() + static_cast<std::ptrdiff_t>(i));
    return refuse_link(link, refuse);
  }
  const std::uint32_t index = peer_of(link);
  if (index == kNone) return;
  send(index, refuse, now);
  port.hang_up(link);
  on_link_down(link, now);
}

void PrefillSide::Impl::on_renew(std::uint32_t index, const wire::Renew& renew, Time now) {
  for (const TransferId& id : renew.transfers) {
    const auto found = transfer_of.find(id);
    if (!found || is_early(transfers[*found])) {
      note_early(id, index, false, now);
      continue;
    }
    Transfer& t = transfers[*found];
    if (t.push == kNone) t.holder = index;
    renew_lease(t, now);
    set_transfer_timer(*found);
  }
}

// ---- the way to the peer's memory ----

void PrefillSide::Impl::on_offer(std::uint32_t index, const wire::Offer& offer, Time now) {
  Way& way = peers[index].way;
  if (way.is_open()) {
    if (way.is_offered(offer.offer)) return;
    drop_session(index, Cause::kPeerDied, "the decode side began a new session", now);
  }
  way.offer.assign(offer.offer.begin(), offer.offer.end());
  connect(index, now);
}

void PrefillSide::Impl::connect(std::uint32_t index, Time now) {
  Peer& peer = peers[index];
  const Result<Outbound> outbound = port.connect(peer.id, peer.way.offer, peer.geometry.regions);
  if (!outbound) return connect_failed(index, outbound.error().message, now);
  peer.way.connecting(*outbound, now);
  peer_timers.set(index, peer_deadline(peer));
}

std::uint32_t PrefillSide::Impl::peer_of(Outbound outbound) const {
  for (std::uint32_t i = 0; i < peers.size(); ++i) {
    if (peers[i].used && peers[i].way.leads_by(outbound)) return i;
  }
  return kNone;
}

void PrefillSide::Impl::on_connected(Outbound outbound, Time now) {
  const std::uint32_t index = peer_of(outbound);
  if (index == kNone) return;
  Peer& peer = peers[index];
  peer.way.connected(now);
  for (std::uint32_t i = 0; i < pushes.size(); ++i) {
    if (pushes[i].phase == Phase::kStanding && pushes[i].peer == index) runnable.add(i);
  }
  peer_timers.set(index, peer_deadline(peer));
}

void PrefillSide::Impl::on_connect_failed(Outbound outbound, std::string_view error, Time now) {
  const std::uint32_t index = peer_of(outbound);
  if (index != kNone) connect_failed(index, error, now);
}

void PrefillSide::Impl::connect_failed(std::uint32_t index, std::string_view error, Time now) {
  Peer& peer = peers[index];
  peer.way.failed();
  const std::string text =
      fmt::format("connecting to the memory of {}: {}", peer.id.to_string(), error);
  for (std::uint32_t i = 0; i < pushes.size(); ++i) {
    if (pushes[i].phase == Phase::kStanding && pushes[i].peer == index) {
      end_push(i, Outcome::kFailed, Cause::kFabric, text, now);
    }
  }
}

// No more writes through this outbound; what is posted completes or fails on its own [I5].
void PrefillSide::Impl::drop_session(std::uint32_t index, Cause cause, const std::string& text,
                                     Time now) {
  Peer& peer = peers[index];
  ++peer.pushes;  // keeps the row
  for (std::uint32_t i = 0; i < pushes.size(); ++i) {
    if (pushes[i].phase == Phase::kStanding && pushes[i].peer == index) {
      end_push(i, Outcome::kFailed, cause, text, now);
    }
  }
  --peer.pushes;
  peer.way.close(port);
  if (peer.source) port.fence_inbound(*peer.source);
  peer.source.reset();
  ++peer.session;
}

// ---- loss ----

// The gauge is that of the process, whose decode side adds its own connections.
void PrefillSide::Impl::count_connected(std::int32_t more) {
  peers_connected += static_cast<std::uint32_t>(more);
  metrics.peers_connected.add(more);
}

void PrefillSide::Impl::on_link_down(LinkId link, Time now) {
  for (std::size_t i = 0; i < strangers.size(); ++i) {
    if (strangers[i].link != link) continue;
    strangers.erase(strangers.begin() + static_cast<std::ptrdiff_t>(i));
    return;
  }
  const std::uint32_t index = peer_of(link);
  if (index == kNone) return;
  Peer& peer = peers[index];
  peer.link = kNoLink;
  peer.down_since = now;
  count_connected(-1);
  peer_timers.set(index, peer_deadline(peer));
}

void PrefillSide::Impl::on_goodbye(std::uint32_t index, const wire::Goodbye& goodbye, Time now) {
  lose(index, Cause::kShutdown, goodbye.text, now);
}

void PrefillSide::Impl::lose(std::uint32_t index, Cause cause, std::string_view why, Time now) {
  Peer& peer = peers[index];
  metrics.peers_lost.add();
  peer.lost = true;
  peer.lost_at = now;
  if (peer.link != kNoLink) {
    port.hang_up(peer.link);
    count_connected(-1);
  }
  peer.link = kNoLink;
  const std::string text = fmt::format("decode peer {}: {}", peer.id.to_string(), why);
  drop_session(index, cause, text, now);
  // Finished blocks that it alone held are free at once; nobody else will come for them.
  for (std::uint32_t i = 0; i < transfers.size(); ++i) {
    const Transfer& t = transfers[i];
    if (t.used && !t.ending && t.known && t.push == kNone && t.holder == index) {
      end_transfer(i, Outcome::kFailed, cause, text, now);
    } else if (t.early_by == index && !t.cancelled) {
      free_transfer(i);
    }
  }
  for (Transfer& t : transfers) {
    if (t.used && !t.ending && t.holder == index) t.holder = kNone;
  }
  peer_timers.set(index, kNever);
}

void PrefillSide::Impl::forget_peer(std::uint32_t index) {
  Peer& peer = peers[index];
  BATON_CHECK(peer.lost && peer.pushes == 0 && peer.way.in_flight == 0, "[I2]");
  for (std::uint32_t i = 0; i < transfers.size(); ++i) {
    if (transfers[i].early_by == index) free_transfer(i);
    if (transfers[i].holder == index) transfers[i].holder = kNone;
  }
  const std::uint32_t session = peer.session;
  peer_timers.clear(index);
  peer = Peer{};
  peer.session = session;
}

// ---- time ----

Time PrefillSide::Impl::peer_deadline(const Peer& peer) const {
  if (!peer.used || peer.lost) return kNever;
  const Time at = peer.way.deadline(config.peer_timeout);
  if (peer.link == kNoLink) return std::min(at, peer.down_since + config.reconnect_grace);
  return std::min({at, peer.heard + config.peer_timeout, peer.spoke + peer.ping_gap});
}

void PrefillSide::Impl::peer_time(std::uint32_t index, Time now) {
  Peer& peer = peers[index];
  if (!peer.used || peer.lost) return;
  if (peer.link == kNoLink) {
    if (now >= peer.down_since + config.reconnect_grace) {
      return lose(index, Cause::kPeerDied, "the connection closed and did not come back", now);
    }
  } else {
    if (now >= peer.heard + config.peer_timeout) {
      return lose(index, Cause::kPeerSilent,
                  fmt::format("nothing heard for {} ms", config.peer_timeout.count()), now);
    }
    if (now >= peer.spoke + peer.ping_gap) send(index, wire::Ping{next_token++, 0}, now);
  }
  if (peer.way.is_unanswered(now, config.peer_timeout)) {
    port.close_outbound(peer.way.outbound);
    connect_failed(index, fmt::format("no answer within {} ms", config.peer_timeout.count()), now);
  }
  // Its agent lives and its memory takes nothing. Closing makes every posted write be over, so that
  // our blocks are free in bounded time [I4] [I5] and no other peer waits for its share of writes.
  if (peer.way.is_stuck(now, config.peer_timeout)) {
    drop_session(index, Cause::kFabric,
                 fmt::format("decode peer {}: no write completed for {} ms", peer.id.to_string(),
                             config.peer_timeout.count()),
                 now);
  }
  peer_timers.set(index, peer_deadline(peer));
}

}  // namespace baton::handover
