#include "engine/timed/pattern.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace baton::engine::timed {
namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);

// splitmix64's finaliser: every bit of the input changes half of the output's.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EB;
  return x ^ (x >> 31U);
}

std::uint64_t token_bits(TokenId token) {
  return static_cast<std::uint32_t>(token);
}

// The loops over tokens, one word of a token after the other, are such as compilers turn into
// vector instructions: these bytes are filled and compared within the time of a step.
void write_words(std::byte* place, std::span<const std::uint64_t> numbers,
                 std::span<const std::uint64_t> key) {
  const std::size_t stride = key.size() * kWord;
  for (std::size_t part = 0; part < key.size(); ++part) {
    std::byte* const first = place + part * kWord;
    for (std::size_t token = 0; token < numbers.size(); ++token) {
      const std::uint64_t word = numbers[token] ^ key[part];
      std::memcpy(first + token * stride, &word, kWord);
    }
  }
}

bool is_right(const std::byte* place, std::span<const std::uint64_t> numbers,
              std::span<const std::uint64_t> key) {
  const std::size_t stride = key.size() * kWord;
  std::uint64_t wrong = 0;
  for (std::size_t part = 0; part < key.size(); ++part) {
    const std::byte* const first = place + part * kWord;
    for (std::size_t token = 0; token < numbers.size(); ++token) {
      std::uint64_t word = 0;
      std::memcpy(&word, first + token * stride, kWord);
      wrong |= word ^ numbers[token] ^ key[part];
    }
  }
  return wrong == 0;
}

// Of bytes that are not right; position and byte count from `place`.
Difference first_difference(const std::byte* place, std::span<const std::uint64_t> numbers,
                            std::span<const std::uint64_t> key) {
  for (std::size_t byte = 0; byte < numbers.size() * key.size() * kWord; ++byte) {
    const std::size_t word = byte / kWord;
    const std::uint64_t whole = numbers[word / key.size()] ^ key[word % key.size()];
    const auto want = std::bit_cast<std::array<std::uint8_t, kWord>>(whole)[byte % kWord];
    const auto got = std::to_integer<std::uint8_t>(place[byte]);
    if (want == got) continue;
    Difference difference;
    difference.position = static_cast<std::uint32_t>(word / key.size());
    difference.byte = byte;
    difference.expected = want;
    difference.found = got;
    return difference;
  }
  BATON_CHECK(false, "these bytes are right");
  return {};
}

}  // namespace

PromptNumbers::PromptNumbers(std::span<const TokenId> tokens) : tokens_(tokens) {
  std::uint64_t identity = 0;
  for (std::size_t i = 0; i < std::min(kIdentityTokens, tokens.size()); ++i) {
    identity_[i] = identity = mix(identity ^ token_bits(tokens[i]));
  }
}

std::uint64_t PromptNumbers::at(std::uint32_t position) const {
  const std::uint64_t here = (std::uint64_t{position} << 32U) | token_bits(tokens_[position]);
  return mix(identity_[std::min<std::size_t>(position, kIdentityTokens - 1)] ^ mix(here));
}

Pattern::Pattern(std::size_t regions, std::uint32_t token_bytes)
    : regions_(regions), words_(token_bytes / kWord), keys_(regions * words_) {
  BATON_CHECK(token_bytes > 0 && token_bytes % kWord == 0);
  for (std::size_t i = 0; i < keys_.size(); ++i) keys_[i] = mix(~i);
}

template <typename Visit>
void Pattern::walk(const model::KvPool& pool, std::span<const BlockId> table, std::uint32_t begin,
                   std::uint32_t end, const PromptNumbers& numbers, const Visit& visit) {
  BATON_CHECK(pool.layers.size() == regions_);
  numbers_.clear();
  for (std::uint32_t position = begin; position < end; ++position) {
    numbers_.push_back(numbers.at(position));
  }
  for (std::size_t region = 0; region < regions_; ++region) {
    for (std::uint32_t position = begin; position < end;) {
      const std::uint32_t within = position % pool.block_size;
      const std::uint32_t count = std::min(pool.block_size - within, end - position);
      const BlockId block = table[position / pool.block_size];
      std::byte* place = pool.layers[region] + block * pool.stride_bytes + within * words_ * kWord;
      if (!visit(region, block, position, place,
                 std::span(numbers_).subspan(position - begin, count))) {
        return;
      }
      position += count;
    }
  }
}

void Pattern::fill(const model::KvPool& pool, std::span<const BlockId> table, std::uint32_t begin,
                   std::uint32_t end, const PromptNumbers& numbers) {
  walk(pool, table, begin, end, numbers,
       [this](std::size_t region, BlockId, std::uint32_t, std::byte* place,
              std::span<const std::uint64_t> of_tokens) {
         write_words(place, of_tokens, std::span(keys(region), words_));
         return true;
       });
}

std::optional<Difference> Pattern::check(const model::KvPool& pool, std::span<const BlockId> table,
                                         std::uint32_t begin, std::uint32_t end,
                                         const PromptNumbers& numbers) {
  std::optional<Difference> found;
  walk(pool, table, begin, end, numbers,
       [&](std::size_t region, BlockId block, std::uint32_t position, const std::byte* place,
           std::span<const std::uint64_t> of_tokens) {
         const std::span key(keys(region), words_);
         if (is_right(place, of_tokens, key)) return true;
         found = first_difference(place, of_tokens, key);
         found->position += position;
         found->block = block;
         found->region = region;
         found->byte += position % pool.block_size * words_ * kWord;
         return false;
       });
  return found;
}

}  // namespace baton::engine::timed
