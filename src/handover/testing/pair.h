// One decode and one prefill machine wired to each other without a network: a test says when
// messages are delivered, which are lost, when time passes and when a write completes. Nothing
// happens by itself.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "handover/decode_side.h"
#include "handover/prefill_side.h"
#include "layout/test_geometry.h"
#include "wire/messages.h"

namespace baton::handover::testing {

class RecordingPort final : public Port {
 public:
  struct Sent {
    LinkId link;
    wire::MessageType type;
    std::vector<std::uint64_t> bytes;  // payload, aligned
    std::size_t size = 0;
    wire::Frame frame() const { return {type, std::as_bytes(std::span(bytes)).first(size)}; }
  };

  LinkId dial(const PeerAddress&) override {
    dialled.push_back(next_link);
    return next_link++;
  }
  void hang_up(LinkId link) override { hung_up.push_back(link); }
  void send(LinkId link, std::span<const std::byte> frame) override {
    Sent sent;
    sent.link = link;
    std::uint16_t type = 0;
    std::memcpy(&type, frame.data() + 6, 2);
    sent.type = static_cast<wire::MessageType>(type);
    sent.size = frame.size() - wire::kHeaderBytes;
    sent.bytes.resize((sent.size + 7) / 8);
    std::memcpy(sent.bytes.data(), frame.data() + wire::kHeaderBytes, sent.size);
    sent_ever.push_back(sent);
    out.push_back(std::move(sent));
  }
  void trust(LinkId) override {}
  Result<InboundOffer> open_inbound(const PeerId&) override {
    if (inbound_error) return fail(Errc::kResourceExhausted, "4096 inbounds are open");
    return InboundOffer{Inbound{++inbounds}, {name, static_cast<std::byte>(inbounds)}};
  }
  Result<InboundOffer> open_source(const PeerId& reader) override { return open_inbound(reader); }
  void fence_inbound(Inbound inbound) override { fences.push_back(inbound); }
  Result<Outbound> connect(const PeerId&, std::span<const std::byte> offer,
                           std::span<const Region>) override {
    if (connect_error) return tl::unexpected(Error{Errc::kIo, "no way"});
    offers.emplace_back(offer.begin(), offer.end());
    return Outbound{++outbounds};
  }
  void close_outbound(Outbound outbound) override { closed.push_back(outbound); }
  Status post(const WriteOp& write) override {
    if (writes.size() >= room) return fail(Errc::kResourceExhausted, "full");
    writes.push_back(write);
    posted_ever.push_back(write);
    return {};
  }
  Status post_read(const ReadOp& read) override {
    if (reads.size() >= room) return fail(Errc::kResourceExhausted, "full");
    reads.push_back(read);
    reads_ever.push_back(read);
    return {};
  }
  void posted(TransferId transfer) override { all_posted.push_back(transfer); }
  std::uint64_t hash_block(std::uint16_t, BlockId block) override {
    ++hashed;
    return block_hashes.size() > block ? block_hashes[block] : 0;
  }
  void deliver(Event&& event) override { events.push_back(std::move(event)); }

  LinkId next_link = 1;
  std::uint32_t inbounds = 0, outbounds = 0;
  std::byte name{1};                           // first byte of every offer
  std::vector<std::vector<std::byte>> offers;  // of each outbound, in order
  bool connect_error = false;
  bool inbound_error = false;
  std::size_t room = 1000;
  int hashed = 0;
  std::vector<std::uint64_t> block_hashes;
  std::vector<LinkId> dialled, hung_up;
  std::deque<Sent> out;
  std::vector<Sent> sent_ever;
  std::vector<Inbound> fences;
  std::vector<Outbound> closed;
  std::deque<WriteOp> writes;  // posted and not completed
  std::vector<WriteOp> posted_ever;
  std::deque<ReadOp> reads;  // posted and not completed
  std::vector<ReadOp> reads_ever;
  std::vector<TransferId> all_posted;
  std::deque<Event> events;
};

class PairTest : public ::testing::Test {
 protected:
  static constexpr TransferId kId{0xA, 0xB};
  static constexpr std::uint32_t kBlocks = 16;  // of 4 tokens, 2 layers of 64 bytes

  explicit PairTest() : pool_(layout::make_pool(2, kBlocks)) {
    for (Config* c : {&d_config, &p_config}) {
      c->geometry = pool_.geometry;
      c->transfers_max = 8;
      c->peers_max = 4;
      c->quarantine_blocks_max = 6;
    }
    d_config.id = {"d", 1};
    d_config.role = Role::kConsumer;
    p_config.id = {"p", 2};
    p_config.role = Role::kProducer;
    start();
  }

  void start() {
    d.emplace(d_config, d_port, d_metrics);
    p.emplace(p_config, p_port, p_metrics);
  }

  void pass(std::chrono::milliseconds time) {
    const Time end = now + time;
    for (;;) {
      const Time next = std::min(d->next_deadline(), p->next_deadline());
      now = std::min(end, std::max(now, next));
      d->on_time(now);
      p->on_time(now);
      work();
      if (deliver_messages) exchange();
      if (now >= end && std::min(d->next_deadline(), p->next_deadline()) > now) return;
    }
  }
  void work() {
    while (d->work(now) || p->work(now)) {
    }
  }
  // Accepts what D dialled.
  void accept() {
    while (!d_port.dialled.empty()) {
      link = d_port.dialled.front();
      d_port.dialled.erase(d_port.dialled.begin());
      p->on_link_accepted(link, now);
      d->on_link_up(link, now);
    }
  }
  // Delivers everything that waits on either side, and what comes of it, until all is quiet.
  void exchange() {
    accept();
    while (!d_port.out.empty() || !p_port.out.empty()) exchange_one();
    work();
  }
  // One message each way, and what comes of it.
  void exchange_one() {
    if (!d_port.out.empty()) {
      const auto sent = std::move(d_port.out.front());
      d_port.out.pop_front();
      last_to_p[sent.type] = sent;
      p->on_frame(sent.link, sent.frame(), now);
    }
    if (!p_port.out.empty()) {
      const auto sent = std::move(p_port.out.front());
      p_port.out.pop_front();
      last_to_d[sent.type] = sent;
      d->on_frame(sent.link, sent.frame(), now);
    }
    work();
    accept();
    const bool pull = d_config.mode == Mode::kPull;
    const std::uint32_t outbounds = pull ? d_port.outbounds : p_port.outbounds;
    if (outbounds != connected_ && auto_connect) {
      connected_ = outbounds;
      pull ? d->on_connected(Outbound{connected_}, now)
           : p->on_connected(Outbound{connected_}, now);
      work();
    }
  }
  void lose_messages() {
    d_port.out.clear();
    p_port.out.clear();
  }

  PeerAddress address(std::uint64_t incarnation = 2) const { return {"h", 1, "p", incarnation}; }
  void register_range(TokenRange range, std::vector<BlockId> blocks, baton::Attempt number = {0, 1},
                      std::uint32_t prompt = 0, TransferId id = kId) {
    Registration r;
    r.transfer = id;
    r.binding = number.binding;
    r.attempt = number.attempt;
    r.peer = address();
    r.range = range;
    r.block_ids = {std::move(blocks)};
    r.prompt_tokens = prompt == 0 ? range.end : prompt;
    d->register_blocks(std::move(r), now);
  }
  void ready(TokenRange range, std::vector<BlockId> blocks, bool last = true, TransferId id = kId) {
    ReadyPiece piece;
    piece.transfer = id;
    piece.range = range;
    piece.block_ids = {std::move(blocks)};
    piece.last = last;
    if (last) piece.first_token = 99;
    p->ready(std::move(piece), now);
    work();
  }
  // The fabric completes the oldest posted write; its immediate reaches D.
  void complete_one() {
    const WriteOp op = p_port.writes.front();
    p_port.writes.pop_front();
    if (op.immediate) d->on_immediate(Inbound{d_port.inbounds}, *op.immediate, now);
    p->on_write_done(op.context, now);
    work();
  }
  void complete_all() {
    while (!p_port.writes.empty()) complete_one();
    exchange();
    while (!p_port.writes.empty()) complete_one();
    exchange();
  }
  static Event take(RecordingPort& port) {
    if (port.events.empty()) {
      ADD_FAILURE() << "no event";
      return {};
    }
    Event event = port.events.front();
    port.events.pop_front();
    return event;
  }
  Event d_event() { return take(d_port); }
  Event p_event() { return take(p_port); }

  // The last message of a type that was delivered, once more.
  void again_to_p(wire::MessageType type) {
    p->on_frame(last_to_p.at(type).link, last_to_p.at(type).frame(), now);
    work();
  }

  layout::TestPool pool_;
  Config d_config, p_config;
  RecordingPort d_port, p_port;
  AgentMetrics d_metrics, p_metrics;
  std::optional<DecodeSide> d;
  std::optional<PrefillSide> p;
  Time now{std::chrono::seconds(100)};
  LinkId link = kNoLink;
  bool auto_connect = true;
  bool deliver_messages = true;
  std::map<wire::MessageType, RecordingPort::Sent> last_to_p, last_to_d;

 private:
  std::uint32_t connected_ = 0;
};

}  // namespace baton::handover::testing
