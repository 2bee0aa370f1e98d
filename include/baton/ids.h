// Names of things that cross the hand-over. One thing has one name everywhere: code, flags,
// metrics, messages, docs.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace baton {

// One request's KV moving from P's ranks to D's ranks. 128 unguessable bits, made by the router (or
// whoever places the request). Text form: 32 lower-case hex digits.
struct TransferId {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  auto operator<=>(const TransferId&) const = default;

  bool is_null() const { return high == 0 && low == 0; }
  std::string to_string() const;
  static std::optional<TransferId> parse(std::string_view text);
  static TransferId random();  // from the operating system's generator; any thread
};

// One process of one instance. A restart keeps the engine id and has a new incarnation: 64 random
// bits, never 0.
struct PeerId {
  std::string engine_id;
  std::uint64_t incarnation = 0;
  auto operator<=>(const PeerId&) const = default;
  std::string to_string() const;  // "engine_id#incarnation-in-hex"
};

// Position of a rank in its instance.
struct Rank {
  std::uint16_t tp = 0;
  std::uint16_t pp = 0;
  auto operator<=>(const Rank&) const = default;
};

// Which try of a transfer: the router raises `binding` when it chooses another D, D raises
// `attempt` each time it registers again. The highest (binding, attempt) stands, older ones are
// superseded.
struct Attempt {
  std::uint32_t binding = 0;
  std::uint32_t attempt = 0;
  auto operator<=>(const Attempt&) const = default;
};

// D's completion slot for one (transfer, writer rank). As a 32-bit immediate: index in the low 20
// bits, generation in the high 12. A slot is granted again only after its writer drained, under the
// next generation.
struct Slot {
  static constexpr std::uint32_t kIndexBits = 20;
  static constexpr std::uint32_t kIndexMask = (1U << kIndexBits) - 1;
  static constexpr std::uint32_t kGenerationMask = (1U << (32 - kIndexBits)) - 1;

  std::uint32_t index = 0;
  std::uint32_t generation = 0;
  auto operator<=>(const Slot&) const = default;

  std::uint32_t to_immediate() const { return (generation << kIndexBits) | (index & kIndexMask); }
  static Slot from_immediate(std::uint32_t imm) { return {imm & kIndexMask, imm >> kIndexBits}; }
};

using Epoch = std::uint64_t;  // of a grant: D counts its grants, never reused within an incarnation
using BlockId = std::uint32_t;  // index of a block in an instance's pool
using TokenId = std::int32_t;

// Half-open range of token positions of the prompt.
struct TokenRange {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  auto operator<=>(const TokenRange&) const = default;
  std::uint32_t size() const { return end - begin; }
  bool empty() const { return begin == end; }
};

}  // namespace baton

template <>
struct std::hash<baton::TransferId> {
  std::size_t operator()(const baton::TransferId& id) const noexcept {
    return static_cast<std::size_t>(id.high ^ (id.low * 0x9E3779B97F4A7C15ULL));
  }
};
template <>
struct std::hash<baton::PeerId> {
  std::size_t operator()(const baton::PeerId& id) const noexcept {
    return std::hash<std::string>()(id.engine_id) ^ static_cast<std::size_t>(id.incarnation);
  }
};
