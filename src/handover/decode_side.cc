#include "handover/decode_side.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "handover/decode_impl.h"
#include "layout/geometry_check.h"

namespace baton::handover {
namespace {

// Rows beyond the open transfers: attempts that have ended and whose writers have not drained yet.
constexpr std::uint32_t kRowsPerTransfer = 2;
constexpr std::string_view kDraining = "the decode side is draining and takes no new registration";

std::uint32_t rows(const Config& config) {
  return std::min(config.transfers_max * kRowsPerTransfer, Slot::kIndexMask);
}

std::uint32_t default_quarantine(const Config& config) {
  if (config.quarantine_blocks_max != 0) return config.quarantine_blocks_max;
  std::uint32_t blocks = 0;
  for (std::uint16_t g = 0; g < config.geometry.num_groups; ++g) {
    blocks += layout::pool_blocks(config.geometry, g);
  }
  return std::max(1U, blocks / 2);
}

std::uint32_t three_quarters(std::uint32_t all) {
  return all - all / 4;
}

std::uint64_t bytes_per_block(const Geometry& geometry, std::size_t group) {
  std::uint64_t bytes = 0;
  for (const Region& r : geometry.regions) {
    if (r.group == group) bytes += r.block_bytes;
  }
  return bytes;
}

// Which blocks P really has is known at the handshake; that there is one for each of ours is known
// now.
Status check_source(const Geometry& ours, Mode mode, const Registration& registration) {
  if (mode == Mode::kPush) {
    if (!registration.source) return {};
    return fail(Errc::kInvalidArgument,
                "source is given, and this agent does not read: mode is push");
  }
  if (!registration.source) {
    return fail(Errc::kInvalidArgument, "source is missing: mode is pull");
  }
  const SourceBlocks& source = *registration.source;
  const TokenRange& range = registration.range;
  if (source.range.end < source.range.begin || source.range.begin % ours.block_size != 0) {
    return fail(Errc::kInvalidArgument,
                fmt::format("source.range is {} to {}, block_size is {}", source.range.begin,
                            source.range.end, ours.block_size));
  }
  if (!range.empty() && (range.begin < source.range.begin || range.end > source.range.end)) {
    return fail(Errc::kInvalidArgument,
                fmt::format("source.range is {} to {}, range is {} to {}", source.range.begin,
                            source.range.end, range.begin, range.end));
  }
  if (range.empty()) return {};
  if (source.block_ids.size() != ours.num_groups) {
    return fail(Errc::kInvalidArgument,
                fmt::format("source.block_ids has {} groups, num_groups is {}",
                            source.block_ids.size(), ours.num_groups));
  }
  const std::uint32_t blocks = layout::blocks_of(source.range, ours.block_size).size();
  for (const auto& list : source.block_ids) {
    if (list.size() == blocks) continue;
    return fail(Errc::kInvalidArgument,
                fmt::format("source.block_ids lists {} blocks, tokens {} to {} have {}",
                            list.size(), source.range.begin, source.range.end, blocks));
  }
  return {};
}

}  // namespace

Status check_registration(const Geometry& ours, Mode mode, const Registration& registration) {
  if (registration.transfer.is_null()) {
    return fail(Errc::kInvalidArgument, "transfer is null");
  }
  if (registration.range.end > registration.prompt_tokens) {
    return fail(Errc::kInvalidArgument,
                fmt::format("range.end is {}, prompt_tokens is {}", registration.range.end,
                            registration.prompt_tokens));
  }
  if (registration.block_ids.size() > wire::kGroupsMax) {
    return fail(Errc::kInvalidArgument,
                fmt::format("block_ids has {} groups, at most {} are served",
                            registration.block_ids.size(), wire::kGroupsMax));
  }
  if (Status status = check_source(ours, mode, registration); !status) return status;
  std::array<std::span<const BlockId>, wire::kGroupsMax> lists;
  std::copy(registration.block_ids.begin(), registration.block_ids.end(), lists.begin());
  return wire::check_block_shape(ours, registration.range,
                                 std::span(lists).first(registration.block_ids.size()));
}

DecodeSide::Impl::Impl(const Config& c, Port& p, AgentMetrics& m)
    : config(c),
      port(p),
      metrics(m),
      duplicates(wire::largest_pool(c.geometry)),
      quarantine_max(default_quarantine(c)),
      rows_of_peer_max(three_quarters(rows(c))),
      credits_of_peer_max(three_quarters(c.immediates_max)),
      attempts(rows(c)),
      live(c.transfers_max),
      peers(c.peers_max),
      claim_of(c.transfers_max),
      readers(rows(c)),
      attempt_timers(rows(c)),
      peer_timers(c.peers_max),
      credits_free(c.immediates_max) {
  BATON_CHECK(c.transfers_max > 0 && c.peers_max > 0 && c.immediates_max > 0);
  for (std::uint32_t i = 0; i < attempts.size(); ++i) free_rows.push_back(i);
  claims.reserve(c.transfers_max);
  verifying.reserve(attempts.size());
}

void DecodeSide::Impl::claim(TransferId transfer, const PeerAddress& address, Time now) {
  if (live.find(transfer) || !may_begin(transfer)) return;
  if (const auto found = claim_of.find(transfer)) {
    if (!claims[*found].given_up) return;
    drop_claim(transfer, false, now);
  }
  if (!room_for_claim(now)) return;
  const std::uint32_t peer = peer_for(address, now);
  if (peer == kNone) return;
  claim_of.insert(transfer, static_cast<std::uint32_t>(claims.size()));
  claims.push_back({transfer, peer});
  ++peers[peer].users;
  if (peers[peer].state == Peer::State::kReady) {
    const TransferId ids[] = {transfer};
    send(peers[peer], wire::Renew{ids}, now);
  }
}

// With `tell` P hears of it: at once, or when the connection that is being made stands. Should none
// come, the peer is given up within its time-out, and P's lease ends by itself.
void DecodeSide::Impl::drop_claim(TransferId transfer, bool tell, Time now) {
  const auto found = claim_of.find(transfer);
  if (!found) return;
  const std::uint32_t index = claims[*found].peer;
  Peer& peer = peers[index];
  if (tell && peer.state != Peer::State::kReady) {
    claims[*found].given_up = true;
    return;
  }
  claim_of.erase(transfer);
  if (*found + 1 != claims.size()) {
    claims[*found] = claims.back();
    claim_of.set(claims[*found].transfer, *found);
  }
  claims.pop_back();
  --peer.users;
  if (tell) disown(transfer, index, now);
}

// A live claim takes the place of one that is only still to be told of.
bool DecodeSide::Impl::room_for_claim(Time now) {
  if (!claim_of.full()) return true;
  const auto over =
      std::find_if(claims.begin(), claims.end(), [](const Claim& c) { return c.given_up; });
  if (over == claims.end()) return false;
  drop_claim(over->transfer, false, now);
  return true;
}

// P may hold finished blocks for a request that is over here and of which it knows no registration.
void DecodeSide::Impl::disown(TransferId transfer, std::uint32_t peer, Time now) {
  if (peers[peer].state == Peer::State::kReady) {
    wire::Cancel message;
    message.key.transfer = transfer;
    send(peers[peer], message, now);
  } else if (!claim_of.find(transfer) && !claim_of.full()) {
    claim_of.insert(transfer, static_cast<std::uint32_t>(claims.size()));
    claims.push_back({transfer, peer, true});
    ++peers[peer].users;
  }
}

void DecodeSide::Impl::tell_disowned(std::uint32_t peer, Time now) {
  for (std::size_t i = claims.size(); i-- > 0;) {
    if (claims[i].peer == peer && claims[i].given_up) drop_claim(claims[i].transfer, true, now);
  }
}

// An attempt that never started: the one event it gets, without a row.
void DecodeSide::Impl::refuse_registration(Registration&& registration, Outcome outcome,
                                           Cause cause, std::string text, Time now) {
  Event event;
  event.side = Side::kDecode;
  event.transfer = registration.transfer;
  event.attempt = {registration.binding, registration.attempt};
  event.outcome = outcome;
  event.cause = cause;
  event.text = std::move(text);
  event.range = registration.range;
  event.peer = registration.peer.engine_id;
  event.times.told = now.time_since_epoch().count();
  (outcome == Outcome::kCancelled ? metrics.decode_cancelled : metrics.decode_failed).add();
  if (pull()) port.posted(event.transfer);
  port.deliver(std::move(event));
}

// Clears the way for a registration among those of the same transfer. False: it ended at once.
bool DecodeSide::Impl::make_way(const Registration& registration, Time now) {
  const auto standing = live.find(registration.transfer);
  if (!standing) return true;
  const baton::Attempt number{registration.binding, registration.attempt};
  const baton::Attempt have = attempts[*standing].number;
  if (number == have) {
    metrics.stale_messages.add();  // said twice: the standing one's end is the end of both
    return false;
  }
  if (number < have) {
    refuse_registration(Registration(registration), Outcome::kCancelled, Cause::kSuperseded,
                        fmt::format("attempt ({}, {}) came after ({}, {})", number.binding,
                                    number.attempt, have.binding, have.attempt),
                        now);
    return false;
  }
  Attempt& old = attempts[*standing];
  old.keep = true;  // P's blocks are for the newer one
  const bool untold = old.phase == Phase::kWaiting || old.phase == Phase::kVerifying;
  end(*standing, Outcome::kCancelled, Cause::kSuperseded, "a newer attempt was registered", untold,
      now);
  return true;
}

// Which quota of the peer a registration would pass; "": none.
std::string DecodeSide::Impl::over_quota(const Peer& peer) const {
  if (peer.rows >= rows_of_peer_max) {
    return fmt::format("rows: {} attempts of peer {} are open or wait for it to drain, {} may",
                       peer.rows, peer.address.engine_id, rows_of_peer_max);
  }
  if (peer.credits >= credits_of_peer_max) {
    return fmt::format(
        "credits: peer {} holds {} immediates of the fabric, {} may be granted to one",
        peer.address.engine_id, peer.credits, credits_of_peer_max);
  }
  return {};
}

void DecodeSide::Impl::register_blocks(Registration&& r, Time now) {
  if (!may_begin(r.transfer)) {
    return refuse_registration(std::move(r), Outcome::kFailed, Cause::kShutdown,
                               std::string(kDraining), now);
  }
  if (!make_way(r, now)) return;
  const auto refuse = [&](std::string text) {
    drop_claim(r.transfer, true, now);  // nobody will register it again
    refuse_registration(std::move(r), Outcome::kFailed, Cause::kRefused, std::move(text), now);
  };
  if (const Status status = check_registration(config.geometry, config.mode, r); !status) {
    return refuse(status.error().message);
  }
  for (std::size_t g = 0; g < r.block_ids.size(); ++g) {
    if (const auto twice = duplicates.find(r.block_ids[g])) {
      return refuse(fmt::format("group {} names block {} twice", g, *twice));
    }
  }
  if (live.full() || free_rows.empty()) {
    return refuse(
        fmt::format("{} transfers are open, transfers_max is {}, and {} rows wait for "
                    "their writers",
                    open, config.transfers_max, attempts.size() - free_rows.size() - open));
  }
  if (credits_free == 0) {
    return refuse(
        fmt::format("all {} immediates of the fabric are granted", config.immediates_max));
  }
  const std::uint32_t peer = peer_for(r.peer, now);
  if (peer == kNone) {
    return refuse(fmt::format("{} peers are connected, at most {} are served", peers.size(),
                              config.peers_max));
  }
  if (std::string quota = over_quota(peers[peer]); !quota.empty()) {
    metrics.quota_refusals.add();
    return refuse(std::move(quota));
  }
  const std::uint32_t index = free_rows.front();
  free_rows.pop_front();
  Attempt& a = attempts[index];
  BATON_CHECK(a.phase == Phase::kFree);
  ++peers[peer].users;
  drop_claim(r.transfer, false, now);
  fill(a, std::move(r), peer, now);
  live.insert(a.transfer, index);
  ++open;
  metrics.transfers_decode.set(open);
  if (ready(a)) grant(index, now);
  set_attempt_timer(index);
}

void DecodeSide::Impl::fill(Attempt& a, Registration&& r, std::uint32_t peer, Time now) {
  const std::uint32_t generation = a.generation;
  a = Attempt{};
  a.generation = generation;
  a.phase = Phase::kWaiting;
  a.peer = peer;
  a.wanted_incarnation = r.peer.incarnation;
  a.transfer = r.transfer;
  a.number = {r.binding, r.attempt};
  a.epoch = next_epoch++;
  a.range = r.range;
  a.prompt_tokens = r.prompt_tokens;
  a.block_ids = std::move(r.block_ids);
  if (r.source) a.reading.announcement = r.source->announcement;
  if (r.source && !r.range.empty()) {
    const std::uint32_t size = config.geometry.block_size;
    const std::size_t first = (r.range.begin - r.source->range.begin) / size;
    for (auto& list : r.source->block_ids) {
      list.erase(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(first));
      list.resize(layout::blocks_of(r.range, size).size());
    }
    a.reading.source = std::move(r.source->block_ids);
  }
  for (std::size_t g = 0; g < a.block_ids.size(); ++g) {
    a.blocks += static_cast<std::uint32_t>(a.block_ids[g].size());
    a.bytes_planned += a.block_ids[g].size() * bytes_per_block(config.geometry, g);
  }
  // One immediate a writer is enough where completion means delivery; elsewhere every write carries
  // one.
  const std::uint32_t left = credits_of_peer_max - peers[peer].credits;
  a.credits = config.delivery_complete ? 1 : std::clamp(std::min(credits_free / 4, left), 1U, 64U);
  credits_free -= a.credits;
  peers[peer].credits += a.credits;
  ++peers[peer].rows;
  a.patience = r.deadline.count() > 0 ? Duration(r.deadline) : Duration(config.transfer_timeout);
  a.last_deadline =
      now + (r.total.count() > 0 ? Duration(r.total) : Duration(config.transfer_total));
  a.deadline = std::min(now + a.patience, a.last_deadline);
  a.times.registered = now.time_since_epoch().count();
}

void DecodeSide::Impl::withdraw(TransferId transfer, Time now) {
  const auto found = live.find(transfer);
  if (!found) return drop_claim(transfer, false, now);
  Attempt& a = attempts[*found];
  switch (a.phase) {
    case Phase::kWaiting:
    case Phase::kVerifying:
      end(*found, Outcome::kCancelled, Cause::kCancelledHere, "withdrawn", true, now);
      return;
    case Phase::kRegistered:
      a.phase = Phase::kWithdrawing;
      a.cause = Cause::kCancelledHere;
      a.text = "withdrawn";
      a.keep = true;
      if (pull() && reads_over(a)) {
        end(*found, Outcome::kCancelled, Cause::kCancelledHere, "withdrawn", true, now);
        return;
      }
      a.resend_gap = Duration{};
      if (ready(a)) send_cancel(*found, now);
      set_attempt_timer(*found);
      return;
    case Phase::kWithdrawing:
    case Phase::kQuarantined:
    case Phase::kFree:
      return;
  }
}

void DecodeSide::Impl::cancel(TransferId transfer, Time now) {
  drop_claim(transfer, true, now);
  const auto found = live.find(transfer);
  if (!found) return;
  Attempt& a = attempts[*found];
  const bool released = a.phase == Phase::kWaiting || a.phase == Phase::kVerifying;
  a.keep = false;
  if (a.phase == Phase::kWaiting) disown(transfer, a.peer, now);
  end(*found, Outcome::kCancelled, Cause::kCancelledHere, "cancelled by the decode engine",
      released, now);
}

void DecodeSide::Impl::on_time(Time now) {
  while (const auto index = peer_timers.pop_due(now)) peer_time(*index, now);
  while (const auto index = attempt_timers.pop_due(now)) attempt_time(*index, now);
}

bool DecodeSide::Impl::work(Time now) {
  std::uint64_t budget = 256 << 10;  // bytes hashed before the driver looks at its sockets again
  while (!verifying.empty() && budget > 0) {
    const std::uint32_t index = verifying.front();
    if (attempts[index].phase == Phase::kVerifying && !verify_some(index, budget, now)) break;
    verifying.erase(verifying.begin());
  }
  const bool more_to_read = pull() && read_some(now);
  return more_to_read || !verifying.empty();
}

bool DecodeSide::Impl::may_begin(TransferId transfer) const {
  return !draining || drain_allows.contains(transfer);
}

void DecodeSide::Impl::drain() {
  if (std::exchange(draining, true)) return;
  for (const Attempt& a : attempts) {
    if (a.phase != Phase::kFree && a.phase != Phase::kQuarantined) drain_allows.insert(a.transfer);
  }
  for (const Claim& claim : claims) {
    if (!claim.given_up) drain_allows.insert(claim.transfer);
  }
  drain_allows.insert(withdrawn.begin(), withdrawn.end());
}

void DecodeSide::Impl::abandon(Time now) {
  draining = true;
  drain_allows.clear();
  for (std::size_t i = claims.size(); i-- > 0;) {
    if (!claims[i].given_up) drop_claim(claims[i].transfer, true, now);
  }
  const std::string text = "the decode side is shutting down";
  for (std::uint32_t i = 0; i < attempts.size(); ++i) {
    Attempt& a = attempts[i];
    switch (a.phase) {
      case Phase::kWaiting:
      case Phase::kVerifying:
        end(i, Outcome::kFailed, Cause::kShutdown, text, true, now);
        break;
      case Phase::kRegistered:
        end(i, Outcome::kFailed, Cause::kShutdown, text, false, now);
        break;
      case Phase::kWithdrawing:
        end(i, Outcome::kCancelled, Cause::kCancelledHere, text, false, now);
        break;
      case Phase::kQuarantined:
      case Phase::kFree:
        break;
    }
  }
}

void DecodeSide::Impl::shutdown(Time now) {
  for (std::uint32_t i = 0; i < attempts.size(); ++i) {
    Attempt& a = attempts[i];
    if (a.phase != Phase::kRegistered && a.phase != Phase::kWithdrawing) continue;
    a.cause = Cause::kShutdown;
    a.text = "the decode side is shutting down";
    a.keep = false;
    if (peers[a.peer].state == Peer::State::kReady) send_cancel(i, now);
  }
  for (Peer& peer : peers) {
    if (peer.state == Peer::State::kFree) continue;
    if (peer.state == Peer::State::kReady && peer.version >= wire::kGoodbyeSince) {
      send(peer, wire::Goodbye{"the decode side is shutting down"}, now);
    }
    if (peer.link != kNoLink) port.hang_up(peer.link);
    peer.link = kNoLink;
    if (peer.inbound) port.fence_inbound(*peer.inbound);
    peer.inbound.reset();
    peer.way.close(port);
  }
}

// ---- the door ----

DecodeSide::DecodeSide(const Config& config, Port& port, AgentMetrics& metrics)
    : impl_(std::make_unique<Impl>(config, port, metrics)) {}
DecodeSide::~DecodeSide() = default;

void DecodeSide::claim(TransferId transfer, const PeerAddress& peer, Time now) {
  impl_->claim(transfer, peer, now);
}
void DecodeSide::register_blocks(Registration&& registration, Time now) {
  impl_->register_blocks(std::move(registration), now);
}
void DecodeSide::withdraw(TransferId transfer, Time now) {
  impl_->withdraw(transfer, now);
}
void DecodeSide::cancel(TransferId transfer, Time now) {
  impl_->cancel(transfer, now);
}
void DecodeSide::on_link_up(LinkId link, Time now) {
  impl_->on_link_up(link, now);
}
void DecodeSide::on_link_down(LinkId link, std::string_view why, Time now) {
  impl_->on_link_down(link, why, now);
}
void DecodeSide::on_frame(LinkId link, const wire::Frame& frame, Time now) {
  impl_->on_frame(link, frame, now);
}
void DecodeSide::on_bad_stream(LinkId link, const Error& error, Time now) {
  impl_->on_bad_stream(link, error, now);
}
void DecodeSide::on_immediate(Inbound inbound, std::uint32_t immediate, Time now) {
  impl_->on_immediate(inbound, immediate, now);
}
void DecodeSide::on_fenced(Inbound inbound, Time now) {
  impl_->on_fenced(inbound, now);
}
void DecodeSide::drain(Time) {
  impl_->drain();
}
void DecodeSide::abandon(Time now) {
  impl_->abandon(now);
}
void DecodeSide::on_connected(Outbound outbound, Time now) {
  impl_->on_connected(outbound, now);
}
void DecodeSide::on_connect_failed(Outbound outbound, std::string_view error, Time now) {
  impl_->on_connect_failed(outbound, error, now);
}
void DecodeSide::on_read_done(std::uint64_t context, Time now) {
  impl_->on_read_done(context, now);
}
void DecodeSide::on_read_failed(std::uint64_t context, std::string_view error, Time now,
                                bool over) {
  impl_->on_read_failed(context, error, now, over);
}
void DecodeSide::on_outbound_closed(Outbound outbound, Time now) {
  impl_->on_outbound_closed(outbound, now);
}
void DecodeSide::on_time(Time now) {
  impl_->on_time(now);
}
Time DecodeSide::next_deadline() const {
  return std::min(impl_->attempt_timers.next(), impl_->peer_timers.next());
}
bool DecodeSide::work(Time now) {
  return impl_->work(now);
}
void DecodeSide::shutdown(Time now) {
  impl_->shutdown(now);
}
std::uint32_t DecodeSide::open_transfers() const {
  return impl_->open;
}
std::uint32_t DecodeSide::quarantined_blocks() const {
  return impl_->quarantined;
}
bool DecodeSide::idle() const {
  return impl_->free_rows.size() == impl_->attempts.size() && impl_->claims.empty();
}

}  // namespace baton::handover
