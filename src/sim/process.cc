#include "sim/process.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "sim/world.h"
#include "wire/messages.h"

namespace baton::sim {
namespace {

using handover::Inbound;
using handover::LinkId;
using handover::Outbound;
using handover::WriteOp;

constexpr int kWorkMax = 10'000;  // rounds of work in one turn: more is a machine that never rests

std::uint32_t to_value(Inbound id) {
  return static_cast<std::uint32_t>(id);
}
std::uint32_t to_value(Outbound id) {
  return static_cast<std::uint32_t>(id);
}

// Two requests under one id have different bytes.
TransferId bytes_of(TransferId transfer, std::uint64_t announcement) {
  return {transfer.high + announcement, transfer.low};
}

}  // namespace

Process::Process(World& world, Place p, const handover::Config& c, Pool memory,
                 std::unique_ptr<fabric::Fabric> f)
    : place(std::move(p)),
      config(c),
      pool(std::move(memory)),
      fabric(std::move(f)),
      world_(world),
      hasher_(pool.geometry),
      owner_(pool.blocks(), nullptr),
      posted_of_(pool.blocks(), 0) {
  config.geometry = pool.geometry;
  if (const Status status = fabric->register_regions(pool.geometry.regions); !status) {
    fault(Checker::kBooks, status.error().message);
  }
  if (config.role != Role::kProducer) decode.emplace(config, *this, metrics);
  if (config.role != Role::kConsumer) prefill.emplace(config, *this, metrics);
}

Process::~Process() = default;

Time Process::clock() const {
  return world_.now() + place.skew;
}

void Process::note(const char* event, TransferId transfer, std::string_view word,
                   std::uint64_t number) const {
  Line line;
  line.at = world_.now();
  std::copy_n(place.short_name.begin(), std::min(place.short_name.size(), line.process.size() - 1),
              line.process.begin());
  line.event = event;
  line.transfer = transfer.low;
  line.word = word;
  line.number = number;
  world_.journal.note(line);
}

void Process::fault(Checker checker, std::string text) const {
  world_.fault(checker, config.id.engine_id + ": " + std::move(text));
}

Time Process::next_deadline() const {
  Time at = kNever;
  if (decode) at = std::min(at, decode->next_deadline());
  if (prefill) at = std::min(at, prefill->next_deadline());
  return at == kNever ? kNever : at - place.skew;
}

void Process::stop_machines() {
  decode.reset();
  prefill.reset();
}

void Process::drain() {
  draining = true;
  submit([](Process& self, Time now) {
    if (self.decode) self.decode->drain(now);
    if (self.prefill) self.prefill->drain(now);
  });
}

// ---- the owner thread ----

void Process::turn() {
  const Time now = clock();
  std::array<fabric::FabricEvent, 16> batch;
  for (std::size_t n = fabric->poll(batch); n > 0; n = fabric->poll(batch)) {
    for (std::size_t i = 0; i < n; ++i) handle(batch[i]);
  }
  while (!submissions_.empty()) {
    const auto call = std::move(submissions_.front());
    submissions_.pop_front();
    call(*this, now);
    ++calls_;
    if (submissions_.empty()) {
      for (; !backlog_.empty() && submissions_.size() < kQueue; backlog_.pop_front()) {
        submissions_.push_back(std::move(backlog_.front()));
      }
    }
  }
  if (decode) decode->on_time(now);
  if (prefill) prefill->on_time(now);
  int rounds = 0;
  for (bool more = true; more;) {
    more = decode && decode->work(now);
    if (prefill && prefill->work(now)) more = true;
    if (++rounds > kWorkMax) return fault(Checker::kQueues, "work() never rests");
  }
  if (!engine_stalled) take_events();
}

void Process::submit(std::function<void(Process&, Time)> call) {
  if (queue_has_room()) return submissions_.push_back(std::move(call));
  world_.journal.mark(Mark::queue_full);
  backlog_.push_back(std::move(call));
}

void Process::receive(LinkId link, bool dialled, const wire::Frame& frame) {
  const Time now = clock();
  watch(frame);
  dialled ? decode->on_frame(link, frame, now) : prefill->on_frame(link, frame, now);
}

void Process::cancel(TransferId transfer, Time now) {
  if (decode) decode->cancel(transfer, now);
  if (prefill) prefill->cancel(transfer, now);
}

void Process::take_events() {
  // A transfer that is refused, superseded and registered again may have several ends waiting. And
  // where this thread stood still, each call that the engine made meanwhile may have been refused.
  const std::size_t most = std::max<std::size_t>(8 * std::size_t{config.transfers_max}, calls_);
  if (events_.size() > most) {
    fault(Checker::kQueues, fmt::format("{} events wait, of {} calls", events_.size(), calls_));
  }
  calls_ = 0;
  while (!events_.empty()) {
    const Event event = std::move(events_.front());
    events_.pop_front();
    event.side == Side::kDecode ? on_decode_event(event) : on_prefill_event(event);
  }
}

void Process::handle_pull(const fabric::FabricEvent& event) {
  using Kind = fabric::FabricEvent::Kind;
  const Time now = clock();
  const Outbound out{event.outbound.value};
  switch (event.kind) {
    case Kind::kConnected:
      note("connected");
      return decode->on_connected(out, now);
    case Kind::kConnectFailed:
      note("connect failed");
      world_.journal.mark(Mark::connect_failed);
      return decode->on_connect_failed(out, event.error, now);
    case Kind::kReadDone:
      note("read done");
      return decode->on_read_done(completed(event.context), now);
    case Kind::kReadFailed:
      note("read failed");
      world_.journal.mark(Mark::read_failed);
      return decode->on_read_failed(completed(event.context), event.error, now, event.over);
    case Kind::kOutboundClosed:
      note("closed");
      return decode->on_outbound_closed(out, now);
    case Kind::kInboundFenced:
      return prefill->on_fenced(Inbound{event.inbound.value}, now);
    case Kind::kImmediate:
    case Kind::kWriteDone:
    case Kind::kWriteFailed:
      return fault(Checker::kMessages, "something was written in pull mode");
  }
}

void Process::handle(const fabric::FabricEvent& event) {
  if (config.mode == Mode::kPull) return handle_pull(event);
  using Kind = fabric::FabricEvent::Kind;
  const Time now = clock();
  const Outbound out{event.outbound.value};
  const Inbound in{event.inbound.value};
  switch (event.kind) {
    case Kind::kConnected:
      note("connected");
      return prefill->on_connected(out, now);
    case Kind::kConnectFailed:
      note("connect failed");
      world_.journal.mark(Mark::connect_failed);
      return prefill->on_connect_failed(out, event.error, now);
    case Kind::kWriteDone:
      note("write done");
      return prefill->on_write_done(completed(event.context), now);
    case Kind::kWriteFailed:
      note("write failed");
      world_.journal.mark(Mark::write_failed);
      return prefill->on_write_failed(completed(event.context), event.error, now);
    case Kind::kReadDone:
    case Kind::kReadFailed:
      BATON_CHECK(false, "a read completed and none was posted");
      return;
    case Kind::kOutboundClosed:
      return prefill->on_outbound_closed(out, now);
    case Kind::kImmediate:
      return on_immediate(event);
    case Kind::kInboundFenced:
      note("fenced");
      fencing_ = true;
      decode->on_fenced(in, now);
      fencing_ = false;
      return;
  }
}

void Process::on_immediate(const fabric::FabricEvent& event) {
  const bool chosen = world_.lose_immediates > 0 && world_.skip_immediates-- <= 0;
  if (chosen || world_.choices.chance(world_.weather.lost_immediates)) {
    if (chosen) --world_.lose_immediates;
    note("immediate lost");
    return world_.journal.mark(Mark::lost_immediate);
  }
  const std::uint64_t unknown = metrics.immediates_unknown.value();
  note("immediate", {}, {}, event.immediate);
  const fabric::sim::Stats& stats = world_.network.stats();
  if (stats.bytes_landed + stats.bytes_dropped < world_.bytes_posted) {
    world_.journal.mark(Mark::early_immediate);  // data of other writes is still on its way
  }
  decode->on_immediate(Inbound{event.inbound.value}, event.immediate, clock());
  if (world_.repeat_immediates.count() >= 0) {
    world_.later(world_.repeat_immediates, [this, inbound = event.inbound, event] {
      if (alive) decode->on_immediate(Inbound{inbound.value}, event.immediate, clock());
    });
  }
  if (metrics.immediates_unknown.value() != unknown) world_.journal.mark(Mark::stale_immediate);
}

// What the checkers must know of a message before it arrives.
void Process::watch(const wire::Frame& frame) {
  using wire::MessageType;
  const bool to_prefill = frame.type == MessageType::kRenew ||
                          frame.type == MessageType::kRegister ||
                          frame.type == MessageType::kCancel;
  if (!to_prefill && frame.type != MessageType::kStopped) return;
  const auto message = wire::decode(frame);
  if (!message) return;
  const auto may_renew = [&](TransferId id) {
    const auto found = prompts_.find(id);
    if (found != prompts_.end()) found->second.renewed_maybe = clock();
  };
  if (const auto* renew = std::get_if<wire::Renew>(&*message)) {
    for (const TransferId& id : renew->transfers) may_renew(id);
  } else if (const auto* registration = std::get_if<wire::Register>(&*message)) {
    may_renew(registration->transfer);
    Epoch& last = registered_[registration->transfer];
    if (last == registration->grant.epoch) world_.journal.mark(Mark::duplicate_register);
    last = registration->grant.epoch;
  } else if (const auto* cancel = std::get_if<wire::Cancel>(&*message)) {
    may_renew(cancel->key.transfer);
    if (cancel->key.epoch == 0) world_.journal.mark(Mark::claim_cancelled);
  } else if (const auto* stopped = std::get_if<wire::Stopped>(&*message)) {
    if (stopped->again) world_.journal.mark(Mark::grant_again);
  }
}

// ---- the engine at D ----

bool Process::room_for(TokenRange range) const {
  const std::uint32_t size = pool.geometry.block_size;
  const std::uint32_t wanted = range.empty() ? 0 : (range.end - 1) / size + 1 - range.begin / size;
  return wanted <= pool.free_blocks();
}

void Process::reserve_and_register(const Key& key, const PeerAddress& peer, TokenRange range,
                                   std::uint32_t prompt, std::uint32_t peer_number,
                                   const std::optional<SourceBlocks>& source) {
  const std::uint32_t size = pool.geometry.block_size;
  const std::uint32_t wanted = range.empty() ? 0 : (range.end - 1) / size + 1 - range.begin / size;
  BATON_CHECK(wanted <= pool.free_blocks());
  Held& held = held_[key];
  held.range = range;
  held.since = world_.now();
  held.peer = peer.incarnation != 0 ? peer_number : UINT32_MAX;
  held.announcement = source ? source->announcement : 0;
  for (std::uint32_t i = 0; i < wanted; ++i) {
    const BlockId block = *pool.take(world_.settings.fixed_delays ? 1 : world_.choices.pick(1000));
    check_unwritten(block);
    held.blocks.push_back(block);
    owner_[block] = &held;
  }
  ++open_held_;
  if (range.empty()) world_.journal.mark(Mark::nothing_wanted);
  if (range.begin > 0 && !range.empty()) world_.journal.mark(Mark::part_wanted);
  Registration registration;
  registration.transfer = key.first;
  registration.binding = key.second.binding;
  registration.attempt = key.second.attempt;
  registration.peer = peer;
  registration.range = range;
  registration.block_ids = {held.blocks};
  registration.prompt_tokens = prompt;
  registration.source = source;
  registration.deadline = registration_deadline;
  note("register", key.first, {}, key.second.binding * 1000 + key.second.attempt);
  submit([registration = std::move(registration)](Process& self, Time now) mutable {
    if (self.decode) self.decode->register_blocks(std::move(registration), now);
  });
}

void Process::check_unwritten(BlockId block) const {
  if (!decode) return;
  if (const std::string bad = pool.first_other_than(block, kPoison); !bad.empty()) {
    fault(Checker::kLateByte, "written after it was released: " + bad);
  }
}

void Process::check_received(const Key& key, std::string_view when) {
  const Held& held = held_.at(key);
  const std::uint32_t size = pool.geometry.block_size;
  for (std::uint32_t token = held.range.begin; token < held.range.end; ++token) {
    const BlockId block = held.blocks[(token - held.range.begin) / size];
    const TransferId bytes = bytes_of(key.first, held.announcement);
    if (const std::string bad = pool.check_token(bytes, token, block); !bad.empty()) {
      return fault(Checker::kEarlyRead, fmt::format("{}: {}", when, bad));
    }
  }
}

void Process::give_back(Held& held) {
  if (held.gone) return fault(Checker::kBooks, "blocks of one attempt were released twice");
  held.gone = true;
  --open_held_;
  for (const BlockId block : held.blocks) {
    if (posted_of_[block] != 0) {
      fault(Checker::kLateByte,
            fmt::format("block {} came back under {} reads into it", block, posted_of_[block]));
    }
    pool.give_back(block, kPoison);
    owner_[block] = nullptr;
  }
}

void Process::release_done(const Key& key) {
  check_received(key, "while decoding");
  give_back(held_.at(key));
}

void Process::on_decode_event(const Event& event) {
  const auto found = held_.find({event.transfer, event.attempt});
  if (found == held_.end()) {
    return fault(Checker::kOneEnd, "an event for an attempt that was never made");
  }
  Held& held = found->second;
  if (event.kind == Event::Kind::kReleased) {
    note("released", event.transfer);
    if (held.ends != 1) fault(Checker::kOneEnd, "a release before the end");
    quarantined_ -= held.blocks.size();
    if (pool.digest(held.blocks) != held.bytes_at_end) {
      world_.journal.mark(Mark::landed_after_cancel);
    }
    give_back(held);
    return check_quarantine();
  }
  note("decode ended", event.transfer, to_string(event.cause),
       static_cast<std::uint64_t>(event.outcome));
  world_.journal.count("decode", to_string(event.outcome), to_string(event.cause));
  mark_cause(event);
  // P announces what it posted: more can only be counted from another attempt's writes [I6].
  if (event.cause == Cause::kRefused && world_.repeat_immediates.count() < 0 &&
      event.text.find("were counted") != std::string::npos) {
    fault(Checker::kStale, fmt::format("transfer {}: {}", event.transfer.low, event.text));
  }
  if (++held.ends != 1) {
    return fault(Checker::kOneEnd, "an attempt ended twice at the decode side");
  }
  if (config.mode == Mode::kPull && event.outcome == Outcome::kDone && event.bytes > 0) {
    world_.journal.mark(Mark::pulled);
  }
  if (config.mode == Mode::kPull && event.outcome != Outcome::kDone && held.posted > 0) {
    world_.journal.mark(Mark::pull_discarded);
  }
  if (event.outcome == Outcome::kDone) {
    check_done(event, held);
  } else if (event.blocks_released) {
    give_back(held);
  } else {
    quarantined_ += held.blocks.size();
    held.bytes_at_end = pool.digest(held.blocks);
  }
  check_quarantine();
  if (world_.engines != nullptr) world_.engines->decode_ended(*this, event);
}

void Process::check_done(const Event& event, Held& held) {
  held.done = true;
  if (draining) world_.journal.mark(Mark::done_while_draining);
  if (held.peer != UINT32_MAX &&
      world_.process(held.peer).config.version_max != config.version_max) {
    world_.journal.mark(Mark::unlike_versions);
  }
  if (place.odd) fault(Checker::kMessages, "a hand-over between unlike models");
  const std::uint64_t needed = held.blocks.size() * pool.bytes_per_block();
  if (event.bytes != needed) {
    fault(Checker::kBytes,
          fmt::format("{} bytes were received, {} are needed", event.bytes, needed));
  }
  if (held.posted != needed) {
    fault(Checker::kBytes, fmt::format("{} bytes were posted into transfer {}, {} are needed",
                                       held.posted, event.transfer.low, needed));
  }
  if (event.blocks_verified > 0) world_.journal.mark(Mark::verified);
  if (metrics.retransmits.value() > 0) world_.journal.mark(Mark::done_after_resend);
  if (held.announcement != 0) check_vouched(event, held);
  check_received({event.transfer, event.attempt}, "when told");
}

// Pull: D may use what it read only if P still held it when D said so. Whether the bytes were
// overwritten since is chance.
void Process::check_vouched(const Event& event, const Held& held) const {
  if (held.peer == UINT32_MAX) return;
  const auto& prompts = world_.process(held.peer).prompts_;
  const auto found = prompts.find(event.transfer);
  if (found == prompts.end() || found->second.announcement != held.announcement) return;
  const Prompt& p = found->second;
  if (!p.over || p.outcome == Outcome::kDone) return;
  fault(Checker::kLease,
        fmt::format("what was read of transfer {} was used, and P had ended it as {}",
                    event.transfer.low, to_string(p.outcome)));
}

// What the agent holds back and what the engine has not got back are the same blocks. Events under
// way make the two differ for a moment, so it is asked when none is left.
void Process::check_quarantine() {
  if (!events_.empty() || !decode) return;
  if (decode->quarantined_blocks() != quarantined_) {
    fault(Checker::kBooks, fmt::format("{} blocks are quarantined, the engine misses {}",
                                       decode->quarantined_blocks(), quarantined_));
  }
}

// ---- the engine at P ----

bool Process::begin_prefill(TransferId transfer, std::uint32_t prompt) {
  const std::uint32_t wanted = (prompt + pool.geometry.block_size - 1) / pool.geometry.block_size;
  if (wanted > pool.free_blocks()) return false;
  Prompt& p = prompts_[transfer];
  p = Prompt{};
  ++open_prompts_;
  p.tokens = prompt;
  if (config.mode == Mode::kPull) p.announcement = ++announcements_;
  for (std::uint32_t i = 0; i < wanted; ++i) {
    p.blocks.push_back(*pool.take(world_.settings.fixed_delays ? 1 : world_.choices.pick(1000)));
    check_unwritten(p.blocks.back());
    pool.fill(p.blocks.back(), kGarbage);
  }
  return true;
}

bool Process::reuse_id(TransferId transfer) {
  const auto found = prompts_.find(transfer);
  if (found == prompts_.end() || !found->second.over || found->second.had.empty()) return false;
  const std::vector<BlockId> blocks = found->second.had;
  const std::uint32_t tokens = found->second.tokens;
  if (!pool.take_these(blocks)) return false;
  Prompt& p = found->second = Prompt{};
  ++open_prompts_;
  p.tokens = tokens;
  p.announcement = ++announcements_;
  p.blocks = blocks;
  for (const BlockId block : blocks) {
    check_unwritten(block);
    pool.fill(block, kGarbage);
  }
  submit([transfer, tokens](Process& self, Time now) {
    if (self.prefill) self.expect(transfer, tokens, now);
  });
  compute_piece(transfer, tokens, TokenId{7});
  return true;
}

bool Process::prefill_running(TransferId transfer) const {
  const auto found = prompts_.find(transfer);
  return found != prompts_.end() && !found->second.over;
}

bool Process::prefill_computing(TransferId transfer) const {
  return prefill_running(transfer) && prompts_.at(transfer).computed < prompts_.at(transfer).tokens;
}

bool Process::prefill_handed_in(TransferId transfer) const {
  const auto found = prompts_.find(transfer);
  return found != prompts_.end() && found->second.handed_in;
}

std::optional<SourceBlocks> Process::announced(TransferId transfer) const {
  const auto found = prompts_.find(transfer);
  if (found == prompts_.end() || found->second.over || !found->second.last) return std::nullopt;
  const Prompt& p = found->second;
  return SourceBlocks{{0, p.tokens}, {p.blocks}, p.announcement};
}

void Process::compute_piece(TransferId transfer, std::uint32_t tokens,
                            std::optional<TokenId> first_token) {
  Prompt& p = prompts_.at(transfer);
  const std::uint32_t size = pool.geometry.block_size;
  const std::uint32_t end = std::min(p.tokens, p.computed + tokens);
  ReadyPiece piece;
  piece.transfer = transfer;
  piece.range = {p.computed, end};
  piece.last = end == p.tokens;
  if (piece.last) piece.first_token = first_token;
  if (piece.last) piece.announcement = p.announcement;
  piece.block_ids.resize(1);
  for (std::uint32_t token = p.computed; token < end; ++token) {
    const BlockId block = p.blocks[token / size];
    pool.write_token(bytes_of(transfer, p.announcement), token, block);
    if (token % size == 0) piece.block_ids[0].push_back(block);
  }
  p.computed = end;
  p.handed_in = true;
  note("ready", transfer, piece.last ? "last" : "", end);
  submit([piece = std::move(piece)](Process& self, Time now) mutable {
    if (!self.prefill) return;
    if (piece.last) {
      Prompt& prompt = self.prompts_.at(piece.transfer);
      prompt.last = true;
      prompt.renewed_surely = prompt.renewed_maybe = now;
    }
    self.prefill->ready(std::move(piece), now);
  });
}

void Process::expect(TransferId transfer, std::uint32_t tokens, Time now) {
  note("expect", transfer, {}, tokens);
  prefill->expect(transfer, tokens, now);
}

void Process::drop_prompt(TransferId transfer) {
  Prompt& p = prompts_.at(transfer);
  BATON_CHECK(!p.handed_in && !p.over);
  p.over = true;
  --open_prompts_;
  for (const BlockId block : p.blocks) pool.give_back(block, free_fill());
  p.blocks.clear();
}

void Process::abandon_prefill(TransferId transfer) {
  // Nothing reads blocks that were not handed in, and there may be no event: whether one comes
  // does not matter then.
  if (prefill_running(transfer) && !prompts_.at(transfer).handed_in) drop_prompt(transfer);
  note("cancel", transfer);
  submit([transfer](Process& self, Time now) {
    self.note("cancelled", transfer);
    self.cancel(transfer, now);
  });
}

void Process::on_prefill_event(const Event& event) {
  const auto found = prompts_.find(event.transfer);
  note("prefill ended", event.transfer, to_string(event.cause),
       static_cast<std::uint64_t>(event.outcome));
  if (found == prompts_.end()) {
    // Expected, and ended by the other side before blocks were taken.
    if (world_.engines != nullptr) world_.engines->prefill_ended(*this, event);
    return;
  }
  Prompt& p = found->second;
  if (p.over) {
    if (p.handed_in) fault(Checker::kOneEnd, "a transfer ended twice at the prefill side");
    if (!p.handed_in && world_.engines != nullptr) world_.engines->prefill_ended(*this, event);
    return;
  }
  world_.journal.count("prefill", to_string(event.outcome), to_string(event.cause));
  if (draining && event.outcome == Outcome::kDone) world_.journal.mark(Mark::done_while_draining);
  if (event.cause == Cause::kLeaseExpired) world_.journal.mark(Mark::lease_expired);
  check_lease(event, p);
  check_computed(event.transfer, p);
  p.over = true;
  p.outcome = event.outcome;
  --open_prompts_;
  for (const BlockId block : p.blocks) {  // [I2]: unread from here on
    if (posted_of_[block] != 0) {
      fault(Checker::kSourceReused,
            fmt::format("block {} of transfer {} came back while {} writes from it are posted",
                        block, event.transfer.low, posted_of_[block]));
    }
    pool.give_back(block, free_fill());
  }
  p.had = std::move(p.blocks);
  p.blocks.clear();
  if (world_.engines != nullptr) world_.engines->prefill_ended(*this, event);
}

// Where the process is D as well, others write into this pool: never into a prompt of P [I1].
void Process::check_computed(TransferId transfer, const Prompt& p) const {
  if (!decode) return;
  const std::uint32_t size = pool.geometry.block_size;
  for (std::uint32_t token = 0; token < p.computed; ++token) {
    const TransferId bytes = bytes_of(transfer, p.announcement);
    const std::string bad = pool.check_token(bytes, token, p.blocks[token / size]);
    if (!bad.empty()) return fault(Checker::kLateByte, "a prompt was written over: " + bad);
  }
}

// A lease ends exactly one lease after the last word; later only under a posted write, or if this
// process stood still.
void Process::check_lease(const Event& event, const Prompt& p) {
  if (!p.last) return;
  const Time told{Duration(event.times.told)};
  const Time latest = p.renewed_maybe + config.lease;
  if (event.cause == Cause::kLeaseExpired && told < p.renewed_surely + config.lease) {
    fault(Checker::kLease, fmt::format("the lease of transfer {} ended early", event.transfer.low));
  }
  const bool stood = world_.settings.fixed_delays || stalled_until + place.skew > latest;
  if (told > latest + world_.settings.resend_min && !stood && last_completion_ < told) {
    fault(Checker::kLease,
          fmt::format("transfer {} was held {} us after its lease", event.transfer.low,
                      (told - latest) / std::chrono::microseconds(1)));
  }
  if (event.cause == Cause::kLeaseExpired && last_completion_ >= latest) {
    world_.journal.mark(Mark::expired_under_write);
  }
}

void Process::mark_cause(const Event& event) const {
  Journal& journal = world_.journal;
  if (place.odd && event.cause == Cause::kRefused) journal.mark(Mark::unlike_refused);
  if (event.cause == Cause::kRefused && event.text.find("peers") != std::string::npos) {
    journal.mark(Mark::peers_full);
  }
  if (event.text.find("draining") != std::string::npos) journal.mark(Mark::drain_refused);
  if (event.text.find("quarantine_blocks_max") != std::string::npos) {
    journal.mark(Mark::quarantine_held);
  }
  switch (event.cause) {
    case Cause::kPeerUnreachable:
      return journal.mark(Mark::peer_unreachable);
    case Cause::kPeerDied:
      return journal.mark(Mark::peer_died);
    case Cause::kPeerSilent:
      return journal.mark(Mark::peer_silent);
    case Cause::kPeerRestarted:
      return journal.mark(Mark::peer_restarted);
    case Cause::kUnknownTransfer:
      return journal.mark(Mark::unknown_transfer);
    case Cause::kDeadline:
      return journal.mark(Mark::registration_deadline);
    case Cause::kNone:
    case Cause::kCancelledHere:
    case Cause::kCancelledByPeer:
    case Cause::kSuperseded:
    case Cause::kRefused:
    case Cause::kLeaseExpired:
    case Cause::kFabric:
    case Cause::kCorrupt:
    case Cause::kShutdown:
      return;
  }
}

// ---- the end ----

void Process::fingerprint(const std::function<void(std::uint64_t)>& add) const {
  add((stalled ? 1U : 0U) + (engine_stalled ? 2U : 0U));
  if (decode) add(decode->open_transfers() * 4096ULL + decode->quarantined_blocks());
  if (prefill) add(prefill->open_transfers() * 4096ULL + prefill->writes_in_flight());
  std::uint64_t books = 0;
  for (const auto& [key, held] : held_) {
    books += (key.first.low * 4099 + key.second.attempt * 64 + key.second.binding * 512) *
             (1 + static_cast<std::uint64_t>(held.ends) * 2 + (held.gone ? 8 : 0) + held.posted);
  }
  for (const auto& [id, p] : prompts_)
    books += id.low * 8191 * (1 + p.computed + (p.over ? 64 : 0));
  add(books);
  add(metrics.stale_messages.value() > 0 ? 1 : 0);
}

bool Process::quiet() const {
  if (open_held_ != 0 || open_prompts_ != 0 || !submissions_.empty() || !events_.empty()) {
    return false;
  }
  return (!decode || decode->idle()) && (!prefill || prefill->idle());
}

std::string Process::what_is_left() const {
  std::string out =
      fmt::format("{}: {} attempts and {} prompts hold blocks, {} calls wait", config.id.engine_id,
                  open_held_, open_prompts_, submissions_.size() + backlog_.size());
  if (decode) {
    out += fmt::format(", {} open, {} blocks quarantined{}", decode->open_transfers(),
                       decode->quarantined_blocks(), decode->idle() ? "" : ", decode not idle");
  }
  if (prefill) {
    out += fmt::format(", {} open, {} writes in flight{}", prefill->open_transfers(),
                       prefill->writes_in_flight(), prefill->idle() ? "" : ", prefill not idle");
  }
  return out;
}

void Process::check_at_end() {
  for (const auto& [key, held] : held_) {
    if (held.ends != 1) {
      fault(Checker::kOneEnd,
            fmt::format("attempt ({}, {}) of transfer {} ended {} times", key.second.binding,
                        key.second.attempt, key.first.low, held.ends));
    }
  }
  for (const auto& [id, p] : prompts_) {
    if (!p.over) fault(Checker::kOneEnd, fmt::format("transfer {} never ended at P", id.low));
  }
  if (pool.free_blocks() != pool.blocks()) {
    fault(Checker::kBooks,
          fmt::format("{} of {} blocks are free at the end", pool.free_blocks(), pool.blocks()));
  }
  if (decode && (!decode->idle() || decode->quarantined_blocks() != 0)) {
    fault(Checker::kIdle, "the decode side is not idle at the end");
  }
  if (prefill && (!prefill->idle() || prefill->writes_in_flight() != 0)) {
    fault(Checker::kIdle, "the prefill side is not idle at the end");
  }
  if (!decode) return;
  for (BlockId block = 0; block < pool.blocks(); ++block) {
    if (owner_[block] != nullptr) continue;
    if (const std::string bad = pool.first_other_than(block, kPoison); !bad.empty()) {
      return fault(Checker::kLateByte, "a free block was written: " + bad);
    }
  }
}

// ---- Port ----

LinkId Process::dial(const PeerAddress& peer) {
  return world_.new_link(place.number, peer);
}
void Process::hang_up(LinkId link) {
  world_.hang_up(place.number, link);
}
void Process::send(LinkId link, std::span<const std::byte> frame) {
  world_.carry(place.number, link, frame);
}

Result<handover::Port::InboundOffer> Process::open_inbound(const PeerId& writer) {
  auto opened = fabric->open_inbound(writer, fabric::Access::kWrite);
  if (!opened) return tl::unexpected(opened.error());
  return InboundOffer{Inbound{opened->id.value}, std::move(opened->offer)};
}
Result<handover::Port::InboundOffer> Process::open_source(const PeerId& reader) {
  auto opened = fabric->open_inbound(reader, fabric::Access::kRead);
  if (!opened) return tl::unexpected(opened.error());
  return InboundOffer{Inbound{opened->id.value}, std::move(opened->offer)};
}
void Process::fence_inbound(Inbound inbound) {
  fabric->fence_inbound({to_value(inbound)});
}

Result<Outbound> Process::connect(const PeerId& receiver, std::span<const std::byte> offer,
                                  std::span<const Region> regions) {
  const auto out = fabric->connect(receiver, offer, regions);
  if (!out) return tl::unexpected(out.error());
  receivers_.emplace_back(Outbound{out->value}, world_.number_of(receiver).value_or(UINT32_MAX));
  return Outbound{out->value};
}
void Process::close_outbound(Outbound outbound) {
  fabric->close_outbound({to_value(outbound)});
}

// Writes and reads alike: the places, and the books of what is out until it completes.
template <typename Op, typename FabricOp, typename Post>
Result<std::uint32_t> Process::hand_in(const Op& op, FabricOp& out, Post&& post) {
  const std::uint32_t slot = take_posted();
  check_place(op.remote_region, op.remote_offset, op.length);
  out.local_region = op.local_region;
  out.local_offset = op.local_offset;
  out.remote_region = op.remote_region;
  out.remote_offset = op.remote_offset;
  out.length = op.length;
  out.context = slot;
  if (Status status = post(); !status) {
    posted_free_.push_back(slot);
    return tl::unexpected(status.error());
  }
  keep_posted(slot, op.context, op.local_region, op.local_offset, op.length);
  return slot;
}

Status Process::post(const WriteOp& op) {
  if (world_.on_post) {
    if (Status status = world_.on_post(*this, op); !status) return status;
  }
  if (world_.choices.chance(world_.weather.submit_failures)) {
    world_.journal.mark(Mark::submit_failed);
    return fail(Errc::kIo, "the fabric refused the write");
  }
  fabric::Write write;
  write.to = {to_value(op.to)};
  write.immediate = op.immediate;
  const auto slot = hand_in(op, write, [&] { return fabric->post(write); });
  if (!slot) return tl::unexpected(slot.error());
  note("post", {}, op.immediate ? "with immediate" : "", op.length);
  count_peer(*slot, op.to);
  count_post(op);
  return {};
}

Status Process::post_read(const handover::ReadOp& op) {
  if (world_.choices.chance(world_.weather.submit_failures)) {
    world_.journal.mark(Mark::submit_failed);
    return fail(Errc::kIo, "the fabric refused the read");
  }
  fabric::Read read;
  read.from = {to_value(op.from)};
  const auto slot = hand_in(op, read, [&] { return fabric->post_read(read); });
  if (!slot) return tl::unexpected(slot.error());
  note("post read", {}, {}, op.length);
  count_peer(*slot, op.from);
  Held* held = owner_.at(posted_[*slot].first);
  if (held == nullptr) {
    fault(Checker::kLateByte, fmt::format("a read into free block {}", posted_[*slot].first));
  } else {
    held->posted += op.length;
  }
  return {};
}

std::uint32_t Process::take_posted() {
  if (posted_free_.empty()) {
    posted_.emplace_back();
    return static_cast<std::uint32_t>(posted_.size() - 1);
  }
  const std::uint32_t slot = posted_free_.back();
  posted_free_.pop_back();
  return slot;
}

void Process::keep_posted(std::uint32_t slot, std::uint64_t context, std::uint32_t index,
                          std::uint64_t offset, std::uint64_t length) {
  const Region& region = pool.geometry.regions[index];
  Posted& posted = posted_[slot];
  posted.context = context;
  posted.used = length > 0;
  if (!posted.used) return;
  posted.first = static_cast<std::uint32_t>(offset / region.stride_bytes);
  posted.last = static_cast<std::uint32_t>((offset + length - 1) / region.stride_bytes);
  for (std::uint32_t b = posted.first; b <= posted.last; ++b) ++posted_of_[b];
}

std::uint32_t Process::peer_through(Outbound through) const {
  std::uint32_t peer = UINT32_MAX;
  for (const auto& [outbound, number] : receivers_) {
    if (outbound == through) peer = number;
  }
  return peer;
}

void Process::count_peer(std::uint32_t slot, Outbound through) {
  const std::uint32_t peer = posted_[slot].peer = peer_through(through);
  if (peer == UINT32_MAX) return;
  ++posted_to_[peer];
  const Process* other = world_.alive(peer);
  if (other == nullptr) return;
  const auto back = other->posted_to_.find(place.number);
  if (back == other->posted_to_.end() || back->second == 0) return;
  world_.journal.mark(config.mode == Mode::kPull ? Mark::pulled_both_ways : Mark::pushed_both_ways);
}

// Whatever a registration said, no address outside of the peer's pool is formed [I7].
void Process::check_place(std::uint32_t index, std::uint64_t offset, std::uint64_t length) const {
  const Region& region = pool.geometry.regions.at(index);
  const std::uint64_t stride = region.block_bytes + 16;  // the widest that a process here has
  if (length > 0 && offset + length > stride * world_.settings.pool_blocks) {
    fault(Checker::kMessages,
          fmt::format("a place at {} of region {}, past its end", offset, region.name));
  }
}

// Books the bytes with the attempt that holds the target block at D now.
void Process::count_post(const WriteOp& op) {
  if (op.length == 0) return;
  world_.bytes_posted += op.length;
  const std::uint32_t to = peer_through(op.to);
  if (to == UINT32_MAX || world_.alive(to) == nullptr) return;
  Process& receiver = world_.process(to);
  const Region& region = receiver.pool.geometry.regions[op.remote_region];
  const auto block = static_cast<std::size_t>(op.remote_offset / region.stride_bytes);
  if (block >= receiver.owner_.size()) {
    return fault(Checker::kMessages,
                 fmt::format("a write to block {} of {}", block, receiver.owner_.size()));
  }
  if (Held* held = receiver.owner_[block]) held->posted += op.length;
}

std::uint64_t Process::completed(std::uint64_t slot) {
  Posted& posted = posted_.at(slot);
  if (posted.used) {
    for (std::uint32_t b = posted.first; b <= posted.last; ++b) --posted_of_[b];
  }
  posted.used = false;
  if (posted.peer != UINT32_MAX) --posted_to_.at(posted.peer);
  posted.peer = UINT32_MAX;
  posted_free_.push_back(static_cast<std::uint32_t>(slot));
  last_completion_ = clock();
  return posted.context;
}

std::uint64_t Process::hash_block(std::uint16_t group, BlockId block) {
  return hasher_.hash_block(group, block);
}

void Process::deliver(Event&& event) {
  if (event.kind == Event::Kind::kReleased) {
    world_.journal.mark(fencing_ ? Mark::fence_release : Mark::drained_release);
  }
  events_.push_back(std::move(event));
}

}  // namespace baton::sim
