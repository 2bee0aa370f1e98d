#include "engine/testing/fake_agent.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace baton::engine {

AgentFactory FakeHub::factory() {
  return [this](const AgentOptions& options,
                const Geometry& geometry) -> Result<std::unique_ptr<Agent>> {
    return std::make_unique<FakeAgent>(*this, options, geometry);
  };
}

void FakeHub::set_automatic(bool on) {
  const std::lock_guard lock(mutex_);
  automatic_ = on;
}

void FakeHub::refuse(Call call, int times, Errc code) {
  const std::lock_guard lock(mutex_);
  refusals_[call] = {times, code};
}

Status FakeHub::submit(Call call, FakeAgent& agent, TransferId id,
                       const std::function<void(Transfer&)>& change) {
  const std::lock_guard lock(mutex_);
  if (refusals_[call].left > 0) {
    --refusals_[call].left;
    // Whoever was refused here asked in order, and may go on to register.
    if (call == Call::kClaim) transfers_[id].claimed = true;
    return baton::fail(refusals_[call].code, "the fake agent was told to refuse it");
  }
  Transfer& transfer = transfers_[id];
  if (call == Call::kClaim || call == Call::kRegister) transfer.decode = &agent;
  if (call == Call::kExpect || call == Call::kReady) transfer.prefill = &agent;
  change(transfer);
  if (call == Call::kCancel) {
    transfer.cancelled = true;
    if (!transfer.ended && (transfer.registration || !transfer.pieces.empty())) {
      // Whoever cancels: here for it, by the peer for the other.
      finish(id, transfer, Outcome::kCancelled, Cause::kCancelledByPeer, automatic_);
    }
  } else {
    advance(id, transfer);
  }
  changed_.notify_all();
  return {};
}

void FakeHub::advance(TransferId id, Transfer& transfer) {
  if (transfer.ended && !transfer.pieces.empty() && transfer.pieces.back().last &&
      !transfer.prefill_told) {
    finish(id, transfer, Outcome::kFailed, Cause::kUnknownTransfer, true);
  }
  if (transfer.ended || !transfer.registration || transfer.pieces.empty()) return;
  if (!transfer.pieces.back().last || !automatic_) return;
  copy(transfer);
  finish(id, transfer, Outcome::kDone, Cause::kNone, true);
}

void FakeHub::copy(const Transfer& transfer) {
  std::vector<BlockId> from;
  std::uint32_t at = 0;
  for (const ReadyPiece& piece : transfer.pieces) {
    BATON_CHECK(piece.range.begin == at, "pieces have a gap at token {}", at);
    at = piece.range.end;
    from.insert(from.end(), piece.block_ids[0].begin(), piece.block_ids[0].end());
  }
  const Registration& registration = *transfer.registration;
  const std::uint32_t block_size = transfer.decode->geometry().block_size;
  BATON_CHECK(registration.range.end <= at && registration.range.begin % block_size == 0);
  if (registration.source) {
    BATON_CHECK(registration.source->range == TokenRange({0, at}));
    BATON_CHECK(registration.source->block_ids.at(0) == from, "not the blocks of P");
  } else {
    BATON_CHECK(registration.range.end == at);
  }
  from.erase(from.begin(), from.begin() + registration.range.begin / block_size);
  BATON_CHECK(registration.block_ids[0].size() <= from.size());
  from.resize(registration.block_ids[0].size());
  const Geometry& source = transfer.prefill->geometry();
  const Geometry& target = transfer.decode->geometry();
  for (std::size_t layer = 0; layer < source.regions.size(); ++layer) {
    const Region& read = source.regions[layer];
    const Region& write = target.regions[layer];
    BATON_CHECK(read.name == write.name && read.block_bytes == write.block_bytes);
    for (std::size_t i = 0; i < from.size(); ++i) {
      std::memcpy(write.base + registration.block_ids[0][i] * write.stride_bytes,
                  read.base + from[i] * read.stride_bytes, read.block_bytes);
      bytes_moved_ += read.block_bytes;
    }
  }
}

void FakeHub::finish(TransferId id, Transfer& transfer, Outcome outcome, Cause cause,
                     bool released) {
  transfer.ended = true;
  transfer.posted = true;
  Event event;
  event.transfer = id;
  event.outcome = outcome;
  event.cause = cause;
  if (outcome != Outcome::kDone) event.text = "said the test";
  if (transfer.registration && !transfer.decode_told) {
    transfer.decode_told = true;
    event.attempt = {transfer.registration->binding, transfer.registration->attempt};
    event.range = transfer.registration->range;
    event.side = Side::kDecode;
    event.blocks_released = released;
    const bool tells = outcome == Outcome::kDone && !keeps_first_token_;
    if (tells) event.first_token = transfer.pieces.back().first_token;
    if (transfer.decode != nullptr) transfer.decode->push(event);
  }
  if (!transfer.pieces.empty() && !transfer.prefill_told) {
    transfer.prefill_told = true;
    event.side = Side::kPrefill;
    event.blocks_released = true;
    event.first_token.reset();
    if (outcome == Outcome::kCancelled && !automatic_) {
      transfer.held = std::move(event);
    } else {
      tell_prefill(transfer, std::move(event));
    }
  }
  changed_.notify_all();
}

// D takes its registration back: P keeps its pieces for another one.
void FakeHub::withdraw(FakeAgent& agent, TransferId id) {
  const std::lock_guard lock(mutex_);
  Transfer& transfer = transfers_[id];
  if (transfer.ended || !transfer.registration) return;
  Event event;
  event.transfer = id;
  event.side = Side::kDecode;
  event.outcome = Outcome::kCancelled;
  event.cause = Cause::kCancelledHere;
  event.attempt = {transfer.registration->binding, transfer.registration->attempt};
  transfer.registration.reset();
  agent.push(std::move(event));
  changed_.notify_all();
}

Status FakeAgent::withdraw(TransferId transfer) {
  hub_->withdraw(*this, transfer);
  return {};
}

void FakeHub::tell_prefill(Transfer& transfer, Event event) {
  if (transfer.prefill != nullptr) transfer.prefill->push(std::move(event));
}

void FakeHub::drain(TransferId id) {
  const std::lock_guard lock(mutex_);
  Transfer& transfer = transfers_[id];
  BATON_CHECK(transfer.held.has_value());
  tell_prefill(transfer, *std::exchange(transfer.held, std::nullopt));
}

void FakeHub::post(TransferId id) {
  const std::lock_guard lock(mutex_);
  transfers_[id].posted = true;
  changed_.notify_all();
}

void FakeHub::keep_first_token() {
  const std::lock_guard lock(mutex_);
  keeps_first_token_ = true;
}

Status FakeHub::wait_posted(TransferId id, std::chrono::milliseconds at_most) {
  std::unique_lock lock(mutex_);
  Transfer& transfer = transfers_[id];
  transfer.waited = true;
  changed_.notify_all();
  if (transfer.ended) return baton::fail(Errc::kNotFound, "it has ended");
  transfer.waiting = true;
  changed_.wait_for(lock, at_most, [&transfer] { return transfer.posted; });
  transfer.waiting = false;
  if (transfer.posted) return {};
  return baton::fail(Errc::kDeadlineExceeded, "not posted yet");
}

void FakeHub::complete(TransferId id) {
  const std::lock_guard lock(mutex_);
  Transfer& transfer = transfers_[id];
  BATON_CHECK(!transfer.ended);
  copy(transfer);
  finish(id, transfer, Outcome::kDone, Cause::kNone, true);
}

void FakeHub::fail(TransferId id, Cause cause, bool released) {
  const std::lock_guard lock(mutex_);
  finish(id, transfers_[id], Outcome::kFailed, cause, released);
}

void FakeHub::end_prefill(TransferId id, Cause cause) {
  const std::lock_guard lock(mutex_);
  Transfer& transfer = transfers_[id];
  transfer.ended = transfer.prefill_told = true;
  Event event;
  event.transfer = id;
  event.side = Side::kPrefill;
  event.outcome = Outcome::kFailed;
  event.cause = cause;
  event.text = "said the test";
  event.blocks_released = true;
  tell_prefill(transfer, std::move(event));
}

void FakeHub::release(TransferId id) {
  const std::lock_guard lock(mutex_);
  const Transfer& transfer = transfers_[id];
  Event event;
  event.kind = Event::Kind::kReleased;
  event.side = Side::kDecode;
  event.transfer = id;
  event.attempt = {transfer.registration->binding, transfer.registration->attempt};
  transfer.decode->push(event);
}

void FakeHub::change_first_token(TransferId id, TokenId token) {
  const std::lock_guard lock(mutex_);
  transfers_[id].pieces.back().first_token = token;
}

bool FakeHub::wait(TransferId id, const std::function<bool(const Transfer&)>& condition) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::seconds(10),
                           [&] { return condition(transfers_[id]); });
}

FakeHub::Transfer FakeHub::get(TransferId id) {
  const std::lock_guard lock(mutex_);
  return transfers_[id];
}

std::uint64_t FakeHub::bytes_moved() {
  const std::lock_guard lock(mutex_);
  return bytes_moved_;
}

std::size_t FakeHub::open_transfers() {
  const std::lock_guard lock(mutex_);
  std::size_t open = 0;
  for (const auto& [id, transfer] : transfers_)
    open += transfer.ended || transfer.cancelled ? 0 : 1;
  return open;
}

void FakeHub::forget(const FakeAgent& agent) {
  const std::lock_guard lock(mutex_);
  for (auto& [id, transfer] : transfers_) {
    if (transfer.prefill == &agent) transfer.prefill = nullptr;
    if (transfer.decode == &agent) transfer.decode = nullptr;
  }
}

FakeAgent::FakeAgent(FakeHub& hub, const AgentOptions& options, Geometry geometry)
    : hub_(&hub),
      id_{options.engine_id, 1},
      mode_(options.mode),
      geometry_(std::move(geometry)),
      event_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

FakeAgent::~FakeAgent() {
  hub_->forget(*this);
}

Status FakeAgent::claim(TransferId transfer, const PeerAddress&) {
  return hub_->submit(FakeHub::Call::kClaim, *this, transfer,
                      [](FakeHub::Transfer& t) { t.claimed = true; });
}

Status FakeAgent::register_blocks(Registration registration) {
  const TransferId transfer = registration.transfer;
  return hub_->submit(FakeHub::Call::kRegister, *this, transfer, [&](FakeHub::Transfer& t) {
    BATON_CHECK(t.claimed && !t.registration);
    BATON_CHECK(registration.source.has_value() == (mode_ == Mode::kPull));
    t.registration = std::move(registration);
  });
}

Status FakeAgent::wait_posted(TransferId transfer, std::chrono::milliseconds at_most) {
  BATON_CHECK(mode_ == Mode::kPull);
  return hub_->wait_posted(transfer, at_most);
}

Status FakeAgent::expect(TransferId transfer, std::uint32_t) {
  return hub_->submit(FakeHub::Call::kExpect, *this, transfer,
                      [](FakeHub::Transfer& t) { t.expected = true; });
}

Status FakeAgent::ready(ReadyPiece piece) {
  const TransferId transfer = piece.transfer;
  return hub_->submit(FakeHub::Call::kReady, *this, transfer, [&](FakeHub::Transfer& t) {
    BATON_CHECK(t.expected);
    t.pieces.push_back(std::move(piece));
  });
}

Status FakeAgent::cancel(TransferId transfer) {
  return hub_->submit(FakeHub::Call::kCancel, *this, transfer, [](FakeHub::Transfer&) {});
}

void FakeAgent::push(Event event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
  const std::uint64_t one = 1;
  (void)!::write(event_fd_.get(), &one, sizeof one);
}

std::size_t FakeAgent::poll_events(std::span<Event> out) {
  const std::lock_guard lock(mutex_);
  std::uint64_t count = 0;
  (void)!::read(event_fd_.get(), &count, sizeof count);
  std::size_t n = 0;
  while (n < out.size() && !events_.empty()) {
    out[n++] = std::move(events_.front());
    events_.pop_front();
  }
  if (!events_.empty()) {
    const std::uint64_t one = 1;
    (void)!::write(event_fd_.get(), &one, sizeof one);
  }
  return n;
}

}  // namespace baton::engine
