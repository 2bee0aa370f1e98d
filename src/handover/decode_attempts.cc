// D's attempts: what is told to P, what P answers, counting, verification, the one end [I3], and
// quarantine [I1].
#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "handover/decode_impl.h"

namespace baton::handover {
namespace {

constexpr std::size_t kWithdrawnRemembered = 64;

std::chrono::milliseconds to_ms(Duration d) {
  return std::chrono::ceil<std::chrono::milliseconds>(std::max(d, Duration{}));
}

}  // namespace

// ---- to P ----

wire::Key DecodeSide::Impl::key_of(std::uint32_t index) const {
  const Attempt& a = attempts[index];
  return {a.transfer, a.number, {index, a.generation}, a.epoch};
}

void DecodeSide::Impl::send_register(std::uint32_t index, Time now) {
  Attempt& a = attempts[index];
  Peer& peer = peers[a.peer];
  BATON_CHECK(peer.state == Peer::State::kReady && peer.open);
  a.phase = Phase::kRegistered;
  if (!a.inbound) a.told_connection = peer.connection;
  a.inbound = peer.inbound;
  a.reported = a.counted;
  wire::Register message;
  message.transfer = a.transfer;
  message.attempt = a.number;
  message.range = a.range;
  message.prompt_tokens = a.prompt_tokens;
  const auto& named = pull() ? a.reading.source : a.block_ids;
  message.num_groups = named.size();
  std::copy(named.begin(), named.end(), message.block_ids.begin());
  message.num_grants = 1;
  message.grant = {config.geometry.rank, {index, a.generation}, a.epoch, a.credits};
  message.deadline = to_ms(a.deadline - now);
  message.counted = a.counted;
  message.taken = a.reading.taken;
  if (peer.version >= wire::kAnnouncementSince) message.announcement = a.reading.announcement;
  send(peer, message, now);
  a.resend_gap =
      std::clamp(a.resend_gap * 2, Duration(config.resend_min), Duration(config.resend_max));
  a.resend_at = now + a.resend_gap;
}

// Registers, unless the peer has too many blocks in quarantine [I1]: they may be back in a moment,
// when it has drained, and a peer that does not drain is refused.
void DecodeSide::Impl::grant(std::uint32_t index, Time now) {
  Attempt& a = attempts[index];
  if (peers[a.peer].quarantined < quarantine_max) {
    unhold(a);
    if (pull()) return begin_reading(index, now);
    return send_register(index, now);
  }
  a.resend_at = kNever;
  if (a.grant_by != kNever) return;
  ++held;
  a.grant_by = now + Duration(config.peer_timeout);
}

void DecodeSide::Impl::unhold(Attempt& a) {
  if (a.grant_by == kNever) return;
  a.grant_by = kNever;
  --held;
}

void DecodeSide::Impl::grant_held(std::uint32_t peer, Time now) {
  if (held == 0 || peers[peer].quarantined >= quarantine_max) return;
  for (std::uint32_t i = 0; i < attempts.size(); ++i) {
    const Attempt& a = attempts[i];
    if (a.phase == Phase::kWaiting && a.peer == peer && a.grant_by != kNever && ready(a)) {
      repeat(i, now);
    }
  }
}

void DecodeSide::Impl::send_cancel(std::uint32_t index, Time now) {
  Attempt& a = attempts[index];
  wire::Cancel message{key_of(index), a.cause, a.text, a.keep};
  send(peers[a.peer], message, now);
  a.resend_gap =
      std::clamp(a.resend_gap * 2, Duration(config.resend_min), Duration(config.resend_max));
  a.resend_at = now + a.resend_gap;
}

// Says again what P has not answered finally. The peer is ready.
void DecodeSide::Impl::repeat(std::uint32_t index, Time now) {
  Attempt& a = attempts[index];
  switch (a.phase) {
    case Phase::kWaiting:
      grant(index, now);
      break;
    case Phase::kRegistered:
      send_register(index, now);
      break;
    case Phase::kWithdrawing:
    case Phase::kQuarantined:
      if (!pull() && !a.drained_immediates) send_cancel(index, now);
      break;
    case Phase::kVerifying:
    case Phase::kFree:
      break;
  }
  set_attempt_timer(index);
}

// ---- from P ----

// The row that a message speaks of; kNone: of another grant, generation or incarnation [I6].
std::uint32_t DecodeSide::Impl::find(std::uint32_t peer, const wire::Key& key) {
  const std::uint32_t index = key.slot.index;
  if (index < attempts.size()) {
    const Attempt& a = attempts[index];
    if (a.phase != Phase::kFree && a.phase != Phase::kWaiting && a.peer == peer &&
        key_of(index) == key) {
      return index;
    }
  }
  metrics.stale_messages.add();
  return kNone;
}

void DecodeSide::Impl::on_register_state(std::uint32_t peer, const wire::RegisterState& message,
                                         Time now) {
  const std::uint32_t index = find(peer, message.key);
  if (index == kNone) return;
  Attempt& a = attempts[index];
  if (a.phase != Phase::kRegistered || message.state == wire::StandingState::kPending) return;
  // P is at work: the wait for it starts anew, though not for ever.
  a.deadline = std::min(now + a.patience, a.last_deadline);
  set_attempt_timer(index);
}

std::string DecodeSide::Impl::final_fault(const Attempt& a, const Peer& peer,
                                          const wire::Final& message) const {
  if (message.range != a.range) {
    return fmt::format("Final: range is {} to {}, registered were {} to {}", message.range.begin,
                       message.range.end, a.range.begin, a.range.end);
  }
  if (message.bytes != a.bytes_planned) {
    return fmt::format("Final: bytes is {}, planned were {}", message.bytes, a.bytes_planned);
  }
  if (pull()) {
    if (!a.reading.taken) return "Final: it came before everything was read";
    if (message.immediates != 0) {
      return fmt::format("Final: immediates is {}, nothing is written in pull mode",
                         message.immediates);
    }
  }
  if (message.immediates < a.counted) {
    return fmt::format("Final: immediates is {}, {} were counted", message.immediates, a.counted);
  }
  if (!pull() && a.blocks > 0 && message.immediates == 0) {
    return fmt::format("Final: immediates is 0, {} blocks were wanted", a.blocks);
  }
  if (peer.verify && message.hashes.size() != a.blocks) {
    return fmt::format("Final: {} hashes, {} blocks were registered", message.hashes.size(),
                       a.blocks);
  }
  return {};
}

void DecodeSide::Impl::on_final(std::uint32_t peer, const wire::Final& message, Time now) {
  const std::uint32_t index = find(peer, message.key);
  if (index == kNone) return;
  Attempt& a = attempts[index];
  if (a.phase != Phase::kRegistered || a.final_known) return;
  if (std::string fault = final_fault(a, peers[peer], message); !fault.empty()) {
    metrics.refused_messages.add();
    end(index, Outcome::kFailed, Cause::kRefused, std::move(fault), false, now);
    return;
  }
  a.final_known = true;
  a.times.final_came = now.time_since_epoch().count();
  a.final_immediates = message.immediates;
  a.final_writes = message.writes;
  a.first_token = message.first_token;
  if (peers[peer].verify) a.hashes.assign(message.hashes.begin(), message.hashes.end());
  check_complete(index, now);
}

void DecodeSide::Impl::on_stopped(std::uint32_t peer, const wire::Stopped& message, Time now) {
  const std::uint32_t index = find(peer, message.key);
  if (index == kNone) return;
  Attempt& a = attempts[index];
  if (a.phase == Phase::kVerifying) return;  // everything has landed: nothing can be stopped
  if (pull()) return source_stopped(index, message, now);
  if (message.again && message.drained && a.phase == Phase::kRegistered) {
    // P forgot what became of the grant. Where bytes may be under way after P saw their completion,
    // or after a failed write, only the fence tells that none lands under the next one [I1].
    if (config.delivery_complete && message.clean) return grant_again(index, now);
    return give_up(a.peer, Cause::kUnknownTransfer,
                   "it forgot a grant whose writes may still be on their way", now);
  }
  if (message.drained) note_drained(index, message, now);
  switch (attempts[index].phase) {
    case Phase::kRegistered:
      return stop_registered(index, message, now);
    case Phase::kWithdrawing:
      if (message.drained) {
        end(index, Outcome::kCancelled, Cause::kCancelledHere, "withdrawn", drained(a), now);
      }
      return;
    case Phase::kQuarantined:
      if (drained(a)) release(index, now);
      return;
    case Phase::kWaiting:
    case Phase::kVerifying:
    case Phase::kFree:
      return;
  }
}

// P's word that it has drained is believed when nothing can still be on its way: no write failed,
// and either the fabric completes on delivery, or every write carried an immediate and all of them
// are counted. Otherwise only the fence helps. The word of a P that has forgotten the grant says
// nothing: the fence was asked for when its session was given up.
void DecodeSide::Impl::note_drained(std::uint32_t index, const wire::Stopped& message, Time now) {
  Attempt& a = attempts[index];
  if (a.told_connection < peers[a.peer].memory) {
    metrics.stale_messages.add();
    a.resend_at = kNever;
    set_attempt_timer(index);
  } else if (message.clean) {
    a.drained_immediates = config.delivery_complete ? 0 : message.immediates;
    // Immediates that are still on their way may be lost for ever: then only the fence tells.
    if (!drained(a) && a.counted_by == kNever) a.counted_by = now + Duration(config.peer_timeout);
    set_attempt_timer(index);
  } else if (a.inbound == peers[a.peer].inbound) {
    give_up(a.peer, Cause::kFabric, "a write failed and may still be on its way", now);
  }
}

bool DecodeSide::Impl::drained(const Attempt& a) const {
  return a.drained_immediates && a.counted >= *a.drained_immediates;
}

void DecodeSide::Impl::stop_registered(std::uint32_t index, const wire::Stopped& message,
                                       Time now) {
  Outcome outcome = Outcome::kFailed;
  Cause cause = message.cause;
  if (cause == Cause::kCancelledHere || cause == Cause::kCancelledByPeer) {
    outcome = Outcome::kCancelled;
    cause = Cause::kCancelledByPeer;
  } else if (cause == Cause::kSuperseded) {
    outcome = Outcome::kCancelled;
  } else if (cause == Cause::kNone) {
    cause = Cause::kUnknownTransfer;
  }
  end(index, outcome, cause, fmt::format("the prefill side stopped: {}", message.text),
      drained(attempts[index]), now);
}

// P cannot tell this registration from a late duplicate and will never act on it: the same wish
// under a new grant.
void DecodeSide::Impl::grant_again(std::uint32_t index, Time now) {
  Attempt& a = attempts[index];
  a.generation = (a.generation + 1) & Slot::kGenerationMask;
  a.epoch = next_epoch++;
  a.counted = 0;
  a.final_known = false;
  a.phase = Phase::kWaiting;
  a.inbound.reset();
  a.resend_gap =
      std::clamp(a.resend_gap * 2, Duration(config.resend_min), Duration(config.resend_max));
  a.resend_at = now + a.resend_gap;
  set_attempt_timer(index);
}

// ---- from the fabric ----

void DecodeSide::Impl::on_immediate(Inbound inbound, std::uint32_t immediate, Time now) {
  metrics.immediates_received.add();
  const Slot slot = Slot::from_immediate(immediate);
  if (slot.index >= attempts.size() || attempts[slot.index].generation != slot.generation ||
      attempts[slot.index].inbound != inbound) {
    metrics.immediates_unknown.add();
    return;
  }
  Attempt& a = attempts[slot.index];
  switch (a.phase) {
    case Phase::kRegistered:
    case Phase::kWithdrawing:
    case Phase::kQuarantined:
      break;
    case Phase::kVerifying:  // more than were announced
    case Phase::kWaiting:
    case Phase::kFree:
      metrics.immediates_unknown.add();
      return;
  }
  ++a.counted;
  a.times.last_byte = now.time_since_epoch().count();
  if (!config.delivery_complete && ready(a) &&
      a.counted - a.reported >= std::max(1U, a.credits / 2)) {
    a.reported = a.counted;
    send(peers[a.peer], wire::Credit{key_of(slot.index), a.counted}, now);
  }
  if (a.phase == Phase::kRegistered) check_complete(slot.index, now);
  if (a.phase == Phase::kQuarantined && drained(a)) release(slot.index, now);
}

// Nothing of that writer lands any more: what it might still have touched is free [I1].
void DecodeSide::Impl::on_fenced(Inbound inbound, Time now) {
  for (std::uint32_t i = 0; i < peers.size(); ++i) {
    if (peers[i].state == Peer::State::kFree || peers[i].inbound != inbound) continue;
    peers[i].open = false;
    peers[i].inbound.reset();  // it came unasked: the writer's process is dead
    metrics.peers_lost.add();
    for (std::uint32_t row = 0; row < attempts.size(); ++row) {
      const Attempt& a = attempts[row];
      if (a.inbound != inbound) continue;
      if (a.phase == Phase::kRegistered) {
        end(row, Outcome::kFailed, Cause::kPeerDied, "the prefill process died", true, now);
      } else if (a.phase == Phase::kWithdrawing) {
        end(row, Outcome::kCancelled, Cause::kCancelledHere, "withdrawn", true, now);
      }
    }
    give_up(i, Cause::kPeerDied, "the process died", now);
  }
  for (std::uint32_t row = 0; row < attempts.size(); ++row) {
    if (attempts[row].phase == Phase::kQuarantined && attempts[row].inbound == inbound) {
      release(row, now);
    }
  }
}

// ---- completion ----

void DecodeSide::Impl::check_complete(std::uint32_t index, Time now) {
  Attempt& a = attempts[index];
  if (!a.final_known || a.counted < a.final_immediates) return;  // [I2]
  if (a.counted > a.final_immediates) {
    end(index, Outcome::kFailed, Cause::kRefused,
        fmt::format("immediates: {} were counted, the writer announced {}", a.counted,
                    a.final_immediates),
        false, now);
    return;
  }
  a.deadline = kNever;
  a.resend_at = kNever;
  set_attempt_timer(index);
  if (a.hashes.empty()) return complete(index, now);
  a.phase = Phase::kVerifying;
  verifying.push_back(index);
}

// True: this attempt needs no more of it.
bool DecodeSide::Impl::verify_some(std::uint32_t index, std::uint64_t& budget, Time now) {
  Attempt& a = attempts[index];
  std::uint32_t first = 0;
  for (std::size_t g = 0; g < a.block_ids.size(); ++g) {
    const auto& ids = a.block_ids[g];
    const std::uint64_t cost = a.bytes_planned / std::max(1U, a.blocks);
    while (a.verified < first + ids.size()) {
      if (budget == 0) return false;
      const BlockId block = ids[a.verified - first];
      const std::uint64_t hash = port.hash_block(static_cast<std::uint16_t>(g), block);
      budget -= std::min(budget, std::max<std::uint64_t>(cost, 1));
      if (hash != a.hashes[a.verified]) {
        metrics.blocks_corrupt.add();
        end(index, Outcome::kFailed, Cause::kCorrupt,
            fmt::format(
                "block {} of group {} (number {} of the request): hash is {:016x}, sent was "
                "{:016x}",
                block, g, a.verified - first, hash, a.hashes[a.verified]),
            true, now);
        return true;
      }
      ++a.verified;
      metrics.blocks_verified.add();
    }
    first += static_cast<std::uint32_t>(ids.size());
  }
  complete(index, now);
  return true;
}

void DecodeSide::Impl::complete(std::uint32_t index, Time now) {
  Attempt& a = attempts[index];
  BATON_CHECK(a.final_known && a.counted == a.final_immediates, "[I2]");
  if (pull()) {
    BATON_CHECK(a.reading.taken && reads_over(a), "[I2] {} reads are out", a.reading.in_flight);
    BATON_CHECK(a.reading.bytes == a.bytes_planned, "[I8] {} bytes were read, {} are needed",
                a.reading.bytes, a.bytes_planned);
  }
  metrics.bytes_received.add(a.bytes_planned);
  metrics.blocks_received.add(a.blocks);
  const std::int64_t told = now.time_since_epoch().count();
  metrics.handover_seconds.observe(seconds_between(a.times.registered, told));
  if (a.times.last_byte != 0)
    metrics.detect_seconds.observe(seconds_between(a.times.last_byte, told));
  end(index, Outcome::kDone, Cause::kNone, {}, true, now);
}

// ---- the end ----

Event DecodeSide::Impl::event_for(const Attempt& a, Event::Kind kind, Outcome outcome, Cause cause,
                                  Time now) const {
  Event event;
  event.kind = kind;
  event.side = Side::kDecode;
  event.transfer = a.transfer;
  event.attempt = a.number;
  event.outcome = outcome;
  event.cause = cause;
  event.first_token = a.first_token;
  event.range = a.range;
  event.bytes_planned = a.bytes_planned;
  event.bytes = outcome == Outcome::kDone ? a.bytes_planned : 0;
  event.writes = pull() ? a.reading.posted : a.counted;
  event.blocks_verified = a.verified;
  event.peer = peers[a.peer].address.engine_id;
  event.times = a.times;
  event.times.told = now.time_since_epoch().count();
  return event;
}

void DecodeSide::Impl::end(std::uint32_t index, Outcome outcome, Cause cause, std::string text,
                           bool released, Time now) {
  Attempt& a = attempts[index];
  BATON_CHECK(a.phase != Phase::kFree && a.phase != Phase::kQuarantined, "[I3] ended twice");
  BATON_CHECK(live.erase(a.transfer), "[I3]");
  if (a.phase == Phase::kWithdrawing) {
    withdrawn.push_back(a.transfer);
    if (withdrawn.size() > kWithdrawnRemembered) withdrawn.pop_front();
  }
  unhold(a);
  if (pull()) {
    released = reads_over(a);  // nobody but ourselves touches the blocks
    port.posted(a.transfer);
  }
  const bool told = a.phase == Phase::kRegistered || a.phase == Phase::kWithdrawing;
  --open;
  metrics.transfers_decode.set(open);
  (outcome == Outcome::kDone        ? metrics.decode_done
   : outcome == Outcome::kCancelled ? metrics.decode_cancelled
                                    : metrics.decode_failed)
      .add();
  Event event = event_for(a, Event::Kind::kEnded, outcome, cause, now);
  if (outcome != Outcome::kDone) event.first_token.reset();
  event.text = text;
  event.blocks_released = released;
  port.deliver(std::move(event));
  a.cause = cause;
  a.text = std::move(text);
  // Pull: said once. If it is lost, P's lease ends.
  if (pull() && told && outcome != Outcome::kDone && !a.reading.stopped && ready(a)) {
    send_cancel(index, now);
  }
  if (released) {
    free_row(index);
  } else {
    quarantine(index, now);
  }
}

void DecodeSide::Impl::quarantine(std::uint32_t index, Time now) {
  Attempt& a = attempts[index];
  BATON_CHECK(a.inbound || (pull() && !reads_over(a)),
              "[I1] only a writer that was told can hold blocks back");
  a.phase = Phase::kQuarantined;
  a.deadline = kNever;
  a.resend_gap = Duration{};
  a.resend_at = kNever;
  count_quarantined(a.peer, a.blocks);
  if (!pull() && ready(a) && !a.drained_immediates) send_cancel(index, now);
  set_attempt_timer(index);
}

void DecodeSide::Impl::count_quarantined(std::uint32_t peer, std::int64_t blocks) {
  peers[peer].quarantined = static_cast<std::uint32_t>(peers[peer].quarantined + blocks);
  quarantined = static_cast<std::uint32_t>(quarantined + blocks);
  metrics.blocks_quarantined.set(quarantined);
  std::uint32_t worst = 0;
  for (const Peer& p : peers) worst = std::max(worst, p.quarantined);
  metrics.blocks_quarantined_worst_peer.set(worst);
}

void DecodeSide::Impl::release(std::uint32_t index, Time now) {
  Attempt& a = attempts[index];
  BATON_CHECK(a.phase == Phase::kQuarantined, "[I1]");
  count_quarantined(a.peer, -std::int64_t{a.blocks});
  Event event = event_for(a, Event::Kind::kReleased, Outcome::kCancelled, a.cause, now);
  event.first_token.reset();
  port.deliver(std::move(event));
  const std::uint32_t peer = a.peer;
  free_row(index);
  grant_held(peer, now);
}

void DecodeSide::Impl::free_row(std::uint32_t index) {
  Attempt& a = attempts[index];
  const std::uint32_t peer = a.peer;
  const std::uint32_t generation = a.generation;
  credits_free += a.credits;
  peers[peer].credits -= a.credits;
  --peers[peer].rows;
  attempt_timers.clear(index);
  a = Attempt{};
  a.generation = (generation + 1) & Slot::kGenerationMask;  // [I6]
  free_rows.push_back(index);
  --peers[peer].users;
  free_peer_if_unused(peer);
}

// ---- time ----

void DecodeSide::Impl::set_attempt_timer(std::uint32_t index) {
  const Attempt& a = attempts[index];
  Time at = kNever;
  if (a.phase == Phase::kWaiting || a.phase == Phase::kRegistered ||
      a.phase == Phase::kWithdrawing) {
    at = std::min(a.deadline, a.grant_by);
  }
  const bool asks = pull() ? a.phase == Phase::kRegistered || a.phase == Phase::kWaiting
                           : a.phase == Phase::kRegistered || a.phase == Phase::kWithdrawing ||
                                 a.phase == Phase::kQuarantined || a.phase == Phase::kWaiting;
  if (asks && ready(a) && !a.drained_immediates) at = std::min(at, a.resend_at);
  if (asks) at = std::min(at, a.counted_by);
  attempt_timers.set(index, at);
}

void DecodeSide::Impl::attempt_time(std::uint32_t index, Time now) {
  Attempt& a = attempts[index];
  if (now >= a.deadline) {
    const std::string text =
        now >= a.last_deadline
            ? fmt::format("no end within {} ms of registration",
                          to_ms(now - Time(Duration(a.times.registered))).count())
            : fmt::format("no end within {} ms of the last word from the prefill side",
                          to_ms(a.patience).count());
    if (a.phase == Phase::kWithdrawing) {
      return end(index, Outcome::kCancelled, Cause::kCancelledHere, "withdrawn", false, now);
    }
    if (a.phase == Phase::kWaiting) disown(a.transfer, a.peer, now);
    if (a.phase == Phase::kWaiting || a.phase == Phase::kRegistered) {
      return end(index, Outcome::kFailed, Cause::kDeadline, text, a.phase == Phase::kWaiting, now);
    }
  }
  if (now >= a.counted_by) {
    a.counted_by = kNever;
    if (a.inbound == peers[a.peer].inbound && !drained(a)) {
      return give_up(a.peer, Cause::kFabric, "immediates of a writer that drained never came", now);
    }
  }
  if (now >= a.grant_by) {
    disown(a.transfer, a.peer, now);
    return end(
        index, Outcome::kFailed, Cause::kRefused,
        fmt::format("{} blocks wait for peer {} to drain, quarantine_blocks_max is {}",
                    peers[a.peer].quarantined, peers[a.peer].address.engine_id, quarantine_max),
        true, now);
  }
  if (now >= a.resend_at && ready(a)) {
    metrics.retransmits.add();
    offer_again(a.peer, now);
    return repeat(index, now);
  }
  set_attempt_timer(index);
}

}  // namespace baton::handover
