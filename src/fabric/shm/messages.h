// What crosses the unix socket between the peer that connects (a writer or a reader) and the one
// that offered (the receiver or the source), and the offer that leads there. All of it is hostile
// input to whoever reads it. Both sides are processes of one host, so numbers are in its own byte
// order.
//
//   to the one that offered   Hello                   once, proves the token of the offer and says
//                                                     what it was understood to grant
//   back                      Welcome + descriptors   the memfds, and where each region lies
//                             or Refusal              a sentence, then the connection closes
//   writer -> receiver        immediates              any number of datagrams of 1 to
//   kImmediatesMax 32-bit words
//   to the one that offered   farewell                last: nothing of its memory is mapped any
//   more
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "baton/result.h"
#include "fabric/fabric.h"

namespace baton::fabric::shm {

using Token = std::array<std::byte, 16>;
using SocketName = std::array<char, 32>;  // of the abstract socket, hex digits

inline constexpr std::size_t kImmediatesMax = 256;  // in one datagram
inline constexpr std::size_t kMemfdsMax = 253;      // in one message (SCM_MAX_FD)
inline constexpr std::uint32_t kNoMemfd = 0xFFFFFFFF;

// The word of the one that connected that it has unmapped everything and posts nothing any more. Of
// no length that immediates have.
inline constexpr std::array<std::byte, 3> kFarewell{std::byte{'B'}, std::byte{'Y'}, std::byte{'E'}};

struct Offer {
  Access access = Access::kWrite;
  SocketName socket{};
  Token token{};
};
std::vector<std::byte> encode(const Offer& offer);
Result<Offer> decode_offer(std::span<const std::byte> bytes);

struct Hello {
  Access access = Access::kWrite;
  Token token{};
};
std::vector<std::byte> encode(const Hello& hello);
Result<Hello> decode_hello(std::span<const std::byte> bytes);

// Where the receiver's region lies: at `place` in memfd number `memfd` of the message, or, with
// kNoMemfd, at address `place` of the receiver's process.
struct RegionPlace {
  std::uint64_t length = 0;
  std::uint64_t place = 0;
  std::uint32_t memfd = kNoMemfd;
  std::uint32_t reserved = 0;
};
struct Welcome {
  std::vector<RegionPlace> regions;
};
std::vector<std::byte> encode(const Welcome& welcome);
std::vector<std::byte> encode_refusal(std::string_view reason);
// A refusal is an error with the peer's sentence (shortened, unprintable characters replaced).
Result<Welcome> decode_welcome(std::span<const std::byte> bytes);
std::size_t welcome_bytes_max(std::size_t regions);

}  // namespace baton::fabric::shm
