// Where a registration meets finished blocks. Everything D can say about an attempt arrives here:
// new, again, late, out of order, or taken back; each has one answer that does not depend on how
// often it was asked.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "handover/prefill_impl.h"

namespace baton::handover {

// ---- answers ----

void PrefillSide::Impl::send_state(std::uint32_t push, Time now) {
  const Push& p = pushes[push];
  wire::RegisterState message;
  message.key = p.key;
  const bool moving = pull() ? p.checked : p.writes > 0;
  message.state = !transfers[p.transfer].known ? wire::StandingState::kPending
                  : !moving                    ? wire::StandingState::kComputing
                                               : wire::StandingState::kWriting;
  send(p.peer, message, now);
}

void PrefillSide::Impl::send_stopped(std::uint32_t push, bool is_drained, Time now) {
  const Push& p = pushes[push];
  wire::Stopped message;
  message.key = p.key;
  message.cause = p.cause;
  message.text = p.text;
  message.drained = is_drained;
  message.immediates = p.immediates;
  message.clean = !p.unclean;
  send(p.peer, message, now);
}

void PrefillSide::Impl::answer_record(std::uint32_t peer, const EndRecord& record, Time now) {
  if (record.done) {
    wire::Final message;
    message.key = record.key;
    message.immediates = record.immediates;
    message.range = record.range;
    message.bytes = record.bytes;
    message.writes = record.writes;
    message.first_token = record.first_token;
    message.hashes = record.hashes;
    return send(peer, message, now);
  }
  wire::Stopped message;
  message.key = record.key;
  message.cause = record.cause;
  message.text = record.text;
  message.drained = true;
  message.immediates = record.immediates;
  message.clean = record.clean;
  send(peer, message, now);
}

// A registration that never begins. Its epoch is over, so that a duplicate of it never begins
// either.
void PrefillSide::Impl::turn_away(std::uint32_t peer, const wire::Key& key, Cause cause,
                                  std::string text, Time now) {
  EndRecord record;
  record.key = key;
  record.cause = cause;
  record.text = std::move(text);
  answer_record(peer, record, now);
  peers[peer].ended->add(std::move(record));
}

EndRecord PrefillSide::Impl::record_of(const Push& p) const {
  EndRecord record;
  record.key = p.key;
  record.cause = p.cause;
  record.text = p.text;
  record.immediates = p.immediates;
  record.clean = !p.unclean;
  record.range = p.range;
  record.bytes = p.bytes;
  record.writes = p.writes;
  record.first_token = transfers[p.transfer].first_token;
  for (const auto& group : p.hashes) {
    record.hashes.insert(record.hashes.end(), group.begin(), group.end());
  }
  return record;
}

// ---- Register ----

std::uint32_t PrefillSide::Impl::push_by(std::uint32_t peer, const wire::Key& key) {
  const auto found = push_of.find({peer, key.epoch});
  if (!found || pushes[*found].key != key) return kNone;
  return *found;
}

// A registration that P has seen, or must take for one: answered from what is known, and nothing
// changes [I1].
bool PrefillSide::Impl::answer_known(std::uint32_t peer, const wire::Register& message, Time now) {
  const wire::Key key = message.key();
  if (push_of.find({peer, key.epoch})) {
    const std::uint32_t push = push_by(peer, key);
    if (push == kNone) {
      metrics.refused_messages.add();  // one epoch, two names
      return true;
    }
    Push& p = pushes[push];
    if (p.phase == Phase::kStopping) {
      send_stopped(push, false, now);
      return true;
    }
    p.counted = std::clamp(message.counted, p.counted, p.immediates);
    p.taken = p.taken || message.taken;
    runnable.add(push);
    if (pull() && !p.taken) send_source(peer, now);  // the offer may be what was lost
    if (p.final_sent) {
      send_final(push, now);
    } else {
      send_state(push, now);
    }
    return true;
  }
  const EndedBook& ended = *peers[peer].ended;
  if (const EndRecord* record = ended.find(key.epoch)) {
    if (record->key == key) answer_record(peer, *record, now);
    return true;
  }
  if (!ended.below_floor(key.epoch)) return false;
  wire::Stopped stale;
  stale.key = key;
  stale.cause = Cause::kUnknownTransfer;
  stale.text = "the grant is older than what is remembered";
  stale.drained = true;
  stale.clean = config.delivery_complete && ended.clean_below_floor();
  stale.again = true;
  send(peer, stale, now);
  return true;
}

// What one decode peer may ask for at once. Others have their own quotas and are served on.
std::string PrefillSide::Impl::quota_fault(std::uint32_t peer,
                                           const wire::Register& message) const {
  const Peer& from = peers[peer];
  std::uint64_t blocks = 0;
  std::uint64_t pool = 0;
  for (std::size_t g = 0; g < message.num_groups; ++g) {
    blocks += message.block_ids[g].size();
    const auto group = static_cast<std::uint16_t>(g);
    const std::uint64_t theirs = layout::pool_blocks(from.geometry, group);
    // In pull they name our blocks, and several of them the same ones where prompts begin alike:
    // what bounds them is the room that D has for copies.
    pool += pull() ? std::max<std::uint64_t>(theirs, layout::pool_blocks(config.geometry, group))
                   : theirs;
  }
  // Twice the pool: D may give a block out again before the completion of its last write is seen
  // here.
  const std::uint64_t blocks_max =
      config.registered_blocks_max != 0 ? config.registered_blocks_max : 2 * pool;
  if (blocks > 0 && from.blocks + blocks > blocks_max) {
    return fmt::format(
        "registered_blocks_max: registrations of this peer would name {} blocks, at most {} are "
        "allowed",
        from.blocks + blocks, blocks_max);
  }
  const std::uint32_t open_max =
      config.registrations_max != 0 ? config.registrations_max : config.transfers_max;
  if (free_pushes.empty() || from.pushes >= open_max) {
    return fmt::format(
        "registrations_max: {} registrations of this peer are open, at most {} are allowed",
        from.pushes, open_max);
  }
  if (from.unmatched >= config.unmatched_max && !is_known(message.transfer)) {
    return fmt::format(
        "unmatched_max: {} registrations of this peer wait for a request here, at most {} are "
        "allowed",
        from.unmatched, config.unmatched_max);
  }
  return {};
}

// The engine knows the request of it, or the registration is over: it no longer counts against the
// peer's quota of those that wait.
void PrefillSide::Impl::match(Push& p) {
  if (std::exchange(p.unmatched, false)) --peers[p.peer].unmatched;
}

void PrefillSide::Impl::on_register(std::uint32_t peer, const wire::Register& message, Time now) {
  if (answer_known(peer, message, now)) return;
  const wire::Key key = message.key();
  const auto refuse = [&](std::string text) {
    metrics.refused_messages.add();
    turn_away(peer, key, Cause::kRefused, std::move(text), now);
  };
  const Peer& from = peers[peer];
  if (const Status status =
          wire::check_register(config.geometry, pull() ? config.geometry : from.geometry, message,
                               pull() ? own_duplicates : *duplicates);
      !status) {
    return refuse(status.error().message);
  }
  if (const auto recent = recent_of.find(key.transfer)) {
    const Cause cause = recents[*recent - recents_dropped].cause;
    return turn_away(peer, key, cause == Cause::kNone ? Cause::kUnknownTransfer : cause,
                     "the transfer is over here", now);
  }
  if (std::string fault = pull() ? lending_fault(peer, message) : ""; !fault.empty()) {
    return turn_away(peer, key, Cause::kUnknownTransfer, std::move(fault), now);
  }
  if (draining && !is_known(key.transfer)) {
    return turn_away(peer, key, Cause::kShutdown,
                     "the prefill side is draining and takes no new request", now);
  }
  if (std::string fault = quota_fault(peer, message); !fault.empty()) {
    metrics.quota_refusals.add();
    return turn_away(peer, key, Cause::kRefused, std::move(fault), now);
  }
  const std::uint32_t transfer = transfer_for(key.transfer);
  if (transfer == kNone) {
    return refuse(fmt::format("all {} transfers of this side are open", transfers.size()));
  }
  if (give_way(peer, transfer, message, now)) {
    take(peer, transfer, message, now);
  } else {
    forget_if_empty(transfer);
  }
}

// The highest (binding, attempt) stands; of one attempt under two grants, the newer grant. False:
// turned away.
bool PrefillSide::Impl::give_way(std::uint32_t peer, std::uint32_t transfer,
                                 const wire::Register& message, Time now) {
  Transfer& t = transfers[transfer];
  if (t.ending) {
    turn_away(peer, message.key(), t.cause == Cause::kNone ? Cause::kUnknownTransfer : t.cause,
              t.text, now);
    return false;
  }
  const bool same = t.highest && message.attempt == *t.highest && t.holder == peer &&
                    (t.push == kNone || pushes[t.push].key.epoch < message.grant.epoch);
  if (t.highest && message.attempt <= *t.highest && !same) {
    turn_away(peer, message.key(), Cause::kSuperseded,
              fmt::format("attempt ({}, {}) came after ({}, {})", message.attempt.binding,
                          message.attempt.attempt, t.highest->binding, t.highest->attempt),
              now);
    return false;
  }
  if (t.push != kNone) stop(t.push, Cause::kSuperseded, "a newer attempt was registered", now);
  return true;
}

void PrefillSide::Impl::take(std::uint32_t peer, std::uint32_t transfer,
                             const wire::Register& message, Time now) {
  const std::uint32_t index = free_pushes.front();
  free_pushes.pop_front();
  Push& p = pushes[index];
  BATON_CHECK(p.phase == Phase::kFree);
  p.phase = Phase::kStanding;
  p.peer = peer;
  p.session = peers[peer].session;
  p.transfer = transfer;
  p.key = message.key();
  p.range = message.range;
  p.prompt_tokens = message.prompt_tokens;
  p.credits = message.grant.credits;
  p.taken = message.taken;
  p.remote.resize(config.geometry.num_groups);
  p.hashes.resize(config.geometry.num_groups);
  for (std::size_t g = 0; g < message.num_groups; ++g) {
    p.remote[g].assign(message.block_ids[g].begin(), message.block_ids[g].end());
    p.blocks += static_cast<std::uint32_t>(p.remote[g].size());
    p.bytes_planned +=
        p.remote[g].size() * peers[peer].plan.bytes_per_block(static_cast<std::uint16_t>(g));
  }
  p.next_block = layout::blocks_of(p.range, config.geometry.block_size).begin;
  const Duration wanted = message.deadline.count() > 0 ? message.deadline : config.transfer_timeout;
  p.deadline = now + std::min(wanted, Duration(config.transfer_timeout) * 4);
  push_of.insert({peer, p.key.epoch}, index);
  ++peers[peer].pushes;
  peers[peer].blocks += p.blocks;
  Transfer& t = transfers[transfer];
  clear_early(t);
  t.cancelled = false;
  if (!t.known) {
    p.unmatched = true;
    ++peers[peer].unmatched;
  }
  t.push = index;
  t.highest = message.attempt;
  t.holder = peer;
  t.number = message.attempt;
  t.range = p.range;
  t.bytes_planned = p.bytes_planned;
  t.times.registered = now.time_since_epoch().count();
  if (peers[peer].way.state == Way::State::kFailed) {
    connect(peer, now);
    if (p.phase != Phase::kStanding) return;  // refused at once: D knows already
  }
  send_state(index, now);
  renew_lease(t, now);
  set_transfer_timer(transfer);
  if (t.known) meet(transfer, now);
}

// Both sides are there: checks what can be checked now and lets the writes begin.
void PrefillSide::Impl::meet(std::uint32_t transfer, Time now) {
  Transfer& t = transfers[transfer];
  Push& p = pushes[t.push];
  if (t.prompt_tokens && p.prompt_tokens != *t.prompt_tokens) {
    metrics.refused_messages.add();
    return stop(
        t.push, Cause::kRefused,
        fmt::format("prompt_tokens: ours is {}, theirs is {}", *t.prompt_tokens, p.prompt_tokens),
        now);
  }
  t.met = true;
  set_transfer_timer(transfer);
  if (t.has_pieces && fits_pieces(t.push, now)) runnable.add(t.push);
}

bool PrefillSide::Impl::fits_pieces(std::uint32_t push, Time now) {
  const Push& p = pushes[push];
  const Transfer& t = transfers[p.transfer];
  std::string fault;
  if (!p.range.empty() && p.range.begin < t.ready.begin) {
    fault = fmt::format("range.begin: ours is {}, theirs is {}", t.ready.begin, p.range.begin);
  } else if (t.last && p.range.end > t.ready.end) {
    fault = fmt::format("range.end: ours is {}, theirs is {}", t.ready.end, p.range.end);
  }
  if (fault.empty()) return true;
  metrics.refused_messages.add();
  stop(push, Cause::kRefused, std::move(fault), now);
  return false;
}

// ---- the end of a registration ----

// No write of it is posted from here on. The registration lives until those that are posted are in
// [I2].
void PrefillSide::Impl::stop(std::uint32_t push, Cause cause, std::string text, Time now) {
  Push& p = pushes[push];
  BATON_CHECK(p.phase == Phase::kStanding, "[I3] stopped twice");
  p.phase = Phase::kStopping;
  match(p);
  p.cause = cause;
  p.text = std::move(text);
  p.held.reset();
  Transfer& t = transfers[p.transfer];
  t.writes = p.writes;
  t.runs = p.runs;
  t.bytes = 0;
  t.push = kNone;
  if (p.in_flight == 0) return drained(push, now);
  send_stopped(push, false, now);
}

void PrefillSide::Impl::drained(std::uint32_t push, Time now) {
  const Push& p = pushes[push];
  BATON_CHECK(p.in_flight == 0 && p.phase == Phase::kStopping, "[I1] {} writes are posted",
              p.in_flight);
  send_stopped(push, true, now);
  metrics.bytes_written.add(p.bytes);
  peers[p.peer].unclean |= p.unclean || !config.delivery_complete;
  peers[p.peer].ended->add(record_of(p));
  free_push(push);
}

void PrefillSide::Impl::free_push(std::uint32_t push) {
  Push& p = pushes[push];
  BATON_CHECK(p.in_flight == 0, "[I2]");
  BATON_CHECK(push_of.erase({p.peer, p.key.epoch}));
  const std::uint32_t peer = p.peer;
  --peers[peer].pushes;
  peers[peer].blocks -= p.blocks;
  const std::uint32_t generation = p.generation + 1;
  p = Push{};
  p.generation = generation;
  free_pushes.push_back(push);
}

void PrefillSide::Impl::stop_unmatched(std::uint32_t push, Cause cause, std::string text,
                                       Time now) {
  const std::uint32_t transfer = pushes[push].transfer;
  stop(push, cause, std::move(text), now);
  forget_if_empty(transfer);
}

void PrefillSide::Impl::end_push(std::uint32_t push, Outcome outcome, Cause cause,
                                 const std::string& text, Time now) {
  const std::uint32_t transfer = pushes[push].transfer;
  if (transfers[transfer].known) return end_transfer(transfer, outcome, cause, text, now);
  stop_unmatched(push, cause, text, now);
}

void PrefillSide::Impl::forget_if_empty(std::uint32_t transfer) {
  const Transfer& t = transfers[transfer];
  if (t.used && !t.known && !is_early(t) && t.push == kNone && t.in_flight == 0) {
    free_transfer(transfer);
  }
}

// ---- Cancel, Credit ----

void PrefillSide::Impl::on_cancel(std::uint32_t peer, const wire::Cancel& message, Time now) {
  const wire::Key& key = message.key;
  if (key.epoch == 0) return on_claim_cancelled(peer, message, now);
  const std::string text = fmt::format("the decode side gave it up: {}", message.text);
  if (const std::uint32_t push = push_by(peer, key); push != kNone) {
    Push& p = pushes[push];
    if (p.phase == Phase::kStopping) {
      send_stopped(push, false, now);
    } else if (!message.keep) {
      end_push(push, Outcome::kCancelled, Cause::kCancelledByPeer, text, now);
      on_claim_cancelled(peer, message, now);  // its request may be still to come
    } else {
      const std::uint32_t transfer = p.transfer;
      stop(push, Cause::kCancelledByPeer, text, now);
      renew_lease(transfers[transfer], now);
      set_transfer_timer(transfer);
      forget_if_empty(transfer);
    }
    return;
  }
  if (push_of.find({peer, key.epoch})) {
    metrics.refused_messages.add();  // one epoch, two names
    return;
  }
  const EndedBook& ended = *peers[peer].ended;
  const EndRecord* record = ended.find(key.epoch);
  if (record != nullptr || ended.below_floor(key.epoch)) {
    wire::Stopped answer;
    answer.key = key;
    answer.drained = true;
    answer.clean = config.delivery_complete && ended.clean_below_floor();
    if (record != nullptr) {
      answer.cause = record->cause;
      answer.immediates = record->immediates;
      answer.clean = record->clean;
    }
    send(peer, answer, now);
  } else {
    // Its Register is still on its way, or lost: should it come, it is over.
    turn_away(peer, key, Cause::kCancelledByPeer, text, now);
  }
  if (!message.keep) on_claim_cancelled(peer, message, now);
}

// D's request is over. P's blocks are free at once unless they are wanted by someone else.
void PrefillSide::Impl::on_claim_cancelled(std::uint32_t peer, const wire::Cancel& message,
                                           Time now) {
  const auto found = transfer_of.find(message.key.transfer);
  if (!found || is_early(transfers[*found])) {
    return note_early(message.key.transfer, peer, true, now);
  }
  const Transfer& t = transfers[*found];
  if (t.ending || !t.known || t.push != kNone) return;
  if (t.holder != kNone && t.holder != peer) return;
  if (message.key.epoch != 0 && t.highest && message.key.attempt < *t.highest) return;
  end_transfer(*found, Outcome::kCancelled, Cause::kCancelledByPeer,
               fmt::format("the decode side gave it up: {}", message.text), now);
}

void PrefillSide::Impl::on_credit(std::uint32_t peer, const wire::Credit& message) {
  const std::uint32_t push = push_by(peer, message.key);
  if (push == kNone) {
    metrics.stale_messages.add();
    return;
  }
  Push& p = pushes[push];
  p.counted = std::clamp(message.counted, p.counted, p.immediates);
  if (p.phase == Phase::kStanding) runnable.add(push);
}

}  // namespace baton::handover
