// The bytes that stand for the KV of a token: a function of the prompt it belongs to, the token,
// its position, the region (layer, K or V) and the place inside. A block that is not where it
// belongs, a byte that changed or never came is therefore seen, and says where it should have been.
//
// A prompt is known by its first tokens, and each position only by tokens up to it, so that prompts
// that begin alike have the same KV there, as a prefix cache wants it. What it cannot tell apart:
// two requests with the same prompt.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "baton/ids.h"
#include "model/model.h"

namespace baton::engine::timed {

// The number of a position, which all its bytes are made from.
class PromptNumbers {
 public:
  // `tokens`: of the sequence from its beginning; at least to the positions asked for.
  explicit PromptNumbers(std::span<const TokenId> tokens);
  std::uint64_t at(std::uint32_t position) const;

 private:
  static constexpr std::size_t kIdentityTokens = 16;
  std::span<const TokenId> tokens_;
  std::array<std::uint64_t, kIdentityTokens>
      identity_{};  // of the first tokens, up to each of them
};

struct Difference {
  std::uint32_t position = 0;
  BlockId block = 0;
  std::size_t region = 0;
  std::size_t byte = 0;  // of the block
  std::uint8_t expected = 0, found = 0;
};

// The pool of one instance. One thread.
class Pattern {
 public:
  // `token_bytes`: of one token in one region, a multiple of 8. A block of a region is its tokens
  // in order.
  Pattern(std::size_t regions, std::uint32_t token_bytes);

  // Writes the bytes of positions [begin, end), or compares every byte of them.
  void fill(const model::KvPool& pool, std::span<const BlockId> table, std::uint32_t begin,
            std::uint32_t end, const PromptNumbers& numbers);
  std::optional<Difference> check(const model::KvPool& pool, std::span<const BlockId> table,
                                  std::uint32_t begin, std::uint32_t end,
                                  const PromptNumbers& numbers);

 private:
  // Calls visit(region, block, first position, place of its bytes, the positions' numbers) for each
  // stretch inside a block; stops at false.
  template <typename Visit>
  void walk(const model::KvPool& pool, std::span<const BlockId> table, std::uint32_t begin,
            std::uint32_t end, const PromptNumbers& numbers, const Visit& visit);
  const std::uint64_t* keys(std::size_t region) const { return keys_.data() + region * words_; }

  std::size_t regions_;
  std::size_t words_;  // of a token in a region
  std::vector<std::uint64_t> keys_;
  std::vector<std::uint64_t> numbers_;  // scratch
};

}  // namespace baton::engine::timed
