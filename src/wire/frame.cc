#include "wire/frame.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace baton::wire {
namespace {

static_assert(std::endian::native == std::endian::little,
              "frames and block lists are read in place, which needs a little-endian machine");

constexpr std::uint32_t kMagic = 0x4E4F5442;  // "BTON"
constexpr std::size_t kReadAtLeast = std::size_t{16} << 10;

struct Header {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kFrameVersion;
  std::uint16_t type = 0;
  std::uint32_t length = 0;  // of the payload
  std::uint32_t reserved = 0;
  std::uint64_t checksum = 0;  // of the payload, seeded with the type
};
static_assert(sizeof(Header) == kHeaderBytes);

std::uint64_t checksum(std::uint16_t type, std::span<const std::byte> payload) {
  return XXH3_64bits_withSeed(payload.data(), payload.size(), type);
}

std::size_t round_up(std::size_t n) {
  return (n + 7) & ~std::size_t{7};
}

tl::unexpected<Error> corrupt(std::string message) {
  return fail(Errc::kCorrupt, std::move(message));
}

}  // namespace

std::string_view to_string(MessageType type) {
  switch (type) {
    case MessageType::kHello:
      return "Hello";
    case MessageType::kHelloAck:
      return "HelloAck";
    case MessageType::kRefuse:
      return "Refuse";
    case MessageType::kOffer:
      return "Offer";
    case MessageType::kRegister:
      return "Register";
    case MessageType::kRegisterState:
      return "RegisterState";
    case MessageType::kFinal:
      return "Final";
    case MessageType::kStopped:
      return "Stopped";
    case MessageType::kCancel:
      return "Cancel";
    case MessageType::kCredit:
      return "Credit";
    case MessageType::kRenew:
      return "Renew";
    case MessageType::kPing:
      return "Ping";
    case MessageType::kPong:
      return "Pong";
    case MessageType::kGoodbye:
      return "Goodbye";
  }
  return "unknown";
}

void write_header(std::span<std::byte> out, MessageType type, std::span<const std::byte> payload) {
  BATON_CHECK(out.size() == kHeaderBytes);
  BATON_CHECK(payload.size() % 8 == 0, "the next frame must stay aligned");
  Header header;
  header.type = static_cast<std::uint16_t>(type);
  header.length = static_cast<std::uint32_t>(payload.size());
  header.checksum = checksum(header.type, payload);
  std::memcpy(out.data(), &header, sizeof header);
}

std::span<std::byte> FrameReader::prepare() {
  compact();
  std::size_t capacity = buffer_.size() * 8;
  if (capacity - end_ < kReadAtLeast) {
    // Grows by what has come, never by what a header merely promises.
    const std::size_t wanted =
        std::min(std::max(capacity * 2, end_ + kReadAtLeast), frame_bytes_max_ + kReadAtLeast);
    if (wanted > capacity) {
      buffer_.resize(round_up(wanted) / 8);
      capacity = buffer_.size() * 8;
    }
  }
  BATON_CHECK(capacity > end_, "next() was not called until it had nothing");
  return std::as_writable_bytes(std::span(buffer_)).subspan(end_);
}

void FrameReader::commit(std::size_t bytes) {
  end_ += bytes;
  BATON_CHECK(end_ <= buffer_.size() * 8);
}

void FrameReader::compact() {
  if (begin_ == 0) return;
  auto* bytes = reinterpret_cast<std::byte*>(buffer_.data());
  std::memmove(bytes, bytes + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
}

Result<std::optional<Frame>> FrameReader::next() {
  if (end_ - begin_ < kHeaderBytes) return std::nullopt;
  const std::span<const std::byte> bytes = std::as_bytes(std::span(buffer_));
  Header header;
  std::memcpy(&header, bytes.data() + begin_, sizeof header);
  if (header.magic != kMagic) {
    return corrupt(fmt::format("magic is {:#010x}, expected {:#010x}", header.magic, kMagic));
  }
  if (header.version != kFrameVersion) {
    return fail(Errc::kMismatch,
                fmt::format("frame version is {}, expected {}", header.version, kFrameVersion));
  }
  if (header.reserved != 0) {
    return corrupt(fmt::format("reserved is {}, expected 0", header.reserved));
  }
  if (header.length % 8 != 0) {
    return corrupt(fmt::format("length is {}, expected a multiple of 8", header.length));
  }
  if (header.length + kHeaderBytes > frame_bytes_max_) {
    return corrupt(fmt::format("length is {}, at most {} are allowed here", header.length,
                               frame_bytes_max_ - kHeaderBytes));
  }
  if (end_ - begin_ < kHeaderBytes + header.length) return std::nullopt;
  const auto payload = bytes.subspan(begin_ + kHeaderBytes, header.length);
  const std::uint64_t sum = checksum(header.type, payload);
  if (sum != header.checksum) {
    return corrupt(fmt::format("checksum is {:#x}, expected {:#x}", header.checksum, sum));
  }
  begin_ += kHeaderBytes + header.length;
  return Frame{static_cast<MessageType>(header.type), payload};
}

}  // namespace baton::wire
