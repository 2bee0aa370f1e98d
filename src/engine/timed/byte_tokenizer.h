// The tokenizer of the timed backend, which has no vocabulary of its own: a token is a byte, one
// more ends a generation, and the rest up to kVocab are words that only number themselves, so that
// prompts of token ids have some choice.
#pragma once

#include <array>
#include <string>

#include "model/chat_template.h"
#include "model/tokenizer.h"

namespace baton::engine::timed {

class ByteTokenizer final : public model::Tokenizer {
 public:
  static constexpr std::uint32_t kVocab = 512;
  static constexpr TokenId kEnd = 256;

  ByteTokenizer();
  std::vector<TokenId> encode(std::string_view text, bool parse_special) const override;
  std::string_view piece(TokenId token, bool show_special) const override;
  std::size_t vocab_size() const override { return kVocab; }
  bool is_end_of_generation(TokenId token) const override { return token == kEnd; }
  std::optional<TokenId> bos() const override { return std::nullopt; }
  bool add_bos() const override { return false; }

  // A lower-case letter or a space, chosen by `number`.
  static TokenId letter(std::uint64_t number);

 private:
  std::array<std::string, kVocab> pieces_;
};

// Chats as lines "role: content".
class PlainChat final : public model::ChatTemplate {
 public:
  Result<std::string> render(std::span<const model::ChatMessage> messages) const override;
};

}  // namespace baton::engine::timed
