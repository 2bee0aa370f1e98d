#include "engine/testing/fake_model.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"

namespace baton::engine {

namespace {

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t z = a ^ (b + 0x9E3779B97F4A7C15ULL + (a << 6) + (a >> 2));
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

// In bytes: one (K or V, head, token) is head_dim bfloat16 values, here one 64-bit word.
constexpr std::uint32_t kHeadDim = 4;
constexpr std::size_t kWord = 8;

std::byte* word_at(const model::KvPool& pool, std::size_t layer, BlockId block, std::size_t part,
                   std::size_t slot) {
  return pool.layers[layer] + block * pool.stride_bytes + (part * pool.block_size + slot) * kWord;
}

}  // namespace

FakeModel::FakeModel() {
  config_.architecture = "fake";
  config_.name = "fake";
  config_.fingerprint = "fake-fingerprint";
  config_.num_layers = 2;
  config_.num_heads = 2;
  config_.num_kv_heads = 2;
  config_.head_dim = kHeadDim;
  config_.embedding_size = 8;
  config_.feed_forward_size = 16;
  config_.vocab_size = kFakeVocab;
  config_.context_length = 512;
}

std::uint64_t FakeModel::hash_prefix(const model::KvPool& pool, std::span<const BlockId> table,
                                     std::uint32_t end) const {
  std::uint64_t hash = 1;
  for (std::uint32_t position = 0; position < end; ++position) {
    const BlockId block = table[position / pool.block_size];
    for (std::size_t layer = 0; layer < pool.layers.size(); ++layer) {
      for (std::size_t part = 0; part < 2 * config_.num_kv_heads; ++part) {
        std::uint64_t word = 0;
        std::memcpy(&word, word_at(pool, layer, block, part, position % pool.block_size), kWord);
        hash = mix(hash, word);
      }
    }
  }
  return hash;
}

void FakeModel::write_token(const model::KvPool& pool, std::span<const BlockId> table,
                            std::uint32_t position, std::uint64_t value) const {
  const BlockId block = table[position / pool.block_size];
  for (std::size_t layer = 0; layer < pool.layers.size(); ++layer) {
    for (std::size_t part = 0; part < 2 * config_.num_kv_heads; ++part) {
      const std::uint64_t word = mix(value, layer * 16 + part);
      std::memcpy(word_at(pool, layer, block, part, position % pool.block_size), &word, kWord);
    }
  }
}

void FakeModel::forward(std::span<const model::SequenceChunk> chunks, const model::KvPool& pool,
                        std::span<float> logits) {
  if (before_forward) before_forward(chunks);
  std::size_t row = 0;
  for (const model::SequenceChunk& chunk : chunks) {
    BATON_CHECK(!chunk.tokens.empty());
    for (const BlockId block : chunk.block_table) BATON_CHECK(block < pool.num_blocks);
    std::uint64_t state = 0;
    for (std::uint32_t i = 0; i < chunk.tokens.size(); ++i) {
      const std::uint32_t position = chunk.start + i;
      BATON_CHECK(position / pool.block_size < chunk.block_table.size());
      state = mix(hash_prefix(pool, chunk.block_table, position),
                  static_cast<std::uint64_t>(chunk.tokens[i]) * 1000 + position);
      write_token(pool, chunk.block_table, position, state);
    }
    if (!chunk.want_logits) continue;
    for (std::uint32_t token = 0; token < config_.vocab_size; ++token) {
      // The end of generation is seldom the best one, so that answers have some length.
      const double noise = static_cast<double>(mix(state, token) >> 11) * 0x1.0p-53;
      logits[row * config_.vocab_size + token] =
          static_cast<float>(8.0 * noise - (token == 0 ? 0.1 : 0.0));
    }
    ++row;
  }
  BATON_CHECK(row * config_.vocab_size == logits.size());
  if (after_forward) after_forward(chunks);
}

std::vector<TokenId> FakeTokenizer::encode(std::string_view text, bool) const {
  std::vector<TokenId> tokens;
  for (const char c : text) tokens.push_back(6 + static_cast<unsigned char>(c) % (kFakeVocab - 6));
  return tokens;
}

std::string_view FakeTokenizer::piece(TokenId token, bool) const {
  // U+20AC (three bytes) and U+1F600 (four) cut into pieces.
  static constexpr std::array<std::string_view, 6> kParts{"",         "\xE2", "\x82\xAC",
                                                          "\xF0\x9F", "\x98", "\x80"};
  static constexpr std::array<std::string_view, 16> kWords{"a",  "b",  "ab",   " ",  "ba", "abc",
                                                           "c ", "\n", "stop", "st", "op", "e",
                                                           "en", "nd", "end",  "x"};
  if (token < static_cast<TokenId>(kParts.size())) return kParts[static_cast<std::size_t>(token)];
  return kWords[static_cast<std::size_t>(token) % kWords.size()];
}

}  // namespace baton::engine
