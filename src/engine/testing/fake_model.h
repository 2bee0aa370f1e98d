// A model of a few hundred operations a token whose logits depend on every KV byte of the sequence,
// read back from the pool through the block table: a wrong block, a block that was overwritten or a
// position computed twice shows in the next token.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "model/model.h"
#include "model/tokenizer.h"

namespace baton::engine {

inline constexpr std::uint32_t kFakeVocab = 64;

class FakeModel final : public model::Model {
 public:
  FakeModel();

  const model::ModelConfig& config() const override { return config_; }
  const std::string& kernel_family() const override { return kernel_family_; }
  void forward(std::span<const model::SequenceChunk> chunks, const model::KvPool& pool,
               std::span<float> logits) override;

  // Run around each forward, on the engine thread.
  std::function<void(std::span<const model::SequenceChunk>)> before_forward, after_forward;

 private:
  std::uint64_t hash_prefix(const model::KvPool& pool, std::span<const BlockId> table,
                            std::uint32_t end) const;
  void write_token(const model::KvPool& pool, std::span<const BlockId> table,
                   std::uint32_t position, std::uint64_t value) const;

  model::ModelConfig config_;
  std::string kernel_family_ = "fake";
};

// Pieces for 64 tokens: 0 is the end of generation (no text), 1 to 5 are parts of characters, the
// others are short words, some of which are parts of others.
class FakeTokenizer final : public model::Tokenizer {
 public:
  std::vector<TokenId> encode(std::string_view text, bool parse_special) const override;
  std::string_view piece(TokenId token, bool show_special) const override;
  std::size_t vocab_size() const override { return kFakeVocab; }
  bool is_end_of_generation(TokenId token) const override { return token == 0; }
  std::optional<TokenId> bos() const override { return std::nullopt; }
  bool add_bos() const override { return false; }
};

}  // namespace baton::engine
