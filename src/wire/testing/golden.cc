#include "wire/testing/golden.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "layout/test_geometry.h"

namespace baton::wire::testing {
namespace {

using std::chrono::milliseconds;

const Key kGoldenKey{{0x0123456789ABCDEF, 0xFEDCBA9876543210}, {3, 4}, {5, 6}, 7};

Hello hello(std::uint16_t version, std::uint32_t layers) {
  Hello out;
  out.version = version;
  out.version_min = 1;
  out.from = {"decode-0", 0x1122334455667788};
  out.expected = {"prefill-0", 0x99AABBCCDDEEFF01};
  out.role = Role::kConsumer;
  out.fabric = "shm";
  out.peer_timeout = milliseconds(5000);
  out.lease = milliseconds(30000);
  out.session = 8;
  out.connection = 9;
  out.geometry = layout::make_pool(layers, 8, 64, 32, layers > 1 ? 2 : 1).geometry;
  return out;
}

Register registration(TokenRange range, std::span<const std::vector<BlockId>> lists) {
  Register out;
  out.transfer = kGoldenKey.transfer;
  out.attempt = kGoldenKey.attempt;
  out.range = range;
  out.prompt_tokens = 61;
  out.num_groups = lists.size();
  for (std::size_t g = 0; g < lists.size(); ++g) out.block_ids[g] = lists[g];
  out.num_grants = 1;
  out.grant = {{0, 0}, kGoldenKey.slot, kGoldenKey.epoch, 11};
  out.deadline = milliseconds(60000);
  out.counted = 2;
  return out;
}

class Recorder {
 public:
  template <typename M>
  void add(std::string name, const M& message) {
    const auto frame = encoder_.encode(message);
    out_.push_back({std::move(name), {frame.begin(), frame.end()}});
  }
  std::vector<Golden> take() { return std::move(out_); }

 private:
  Encoder encoder_;
  std::vector<Golden> out_;
};

void add_handshake(Recorder& to, std::uint16_t version) {
  to.add("hello", hello(version, 3));
  Hello bare = hello(version, 1);
  bare.geometry.regions.clear();
  bare.expected = {};
  bare.mode = Mode::kPull;
  bare.role = Role::kBoth;
  bare.verify = true;
  to.add("hello_without_regions", bare);
  HelloAck ack{hello(version, 2)};
  ack.from = {"prefill-0", 0x99AABBCCDDEEFF01};
  ack.expected = {"decode-0", 0x1122334455667788};
  ack.role = Role::kProducer;
  ack.session = ack.connection = 0;
  to.add("hello_ack", ack);
  to.add("refuse", Refuse{"kv_dtype", "bfloat16", "float32", "handshake refused"});
  to.add("refuse_text_only", Refuse{"frame", {}, {}, "magic is 0, expected BTON"});
  std::vector<std::byte> offer(48);
  for (std::size_t i = 0; i < offer.size(); ++i) offer[i] = static_cast<std::byte>(3 * i);
  to.add("offer", Offer{offer});
}

void add_registrations(Recorder& to) {
  const std::vector<std::vector<BlockId>> two{{4, 9, 2, 7}, {1, 2, 3, 0}};
  const std::vector<std::vector<BlockId>> one{{6}};
  to.add("register_two_groups", registration({0, 61}, two));
  to.add("register_suffix", registration({56, 60}, one));
  to.add("register_nothing_wanted", registration({61, 61}, {}));
  Register first = registration({0, 4}, one);
  first.attempt = {};
  first.counted = 0;
  first.deadline = milliseconds(0);
  to.add("register_first_attempt", first);
  to.add("register_state_pending", RegisterState{kGoldenKey, StandingState::kPending});
  to.add("register_state_computing", RegisterState{kGoldenKey, StandingState::kComputing});
  to.add("register_state_writing", RegisterState{kGoldenKey, StandingState::kWriting});
}

void add_ends(Recorder& to) {
  const std::uint64_t hashes[] = {0x0102030405060708, 2, 3};
  to.add("final", Final{kGoldenKey, 1, {0, 61}, 4096, 33, TokenId{271}, {}});
  to.add("final_with_hashes", Final{kGoldenKey, 4, {8, 60}, 100, 5, std::nullopt, hashes});
  to.add("final_of_nothing", Final{kGoldenKey, 0, {61, 61}, 0, 0, TokenId{-3}, {}});
  to.add("stopped", Stopped{kGoldenKey, Cause::kCancelledHere, "cancelled by the engine"});
  to.add("stopped_drained", Stopped{kGoldenKey, Cause::kSuperseded, "a newer one", true, 6});
  to.add("stopped_unclean", Stopped{kGoldenKey, Cause::kFabric, "a write failed", true, 6, false});
  to.add("stopped_again", Stopped{kGoldenKey, Cause::kUnknownTransfer, "old", true, 0, true, true});
  to.add("stopped_shutdown", Stopped{kGoldenKey, Cause::kShutdown, {}, true});
  to.add("cancel", Cancel{kGoldenKey, Cause::kDeadline, "no end in time"});
  to.add("cancel_keep", Cancel{kGoldenKey, Cause::kCancelledHere, "withdrawn", true});
  Key claim;
  claim.transfer = kGoldenKey.transfer;
  to.add("cancel_claim", Cancel{claim, Cause::kCancelledHere, {}});
}

void add_upkeep(Recorder& to) {
  to.add("credit", Credit{kGoldenKey, 77});
  const TransferId ids[] = {{1, 2}, kGoldenKey.transfer, {5, 6}};
  to.add("renew", Renew{ids});
  to.add("renew_none", Renew{});
  to.add("ping", Ping{12, 34});
  to.add("ping_from_prefill", Ping{13, 0});
  to.add("pong", Pong{12});
}

void add_version_2(Recorder& to, std::uint16_t version) {
  HelloAck ack{hello(version, 1)};
  ack.role = Role::kProducer;
  ack.session = 0;
  ack.connection = 4;
  to.add("hello_ack_with_memory", ack);
  const std::vector<std::vector<BlockId>> one{{6}};
  Register pulled = registration({0, 4}, one);
  pulled.announcement = 0x0A0B0C0D0E0F1011;
  to.add("register_pulled", pulled);
  pulled.taken = true;
  to.add("register_taken", pulled);
  to.add("goodbye", Goodbye{"the prefill side is shutting down"});
}

std::string text_of(const PeerId& id) {
  return fmt::format("{}#{:x}", id.engine_id, id.incarnation);
}

std::string text_of(const Key& k) {
  return fmt::format("transfer {:016x}{:016x} attempt {}.{} slot {}.{} epoch {}", k.transfer.high,
                     k.transfer.low, k.attempt.binding, k.attempt.attempt, k.slot.index,
                     k.slot.generation, k.epoch);
}

std::string text_of(const Geometry& g) {
  std::string out = fmt::format(
      "model {} dtype {} layers {} heads {} dim {} block {} layout {} groups {} tp {}/{} pp {}/{} "
      "kernels {} regions",
      g.model, g.kv_dtype, g.num_layers, g.num_kv_heads, g.head_dim, g.block_size,
      static_cast<int>(g.layout), g.num_groups, g.rank.tp, g.tp_size, g.rank.pp, g.pp_size,
      g.kernel_family);
  for (const Region& r : g.regions) {
    out +=
        fmt::format(" [{} stride {} bytes {} blocks {} group {} kind {}]", r.name, r.stride_bytes,
                    r.block_bytes, r.num_blocks, r.group, static_cast<int>(r.kind));
  }
  return out;
}

std::string text_of(const Hello& h) {
  return fmt::format(
      "versions {} to {} from {} expected {} mode {} role {} fabric {} verify {} timeout {} "
      "lease {} session {} connection {} {}",
      h.version_min, h.version, text_of(h.from), text_of(h.expected), static_cast<int>(h.mode),
      static_cast<int>(h.role), h.fabric, h.verify, h.peer_timeout.count(), h.lease.count(),
      h.session, h.connection, text_of(h.geometry));
}

struct Describer {
  std::string operator()(std::monostate) const { return "unknown"; }
  std::string operator()(const Hello& m) const { return "Hello " + text_of(m); }
  std::string operator()(const HelloAck& m) const { return "HelloAck " + text_of(m); }
  std::string operator()(const Refuse& m) const {
    return fmt::format("Refuse field {} ours {} theirs {} text {}", m.field, m.ours, m.theirs,
                       m.text);
  }
  std::string operator()(const Offer& m) const { return "Offer " + to_hex(m.offer); }
  std::string operator()(const Register& m) const {
    std::string out = fmt::format(
        "Register {} range {}-{} prompt {} writer {}.{} credits {} grants {} deadline {} counted "
        "{} groups",
        text_of(m.key()), m.range.begin, m.range.end, m.prompt_tokens, m.grant.writer.tp,
        m.grant.writer.pp, m.grant.credits, m.num_grants, m.deadline.count(), m.counted);
    for (std::size_t g = 0; g < m.num_groups; ++g) out += fmt::format(" {}", m.block_ids[g]);
    if (m.announcement != 0) out += fmt::format(" announcement {:016x}", m.announcement);
    if (m.taken) out += " taken";
    return out;
  }
  std::string operator()(const RegisterState& m) const {
    return fmt::format("RegisterState {} state {}", text_of(m.key), static_cast<int>(m.state));
  }
  std::string operator()(const Final& m) const {
    return fmt::format("Final {} immediates {} range {}-{} bytes {} writes {} token {} hashes {}",
                       text_of(m.key), m.immediates, m.range.begin, m.range.end, m.bytes, m.writes,
                       m.first_token ? std::to_string(*m.first_token) : "none", m.hashes);
  }
  std::string operator()(const Stopped& m) const {
    return fmt::format("Stopped {} cause {} text {} drained {} immediates {} clean {} again {}",
                       text_of(m.key), static_cast<int>(m.cause), m.text, m.drained, m.immediates,
                       m.clean, m.again);
  }
  std::string operator()(const Cancel& m) const {
    return fmt::format("Cancel {} cause {} text {} keep {}", text_of(m.key),
                       static_cast<int>(m.cause), m.text, m.keep);
  }
  std::string operator()(const Credit& m) const {
    return fmt::format("Credit {} counted {}", text_of(m.key), m.counted);
  }
  std::string operator()(const Renew& m) const {
    std::string out = "Renew";
    for (const TransferId& id : m.transfers) out += fmt::format(" {:x}:{:x}", id.high, id.low);
    return out;
  }
  std::string operator()(const Ping& m) const {
    return fmt::format("Ping token {} oldest {}", m.token, m.oldest_epoch);
  }
  std::string operator()(const Pong& m) const { return fmt::format("Pong token {}", m.token); }
  std::string operator()(const Goodbye& m) const { return fmt::format("Goodbye {}", m.text); }
};

}  // namespace

std::vector<Golden> golden_messages(std::uint16_t version) {
  Recorder recorder;
  add_handshake(recorder, version);
  add_registrations(recorder);
  add_ends(recorder);
  add_upkeep(recorder);
  if (version >= 2) add_version_2(recorder, version);
  return recorder.take();
}

std::string describe(const Message& message) {
  return std::visit(Describer{}, message);
}

std::string to_hex(std::span<const std::byte> bytes) {
  std::string out;
  for (const std::byte b : bytes) out += fmt::format("{:02x}", static_cast<unsigned>(b));
  return out;
}

std::vector<std::byte> from_hex(std::string_view text) {
  std::vector<std::byte> out;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    out.push_back(static_cast<std::byte>(std::stoul(std::string(text.substr(i, 2)), nullptr, 16)));
  }
  return out;
}

Result<Message> read_frame(std::span<const std::byte> frame, FrameReader& keep) {
  std::size_t done = 0;
  while (done < frame.size()) {
    const auto room = keep.prepare();
    const std::size_t n = std::min(room.size(), frame.size() - done);
    std::memcpy(room.data(), frame.data() + done, n);
    keep.commit(n);
    done += n;
  }
  const auto next = keep.next();
  if (!next) return tl::unexpected(next.error());
  if (!*next) return fail(Errc::kInvalidArgument, "the frame is not whole");
  return decode(**next);
}

}  // namespace baton::wire::testing
