#include "wire/messages.h"

#include <fmt/format.h>

#include <cstring>

#include "base/check.h"
#include "control_generated.h"

namespace baton::wire {
namespace {

// Lists are read in place: the wire's structs and ours must be the same bytes.
static_assert(sizeof(TransferId) == sizeof(fb::Id128) && alignof(TransferId) == alignof(fb::Id128));
static_assert(sizeof(BlockId) == sizeof(std::uint32_t));

tl::unexpected<Error> bad(std::string message) {
  return fail(Errc::kInvalidArgument, std::move(message));
}

// ---- decoding ----

// Remembers the first thing that is wrong, so that a decoder reads as a list of fields.
class Checker {
 public:
  std::string_view text(std::string_view field, const flatbuffers::String* value,
                        std::size_t bytes_max) {
    if (value == nullptr) return {};
    at_most(field, value->size(), bytes_max);
    return error_.empty() ? std::string_view(value->c_str(), value->size()) : std::string_view();
  }
  void at_most(std::string_view field, std::uint64_t value, std::uint64_t most) {
    if (value > most && error_.empty()) {
      error_ = fmt::format("{} is {}, at most {} is allowed", field, value, most);
    }
  }
  void at_least(std::string_view field, std::uint64_t value, std::uint64_t least) {
    if (value < least && error_.empty()) {
      error_ = fmt::format("{} is {}, at least {} is needed", field, value, least);
    }
  }
  template <typename T>
  T enumeration(std::string_view field, std::uint8_t value, T last) {
    at_most(field, value, static_cast<std::uint8_t>(last));
    return error_.empty() ? static_cast<T>(value) : T{};
  }
  void require(std::string_view field, const void* value) {
    if (value == nullptr && error_.empty()) error_ = fmt::format("{} is missing", field);
  }
  // FlatBuffers' verifier looks at the alignment of a vector's length, not of its elements.
  template <typename T>
  std::span<const T> in_place(std::string_view field, const std::uint8_t* data, std::size_t count) {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    if (address % alignof(T) == 0) return {reinterpret_cast<const T*>(data), count};
    if (error_.empty()) error_ = fmt::format("{} is not aligned to {} bytes", field, alignof(T));
    return {};
  }
  bool ok() const { return error_.empty(); }
  template <typename T>
  Result<Message> finish(T&& message) {
    if (!error_.empty()) return bad(std::move(error_));
    return Message(std::forward<T>(message));
  }

 private:
  std::string error_;
};

template <typename T>
const T* verified(std::span<const std::byte> payload) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(payload.data());
  if (payload.size() < 8) return nullptr;
  flatbuffers::Verifier verifier(bytes, payload.size(), 8, 2 * kRegionsMax);
  if (!verifier.VerifyBuffer<T>(nullptr)) return nullptr;
  return flatbuffers::GetRoot<T>(bytes);
}

// The last field of each table that this build knows.
template <typename T>
constexpr flatbuffers::voffset_t kLastField = 0;
template <>
constexpr flatbuffers::voffset_t kLastField<fb::Hello> = fb::Hello::VT_CONNECTION;
template <>
constexpr flatbuffers::voffset_t kLastField<fb::Refuse> = fb::Refuse::VT_TEXT;
template <>
constexpr flatbuffers::voffset_t kLastField<fb::Offer> = fb::Offer::VT_OFFER;
template <>
constexpr flatbuffers::voffset_t kLastField<fb::Register> = fb::Register::VT_TAKEN;
template <>
constexpr flatbuffers::voffset_t kLastField<fb::RegisterState> = fb::RegisterState::VT_STATE;
template <>
constexpr flatbuffers::voffset_t kLastField<fb::Final> = fb::Final::VT_HASHES;
template <>
constexpr flatbuffers::voffset_t kLastField<fb::Stopped> = fb::Stopped::VT_AGAIN;
template <>
constexpr flatbuffers::voffset_t kLastField<fb::Cancel> = fb::Cancel::VT_KEEP;
template <>
constexpr flatbuffers::voffset_t kLastField<fb::Credit> = fb::Credit::VT_COUNTED;
template <>
constexpr flatbuffers::voffset_t kLastField<fb::Renew> = fb::Renew::VT_TRANSFERS;
template <>
constexpr flatbuffers::voffset_t kLastField<fb::Ping> = fb::Ping::VT_OLDEST_EPOCH;
template <>
constexpr flatbuffers::voffset_t kLastField<fb::Pong> = fb::Pong::VT_TOKEN;
template <>
constexpr flatbuffers::voffset_t kLastField<fb::Goodbye> = fb::Goodbye::VT_TEXT;

// Fields set behind the last known one. The table has passed the verifier, and so has its vtable.
template <typename T>
std::uint32_t count_unknown(const T* table) {
  static_assert(kLastField<T> != 0);
  const auto* data = reinterpret_cast<const std::uint8_t*>(table);
  const auto* vtable = data - flatbuffers::ReadScalar<flatbuffers::soffset_t>(data);
  const auto size = flatbuffers::ReadScalar<flatbuffers::voffset_t>(vtable);
  std::uint32_t count = 0;
  for (std::uint32_t at = kLastField<T> + 2U; at + 2 <= size; at += 2) {
    if (flatbuffers::ReadScalar<flatbuffers::voffset_t>(vtable + at) != 0) ++count;
  }
  return count;
}

TransferId to_id(const fb::Id128& id) {
  return {id.high(), id.low()};
}

Key to_key(Checker& check, const fb::Key* key) {
  check.require("key", key);
  if (key == nullptr) return {};
  return {to_id(key->transfer()),
          {key->binding(), key->attempt()},
          Slot::from_immediate(key->slot()),
          key->epoch()};
}

TokenRange to_range(Checker& check, std::uint32_t begin, std::uint32_t end) {
  check.at_least("range.end", end, begin);
  return {begin, end};
}

std::chrono::milliseconds to_ms(std::uint32_t value) {
  return std::chrono::milliseconds(value);
}

Region to_region(Checker& check, const fb::Region& in) {
  Region out;
  out.name = check.text("region.name", in.name(), kNameBytesMax);
  out.stride_bytes = in.stride_bytes();
  out.block_bytes = in.block_bytes();
  out.num_blocks = in.num_blocks();
  out.group = in.group();
  out.kind = check.enumeration("region.kind", in.kind(), MemoryKind::kNeuron);
  return out;
}

Geometry to_geometry(Checker& check, const fb::Geometry* in) {
  Geometry out;
  check.require("geometry", in);
  if (in == nullptr) return out;
  out.model = check.text("model", in->model(), kNameBytesMax);
  out.kv_dtype = check.text("kv_dtype", in->kv_dtype(), kNameBytesMax);
  out.num_layers = in->num_layers();
  out.num_kv_heads = in->num_kv_heads();
  out.head_dim = in->head_dim();
  out.block_size = in->block_size();
  out.layout = check.enumeration("layout", in->layout(), BlockLayout::kTokensFirst);
  out.num_groups = in->num_groups();
  out.tp_size = in->tp_size();
  out.pp_size = in->pp_size();
  out.rank = {in->tp(), in->pp()};
  out.kernel_family = check.text("kernel_family", in->kernel_family(), kNameBytesMax);
  if (in->regions() == nullptr) return out;
  check.at_most("regions", in->regions()->size(), kRegionsMax);
  if (!check.ok()) return out;
  out.regions.reserve(in->regions()->size());
  for (const fb::Region* region : *in->regions()) out.regions.push_back(to_region(check, *region));
  return out;
}

template <typename T>
Result<Message> to_hello(const fb::Hello& in) {
  Checker check;
  T out;
  out.version = in.version();
  out.version_min = in.version_min();
  out.from = {std::string(check.text("engine_id", in.engine_id(), kNameBytesMax)),
              in.incarnation()};
  out.expected = {
      std::string(check.text("expected_engine_id", in.expected_engine_id(), kNameBytesMax)),
      in.expected_incarnation()};
  check.at_least("engine_id", out.from.engine_id.size(), 1);
  check.at_least("incarnation", out.from.incarnation, 1);
  out.mode = check.enumeration("mode", in.mode(), Mode::kPull);
  out.role = check.enumeration("role", in.role(), Role::kBoth);
  out.fabric = check.text("fabric", in.fabric(), kNameBytesMax);
  out.verify = in.verify();
  out.peer_timeout = to_ms(in.peer_timeout_ms());
  out.lease = to_ms(in.lease_ms());
  out.session = in.session();
  out.connection = in.connection();
  out.geometry = to_geometry(check, in.geometry());
  return check.finish(std::move(out));
}

Result<Message> to_message(const fb::Refuse& in) {
  Checker check;
  Refuse out;
  out.field = check.text("field", in.field(), kTextBytesMax);
  out.ours = check.text("ours", in.ours(), kTextBytesMax);
  out.theirs = check.text("theirs", in.theirs(), kTextBytesMax);
  out.text = check.text("text", in.text(), kTextBytesMax);
  return check.finish(std::move(out));
}

Result<Message> to_message(const fb::Offer& in) {
  Checker check;
  Offer out;
  check.require("offer", in.offer());
  if (in.offer() != nullptr) {
    check.at_most("offer bytes", in.offer()->size(), kOfferBytesMax);
    out.offer = std::as_bytes(std::span(in.offer()->data(), in.offer()->size()));
  }
  return check.finish(out);
}

void read_lists(Checker& check, const fb::Register& in, Register& out) {
  if (in.groups() == nullptr) return;
  check.at_most("groups", in.groups()->size(), kGroupsMax);
  if (!check.ok()) return;
  out.num_groups = in.groups()->size();
  std::size_t total = 0;
  for (std::size_t g = 0; g < out.num_groups; ++g) {
    const auto* ids = in.groups()->Get(static_cast<flatbuffers::uoffset_t>(g))->ids();
    if (ids == nullptr) continue;
    total += ids->size();
    out.block_ids[g] = check.in_place<BlockId>("block ids", ids->Data(), ids->size());
  }
  check.at_most("block ids", total, kBlockIdsMax);
}

Result<Message> to_message(const fb::Register& in) {
  Checker check;
  Register out;
  check.require("transfer", in.transfer());
  if (in.transfer() != nullptr) out.transfer = to_id(*in.transfer());
  out.attempt = {in.binding(), in.attempt()};
  out.range = to_range(check, in.begin(), in.end());
  out.prompt_tokens = in.prompt_tokens();
  read_lists(check, in, out);
  out.num_grants = in.grants() == nullptr ? 0 : in.grants()->size();
  check.at_least("grants", out.num_grants, 1);
  if (out.num_grants > 0) {
    // Copied out: FlatBuffers 2.0.8 does not align vectors of structs of 24 bytes.
    fb::Grant grant;
    std::memcpy(&grant, in.grants()->Data(), sizeof(grant));
    out.grant = {{grant.tp(), grant.pp()},
                 Slot::from_immediate(grant.slot()),
                 grant.epoch(),
                 grant.credits()};
    check.at_least("grant.epoch", out.grant.epoch, 1);
    check.at_least("grant.credits", out.grant.credits, 1);
  }
  out.deadline = to_ms(in.deadline_ms());
  out.counted = in.counted();
  out.taken = in.taken();
  out.announcement = in.announcement();
  return check.finish(out);
}

Result<Message> to_message(const fb::RegisterState& in) {
  Checker check;
  RegisterState out;
  out.key = to_key(check, in.key());
  out.state = check.enumeration("state", in.state(), StandingState::kWriting);
  return check.finish(out);
}

Result<Message> to_message(const fb::Final& in) {
  Checker check;
  Final out;
  out.key = to_key(check, in.key());
  out.immediates = in.immediates();
  out.range = to_range(check, in.begin(), in.end());
  out.bytes = in.bytes();
  out.writes = in.writes();
  if (in.has_first_token()) out.first_token = in.first_token();
  if (in.hashes() != nullptr) {
    check.at_most("hashes", in.hashes()->size(), kBlockIdsMax);
    out.hashes = check.in_place<std::uint64_t>("hashes", in.hashes()->Data(), in.hashes()->size());
  }
  return check.finish(out);
}

Result<Message> to_message(const fb::Stopped& in) {
  Checker check;
  Stopped out;
  out.key = to_key(check, in.key());
  out.cause = check.enumeration("cause", in.cause(), Cause::kShutdown);
  out.text = check.text("text", in.text(), kTextBytesMax);
  out.drained = in.drained();
  out.immediates = in.immediates();
  out.clean = in.clean();
  out.again = in.again();
  return check.finish(out);
}

Result<Message> to_message(const fb::Cancel& in) {
  Checker check;
  Cancel out;
  out.key = to_key(check, in.key());
  out.cause = check.enumeration("cause", in.cause(), Cause::kShutdown);
  out.text = check.text("text", in.text(), kTextBytesMax);
  out.keep = in.keep();
  return check.finish(out);
}

Result<Message> to_message(const fb::Credit& in) {
  Checker check;
  Credit out{to_key(check, in.key()), in.counted()};
  return check.finish(out);
}

Result<Message> to_message(const fb::Renew& in) {
  Checker check;
  Renew out;
  if (in.transfers() != nullptr) {
    check.at_most("transfers", in.transfers()->size(), kRenewalsMax);
    out.transfers =
        check.in_place<TransferId>("transfers", in.transfers()->Data(), in.transfers()->size());
  }
  return check.finish(out);
}

Result<Message> to_message(const fb::Ping& in) {
  return Message(Ping{in.token(), in.oldest_epoch()});
}

Result<Message> to_message(const fb::Pong& in) {
  return Message(Pong{in.token()});
}

Result<Message> to_message(const fb::Goodbye& in) {
  Checker check;
  Goodbye out{check.text("text", in.text(), kTextBytesMax)};
  return check.finish(out);
}

template <typename T, typename Convert>
Result<Message> decode_as(const Frame& frame, std::uint32_t* unknown_fields, Convert&& convert) {
  const T* table = verified<T>(frame.payload);
  if (table == nullptr) {
    return fail(Errc::kCorrupt, fmt::format("{}: {} bytes are not a valid FlatBuffer",
                                            to_string(frame.type), frame.payload.size()));
  }
  if (unknown_fields != nullptr) *unknown_fields = count_unknown(table);
  Result<Message> message = convert(*table);
  if (!message) {
    message.error().message = fmt::format("{}: {}", to_string(frame.type), message.error().message);
  }
  return message;
}

template <typename T>
Result<Message> decode_as(const Frame& frame, std::uint32_t* unknown_fields) {
  return decode_as<T>(frame, unknown_fields, [](const T& table) { return to_message(table); });
}

}  // namespace

Result<Message> decode(const Frame& frame, std::uint32_t* unknown) {
  if (unknown != nullptr) *unknown = 0;
  switch (frame.type) {
    case MessageType::kHello:
      return decode_as<fb::Hello>(frame, unknown,
                                  [](const fb::Hello& t) { return to_hello<Hello>(t); });
    case MessageType::kHelloAck:
      return decode_as<fb::Hello>(frame, unknown,
                                  [](const fb::Hello& t) { return to_hello<HelloAck>(t); });
    case MessageType::kRefuse:
      return decode_as<fb::Refuse>(frame, unknown);
    case MessageType::kOffer:
      return decode_as<fb::Offer>(frame, unknown);
    case MessageType::kRegister:
      return decode_as<fb::Register>(frame, unknown);
    case MessageType::kRegisterState:
      return decode_as<fb::RegisterState>(frame, unknown);
    case MessageType::kFinal:
      return decode_as<fb::Final>(frame, unknown);
    case MessageType::kStopped:
      return decode_as<fb::Stopped>(frame, unknown);
    case MessageType::kCancel:
      return decode_as<fb::Cancel>(frame, unknown);
    case MessageType::kCredit:
      return decode_as<fb::Credit>(frame, unknown);
    case MessageType::kRenew:
      return decode_as<fb::Renew>(frame, unknown);
    case MessageType::kPing:
      return decode_as<fb::Ping>(frame, unknown);
    case MessageType::kPong:
      return decode_as<fb::Pong>(frame, unknown);
    case MessageType::kGoodbye:
      return decode_as<fb::Goodbye>(frame, unknown);
  }
  return Message(std::monostate{});
}

// ---- encoding ----

namespace {

fb::Id128 from_id(const TransferId& id) {
  return {id.high, id.low};
}

fb::Key from_key(const Key& key) {
  return {from_id(key.transfer), key.attempt.binding, key.attempt.attempt, key.slot.to_immediate(),
          key.epoch};
}

// A duration as the wire's milliseconds: never negative, never wrapped.
std::uint32_t from_ms(std::chrono::milliseconds value) {
  const auto count = value.count();
  if (count <= 0) return 0;
  return static_cast<std::uint32_t>(std::min<std::int64_t>(count, 0xFFFFFFFF));
}

std::string_view shortened(std::string_view text) {
  return text.substr(0, kTextBytesMax);
}

}  // namespace

struct Encoder::Impl {
  flatbuffers::FlatBufferBuilder builder{4096};
  std::vector<std::byte> frame;

  flatbuffers::Offset<flatbuffers::String> text(std::string_view value) {
    value = shortened(value);
    return builder.CreateString(value.data(), value.size());
  }

  template <typename Table>
  std::span<const std::byte> finish(MessageType type, flatbuffers::Offset<Table> root) {
    builder.Finish(root);
    const std::size_t size = builder.GetSize();
    const std::size_t padded = (size + 7) & ~std::size_t{7};
    frame.resize(kHeaderBytes + padded);
    std::memcpy(frame.data() + kHeaderBytes, builder.GetBufferPointer(), size);
    std::memset(frame.data() + kHeaderBytes + size, 0, padded - size);
    const std::span<std::byte> all(frame);
    write_header(all.first(kHeaderBytes), type, all.subspan(kHeaderBytes));
    builder.Clear();
    return frame;
  }

  flatbuffers::Offset<fb::Geometry> geometry(const Geometry& in) {
    std::vector<flatbuffers::Offset<fb::Region>> regions;
    regions.reserve(in.regions.size());
    for (const Region& r : in.regions) {
      regions.push_back(fb::CreateRegion(builder, text(r.name), r.stride_bytes, r.block_bytes,
                                         r.num_blocks, r.group, static_cast<std::uint8_t>(r.kind)));
    }
    const auto model = text(in.model);
    const auto kv_dtype = text(in.kv_dtype);
    const auto kernel_family = text(in.kernel_family);
    const auto list = builder.CreateVector(regions);
    return fb::CreateGeometry(builder, model, kv_dtype, in.num_layers, in.num_kv_heads, in.head_dim,
                              in.block_size, static_cast<std::uint8_t>(in.layout), in.num_groups,
                              in.tp_size, in.pp_size, in.rank.tp, in.rank.pp, kernel_family, list);
  }

  std::span<const std::byte> hello(MessageType type, const Hello& in) {
    const auto shape = geometry(in.geometry);
    const auto engine_id = text(in.from.engine_id);
    const auto expected = text(in.expected.engine_id);
    const auto fabric = text(in.fabric);
    return finish(
        type, fb::CreateHello(builder, in.version, in.version_min, engine_id, in.from.incarnation,
                              expected, in.expected.incarnation, static_cast<std::uint8_t>(in.mode),
                              static_cast<std::uint8_t>(in.role), fabric, in.verify,
                              from_ms(in.peer_timeout), from_ms(in.lease), shape, in.session,
                              in.connection));
  }
};

Encoder::Encoder() : impl_(std::make_unique<Impl>()) {}
Encoder::~Encoder() = default;

std::span<const std::byte> Encoder::encode(const Hello& message) {
  return impl_->hello(MessageType::kHello, message);
}

std::span<const std::byte> Encoder::encode(const HelloAck& message) {
  return impl_->hello(MessageType::kHelloAck, message);
}

std::span<const std::byte> Encoder::encode(const Refuse& message) {
  const auto field = impl_->text(message.field);
  const auto ours = impl_->text(message.ours);
  const auto theirs = impl_->text(message.theirs);
  const auto text = impl_->text(message.text);
  return impl_->finish(MessageType::kRefuse,
                       fb::CreateRefuse(impl_->builder, field, ours, theirs, text));
}

std::span<const std::byte> Encoder::encode(const Offer& message) {
  const auto bytes = impl_->builder.CreateVector(
      reinterpret_cast<const std::uint8_t*>(message.offer.data()), message.offer.size());
  return impl_->finish(MessageType::kOffer, fb::CreateOffer(impl_->builder, bytes));
}

std::span<const std::byte> Encoder::encode(const Register& message) {
  auto& builder = impl_->builder;
  std::array<flatbuffers::Offset<fb::BlockList>, kGroupsMax> lists;
  for (std::size_t g = 0; g < message.num_groups; ++g) {
    const auto ids = builder.CreateVector(message.block_ids[g].data(), message.block_ids[g].size());
    lists[g] = fb::CreateBlockList(builder, ids);
  }
  const auto groups = builder.CreateVector(lists.data(), message.num_groups);
  const fb::Grant grant(message.grant.writer.tp, message.grant.writer.pp,
                        message.grant.slot.to_immediate(), message.grant.credits,
                        message.grant.epoch);
  const auto grants = builder.CreateVectorOfStructs(&grant, 1);
  const fb::Id128 id = from_id(message.transfer);
  return impl_->finish(
      MessageType::kRegister,
      fb::CreateRegister(builder, &id, message.attempt.binding, message.attempt.attempt,
                         message.range.begin, message.range.end, message.prompt_tokens, groups,
                         grants, from_ms(message.deadline), message.counted, message.taken,
                         message.announcement));
}

std::span<const std::byte> Encoder::encode(const RegisterState& message) {
  const fb::Key key = from_key(message.key);
  return impl_->finish(
      MessageType::kRegisterState,
      fb::CreateRegisterState(impl_->builder, &key, static_cast<std::uint8_t>(message.state)));
}

std::span<const std::byte> Encoder::encode(const Final& message) {
  const fb::Key key = from_key(message.key);
  const auto hashes = impl_->builder.CreateVector(message.hashes.data(), message.hashes.size());
  return impl_->finish(
      MessageType::kFinal,
      fb::CreateFinal(impl_->builder, &key, message.immediates, message.range.begin,
                      message.range.end, message.bytes, message.writes,
                      message.first_token.has_value(), message.first_token.value_or(0), hashes));
}

std::span<const std::byte> Encoder::encode(const Stopped& message) {
  const fb::Key key = from_key(message.key);
  const auto text = impl_->text(message.text);
  return impl_->finish(
      MessageType::kStopped,
      fb::CreateStopped(impl_->builder, &key, static_cast<std::uint8_t>(message.cause), text,
                        message.drained, message.immediates, message.clean, message.again));
}

std::span<const std::byte> Encoder::encode(const Cancel& message) {
  const fb::Key key = from_key(message.key);
  const auto text = impl_->text(message.text);
  return impl_->finish(
      MessageType::kCancel,
      fb::CreateCancel(impl_->builder, &key, static_cast<std::uint8_t>(message.cause), text,
                       message.keep));
}

std::span<const std::byte> Encoder::encode(const Credit& message) {
  const fb::Key key = from_key(message.key);
  return impl_->finish(MessageType::kCredit,
                       fb::CreateCredit(impl_->builder, &key, message.counted));
}

std::span<const std::byte> Encoder::encode(const Renew& message) {
  const auto ids = impl_->builder.CreateVectorOfStructs(
      reinterpret_cast<const fb::Id128*>(message.transfers.data()), message.transfers.size());
  return impl_->finish(MessageType::kRenew, fb::CreateRenew(impl_->builder, ids));
}

std::span<const std::byte> Encoder::encode(const Ping& message) {
  return impl_->finish(MessageType::kPing,
                       fb::CreatePing(impl_->builder, message.token, message.oldest_epoch));
}

std::span<const std::byte> Encoder::encode(const Pong& message) {
  return impl_->finish(MessageType::kPong, fb::CreatePong(impl_->builder, message.token));
}

std::span<const std::byte> Encoder::encode(const Goodbye& message) {
  const auto text = impl_->text(message.text);
  return impl_->finish(MessageType::kGoodbye, fb::CreateGoodbye(impl_->builder, text));
}

}  // namespace baton::wire
