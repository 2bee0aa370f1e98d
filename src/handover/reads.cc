// Pull, D's half: the way to P's memory, the reads, and their end. The registration is sent when
// the reads begin, so that P knows who reads; it is sent once more, as taken, when everything has
// been read, and P's answer to that says whether the blocks stood still all the while [I5]. Until
// then nothing that was read is used [I2]. Only our own reads touch our blocks, so that they are
// free as soon as none is out [I1].
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "handover/decode_impl.h"
#include "handover/share.h"

namespace baton::handover {

// ---- the way to P's memory ----

void DecodeSide::Impl::on_offer(std::uint32_t index, const wire::Offer& offer, Time now) {
  Way& way = peers[index].way;
  const bool awaited = !std::exchange(peers[index].offered, true);
  if (way.is_open()) {
    if (way.is_offered(offer.offer)) {
      if (awaited) wake_readers(index);
      return;
    }
    way.close(port);  // P began anew, and what it held for us is over there
  }
  way.offer.assign(offer.offer.begin(), offer.offer.end());
  connect(index, now);
  set_peer_timer(index, now);
}

void DecodeSide::Impl::connect(std::uint32_t index, Time now) {
  Peer& peer = peers[index];
  const Result<Outbound> outbound = port.connect(peer.id, peer.way.offer, peer.geometry.regions);
  if (!outbound) return connect_failed(index, outbound.error().message, now);
  peer.way.connecting(*outbound, now);
}

std::uint32_t DecodeSide::Impl::peer_of(Outbound outbound) const {
  for (std::uint32_t i = 0; i < peers.size(); ++i) {
    if (peers[i].state != Peer::State::kFree && peers[i].way.leads_by(outbound)) return i;
  }
  return kNone;
}

void DecodeSide::Impl::on_connected(Outbound outbound, Time now) {
  const std::uint32_t index = peer_of(outbound);
  if (index == kNone) return;
  peers[index].way.connected(now);
  wake_readers(index);
  set_peer_timer(index, now);
}

void DecodeSide::Impl::wake_readers(std::uint32_t index) {
  for (std::uint32_t i = 0; i < attempts.size(); ++i) {
    if (attempts[i].phase == Phase::kRegistered && attempts[i].peer == index) readers.add(i);
  }
}

void DecodeSide::Impl::on_connect_failed(Outbound outbound, std::string_view error, Time now) {
  const std::uint32_t index = peer_of(outbound);
  if (index != kNone) connect_failed(index, error, now);
}

void DecodeSide::Impl::connect_failed(std::uint32_t index, std::string_view error, Time now) {
  Peer& peer = peers[index];
  // The offer may be one that P has taken back: it comes again with its answer to the next Register
  // that is repeated.
  peer.way.failed();
  peer.way.offer.clear();
  const std::string text =
      fmt::format("connecting to the memory of {}: {}", peer.id.to_string(), error);
  ++peer.users;  // keeps the row while its users go
  for (std::uint32_t i = 0; i < attempts.size(); ++i) {
    if (attempts[i].phase == Phase::kRegistered && attempts[i].peer == index) {
      end(i, Outcome::kFailed, Cause::kFabric, text, true, now);
    }
  }
  --peer.users;
  set_peer_timer(index, now);
}

// Its agent lives, and its memory does not answer, or gives nothing [I4].
void DecodeSide::Impl::way_time(std::uint32_t index, Time now) {
  Peer& peer = peers[index];
  const auto patience = config.peer_timeout.count();
  if (peer.way.is_unanswered(now, config.peer_timeout)) {
    port.close_outbound(peer.way.outbound);
    connect_failed(index, fmt::format("no answer within {} ms", patience), now);
  } else if (peer.way.is_stuck(now, config.peer_timeout)) {
    give_up(index, Cause::kFabric, fmt::format("no read completed for {} ms", patience), now);
  }
}

// Unasked where P's process is gone; asked for, it ends what a failed read may still have done.
void DecodeSide::Impl::on_outbound_closed(Outbound outbound, Time now) {
  const std::uint32_t index = peer_of(outbound);
  if (index != kNone) give_up(index, Cause::kPeerDied, "its memory is gone", now);
  for (std::uint32_t i = 0; i < attempts.size(); ++i) {
    Reading& r = attempts[i].reading;
    if (attempts[i].phase == Phase::kFree || r.through != outbound || !r.unclean) continue;
    r.unclean = false;
    after_read(i, now);
  }
}

// ---- reads ----

// P's blocks are as they were announced: they have to fit the shape that its handshake gave before
// an address is made of them [I7].
void DecodeSide::Impl::begin_reading(std::uint32_t index, Time now) {
  Attempt& a = attempts[index];
  std::array<std::span<const BlockId>, wire::kGroupsMax> lists;
  std::copy(a.reading.source.begin(), a.reading.source.end(), lists.begin());
  const Status fits = wire::check_block_shape(peers[a.peer].geometry, a.range,
                                              std::span(lists).first(a.reading.source.size()));
  if (!fits) {
    metrics.refused_messages.add();
    disown(a.transfer, a.peer, now);
    return end(index, Outcome::kFailed, Cause::kRefused,
               fmt::format("source: {}", fits.error().message), true, now);
  }
  // Under a new grant what was read is kept: it stands or falls with P's last word [I8].
  const bool again = a.reading.posted > 0;
  if (!again) {
    a.reading.cursor = layout::RunCursor(peers[a.peer].plan, config.write_bytes_max);
    a.reading.held.reset();
  }
  if (a.blocks == 0) {
    a.reading.all_posted = a.reading.taken = true;
    port.posted(a.transfer);
  }
  send_register(index, now);
  readers.add(index);
}

bool DecodeSide::Impl::read_some(Time now) {
  if (readers.empty()) return false;
  const auto ways = std::count_if(peers.begin(), peers.end(), [](const Peer& p) {
    return p.state != Peer::State::kFree && p.way.is_open();
  });
  reads_of_peer_max = share_of_peer(config.writes_in_flight_max, ways <= 1);
  const bool posted = readers.run([&](std::uint32_t index) { return read_next(index, now); });
  return posted && !readers.empty();
}

// One read, or the reason why there is none.
Turns::Step DecodeSide::Impl::read_next(std::uint32_t index, Time now) {
  Attempt& a = attempts[index];
  Reading& r = a.reading;
  if (a.phase != Phase::kRegistered || r.all_posted) return Turns::Step::kStarved;
  const Way& way = peers[a.peer].way;
  if (way.state != Way::State::kConnected) return Turns::Step::kStarved;
  // P may have begun anew while the connection was away, and taken back what the way leads to: only
  // its Offer tells. If that is lost, it comes with the answer to the Register that is repeated.
  if (!peers[a.peer].offered) return Turns::Step::kStarved;
  // What went another way has to be over first: one way alone says when all of it is [I1].
  if (r.in_flight > 0 && r.through != way.outbound) return Turns::Step::kStarved;
  if (!room_for_read(way)) return Turns::Step::kBlocked;
  if (r.held || next_run(a)) return post_read(index, now);
  r.all_posted = true;
  port.posted(a.transfer);
  if (r.in_flight == 0) all_read(index, now);
  return Turns::Step::kStarved;
}

bool DecodeSide::Impl::room_for_read(const Way& way) const {
  return reads_in_flight < config.writes_in_flight_max && way.in_flight < reads_of_peer_max;
}

bool DecodeSide::Impl::next_run(Attempt& a) {
  layout::BlockLists lists;
  std::copy(a.block_ids.begin(), a.block_ids.end(), lists.local.begin());
  std::copy(a.reading.source.begin(), a.reading.source.end(), lists.remote.begin());
  layout::Run run;
  if (!a.reading.cursor.next(lists, run)) return false;
  a.reading.held = run;
  return true;
}

Turns::Step DecodeSide::Impl::post_read(std::uint32_t index, Time now) {
  Attempt& a = attempts[index];
  Reading& r = a.reading;
  Way& way = peers[a.peer].way;
  BATON_CHECK(a.phase == Phase::kRegistered && !r.taken, "[I1] the blocks are not ours to fill");
  ReadOp op;
  op.from = way.outbound;
  op.local_region = r.held->local_region;
  op.local_offset = r.held->local_offset;
  op.remote_region = r.held->remote_region;
  op.remote_offset = r.held->remote_offset;
  op.length = r.held->length;
  op.context = (std::uint64_t{a.generation} << 32) | index;
  const Status status = port.post_read(op);
  if (!status && status.error().code == Errc::kResourceExhausted) return Turns::Step::kBlocked;
  if (!status) {
    end(index, Outcome::kFailed, Cause::kFabric, status.error().message, false, now);
    return Turns::Step::kStarved;
  }
  metrics.reads_posted.add();
  a.times.last_write = now.time_since_epoch().count();
  if (r.posted++ == 0) a.times.first_write = a.times.last_write;
  r.bytes += op.length;
  r.through = way.outbound;
  if (!layout::continues(r.last, *r.held)) ++r.runs;
  r.last = *r.held;
  r.held.reset();
  ++r.in_flight;
  ++reads_in_flight;
  if (way.in_flight++ == 0) {
    way.moved = now;
    set_peer_timer(a.peer, now);
  }
  return Turns::Step::kPosted;
}

// ---- completions ----

std::uint32_t DecodeSide::Impl::read_over(std::uint64_t context, Time now) {
  const auto index = static_cast<std::uint32_t>(context);
  BATON_CHECK(index < attempts.size());
  Attempt& a = attempts[index];
  BATON_CHECK(a.phase != Phase::kFree && a.generation == context >> 32 && a.reading.in_flight > 0,
              "[I1] a read into blocks that were given back");
  --a.reading.in_flight;
  --reads_in_flight;
  --peers[a.peer].way.in_flight;
  peers[a.peer].way.moved = now;
  a.times.last_byte = now.time_since_epoch().count();
  return index;
}

void DecodeSide::Impl::on_read_done(std::uint64_t context, Time now) {
  after_read(read_over(context, now), now);
}

void DecodeSide::Impl::on_read_failed(std::uint64_t context, std::string_view error, Time now,
                                      bool over) {
  const std::uint32_t index = read_over(context, now);
  Attempt& a = attempts[index];
  const std::uint32_t peer = a.peer;
  const Outbound through = a.reading.through;
  const bool unclean = !over;  // it may still land [I1]
  a.reading.unclean |= unclean;
  if (a.phase == Phase::kRegistered) {
    end(index, Outcome::kFailed, Cause::kFabric, fmt::format("a read failed: {}", error), false,
        now);
  } else {
    after_read(index, now);
  }
  if (unclean && peers[peer].way.leads_by(through)) {
    give_up(peer, Cause::kFabric, "a read failed and may still land", now);
  }
}

void DecodeSide::Impl::after_read(std::uint32_t index, Time now) {
  Attempt& a = attempts[index];
  switch (a.phase) {
    case Phase::kRegistered:
      if (a.reading.all_posted && a.reading.in_flight == 0) return all_read(index, now);
      return readers.add(index);
    case Phase::kWithdrawing:
      if (!reads_over(a)) return;
      return end(index, Outcome::kCancelled, Cause::kCancelledHere, "withdrawn", true, now);
    case Phase::kQuarantined:
      if (reads_over(a)) release(index, now);
      return;
    case Phase::kFree:
    case Phase::kWaiting:
    case Phase::kVerifying:
      return;
  }
}

// Whether it stood still is P's to say.
void DecodeSide::Impl::all_read(std::uint32_t index, Time now) {
  Attempt& a = attempts[index];
  a.reading.taken = true;
  a.resend_gap = Duration{};
  a.resend_at = now;
  if (ready(a)) send_register(index, now);
  set_attempt_timer(index);
}

// P's word that it is over there; nothing of ours waits for it.
void DecodeSide::Impl::source_stopped(std::uint32_t index, const wire::Stopped& message, Time now) {
  Attempt& a = attempts[index];
  if (a.phase != Phase::kRegistered) return;
  if (message.again && reads_over(a)) return grant_again(index, now);
  a.reading.stopped = true;
  const TransferId transfer = a.transfer;
  const std::uint32_t peer = a.peer;
  // What P refused is its registration; its blocks wait for a better one, and none comes.
  const bool refused = message.cause == Cause::kRefused;
  ++peers[peer].users;
  stop_registered(index, message, now);
  if (refused) disown(transfer, peer, now);
  --peers[peer].users;
}

// Before D hangs up: P's finished blocks are wanted by nobody here any more, and its lease need not
// be waited for [I4].
void DecodeSide::Impl::tell_given_up(std::uint32_t index, std::string_view why, Time now) {
  Peer& peer = peers[index];
  if (peer.state != Peer::State::kReady) return;
  const auto disowned = [&](TransferId transfer) {
    wire::Cancel message;
    message.key.transfer = transfer;
    send(peer, message, now);
  };
  for (std::uint32_t i = 0; i < attempts.size(); ++i) {
    const Attempt& a = attempts[i];
    if (a.phase == Phase::kFree || a.peer != index) continue;
    if (a.phase == Phase::kWaiting) disowned(a.transfer);
    if (a.phase == Phase::kRegistered) {
      send(peer, wire::Cancel{key_of(i), Cause::kCancelledHere, why, false}, now);
    }
  }
  for (const Claim& claim : claims) {
    if (claim.peer == index) disowned(claim.transfer);
  }
}

}  // namespace baton::handover
