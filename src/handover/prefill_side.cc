#include "handover/prefill_side.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "handover/prefill_impl.h"

namespace baton::handover {
namespace {

// Rows for transfers the engine knows, as many for registrations that wait for one, and for claims
// that do.
std::uint32_t rows(const Config& config) {
  return 3 * config.transfers_max;
}

constexpr std::string_view kDraining = "the prefill side is draining and takes no new request";

}  // namespace

Status check_ready(const Geometry& ours, const ReadyPiece& piece) {
  if (piece.transfer.is_null()) return fail(Errc::kInvalidArgument, "transfer is null");
  if (!piece.last && piece.range.end % ours.block_size != 0) {
    return fail(Errc::kInvalidArgument,
                fmt::format("range.end is {}, block_size is {}: only the last piece may end inside "
                            "a block",
                            piece.range.end, ours.block_size));
  }
  if (piece.block_ids.size() > wire::kGroupsMax) {
    return fail(Errc::kInvalidArgument,
                fmt::format("block_ids has {} groups, at most {} are served",
                            piece.block_ids.size(), wire::kGroupsMax));
  }
  std::array<std::span<const BlockId>, wire::kGroupsMax> lists;
  std::copy(piece.block_ids.begin(), piece.block_ids.end(), lists.begin());
  return wire::check_block_shape(ours, piece.range, std::span(lists).first(piece.block_ids.size()));
}

PrefillSide::Impl::Impl(const Config& c, Port& p, AgentMetrics& m)
    : config(c),
      port(p),
      metrics(m),
      own_duplicates(wire::largest_pool(c.geometry)),
      transfers(rows(c)),
      transfer_of(rows(c)),
      pushes(rows(c)),
      push_of(rows(c)),
      peers(c.peers_max),
      runnable(rows(c)),
      recent_of(c.transfers_max + 1),
      transfer_timers(rows(c)),
      peer_timers(c.peers_max + 1) {
  BATON_CHECK(c.transfers_max > 0 && c.peers_max > 0 && c.writes_in_flight_max > 0);
  BATON_CHECK(c.write_bytes_max > 0);
  for (std::uint32_t i = rows(c); i-- > 0;) free_transfers.push_back(i);
  for (std::uint32_t i = 0; i < rows(c); ++i) free_pushes.push_back(i);
}

// ---- the engine's word ----

std::uint32_t PrefillSide::Impl::transfer_for(TransferId id) {
  if (const auto found = transfer_of.find(id)) return *found;
  if (free_transfers.empty()) return kNone;
  const std::uint32_t index = free_transfers.back();
  free_transfers.pop_back();
  transfers[index] = Transfer{};
  transfers[index].used = true;
  transfers[index].id = id;
  transfer_of.insert(id, index);
  return index;
}

bool PrefillSide::Impl::is_known(TransferId id) const {
  const auto found = transfer_of.find(id);
  return found && transfers[*found].known;
}

void PrefillSide::Impl::know(std::uint32_t index) {
  Transfer& t = transfers[index];
  clear_early(t);
  if (t.known) return;
  t.known = true;
  metrics.transfers_prefill.set(++known);
  if (t.push != kNone) match(pushes[t.push]);
}

// A request that is not taken: the one event it gets, without a row. Pieces of it may follow.
void PrefillSide::Impl::refuse_request(TransferId id, Cause cause, std::string text) {
  remember(id, cause);
  Event event;
  event.side = Side::kPrefill;
  event.transfer = id;
  event.outcome = Outcome::kFailed;
  event.cause = cause;
  event.text = std::move(text);
  metrics.prefill_failed.add();
  port.deliver(std::move(event));
}

// D spoke of a request before it came here: it holds it, or will not want it any more. Kept for a
// lease, so that the engine's expectation is tied to D, or ended, at once.
void PrefillSide::Impl::note_early(TransferId id, std::uint32_t peer, bool is_cancelled, Time now) {
  if (recent_of.find(id)) return;
  if (!transfer_of.find(id)) {
    if (peers[peer].early >= config.claims_max || early >= config.transfers_max) {
      metrics.quota_refusals.add();
      return;
    }
    const std::uint32_t index = transfer_for(id);
    if (index == kNone) return metrics.quota_refusals.add();
    transfers[index].early_by = peer;
    ++peers[peer].early;
    ++early;
  }
  const std::uint32_t index = *transfer_of.find(id);
  Transfer& t = transfers[index];
  if (!is_early(t) || (is_cancelled && t.holder != kNone && t.holder != peer)) return;
  t.holder = peer;
  t.cancelled = is_cancelled;
  t.early_until = now + config.lease;
  set_transfer_timer(index);
}

void PrefillSide::Impl::clear_early(Transfer& t) {
  if (!is_early(t)) return;
  --peers[t.early_by].early;
  --early;
  t.early_by = kNone;
  t.early_until = kNever;
}

void PrefillSide::Impl::expect(TransferId id, std::uint32_t prompt_tokens, Time now) {
  if (stopping) return;
  if (draining && !is_known(id))
    return refuse_request(id, Cause::kShutdown, std::string(kDraining));
  forget_recent(id);
  const std::uint32_t index = transfer_for(id);
  if (index == kNone) return;
  Transfer& t = transfers[index];
  if (t.known || t.ending) return;
  know(index);
  t.prompt_tokens = prompt_tokens;
  set_transfer_timer(index);
  if (t.cancelled) return end_cancelled(index, now);
  if (t.push != kNone) meet(index, now);
}

void PrefillSide::Impl::end_cancelled(std::uint32_t index, Time now) {
  end_transfer(index, Outcome::kCancelled, Cause::kCancelledByPeer,
               "the decode side gave it up before the request came", now);
}

std::string PrefillSide::Impl::piece_fault(const Transfer& t, const ReadyPiece& piece) {
  if (const Status status = check_ready(config.geometry, piece); !status) {
    return status.error().message;
  }
  for (std::size_t g = 0; g < piece.block_ids.size(); ++g) {
    if (const auto twice = own_duplicates.find(piece.block_ids[g])) {
      return fmt::format("group {} names block {} twice", g, *twice);
    }
  }
  if (t.last) {
    return fmt::format("range.begin is {}, the last piece ended at {}", piece.range.begin,
                       t.ready.end);
  }
  if (t.has_pieces && piece.range.begin != t.ready.end) {
    return fmt::format("range.begin is {}, the piece before ended at {}", piece.range.begin,
                       t.ready.end);
  }
  return {};
}

void PrefillSide::Impl::ready(ReadyPiece&& piece, Time now) {
  if (stopping || recent_of.find(piece.transfer)) return;
  if (draining && !is_known(piece.transfer)) {
    return refuse_request(piece.transfer, Cause::kShutdown, std::string(kDraining));
  }
  const std::uint32_t index = transfer_for(piece.transfer);
  if (index == kNone) {
    return refuse_request(piece.transfer, Cause::kRefused,
                          fmt::format("all {} transfers of this side are open", transfers.size()));
  }
  Transfer& t = transfers[index];
  if (t.ending) return;
  know(index);
  if (t.cancelled) return end_cancelled(index, now);
  if (std::string fault = piece_fault(t, piece); !fault.empty()) {
    return end_transfer(index, Outcome::kFailed, Cause::kRefused, std::move(fault), now);
  }
  append(t, std::move(piece), now);
  set_transfer_timer(index);
  if (t.push != kNone) meet(index, now);
}

void PrefillSide::Impl::append(Transfer& t, ReadyPiece&& piece, Time now) {
  if (!t.has_pieces) {
    t.has_pieces = true;
    t.ready = {piece.range.begin, piece.range.begin};
    t.blocks.resize(config.geometry.num_groups);
    t.times.ready = now.time_since_epoch().count();
  }
  t.ready.end = piece.range.end;
  for (std::size_t g = 0; g < piece.block_ids.size(); ++g) {
    auto& ids = t.blocks[g];
    if (ids.empty()) {
      ids = std::move(piece.block_ids[g]);
    } else {
      ids.insert(ids.end(), piece.block_ids[g].begin(), piece.block_ids[g].end());
    }
  }
  if (!piece.last) return;
  t.last = true;
  t.first_token = piece.first_token;
  t.announcement = piece.announcement;
  if (!t.prompt_tokens) t.prompt_tokens = t.ready.end;
  metrics.leases_held.add(1);
  t.lease = now + config.lease;
}

void PrefillSide::Impl::cancel(TransferId id, Time now) {
  const auto found = transfer_of.find(id);
  if (!found) {
    if (!recent_of.find(id)) remember(id, Cause::kCancelledHere);
    return;
  }
  Transfer& t = transfers[*found];
  if (t.ending) return;
  const std::string text = "cancelled by the prefill engine";
  if (t.known && (t.has_pieces || t.met)) {
    return end_transfer(*found, Outcome::kCancelled, Cause::kCancelledHere, text, now);
  }
  if (t.push != kNone) stop(t.push, Cause::kCancelledHere, text, now);
  remember(id, Cause::kCancelledHere);
  free_transfer(*found);
}

// ---- the end ----

void PrefillSide::Impl::end_transfer(std::uint32_t index, Outcome outcome, Cause cause,
                                     std::string text, Time now) {
  Transfer& t = transfers[index];
  BATON_CHECK(t.used && !t.ending, "[I3] ended twice");
  t.ending = true;
  t.outcome = outcome;
  t.cause = cause;
  t.text = std::move(text);
  if (t.holder != kNone) t.peer_name = peers[t.holder].id.engine_id;
  if (t.push != kNone) stop(t.push, cause, t.text, now);
  if (t.in_flight == 0) return finish_transfer(index, now);
  set_transfer_timer(index);
}

Event PrefillSide::Impl::event_for(const Transfer& t, Time now) const {
  Event event;
  event.side = Side::kPrefill;
  event.transfer = t.id;
  event.attempt = t.number;
  event.outcome = t.outcome;
  event.cause = t.cause;
  event.text = t.text;
  event.range = t.range;
  event.bytes = t.bytes;
  event.bytes_planned = t.bytes_planned;
  event.writes = t.writes;
  event.runs = t.runs;
  event.peer = t.peer_name;
  event.times = t.times;
  event.times.told = now.time_since_epoch().count();
  return event;
}

void PrefillSide::Impl::finish_transfer(std::uint32_t index, Time now) {
  Transfer& t = transfers[index];
  BATON_CHECK(t.in_flight == 0, "[I2] {} writes are posted from blocks about to be freed",
              t.in_flight);
  if (t.known) {
    (t.outcome == Outcome::kDone        ? metrics.prefill_done
     : t.outcome == Outcome::kCancelled ? metrics.prefill_cancelled
                                        : metrics.prefill_failed)
        .add();
    port.deliver(event_for(t, now));
  }
  remember(t.id, t.cause);
  free_transfer(index);
}

void PrefillSide::Impl::free_transfer(std::uint32_t index) {
  Transfer& t = transfers[index];
  BATON_CHECK(t.in_flight == 0 && t.push == kNone, "[I2]");
  clear_early(t);
  if (t.known) metrics.transfers_prefill.set(--known);
  if (t.last) metrics.leases_held.add(-1);
  BATON_CHECK(transfer_of.erase(t.id));
  transfer_timers.clear(index);
  t = Transfer{};
  free_transfers.push_back(index);
}

// The latest ends, by transfer: whoever registers too late, or hands in blocks too late, hears of
// it at once.
void PrefillSide::Impl::remember(TransferId id, Cause cause) {
  forget_recent(id);
  if (recents.size() == config.transfers_max) {
    const Recent& oldest = recents.front();
    const auto row = recent_of.find(oldest.id);
    if (row && *row == recents_dropped) recent_of.erase(oldest.id);
    recents.pop_front();
    ++recents_dropped;
  }
  recent_of.insert(id, recents_dropped + static_cast<std::uint32_t>(recents.size()));
  recents.push_back({id, cause});
}

void PrefillSide::Impl::forget_recent(TransferId id) {
  recent_of.erase(id);
}

// ---- time ----

void PrefillSide::Impl::renew_lease(Transfer& t, Time now) {
  if (!t.last || t.ending) return;
  t.lease = now + config.lease;
  metrics.leases_renewed.add();
}

void PrefillSide::Impl::set_transfer_timer(std::uint32_t index) {
  const Transfer& t = transfers[index];
  Time at = t.ending ? kNever : std::min(t.lease, t.early_until);
  if (t.push != kNone && !t.known) at = std::min(at, pushes[t.push].deadline);
  transfer_timers.set(index, at);
}

void PrefillSide::Impl::transfer_time(std::uint32_t index, Time now) {
  Transfer& t = transfers[index];
  if (!t.used || t.ending) return;
  if (now >= t.early_until) return free_transfer(index);
  if (now >= t.lease) {
    metrics.leases_expired.add();
    return end_transfer(index, Outcome::kFailed, Cause::kLeaseExpired,
                        fmt::format("nobody renewed the lease of {} ms", config.lease.count()),
                        now);
  }
  if (t.push != kNone && !t.known && now >= pushes[t.push].deadline) {
    return stop_unmatched(t.push, Cause::kDeadline, "no request here ever matched", now);
  }
  set_transfer_timer(index);
}

void PrefillSide::Impl::on_time(Time now) {
  while (const auto index = peer_timers.pop_due(now)) {
    if (*index == peers.size()) {
      strangers_time(now);
    } else {
      peer_time(*index, now);
    }
  }
  while (const auto index = transfer_timers.pop_due(now)) transfer_time(*index, now);
}

void PrefillSide::Impl::drain(Time now) {
  if (std::exchange(draining, true)) return;
  for (std::uint32_t i = 0; i < pushes.size(); ++i) {
    if (pushes[i].phase == Phase::kStanding && !transfers[pushes[i].transfer].known) {
      stop_unmatched(i, Cause::kShutdown, std::string(kDraining), now);
    }
  }
}

void PrefillSide::Impl::abandon(Time now) {
  drain(now);
  for (std::uint32_t i = 0; i < transfers.size(); ++i) {
    const Transfer& t = transfers[i];
    if (!t.used || t.ending || !t.known) continue;
    end_transfer(i, Outcome::kFailed, Cause::kShutdown, "the prefill side is shutting down", now);
  }
}

void PrefillSide::Impl::shutdown(Time now) {
  for (std::uint32_t i = 0; i < pushes.size(); ++i) {
    if (pushes[i].phase == Phase::kStanding) {
      stop(i, Cause::kShutdown, "the prefill side is shutting down", now);
    }
  }
  stopping = true;
  for (std::uint32_t i = 0; i < peers.size(); ++i) {
    Peer& peer = peers[i];
    if (!peer.used) continue;
    if (peer.version >= wire::kGoodbyeSince) {
      send(i, wire::Goodbye{"the prefill side is shutting down"}, now);
    }
    peer.way.close(port);
    if (peer.source) port.fence_inbound(*peer.source);
    peer.source.reset();
    if (peer.link != kNoLink) port.hang_up(peer.link);
    peer.link = kNoLink;
  }
  for (const Stranger& stranger : strangers) port.hang_up(stranger.link);
  strangers.clear();
}

// ---- the door ----

PrefillSide::PrefillSide(const Config& config, Port& port, AgentMetrics& metrics)
    : impl_(std::make_unique<Impl>(config, port, metrics)) {}
PrefillSide::~PrefillSide() = default;

void PrefillSide::expect(TransferId transfer, std::uint32_t prompt_tokens, Time now) {
  impl_->expect(transfer, prompt_tokens, now);
}
void PrefillSide::ready(ReadyPiece&& piece, Time now) {
  impl_->ready(std::move(piece), now);
}
void PrefillSide::cancel(TransferId transfer, Time now) {
  impl_->cancel(transfer, now);
}
void PrefillSide::on_link_accepted(LinkId link, Time now) {
  impl_->on_link_accepted(link, now);
}
void PrefillSide::on_link_down(LinkId link, std::string_view, Time now) {
  impl_->on_link_down(link, now);
}
void PrefillSide::on_frame(LinkId link, const wire::Frame& frame, Time now) {
  impl_->on_frame(link, frame, now);
}
void PrefillSide::on_bad_stream(LinkId link, const Error& error, Time now) {
  impl_->on_bad_stream(link, error, now);
}
void PrefillSide::on_connected(Outbound outbound, Time now) {
  impl_->on_connected(outbound, now);
}
void PrefillSide::on_connect_failed(Outbound outbound, std::string_view error, Time now) {
  impl_->on_connect_failed(outbound, error, now);
}
void PrefillSide::on_write_done(std::uint64_t context, Time now) {
  impl_->on_write_done(context, now);
}
void PrefillSide::on_write_failed(std::uint64_t context, std::string_view error, Time now,
                                  bool over) {
  impl_->on_write_failed(context, error, now, over);
}
void PrefillSide::on_outbound_closed(Outbound, Time) {
  // Nothing to do: each posted write reported its own end before this.
}
void PrefillSide::on_fenced(Inbound, Time) {
  // Nothing to do: a reader's end is known by its connection, and blocks do not wait for it.
}
void PrefillSide::on_time(Time now) {
  if (!impl_->stopping) impl_->on_time(now);
}
Time PrefillSide::next_deadline() const {
  return impl_->stopping ? kNever
                         : std::min(impl_->transfer_timers.next(), impl_->peer_timers.next());
}
bool PrefillSide::work(Time now) {
  return impl_->work(now);
}
void PrefillSide::drain(Time now) {
  impl_->drain(now);
}
void PrefillSide::abandon(Time now) {
  impl_->abandon(now);
}
void PrefillSide::shutdown(Time now) {
  impl_->shutdown(now);
}
std::uint32_t PrefillSide::open_transfers() const {
  return impl_->known;
}
std::uint32_t PrefillSide::writes_in_flight() const {
  return impl_->in_flight;
}
bool PrefillSide::idle() const {
  return impl_->free_transfers.size() + impl_->early == impl_->transfers.size() &&
         impl_->free_pushes.size() == impl_->pushes.size() && impl_->in_flight == 0;
}

}  // namespace baton::handover
