#include "engine/handover_desk.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace baton::engine {

Status HandoverDesk::announce(const Request& request) {
  const auto claim = [this](const RemotePrefill& remote) {
    return agent_->claim(remote.transfer, remote.peer);
  };
  if (!request.remote_decode) return claim(*request.remote_prefill);
  const Status expected = agent_->expect(request.remote_decode->transfer,
                                         static_cast<std::uint32_t>(request.prompt.size()));
  // Kept blocks that cannot be claimed may still be there when they are read.
  if (expected && request.remote_prefill) (void)claim(*request.remote_prefill);
  return expected;
}

void HandoverDesk::attach(Sequence& sequence) {
  const Request& request = sequence.request;
  if (request.remote_prefill) attach_reader(sequence);
  if (!request.remote_decode) return;
  const TransferId transfer = request.remote_decode->transfer;
  const bool inserted = prefill_.emplace(transfer, &sequence).second;
  BATON_CHECK(inserted, "transfer {} is attached twice", transfer.to_string());
}

void HandoverDesk::attach_reader(Sequence& sequence) {
  const TransferId transfer = sequence.request.remote_prefill->transfer;
  const bool inserted = decode_.emplace(transfer, &sequence).second;
  BATON_CHECK(inserted, "transfer {} is attached twice", transfer.to_string());
}

Result<HandoverDesk::Answer> HandoverDesk::register_blocks(Sequence& sequence) {
  const RemotePrefill& remote = *sequence.request.remote_prefill;
  Registration registration;
  registration.transfer = remote.transfer;
  registration.binding = remote.binding;
  registration.attempt = attempts_ + 1;
  registration.peer = remote.peer;
  const std::uint32_t begin = sequence.cached;
  BATON_CHECK(begin < sequence.remote_tokens);
  const std::uint32_t end_block = (sequence.remote_tokens + block_size_ - 1) / block_size_;
  registration.range = {begin, sequence.remote_tokens};
  registration.block_ids.emplace_back(sequence.blocks.begin() + begin / block_size_,
                                      sequence.blocks.begin() + end_block);
  registration.prompt_tokens = remote.source ? remote.source->range.end : sequence.prompt_size;
  registration.source = remote.source;
  if (sequence.request.transfer_timeout) registration.deadline = *sequence.request.transfer_timeout;
  if (Status status = agent_->register_blocks(std::move(registration)); !status) {
    if (status.error().code == Errc::kResourceExhausted) return Answer::kLater;
    return tl::unexpected(status.error());
  }
  sequence.attempt = ++attempts_;
  ++sequence.registrations;
  ++decode_registered_;
  return Answer::kAccepted;
}

bool HandoverDesk::wait_posted(const Sequence& sequence, std::chrono::milliseconds at_most) {
  const TransferId transfer = sequence.request.remote_prefill->transfer;
  const Status posted = agent_->wait_posted(transfer, at_most);
  // kNotFound: it has ended already, and its event says how.
  if (posted || posted.error().code == Errc::kNotFound) return true;
  log::debug("transfer {}: the engine goes on before its reads are posted: {}",
             transfer.to_string(), posted.error().message);
  return false;
}

Result<HandoverDesk::Answer> HandoverDesk::send_ready(Sequence& sequence) {
  const bool last = sequence.computed == sequence.prompt_size;
  const std::uint32_t end =
      last ? sequence.computed : sequence.computed / block_size_ * block_size_;
  if (sequence.ready_done || (!last && end == sequence.ready_sent)) return Answer::kAccepted;
  const auto begin_block = static_cast<std::ptrdiff_t>(sequence.ready_sent / block_size_);
  const auto end_block = static_cast<std::ptrdiff_t>((end + block_size_ - 1) / block_size_);
  ReadyPiece piece;
  piece.transfer = sequence.request.remote_decode->transfer;
  piece.range = {sequence.ready_sent, end};
  piece.block_ids.emplace_back(sequence.blocks.begin() + begin_block,
                               sequence.blocks.begin() + end_block);
  piece.last = last;
  if (last) piece.first_token = sequence.first_token;
  if (last) piece.announcement = sequence.announcement;
  if (Status status = agent_->ready(std::move(piece)); !status) {
    if (status.error().code == Errc::kResourceExhausted) return Answer::kLater;
    return tl::unexpected(status.error());
  }
  sequence.ready_sent = end;
  sequence.ready_done = last;
  return Answer::kAccepted;
}

void HandoverDesk::withdraw(Sequence& sequence) {
  BATON_CHECK(sequence.attempt != 0 && !sequence.withdrawing);
  if (!agent_->withdraw(sequence.request.remote_prefill->transfer)) return;
  sequence.withdrawing = true;
  ++withdrawing_;
}

// True: the event is the end that withdraw() asked for. P's lease is claimed anew at once, because
// the registration that renewed it is gone [I5].
bool HandoverDesk::settle_withdrawal(Sequence& sequence, const Event& event) {
  if (!std::exchange(sequence.withdrawing, false)) return false;
  --withdrawing_;
  if (event.outcome != Outcome::kCancelled || event.cause != Cause::kCancelledHere) return false;
  const RemotePrefill& remote = *sequence.request.remote_prefill;
  if (const Status claimed = agent_->claim(remote.transfer, remote.peer); !claimed) {
    log::warning("transfer {}: not claimed again: {}", remote.transfer.to_string(),
                 claimed.error().message);
  }
  release_or_quarantine(sequence, event);
  sequence.attempt = 0;
  attach_reader(sequence);
  listener_->remote_kv_withdrawn(sequence);
  return true;
}

bool HandoverDesk::give_up(const Sequence& sequence) {
  if (!sequence.is_prefill_only() || sequence.ready_sent == 0) return false;
  const TransferId transfer = sequence.request.remote_decode->transfer;
  if (!prefill_.contains(transfer)) return false;
  cancel(transfer);
  return true;
}

bool HandoverDesk::detach(Sequence& sequence) {
  if (sequence.request.remote_prefill) detach_reader(sequence);
  if (!sequence.is_prefill_only()) return false;
  const TransferId transfer = sequence.request.remote_decode->transfer;
  if (prefill_.erase(transfer) == 0) return false;  // ended before
  cancel(transfer);
  if (sequence.ready_sent == 0) return false;  // the agent was never told of its blocks
  prefill_detached_.emplace(transfer, std::move(sequence.blocks));
  sequence.blocks.clear();
  return true;
}

void HandoverDesk::detach_reader(Sequence& sequence) {
  const RemotePrefill& remote = *sequence.request.remote_prefill;
  if (decode_.erase(remote.transfer) == 0) return;
  cancel(remote.transfer);
  if (sequence.attempt == 0) return;
  --decode_registered_;
  if (std::exchange(sequence.withdrawing, false)) --withdrawing_;
  quarantine(sequence, {remote.transfer, remote.binding, sequence.attempt});
  sequence.attempt = 0;
}

bool HandoverDesk::keep(TransferId transfer, std::uint64_t announcement, std::uint32_t tokens,
                        std::vector<BlockId> blocks, KeptMost most) {
  if (blocks.size() > most.blocks) return false;
  if (!agent_->expect(transfer, tokens)) return false;
  ReadyPiece piece;
  piece.transfer = transfer;
  piece.range = {0, tokens};
  piece.block_ids = {blocks};
  piece.announcement = announcement;
  if (!agent_->ready(std::move(piece))) {
    cancel(transfer);  // the agent was never told of the blocks
    return false;
  }
  kept_uses_.add(blocks);
  prefill_detached_.emplace(transfer, std::move(blocks));
  kept_.push_back(transfer);
  while (kept_uses_.blocks() > most.blocks || kept_.size() > most.answers) give_up_oldest();
  return true;
}

void HandoverDesk::give_up_kept(std::uint32_t blocks) {
  std::uint32_t coming = 0;
  for (const auto& [block, uses] : given_up_uses_) coming += coming_back({&block, 1});
  while (coming < blocks && !kept_.empty()) coming += coming_back(give_up_oldest());
}

// Of blocks that were given up: those that nobody else uses.
std::uint32_t HandoverDesk::coming_back(std::span<const BlockId> blocks) const {
  return static_cast<std::uint32_t>(std::count_if(
      blocks.begin(), blocks.end(),
      [this](BlockId block) { return pool_->users(block) == given_up_uses_.of(block); }));
}

const std::vector<BlockId>& HandoverDesk::give_up_oldest() {
  const TransferId oldest = kept_.front();
  const std::vector<BlockId>& blocks = prefill_detached_.at(oldest);
  kept_.pop_front();
  kept_uses_.remove(blocks);
  given_up_.insert(oldest);
  given_up_uses_.add(blocks);
  cancel(oldest);
  return blocks;
}

void HandoverDesk::cancel(TransferId transfer) {
  if (!agent_->cancel(transfer)) cancels_.push_back(transfer);
}

void HandoverDesk::poll() {
  collect();
  deal();
}

void HandoverDesk::collect() {
  const std::vector<TransferId> again = std::exchange(cancels_, {});
  for (const TransferId transfer : again) cancel(transfer);
  for (;;) {
    const std::size_t n = agent_->poll_events(events_);
    for (std::size_t i = 0; i < n; ++i) collected_.push_back(std::exchange(events_[i], Event{}));
    if (n < events_.size()) return;
  }
}

void HandoverDesk::deal() {
  for (Event& event : std::exchange(collected_, {})) on_event(std::move(event));
}

void HandoverDesk::on_event(Event event) {
  if (event.side == Side::kDecode) {
    on_decode_event(std::move(event));
  } else {
    on_prefill_event(std::move(event));
  }
}

void HandoverDesk::on_decode_event(Event event) {
  const AttemptKey key{event.transfer, event.attempt.binding, event.attempt.attempt};
  if (const auto held = quarantine_.find(key); held != quarantine_.end()) {
    if (event.kind == Event::Kind::kEnded && !event.blocks_released) return;
    pool_->release_quarantined(held->second);
    quarantine_.erase(held);
    return;
  }
  const auto at = decode_.find(event.transfer);
  if (event.kind != Event::Kind::kEnded || at == decode_.end() || at->second->attempt == 0 ||
      at->second->attempt != event.attempt.attempt) {
    log::debug("transfer {}: an event of attempt {} concerns nothing here",
               event.transfer.to_string(), event.attempt.attempt);
    return;
  }
  Sequence& sequence = *at->second;
  decode_.erase(at);
  --decode_registered_;
  if (settle_withdrawal(sequence, event)) return;
  const TokenRange wanted{sequence.cached, sequence.remote_tokens};
  if (event.outcome == Outcome::kDone && event.range != wanted) {
    event.outcome = Outcome::kFailed;
    event.cause = Cause::kRefused;
    event.text = fmt::format("tokens [{}, {}) were handed over of [{}, {})", event.range.begin,
                             event.range.end, wanted.begin, wanted.end);
  }
  if (event.outcome == Outcome::kDone) {
    BATON_CHECK(event.blocks_released);
    sequence.attempt = 0;
    sequence.remote_done = true;
    listener_->remote_kv_done(sequence, std::move(event));
    return;
  }
  release_or_quarantine(sequence, event);
  sequence.attempt = 0;
  sequence.remote_done = true;
  listener_->remote_kv_failed(sequence, std::move(event));
}

void HandoverDesk::release_or_quarantine(Sequence& sequence, const Event& event) {
  if (event.blocks_released) {
    pool_->free(sequence.blocks);
    sequence.blocks.clear();
    return;
  }
  quarantine(sequence, {event.transfer, event.attempt.binding, event.attempt.attempt});
}

// The blocks that P may write into; those from the cache never were among them.
void HandoverDesk::quarantine(Sequence& sequence, const AttemptKey& key) {
  const std::span<const BlockId> blocks = sequence.blocks;
  const std::size_t cached = sequence.cached / block_size_;
  BATON_CHECK(cached < blocks.size(), "{} blocks, {} of them cached", blocks.size(), cached);
  const auto written = blocks.subspan(cached);
  pool_->free(blocks.first(cached));
  pool_->quarantine(written);
  quarantine_.emplace(key, std::vector<BlockId>(written.begin(), written.end()));
  sequence.blocks.clear();
}

void HandoverDesk::on_prefill_event(Event event) {
  if (const auto held = prefill_detached_.find(event.transfer); held != prefill_detached_.end()) {
    if (given_up_.erase(event.transfer) > 0) given_up_uses_.remove(held->second);
    if (std::erase(kept_, event.transfer) > 0) kept_uses_.remove(held->second);
    pool_->free(held->second);
    prefill_detached_.erase(held);
    listener_->transfer_over(event.transfer);
    return;
  }
  const auto at = prefill_.find(event.transfer);
  if (at == prefill_.end()) return;
  Sequence& sequence = *at->second;
  prefill_.erase(at);
  // Its own reads may still be on their way into them [I1].
  if (sequence.request.remote_prefill) detach_reader(sequence);
  pool_->free(sequence.blocks);
  sequence.blocks.clear();
  listener_->prefill_ended(sequence, std::move(event));
}

}  // namespace baton::engine
