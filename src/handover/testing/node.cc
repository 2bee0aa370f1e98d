#include "handover/testing/node.h"

#include <fmt/format.h>

#include <array>

namespace baton::handover::testing {
namespace {

std::uint32_t to_value(Inbound id) {
  return static_cast<std::uint32_t>(id);
}
std::uint32_t to_value(Outbound id) {
  return static_cast<std::uint32_t>(id);
}

}  // namespace

Node::Node(Surroundings& around, std::uint32_t n, const Config& c, Pool p,
           std::unique_ptr<fabric::Fabric> f)
    : number(n),
      config(c),
      pool(std::move(p)),
      fabric(std::move(f)),
      around_(around),
      hasher_(pool.geometry) {
  config.geometry = pool.geometry;
  if (const Status status = fabric->register_regions(pool.geometry.regions); !status) {
    around_.fault(status.error().message);
  }
  if (config.role != Role::kProducer) decode.emplace(config, *this, metrics);
  if (config.role != Role::kConsumer) prefill.emplace(config, *this, metrics);
}

Node::~Node() = default;

Time Node::next_deadline() const {
  Time at = kNever;
  if (decode) at = std::min(at, decode->next_deadline());
  if (prefill) at = std::min(at, prefill->next_deadline());
  return at;
}

void Node::turn() {
  const Time now = around_.now();
  std::array<fabric::FabricEvent, 16> batch;
  for (std::size_t n = fabric->poll(batch); n > 0; n = fabric->poll(batch)) {
    for (std::size_t i = 0; i < n; ++i) handle(batch[i]);
  }
  if (decode) decode->on_time(now);
  if (prefill) prefill->on_time(now);
  while ((decode && decode->work(now)) | (prefill && prefill->work(now))) {
  }
  while (!events_.empty()) {
    const Event event = std::move(events_.front());
    events_.pop_front();
    event.side == Side::kDecode ? on_decode_event(event) : on_prefill_event(event);
  }
}

void Node::handle(const fabric::FabricEvent& event) {
  using Kind = fabric::FabricEvent::Kind;
  const Time now = around_.now();
  const Outbound out{event.outbound.value};
  const Inbound in{event.inbound.value};
  switch (event.kind) {
    case Kind::kConnected:
      return prefill->on_connected(out, now);
    case Kind::kConnectFailed:
      return prefill->on_connect_failed(out, event.error, now);
    case Kind::kWriteDone:
      return prefill->on_write_done(event.context, now);
    case Kind::kWriteFailed:
      return prefill->on_write_failed(event.context, event.error, now);
    case Kind::kOutboundClosed:
      return prefill->on_outbound_closed(out, now);
    case Kind::kImmediate:
      return decode->on_immediate(in, event.immediate, now);
    case Kind::kInboundFenced:
      return decode->on_fenced(in, now);
  }
}

// ---- the engine at D ----

bool Node::reserve_and_register(TransferId transfer, baton::Attempt attempt,
                                const PeerAddress& peer, TokenRange range, std::uint32_t prompt) {
  const std::uint32_t block_size = pool.geometry.block_size;
  const std::uint32_t wanted =
      range.empty() ? 0 : (range.end - 1) / block_size + 1 - range.begin / block_size;
  if (wanted > pool.free_blocks()) return false;
  Held held;
  held.range = range;
  for (std::uint32_t i = 0; i < wanted; ++i) {
    const BlockId block = *pool.take(around_.pick(1000));
    if (const std::string bad = pool.first_other_than(block, kPoison); !bad.empty()) {
      around_.fault(
          fmt::format("[I1] {} was written after it was released: {}", config.id.to_string(), bad));
    }
    held.blocks.push_back(block);
  }
  Registration registration;
  registration.transfer = transfer;
  registration.binding = attempt.binding;
  registration.attempt = attempt.attempt;
  registration.peer = peer;
  registration.range = range;
  registration.block_ids = {held.blocks};
  registration.prompt_tokens = prompt;
  held_.emplace(AttemptKey{transfer, attempt}, std::move(held));
  decode->register_blocks(std::move(registration), around_.now());
  return true;
}

void Node::check_received(TransferId transfer, const Held& held, std::string_view when) {
  const std::uint32_t block_size = pool.geometry.block_size;
  for (std::uint32_t token = held.range.begin; token < held.range.end; ++token) {
    const BlockId block = held.blocks[(token - held.range.begin) / block_size];
    if (const std::string bad = pool.check_token(transfer, token, block); !bad.empty()) {
      return around_.fault(fmt::format("[I2] {}, {}: {}", config.id.to_string(), when, bad));
    }
  }
}

void Node::give_back(Held& held) {
  if (held.gone) return around_.fault("blocks of one attempt were released twice");
  held.gone = true;
  for (const BlockId block : held.blocks) pool.give_back(block, kPoison);
}

void Node::on_decode_event(const Event& event) {
  const auto found = held_.find({event.transfer, event.attempt});
  if (found == held_.end()) return around_.fault("an event for an attempt that was never made");
  Held& held = found->second;
  if (event.kind == Event::Kind::kReleased) {
    if (held.ends != 1) around_.fault("[I3] a release before the end");
    return give_back(held);
  }
  around_.count(fmt::format("decode {}({})", to_string(event.outcome), to_string(event.cause)));
  around_.note(fmt::format("node {}: decode {} ended {}({}): {}", number,
                           event.transfer.to_string(), to_string(event.outcome),
                           to_string(event.cause), event.text));
  if (++held.ends != 1) around_.fault("[I3] an attempt ended twice at the decode side");
  if (event.outcome != Outcome::kDone) {
    if (event.blocks_released) give_back(held);
    return;
  }
  if (event.bytes != held.blocks.size() * pool.bytes_per_block()) {
    around_.fault(fmt::format("[I8] {} bytes were received, {} are needed", event.bytes,
                              held.blocks.size() * pool.bytes_per_block()));
  }
  check_received(event.transfer, held, "when told");
  const AttemptKey key = found->first;
  around_.later(std::chrono::milliseconds(around_.pick(30)), [this, key] {
    if (!alive) return;
    Held& mine = held_.at(key);
    check_received(key.first, mine, "while decoding");
    give_back(mine);
  });
}

// ---- the engine at P ----

bool Node::begin_prefill(TransferId transfer, std::uint32_t prompt) {
  const std::uint32_t wanted = (prompt + pool.geometry.block_size - 1) / pool.geometry.block_size;
  if (wanted > pool.free_blocks()) return false;
  Prompt& p = prompts_[transfer];
  p.tokens = prompt;
  for (std::uint32_t i = 0; i < wanted; ++i) {
    p.blocks.push_back(*pool.take(around_.pick(1000)));
    pool.fill(p.blocks.back(), kGarbage);
  }
  return true;
}

bool Node::prefill_running(TransferId transfer) const {
  const auto found = prompts_.find(transfer);
  return found != prompts_.end() && !found->second.over;
}

bool Node::prefill_computing(TransferId transfer) const {
  return prefill_running(transfer) && prompts_.at(transfer).computed < prompts_.at(transfer).tokens;
}

void Node::compute_piece(TransferId transfer, std::uint32_t tokens,
                         std::optional<TokenId> first_token) {
  Prompt& p = prompts_.at(transfer);
  const std::uint32_t block_size = pool.geometry.block_size;
  const std::uint32_t end = std::min(p.tokens, p.computed + tokens);
  ReadyPiece piece;
  piece.transfer = transfer;
  piece.range = {p.computed, end};
  piece.last = end == p.tokens;
  if (piece.last) piece.first_token = first_token;
  piece.block_ids.resize(1);
  for (std::uint32_t token = p.computed; token < end; ++token) {
    const BlockId block = p.blocks[token / block_size];
    pool.write_token(transfer, token, block);
    if (token % block_size == 0) piece.block_ids[0].push_back(block);
  }
  p.computed = end;
  p.handed_in = true;
  prefill->ready(std::move(piece), around_.now());
}

void Node::abandon_prefill(TransferId transfer) {
  Prompt& p = prompts_.at(transfer);
  prefill->cancel(transfer, around_.now());
  if (!p.handed_in) {
    // Nothing reads them, and there may be no event: whether one comes does not matter here.
    p.over = true;
    for (const BlockId block : p.blocks) pool.give_back(block, kGarbage);
    p.blocks.clear();
  }
}

void Node::on_prefill_event(const Event& event) {
  const auto found = prompts_.find(event.transfer);
  if (found == prompts_.end()) return around_.fault("an end of a transfer that was never begun");
  Prompt& p = found->second;
  if (p.over) {
    if (p.handed_in) around_.fault("[I3] a transfer ended twice at the prefill side");
    return;
  }
  around_.count(fmt::format("prefill {}({})", to_string(event.outcome), to_string(event.cause)));
  around_.note(fmt::format("node {}: prefill {} ended {}({}): {}", number,
                           event.transfer.to_string(), to_string(event.outcome),
                           to_string(event.cause), event.text));
  p.over = true;
  for (const BlockId block : p.blocks)
    pool.give_back(block, kGarbage);  // [I2]: unread from here on
  p.blocks.clear();
}

// ---- the end ----

void Node::check_at_end() {
  const std::string name = config.id.to_string();
  for (const auto& [key, held] : held_) {
    if (held.ends != 1) {
      around_.fault(fmt::format("[I3] {}: attempt {} ({}, {}) ended {} times", name,
                                key.first.to_string(), key.second.binding, key.second.attempt,
                                held.ends));
    }
  }
  for (const auto& [id, p] : prompts_) {
    if (!p.over)
      around_.fault(fmt::format("[I3] {}: transfer {} never ended", name, id.to_string()));
  }
  if (pool.free_blocks() != pool.blocks()) {
    around_.fault(fmt::format("{}: {} of {} blocks are free at the end", name, pool.free_blocks(),
                              pool.blocks()));
  }
  if (decode && (!decode->idle() || decode->quarantined_blocks() != 0)) {
    around_.fault(fmt::format("{}: the decode side is not idle at the end", name));
  }
  if (prefill && (!prefill->idle() || prefill->writes_in_flight() != 0)) {
    around_.fault(fmt::format("{}: the prefill side is not idle at the end", name));
  }
  if (!decode) return;
  while (const auto block = pool.take(1)) {
    if (const std::string bad = pool.first_other_than(*block, kPoison); !bad.empty()) {
      return around_.fault(fmt::format("[I1] {}: a free block was written: {}", name, bad));
    }
  }
}

// ---- Port ----

LinkId Node::dial(const PeerAddress& peer) {
  return around_.new_link(number, peer);
}
void Node::hang_up(LinkId link) {
  around_.hang_up(number, link);
}
void Node::send(LinkId link, std::span<const std::byte> frame) {
  around_.carry(number, link, frame);
}

Result<Port::InboundOffer> Node::open_inbound(const PeerId& writer) {
  auto opened = fabric->open_inbound(writer);
  if (!opened) return tl::unexpected(opened.error());
  return InboundOffer{Inbound{opened->id.value}, std::move(opened->offer)};
}
void Node::fence_inbound(Inbound inbound) {
  fabric->fence_inbound({to_value(inbound)});
}

Result<Outbound> Node::connect(const PeerId& receiver, std::span<const std::byte> offer,
                               std::span<const Region> regions) {
  const auto out = fabric->connect(receiver, offer, regions);
  if (!out) return tl::unexpected(out.error());
  return Outbound{out->value};
}
void Node::close_outbound(Outbound outbound) {
  fabric->close_outbound({to_value(outbound)});
}

Status Node::post(const WriteOp& op) {
  fabric::Write write;
  write.to = {to_value(op.to)};
  write.local_region = op.local_region;
  write.local_offset = op.local_offset;
  write.remote_region = op.remote_region;
  write.remote_offset = op.remote_offset;
  write.length = op.length;
  write.immediate = op.immediate;
  write.context = op.context;
  return fabric->post(write);
}

std::uint64_t Node::hash_block(std::uint16_t group, BlockId block) {
  return hasher_.hash_block(group, block);
}

void Node::deliver(Event&& event) {
  events_.push_back(std::move(event));
}

}  // namespace baton::handover::testing
