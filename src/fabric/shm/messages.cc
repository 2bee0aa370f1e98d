#include "fabric/shm/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "fabric/access.h"

namespace baton::fabric::shm {
namespace {

constexpr std::uint32_t kVersion = 2;
constexpr std::size_t kReasonMax = 256;

enum class Kind : std::uint32_t {
  kOffer = 0x4f4e5442,    // "BTNO"
  kHello = 0x484e5442,    // "BTNH"
  kWelcome = 0x574e5442,  // "BTNW"
  kRefusal = 0x524e5442,  // "BTNR"
};

struct Head {
  std::uint32_t kind = 0;
  std::uint32_t version = kVersion;
  std::uint32_t count = 0;   // kWelcome: regions; kRefusal: characters; others: 0
  std::uint32_t access = 0;  // kOffer, kHello: access_word(); others: 0
};
struct OfferBody {
  SocketName socket{};
  Token token{};
};
static_assert(sizeof(Head) == 16 && sizeof(RegionPlace) == 24 && sizeof(OfferBody) == 48);

Head make_head(Kind kind, std::size_t count) {
  Head head;
  head.kind = static_cast<std::uint32_t>(kind);
  head.count = static_cast<std::uint32_t>(count);
  return head;
}

Head make_head(Kind kind, Access access) {
  Head head = make_head(kind, 0);
  head.access = access_word(access);
  return head;
}

// A head and what follows it.
std::vector<std::byte> message(const Head& head, const void* body, std::size_t bytes) {
  std::vector<std::byte> out(sizeof head + bytes);
  std::memcpy(out.data(), &head, sizeof head);
  if (bytes > 0) std::memcpy(out.data() + sizeof head, body, bytes);
  return out;
}

// Checks head and exact size of a fixed message, copies its body and answers its access.
template <typename Body>
Result<Access> decode_fixed(std::span<const std::byte> bytes, Kind kind, std::string_view what,
                            Body& body) {
  constexpr std::size_t kSize = sizeof(Head) + sizeof(Body);
  if (bytes.size() != kSize) {
    return fail(Errc::kCorrupt,
                fmt::format("{}: {} bytes, expected {}", what, bytes.size(), kSize));
  }
  Head head;
  std::memcpy(&head, bytes.data(), sizeof head);
  if (head.kind != static_cast<std::uint32_t>(kind)) {
    return fail(Errc::kCorrupt, fmt::format("{}: begins with {:#x}, expected {:#x}", what,
                                            head.kind, static_cast<std::uint32_t>(kind)));
  }
  if (head.version != kVersion) {
    return fail(Errc::kMismatch,
                fmt::format("{}: version {}, expected {}", what, head.version, kVersion));
  }
  if (head.count != 0) {
    return fail(Errc::kCorrupt,
                fmt::format("{}: the reserved field is {}, expected 0", what, head.count));
  }
  std::memcpy(&body, bytes.data() + sizeof head, sizeof body);
  return decode_access(what, head.access);
}

Error decode_refusal(std::span<const std::byte> text) {
  std::string reason;
  for (const std::byte b : text.first(std::min(text.size(), kReasonMax))) {
    const auto c = static_cast<char>(b);
    reason.push_back(c >= ' ' && c <= '~' ? c : '?');
  }
  return {Errc::kUnavailable, "the peer refused: " + reason};
}

}  // namespace

std::vector<std::byte> encode(const Offer& offer) {
  const OfferBody body{offer.socket, offer.token};
  return message(make_head(Kind::kOffer, offer.access), &body, sizeof body);
}

Result<Offer> decode_offer(std::span<const std::byte> bytes) {
  OfferBody body;
  const Result<Access> access = decode_fixed(bytes, Kind::kOffer, "offer", body);
  if (!access) return tl::unexpected(access.error());
  for (const char c : body.socket) {
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) {
      return fail(Errc::kCorrupt, fmt::format("offer: socket name holds {:#04x}, not a hex digit",
                                              static_cast<unsigned char>(c)));
    }
  }
  return Offer{*access, body.socket, body.token};
}

std::vector<std::byte> encode(const Hello& hello) {
  return message(make_head(Kind::kHello, hello.access), hello.token.data(), hello.token.size());
}

Result<Hello> decode_hello(std::span<const std::byte> bytes) {
  Token token{};
  const Result<Access> access = decode_fixed(bytes, Kind::kHello, "hello", token);
  if (!access) return tl::unexpected(access.error());
  return Hello{*access, token};
}

std::vector<std::byte> encode(const Welcome& welcome) {
  return message(make_head(Kind::kWelcome, welcome.regions.size()), welcome.regions.data(),
                 welcome.regions.size() * sizeof(RegionPlace));
}

std::vector<std::byte> encode_refusal(std::string_view reason) {
  reason = reason.substr(0, kReasonMax);
  return message(make_head(Kind::kRefusal, reason.size()), reason.data(), reason.size());
}

Result<Welcome> decode_welcome(std::span<const std::byte> bytes) {
  Head head;
  if (bytes.size() < sizeof head) {
    return fail(Errc::kCorrupt, fmt::format("welcome: {} bytes, at least {} are expected",
                                            bytes.size(), sizeof head));
  }
  std::memcpy(&head, bytes.data(), sizeof head);
  const auto body = bytes.subspan(sizeof head);
  if (head.kind == static_cast<std::uint32_t>(Kind::kRefusal)) {
    return tl::unexpected(decode_refusal(body));
  }
  if (head.kind != static_cast<std::uint32_t>(Kind::kWelcome)) {
    return fail(Errc::kCorrupt, fmt::format("welcome: begins with {:#x}", head.kind));
  }
  if (head.version != kVersion) {
    return fail(Errc::kMismatch,
                fmt::format("welcome: version {}, expected {}", head.version, kVersion));
  }
  if (body.size() != head.count * sizeof(RegionPlace)) {
    return fail(Errc::kCorrupt, fmt::format("welcome: {} bytes for {} regions of {}", body.size(),
                                            head.count, sizeof(RegionPlace)));
  }
  Welcome welcome;
  welcome.regions.resize(head.count);
  if (!body.empty()) std::memcpy(welcome.regions.data(), body.data(), body.size());
  return welcome;
}

std::size_t welcome_bytes_max(std::size_t regions) {
  return sizeof(Head) + std::max(regions * sizeof(RegionPlace), kReasonMax);
}

}  // namespace baton::fabric::shm
