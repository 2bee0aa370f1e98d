#include "engine/timed/byte_tokenizer.h"

#include <fmt/format.h>

namespace baton::engine::timed {

namespace {

constexpr std::uint32_t kBytes = 256;

}  // namespace

ByteTokenizer::ByteTokenizer() {
  for (std::uint32_t i = 0; i < kVocab; ++i) {
    pieces_[i] = i < kBytes ? std::string(1, static_cast<char>(i)) : fmt::format(" <{}>", i);
  }
  pieces_[static_cast<std::size_t>(kEnd)] = "<end>";
}

std::vector<TokenId> ByteTokenizer::encode(std::string_view text, bool) const {
  std::vector<TokenId> tokens;
  tokens.reserve(text.size());
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string_view ByteTokenizer::piece(TokenId token, bool show_special) const {
  if (token < 0 || static_cast<std::uint32_t>(token) >= kVocab) return {};
  if (token == kEnd && !show_special) return {};
  return pieces_[static_cast<std::size_t>(token)];
}

TokenId ByteTokenizer::letter(std::uint64_t number) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz      ";
  return kLetters[number % kLetters.size()];
}

Result<std::string> PlainChat::render(std::span<const model::ChatMessage> messages) const {
  std::string text;
  for (const model::ChatMessage& message : messages) {
    text += fmt::format("{}: {}\n", message.role, message.content);
  }
  return text + "assistant: ";
}

}  // namespace baton::engine::timed
