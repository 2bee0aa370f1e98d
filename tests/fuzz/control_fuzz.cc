// Control messages as they come off the socket, into the shipped state machines of P and D.
//
// Both sides live, and the fuzzer sits between them: it lets messages pass, drops them, says again
// what one of them said with some bytes changed, makes up messages of its own with a right
// checksum, or throws bytes into the stream. Beside that it plays both engines and the fabric. The
// first byte says whether P writes or D reads. Whatever was said, nothing may crash, no block comes
// back under a read into it, and in the end every registration has ended exactly once
// [I1] [I3] [I4] [I7].
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/check.h"
#include "handover/decode_side.h"
#include "handover/prefill_side.h"
#include "input.h"
#include "layout/test_geometry.h"
#include "wire/frame.h"

namespace baton::fuzz {
namespace {

using handover::LinkId;
using Bytes = std::vector<std::byte>;

constexpr std::uint32_t kBlocks = 16;
constexpr std::uint32_t kBlockSize = 4;  // of layout::make_pool()
constexpr std::uint32_t kTransfers = 4;
constexpr std::size_t kPostsMax = 8;     // at once
constexpr std::size_t kRemembered = 32;  // messages that may be said again
constexpr std::size_t kFrameMax = 2048;  // of made-up payloads
constexpr int kWorkMax = 10000;          // calls of work() that end by themselves
constexpr auto kEverythingEnds = std::chrono::seconds(20);

struct Said {
  LinkId link = handover::kNoLink;
  Bytes frame;
};

// The world as one of the two machines sees it.
class FuzzPort final : public handover::Port {
 public:
  LinkId dial(const PeerAddress&) override {
    dialled.push_back(++links);
    return links;
  }
  void hang_up(LinkId link) override {
    open.erase(link);
    hung_up.push_back(link);
  }
  void send(LinkId link, std::span<const std::byte> frame) override {
    if (open.contains(link)) out.push_back({link, Bytes(frame.begin(), frame.end())});
  }
  void trust(LinkId link) override { trusted.insert(link); }
  Result<InboundOffer> open_inbound(const PeerId&) override {
    return InboundOffer{handover::Inbound{++inbounds}, Bytes(16, static_cast<std::byte>(inbounds))};
  }
  Result<InboundOffer> open_source(const PeerId& reader) override { return open_inbound(reader); }
  void fence_inbound(handover::Inbound inbound) override { fences.push_back(inbound); }
  Result<handover::Outbound> connect(const PeerId&, std::span<const std::byte>,
                                     std::span<const Region> regions) override {
    connecting.push_back(handover::Outbound{++outbounds});
    remote[connecting.back()] = {regions.begin(), regions.end()};
    return connecting.back();
  }
  void close_outbound(handover::Outbound outbound) override { closing.push_back(outbound); }
  Status post(const handover::WriteOp& write) override {
    BATON_CHECK(mode == Mode::kPush, "a write in pull mode");
    if (writes.size() >= kPostsMax) return fail(Errc::kResourceExhausted, "full");
    check_inside(geometry->regions, write.local_region, write.local_offset, write.length);
    check_inside(remote.at(write.to), write.remote_region, write.remote_offset, write.length);
    writes.push_back(write);
    return {};
  }
  Status post_read(const handover::ReadOp& read) override {
    BATON_CHECK(mode == Mode::kPull, "a read in push mode");
    if (reads.size() >= kPostsMax) return fail(Errc::kResourceExhausted, "full");
    check_inside(geometry->regions, read.local_region, read.local_offset, read.length);
    check_inside(remote.at(read.from), read.remote_region, read.remote_offset, read.length);
    reads.push_back(read);
    return {};
  }
  void posted(TransferId) override {}
  std::uint64_t hash_block(std::uint16_t, BlockId block) override { return block; }
  void deliver(Event&& event) override { events.push_back(std::move(event)); }

  static void check_inside(std::span<const Region> regions, std::uint32_t region,
                           std::uint64_t offset, std::uint64_t length) {
    BATON_CHECK(region < regions.size(), "a place in a region that does not exist");
    const std::uint64_t size = regions[region].num_blocks * regions[region].stride_bytes;
    BATON_CHECK(offset + length <= size, "a place past the end of its region");
  }

  Mode mode = Mode::kPush;
  const Geometry* geometry = nullptr;
  std::map<handover::Outbound, std::vector<Region>> remote;  // as the peer described its pool
  LinkId links = 0;
  std::uint32_t inbounds = 0, outbounds = 0;
  std::vector<LinkId> dialled, hung_up;
  std::set<LinkId> open, trusted;
  std::deque<Said> out;
  std::vector<handover::Inbound> fences;
  std::vector<handover::Outbound> connecting, closing;
  std::deque<handover::WriteOp> writes;
  std::deque<handover::ReadOp> reads;
  std::vector<Event> events;
};

struct Kind {
  Mode mode = Mode::kPush;
  bool counting = false;  // the fabric does not complete on delivery
};

handover::Config config_of(PeerId id, Role role, const Geometry& geometry, Kind kind) {
  handover::Config config;
  config.mode = kind.mode;
  config.id = std::move(id);
  config.role = role;
  config.geometry = geometry;
  config.peer_timeout = std::chrono::milliseconds(1000);
  config.lease = std::chrono::milliseconds(2000);
  config.lease_renewal = std::chrono::milliseconds(500);
  config.transfer_timeout = std::chrono::milliseconds(3000);
  config.transfers_max = 8;
  config.peers_max = 4;
  config.ends_remembered_max = 8;
  config.delivery_complete = !kind.counting;
  config.immediates_max = 16;
  config.verify_blocks = false;
  return config;
}

class World {
 public:
  World(Input& in, Kind kind)
      : in_(in),
        mode_(kind.mode),
        d_(config_of({"d", 1}, Role::kConsumer, pool().geometry, kind), d_port_, d_metrics_),
        p_(config_of({"p", 2}, Role::kProducer, pool().geometry, kind), p_port_, p_metrics_) {
    d_port_.mode = p_port_.mode = mode_;
    d_port_.geometry = p_port_.geometry = &pool().geometry;
    for (BlockId block = 0; block < kBlocks; ++block) free_.push_back(block);
  }

  void run() {
    while (!in_.empty()) {
      step();
      settle();
    }
    end();
  }

 private:
  static const layout::TestPool& pool() {
    static const layout::TestPool made = layout::make_pool(2, kBlocks);
    return made;
  }
  static TransferId id_of(std::uint32_t number) { return {0xFADE, number + 1}; }

  void step() {
    switch (in_.below(16)) {
      case 0:
      case 1:
        return exchange();
      case 2:
        return pass_one(d_port_, true);
      case 3:
        return pass_one(p_port_, false);
      case 4:
        d_port_.out.clear();
        return p_port_.out.clear();
      case 5:
        return make_up(true);
      case 6:
        return make_up(false);
      case 7:
        return throw_bytes();
      case 8:
        return say_again();
      case 9:
        return register_blocks();
      case 10:
        return ready();
      case 11:
        return p_.expect(id_of(in_.below(kTransfers)), 1 + in_.below(4 * kBlockSize), now_);
      case 12:
        return engine_changes_its_mind();
      case 13:
        return fabric();
      case 14:
        return pass_time(std::chrono::milliseconds(in_.u16() % 4096));
      default:
        return links();
    }
  }

  // The harness keeps the rules of a driver; the machines' work must end by itself.
  void settle() {
    for (int i = 0; d_.work(now_) || p_.work(now_); ++i) {
      BATON_CHECK(i < kWorkMax, "work() asks to be called for ever");
    }
    for (const Event& event : d_port_.events) on_decode_event(event);
    d_port_.events.clear();
    p_port_.events.clear();
  }

  // --- messages
  // -----------------------------------------------------------------------------------

  // One direction of one connection's byte stream, to P or to D.
  struct Stream {
    wire::FrameReader reader;
    bool lost = false;
  };

  void hand_over(LinkId link, std::span<const std::byte> bytes, bool to_p) {
    FuzzPort& port = to_p ? p_port_ : d_port_;
    if (!port.open.contains(link)) return;
    Stream& stream = streams_[{link, to_p}];
    if (port.trusted.contains(link)) stream.reader.set_limit(wire::kFrameBytesMax);
    while (!bytes.empty() && !stream.lost && port.open.contains(link)) {
      const auto room = stream.reader.prepare();
      const std::size_t count = std::min(room.size(), bytes.size());
      std::memcpy(room.data(), bytes.data(), count);
      stream.reader.commit(count);
      bytes = bytes.subspan(count);
      read_frames(link, stream, to_p);
    }
  }

  void read_frames(LinkId link, Stream& stream, bool to_p) {
    FuzzPort& port = to_p ? p_port_ : d_port_;
    while (port.open.contains(link)) {
      const auto frame = stream.reader.next();
      if (!frame) {
        stream.lost = true;
        return to_p ? p_.on_bad_stream(link, frame.error(), now_)
                    : d_.on_bad_stream(link, frame.error(), now_);
      }
      if (!*frame) return;
      to_p ? p_.on_frame(link, **frame, now_) : d_.on_frame(link, **frame, now_);
    }
  }

  void pass_one(FuzzPort& from, bool to_p) {
    if (from.out.empty()) return;
    const Said said = std::move(from.out.front());
    from.out.pop_front();
    if (said_.size() == kRemembered) said_.pop_front();
    said_.push_back({said, to_p});
    hand_over(said.link, said.frame, to_p);
  }

  void exchange() {
    for (int i = 0; i < 64; ++i) {
      accept();
      carry_hang_ups();
      if (d_port_.out.empty() && p_port_.out.empty()) return;
      pass_one(d_port_, true);
      settle();
      pass_one(p_port_, false);
      settle();
    }
  }

  LinkId newest(const FuzzPort& port) const {
    return port.open.empty() ? handover::kNoLink : *port.open.rbegin();
  }

  void make_up(bool to_p) {
    const auto type = static_cast<wire::MessageType>(in_.below(24));
    const auto payload = in_.bytes(in_.u16() % kFrameMax);
    std::vector<std::uint64_t> aligned((payload.size() + 7) / 8);
    if (!payload.empty()) std::memcpy(aligned.data(), payload.data(), payload.size());
    send_made_up(type, std::as_bytes(std::span(aligned)), newest(to_p ? p_port_ : d_port_), to_p);
  }

  void send_made_up(wire::MessageType type, std::span<const std::byte> payload, LinkId link,
                    bool to_p) {
    Bytes frame(wire::kHeaderBytes + payload.size());
    wire::write_header(std::span(frame).first(wire::kHeaderBytes), type, payload);
    if (!payload.empty()) {
      std::memcpy(frame.data() + wire::kHeaderBytes, payload.data(), payload.size());
    }
    hand_over(link, frame, to_p);
  }

  void throw_bytes() {
    const bool to_p = in_.below(2) == 1;
    const auto bytes = in_.bytes(in_.byte());
    hand_over(newest(to_p ? p_port_ : d_port_), std::as_bytes(bytes), to_p);
  }

  // A message that was really said, with up to seven bytes of its payload changed.
  void say_again() {
    const std::uint32_t which = in_.byte();
    const std::uint32_t changes = in_.below(8);
    if (said_.empty()) return;
    const auto& [said, to_p] = said_[which % said_.size()];
    Bytes changed = said.frame;
    const std::size_t payload_size = changed.size() - wire::kHeaderBytes;
    for (std::uint32_t i = 0; i < changes && payload_size > 0; ++i) {
      const std::size_t at = wire::kHeaderBytes + in_.u16() % payload_size;
      changed[at] ^= static_cast<std::byte>(in_.byte());
    }
    std::uint16_t type = 0;
    std::memcpy(&type, changed.data() + 6, sizeof(type));
    std::vector<std::uint64_t> aligned(payload_size / 8);
    if (payload_size > 0) {
      std::memcpy(aligned.data(), changed.data() + wire::kHeaderBytes, payload_size);
    }
    send_made_up(static_cast<wire::MessageType>(type), std::as_bytes(std::span(aligned)),
                 newest(to_p ? p_port_ : d_port_), to_p);
  }

  // --- links
  // --------------------------------------------------------------------------------------

  void accept() {
    for (const LinkId link : std::exchange(d_port_.dialled, {})) {
      d_port_.open.insert(link);
      p_port_.open.insert(link);
      p_.on_link_accepted(link, now_);
      d_.on_link_up(link, now_);
    }
  }

  // A side closed a link: the other sees its end.
  void carry_hang_ups() {
    for (const LinkId link : std::exchange(d_port_.hung_up, {})) break_off(link, true);
    for (const LinkId link : std::exchange(p_port_.hung_up, {})) break_off(link, false);
  }

  void break_off(LinkId link, bool at_p) {
    FuzzPort& port = at_p ? p_port_ : d_port_;
    if (port.open.erase(link) == 0) return;
    at_p ? p_.on_link_down(link, "closed", now_) : d_.on_link_down(link, "closed", now_);
  }

  void links() {
    switch (in_.below(4)) {
      case 0:
        return accept();
      case 1: {
        const LinkId link = newest(d_port_);
        break_off(link, false);
        return break_off(link, true);
      }
      case 2:
        return carry_hang_ups();
      default:
        for (const LinkId link : std::exchange(d_port_.dialled, {})) {
          d_.on_link_down(link, "nobody listens", now_);
        }
    }
  }

  // --- engines
  // ------------------------------------------------------------------------------------

  void register_blocks() {
    Registration r;
    r.transfer = id_of(in_.below(kTransfers));
    r.peer = {"h", 1, "p", 2};
    r.prompt_tokens = 1 + in_.below(4 * kBlockSize);
    r.range.begin = in_.below(4) * kBlockSize;
    r.range.end = std::max(r.range.begin, r.prompt_tokens);
    const std::uint32_t blocks = (r.range.end - r.range.begin + kBlockSize - 1) / kBlockSize;
    if (free_.size() < blocks) return;
    r.binding = in_.below(2);
    r.attempt = ++attempts_;
    r.block_ids = {{free_.end() - blocks, free_.end()}};
    if (pull()) r.source = source_of(r);
    if (!handover::check_registration(pool().geometry, mode_, r)) return;
    free_.resize(free_.size() - blocks);
    held_[{r.transfer, r.binding, r.attempt}] = {r.block_ids[0], false};
    d_.register_blocks(std::move(r), now_);
  }

  // What P announced, or what somebody made of it on the way.
  SourceBlocks source_of(const Registration& r) {
    const auto found = announced_.find(r.transfer);
    const std::uint32_t how = in_.below(4);
    SourceBlocks source;
    if (found != announced_.end()) source = found->second;
    if (how == 0 || found == announced_.end()) {
      source.range = {0, r.prompt_tokens};
      source.block_ids = {{}};
      for (std::uint32_t i = 0; i * kBlockSize < r.prompt_tokens; ++i) {
        source.block_ids[0].push_back(in_.below(2 * kBlocks));
      }
    }
    if (how == 1) source.announcement = in_.byte();
    return source;
  }

  void on_decode_event(const Event& event) {
    const auto found = held_.find({event.transfer, event.attempt.binding, event.attempt.attempt});
    BATON_CHECK(found != held_.end(), "an event of an attempt that is not held");
    if (event.kind == Event::Kind::kEnded) {
      BATON_CHECK(!found->second.ended, "a second end");
      found->second.ended = true;
    }
    if (event.kind == Event::Kind::kReleased || event.blocks_released) {
      BATON_CHECK(found->second.ended, "released before its end");
      for (const BlockId block : found->second.blocks) check_unread(block);
      free_.insert(free_.end(), found->second.blocks.begin(), found->second.blocks.end());
      held_.erase(found);
    }
  }

  // [I1]
  void check_unread(BlockId block) const {
    for (const auto& read : d_port_.reads) {
      const std::uint64_t stride = pool().geometry.regions[read.local_region].stride_bytes;
      const std::uint64_t first = read.local_offset / stride;
      const std::uint64_t last = (read.local_offset + read.length - 1) / stride;
      BATON_CHECK(block < first || block > last, "block {} came back under a read", block);
    }
  }

  void ready() {
    const std::uint32_t number = in_.below(kTransfers);
    std::uint32_t& done = computed_[number];
    ReadyPiece piece;
    piece.transfer = id_of(number);
    piece.range = {done, done + 1 + in_.below(2 * kBlockSize)};
    piece.last = in_.below(2) == 1;
    if (!piece.last) piece.range.end = done + kBlockSize;
    const std::uint32_t blocks =
        (piece.range.end - piece.range.begin + kBlockSize - 1) / kBlockSize;
    auto& ids = piece.block_ids.emplace_back();
    for (std::uint32_t i = 0; i < blocks; ++i) ids.push_back((done / kBlockSize + i) % kBlocks);
    if (!handover::check_ready(pool().geometry, piece)) return;
    if (pull()) note_announced(piece);
    done = piece.last ? 0 : piece.range.end;
    p_.ready(std::move(piece), now_);
  }

  void note_announced(ReadyPiece& piece) {
    auto& blocks = computing_[piece.transfer];
    if (piece.range.begin == 0) blocks.clear();
    blocks.insert(blocks.end(), piece.block_ids[0].begin(), piece.block_ids[0].end());
    if (!piece.last) return;
    piece.announcement = ++announcements_;
    announced_[piece.transfer] = {{0, piece.range.end}, {blocks}, piece.announcement};
  }

  void engine_changes_its_mind() {
    const TransferId id = id_of(in_.below(kTransfers));
    switch (in_.below(4)) {
      case 0:
        return d_.cancel(id, now_);
      case 1:
        return d_.withdraw(id, now_);
      case 2:
        return d_.claim(id, {"h", 1, "p", 2}, now_);
      default:
        computed_[static_cast<std::uint32_t>(id.low) - 1] = 0;
        return p_.cancel(id, now_);
    }
  }

  // --- fabric and time
  // ----------------------------------------------------------------------------

  void fabric() {
    switch (in_.below(6)) {
      case 0:
        return pull() ? complete_read(true) : complete_write(true);
      case 1:
        return pull() ? complete_read(false) : complete_write(false);
      case 2:
        return d_.on_immediate(handover::Inbound{in_.byte()}, in_.u32(), now_);
      case 3:
        return connections(true);
      case 4:
        return connections(false);
      default:
        return fences();
    }
  }

  void fences() {
    for (const auto inbound : std::exchange(d_port_.fences, {})) d_.on_fenced(inbound, now_);
    for (const auto inbound : std::exchange(p_port_.fences, {})) p_.on_fenced(inbound, now_);
  }

  void complete_read(bool well) {
    if (d_port_.reads.empty()) return;
    const handover::ReadOp read = d_port_.reads.front();
    d_port_.reads.pop_front();
    if (well) return d_.on_read_done(read.context, now_);
    d_.on_read_failed(read.context, "broken", now_, in_.below(2) == 1);
  }

  void complete_write(bool well) {
    if (p_port_.writes.empty()) return;
    const handover::WriteOp write = p_port_.writes.front();
    p_port_.writes.pop_front();
    if (!well) return p_.on_write_failed(write.context, "broken", now_);
    if (write.immediate) {
      d_.on_immediate(handover::Inbound{d_port_.inbounds}, *write.immediate, now_);
    }
    p_.on_write_done(write.context, now_);
  }

  void connections(bool well) {
    if (pull()) return ways(well);
    for (const auto outbound : std::exchange(p_port_.connecting, {})) {
      well ? p_.on_connected(outbound, now_) : p_.on_connect_failed(outbound, "no way", now_);
    }
    for (const auto outbound : std::exchange(p_port_.closing, {})) close(outbound);
  }

  void ways(bool well) {
    for (const auto outbound : std::exchange(d_port_.connecting, {})) {
      well ? d_.on_connected(outbound, now_) : d_.on_connect_failed(outbound, "no way", now_);
    }
    for (const auto outbound : std::exchange(d_port_.closing, {})) close_way(outbound);
  }

  // The port's promise: what was posted on an outbound completes before it is closed.
  void close_way(handover::Outbound outbound) {
    std::deque<handover::ReadOp> others;
    for (const auto& read : std::exchange(d_port_.reads, {})) {
      if (read.from == outbound) {
        d_.on_read_failed(read.context, "closed", now_, true);
      } else {
        others.push_back(read);
      }
    }
    d_port_.reads.insert(d_port_.reads.begin(), others.begin(), others.end());
    d_.on_outbound_closed(outbound, now_);
  }

  void close(handover::Outbound outbound) {
    std::deque<handover::WriteOp> others;
    for (const auto& write : std::exchange(p_port_.writes, {})) {
      if (write.to == outbound) {
        p_.on_write_failed(write.context, "closed", now_);
      } else {
        others.push_back(write);
      }
    }
    p_port_.writes.insert(p_port_.writes.begin(), others.begin(), others.end());
    p_.on_outbound_closed(outbound, now_);
  }

  void pass_time(Duration time) {
    const Time until = now_ + time;
    while (true) {
      const Time next = std::min(d_.next_deadline(), p_.next_deadline());
      now_ = std::clamp(next, now_ + std::chrono::milliseconds(1),
                        std::max(until, now_ + std::chrono::milliseconds(1)));
      d_.on_time(now_);
      p_.on_time(now_);
      settle();
      if (honest_) serve();
      if (now_ >= until || (honest_ && all_ended())) return;
    }
  }

  bool all_ended() const {
    return d_.open_transfers() == 0 && p_.open_transfers() == 0 && p_.writes_in_flight() == 0 &&
           d_port_.reads.empty();
  }

  // A world in which everybody does what he should.
  void serve() {
    exchange();
    connections(true);
    while (!p_port_.writes.empty()) {
      complete_write(true);
      settle();
    }
    while (!d_port_.reads.empty()) {
      complete_read(true);
      settle();
    }
    fences();
    exchange();
    settle();  // what these were told may have ended something
  }

  void end() {
    honest_ = true;
    for (std::uint32_t number = 0; number < kTransfers; ++number) p_.cancel(id_of(number), now_);
    settle();
    pass_time(kEverythingEnds);
    BATON_CHECK(d_.open_transfers() == 0, "a registration never ended");
    BATON_CHECK(p_.open_transfers() == 0, "a prompt is held for ever");
    BATON_CHECK(p_.writes_in_flight() == 0, "a write is counted that nobody posted");
    BATON_CHECK(d_port_.reads.empty(), "a read is out that nobody waits for");
    BATON_CHECK(!pull() || d_.quarantined_blocks() == 0, "no read is out, and blocks are held");
    for (const auto& [key, held] : held_) BATON_CHECK(held.ended, "a registration without an end");
  }

  struct Held {
    std::vector<BlockId> blocks;
    bool ended = false;
  };

  bool pull() const { return mode_ == Mode::kPull; }

  Input& in_;
  const Mode mode_;
  FuzzPort d_port_, p_port_;
  AgentMetrics d_metrics_, p_metrics_;
  handover::DecodeSide d_;
  handover::PrefillSide p_;
  Time now_{std::chrono::seconds(100)};
  bool honest_ = false;
  std::map<std::pair<LinkId, bool>, Stream> streams_;
  std::deque<std::pair<Said, bool>> said_;
  std::vector<BlockId> free_;
  std::map<std::tuple<TransferId, std::uint32_t, std::uint32_t>, Held> held_;
  std::map<std::uint32_t, std::uint32_t> computed_;
  std::uint32_t attempts_ = 0;
  // Pull, P's engine.
  std::map<TransferId, std::vector<BlockId>> computing_;
  std::map<TransferId, SourceBlocks> announced_;
  std::uint64_t announcements_ = 0;
};

}  // namespace
}  // namespace baton::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  baton::fuzz::Input in(data, size);
  const std::uint32_t kind = in.below(4);
  const auto mode = kind < 2 ? baton::Mode::kPush : baton::Mode::kPull;
  baton::fuzz::World(in, {mode, kind % 2 == 1}).run();
  return 0;
}
