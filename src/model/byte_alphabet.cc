#include "model/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "model/utf8.h"

namespace baton::model {

namespace {

constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

struct Alphabet {
  std::array<std::uint16_t, 256> code_point{};
  std::array<std::int16_t, 0x144> byte{};  // -1: not in the alphabet
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  for (auto& byte : alphabet.byte) byte = -1;
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const unsigned point = stands_for_itself(byte) ? byte : next++;
    alphabet.code_point[byte] = static_cast<std::uint16_t>(point);
    alphabet.byte[point] = static_cast<std::int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

std::string byte_to_character(unsigned char byte) {
  const unsigned point = kAlphabet.code_point[byte];
  if (point < 0x80) return {static_cast<char>(point)};
  return {static_cast<char>(0xC0 | (point >> 6)), static_cast<char>(0x80 | (point & 0x3F))};
}

std::string text_to_bytes(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    const std::string_view character = text.substr(0, step.size);
    text.remove_prefix(step.size);
    std::size_t point = kAlphabet.byte.size();
    if (step.kind == Utf8Step::Kind::kCharacter && character.size() <= 2) {
      const auto first = static_cast<unsigned char>(character[0]);
      point = character.size() == 1
                  ? first
                  : ((first & 0x1FU) << 6) | (static_cast<unsigned char>(character[1]) & 0x3FU);
    }
    if (point < kAlphabet.byte.size() && kAlphabet.byte[point] >= 0) {
      bytes.push_back(static_cast<char>(kAlphabet.byte[point]));
    } else {
      bytes.append(character);
    }
  }
  return bytes;
}

}  // namespace baton::model
