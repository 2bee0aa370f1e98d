// Control messages as plain values. encode_*() makes whole frames; decode() turns a frame into a
// Message after the FlatBuffers verifier and the static limits below have passed it, so that
// nothing behind it sees unbounded or misaligned data. What depends on geometry and pools is
// checked in validate.h.
//
// Text and lists of a decoded message point into the frame's payload and live as long as it does.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "baton/event.h"
#include "baton/geometry.h"
#include "baton/ids.h"
#include "baton/peer.h"
#include "baton/result.h"
#include "wire/frame.h"

namespace baton::wire {

inline constexpr std::size_t kGroupsMax = 16;
inline constexpr std::size_t kRegionsMax = 4096;
inline constexpr std::size_t kNameBytesMax = 256;  // engine ids, region names, dtypes
inline constexpr std::size_t kTextBytesMax =
    1024;  // reasons for people; longer ones are cut when sent
inline constexpr std::size_t kOfferBytesMax = 4096;
inline constexpr std::size_t kRenewalsMax =
    4096;  // ids in one Renew; more go into further messages
inline constexpr std::size_t kBlockIdsMax = 1U << 19;  // ids in one Register

struct Key {
  TransferId transfer;
  Attempt attempt;
  Slot slot;
  Epoch epoch = 0;
  auto operator<=>(const Key&) const = default;
};

struct Hello {
  std::uint16_t version = kVersion;
  std::uint16_t version_min = kVersionMin;
  PeerId from;
  PeerId expected;  // incarnation 0: any
  Mode mode = Mode::kPush;
  Role role = Role::kBoth;
  std::string fabric;
  bool verify = false;
  std::chrono::milliseconds peer_timeout{0};
  std::chrono::milliseconds lease{0};
  std::uint64_t session = 0;     // D's count; P's HelloAck has none
  std::uint64_t connection = 0;  // D's count; P's HelloAck: the first that it remembers, 0: unknown
  Geometry geometry;             // of a decoded one: no base pointers, no descriptors
};
struct HelloAck : Hello {};

struct Refuse {
  std::string field, ours, theirs;  // `ours` is the sender's
  std::string text;
};

struct Offer {
  std::span<const std::byte> offer;
};

struct Grant {
  Rank writer;
  Slot slot;
  Epoch epoch = 0;
  std::uint32_t credits = 0;  // immediates that may be posted and not yet counted
};

using GroupIds = std::array<std::span<const BlockId>, kGroupsMax>;

struct Register {
  TransferId transfer;
  Attempt attempt;
  TokenRange range;
  std::uint32_t prompt_tokens = 0;
  std::size_t num_groups = 0;
  GroupIds block_ids;
  std::size_t num_grants = 0;
  Grant grant;  // the first; today there is exactly one writer rank
  std::chrono::milliseconds deadline{0};
  std::uint32_t counted = 0;
  bool taken = false;              // pull
  std::uint64_t announcement = 0;  // pull; 0: a link of version 1
  Key key() const { return {transfer, attempt, grant.slot, grant.epoch}; }
};

enum class StandingState : std::uint8_t { kPending, kComputing, kWriting };

struct RegisterState {
  Key key;
  StandingState state = StandingState::kPending;
};

struct Final {
  Key key;
  std::uint32_t immediates = 0;
  TokenRange range;
  std::uint64_t bytes = 0;
  std::uint32_t writes = 0;
  std::optional<TokenId> first_token;
  std::span<const std::uint64_t> hashes;
};

struct Stopped {
  Key key;
  Cause cause = Cause::kNone;
  std::string_view text;
  bool drained = false;
  std::uint32_t immediates = 0;
  bool clean = true;
  bool again = false;
};

struct Cancel {
  Key key;
  Cause cause = Cause::kCancelledHere;
  std::string_view text;
  bool keep = false;
};

struct Credit {
  Key key;
  std::uint32_t counted = 0;
};

struct Renew {
  std::span<const TransferId> transfers;
};

struct Ping {
  std::uint64_t token = 0;
  Epoch oldest_epoch = 0;
};
struct Pong {
  std::uint64_t token = 0;
};

struct Goodbye {
  std::string_view text;
};
inline constexpr std::uint16_t kGoodbyeSince = 2;
inline constexpr std::uint16_t kMemorySince = 2;        // HelloAck::connection
inline constexpr std::uint16_t kAnnouncementSince = 2;  // Register::announcement

// monostate: a type this build does not know; skip it.
using Message =
    std::variant<std::monostate, Hello, HelloAck, Refuse, Offer, Register, RegisterState, Final,
                 Stopped, Cancel, Credit, Renew, Ping, Pong, Goodbye>;

// Errors: kCorrupt (not a FlatBuffer of that type), kInvalidArgument (a limit or an enumeration;
// names field and value). Fields of the root table that this build does not know, as a newer peer
// may send them, are ignored; `unknown_fields`, if given, says how many there were.
Result<Message> decode(const Frame& frame, std::uint32_t* unknown_fields = nullptr);

// Makes frames in one reused buffer: after warm-up nothing is allocated. The frame lives until the
// next encode().
class Encoder {
 public:
  Encoder();
  ~Encoder();
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  std::span<const std::byte> encode(const Hello& message);
  std::span<const std::byte> encode(const HelloAck& message);
  std::span<const std::byte> encode(const Refuse& message);
  std::span<const std::byte> encode(const Offer& message);
  std::span<const std::byte> encode(const Register& message);
  std::span<const std::byte> encode(const RegisterState& message);
  std::span<const std::byte> encode(const Final& message);
  std::span<const std::byte> encode(const Stopped& message);
  std::span<const std::byte> encode(const Cancel& message);
  std::span<const std::byte> encode(const Credit& message);
  std::span<const std::byte> encode(const Renew& message);
  std::span<const std::byte> encode(const Ping& message);
  std::span<const std::byte> encode(const Pong& message);
  std::span<const std::byte> encode(const Goodbye& message);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace baton::wire
