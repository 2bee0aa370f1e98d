// The envelope of a control message: 24 bytes of header, then a FlatBuffer. Cutting a byte stream
// into frames checks magic, version, length and checksum; what a payload says is checked later
// (messages.h). Pure, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "baton/result.h"

namespace baton::wire {

inline constexpr std::uint16_t kVersion = 2;       // the newest protocol this build speaks
inline constexpr std::uint16_t kVersionMin = 1;    // the oldest: N - 1
inline constexpr std::uint16_t kFrameVersion = 1;  // of the envelope; never negotiated
inline constexpr std::size_t kHeaderBytes = 24;
inline constexpr std::size_t kFrameBytesMax = std::size_t{4}
                                              << 20;  // with header, from a peer that shook hands
inline constexpr std::size_t kHandshakeBytesMax = std::size_t{512} << 10;  // from anybody else

enum class MessageType : std::uint16_t {
  kHello = 1,
  kHelloAck = 2,
  kRefuse = 3,
  kOffer = 4,
  kRegister = 5,
  kRegisterState = 6,
  kFinal = 7,
  kStopped = 8,
  kCancel = 9,
  kCredit = 10,
  kRenew = 11,
  kPing = 12,
  kPong = 13,
  kGoodbye = 14,  // since version 2
};
std::string_view to_string(MessageType type);

// One whole message. `payload` is 8-byte aligned and belongs to whoever handed the frame out.
// `type` may be one that this build does not know: such frames are skipped by the receiver.
struct Frame {
  MessageType type{};
  std::span<const std::byte> payload;
};

// Writes the 24 bytes before `payload`: out.size() == kHeaderBytes.
void write_header(std::span<std::byte> out, MessageType type, std::span<const std::byte> payload);

// Cuts one connection's byte stream into frames. Memory: at most one frame, grown only as its bytes
// arrive.
class FrameReader {
 public:
  explicit FrameReader(std::size_t frame_bytes_max = kHandshakeBytesMax)
      : frame_bytes_max_(frame_bytes_max) {}

  // After the handshake a peer may send larger frames.
  void set_limit(std::size_t frame_bytes_max) { frame_bytes_max_ = frame_bytes_max; }

  // Room to read the socket into, at least one byte; commit() says how many bytes were read.
  std::span<std::byte> prepare();
  void commit(std::size_t bytes);

  // The next whole frame, or nothing until more bytes come. The frame's payload lives until the
  // next call of a method of this reader. An error (names the field and both values) is final: the
  // stream is lost, close it.
  Result<std::optional<Frame>> next();

 private:
  void compact();

  std::size_t frame_bytes_max_;
  std::vector<std::uint64_t> buffer_;  // 8-byte aligned
  std::size_t begin_ = 0;              // first byte not handed out
  std::size_t end_ = 0;                // one past the last byte read
};

}  // namespace baton::wire
