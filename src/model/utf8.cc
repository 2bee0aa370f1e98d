#include "model/utf8.h"

namespace baton::model {

namespace {

struct Lead {
  std::size_t size = 0;      // of the whole character; 0: no character begins so
  unsigned char low = 0x80;  // bounds of the second byte
  unsigned char high = 0xBF;
};

Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {.size = 1};
  if (byte < 0xC2) return {};
  if (byte < 0xE0) return {.size = 2};
  if (byte == 0xE0) return {.size = 3, .low = 0xA0};
  if (byte == 0xED) return {.size = 3, .high = 0x9F};
  if (byte < 0xF0) return {.size = 3};
  if (byte == 0xF0) return {.size = 4, .low = 0x90};
  if (byte < 0xF4) return {.size = 4};
  if (byte == 0xF4) return {.size = 4, .high = 0x8F};
  return {};
}

}  // namespace

Utf8Step utf8_step(std::string_view bytes) {
  const Lead lead = lead_of(static_cast<unsigned char>(bytes.front()));
  if (lead.size == 0) return {Utf8Step::Kind::kBroken, 1};
  for (std::size_t i = 1; i < lead.size; ++i) {
    if (i == bytes.size()) return {Utf8Step::Kind::kIncomplete, i};
    const auto byte = static_cast<unsigned char>(bytes[i]);
    const unsigned char low = i == 1 ? lead.low : 0x80;
    const unsigned char high = i == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) return {Utf8Step::Kind::kBroken, i};
  }
  return {Utf8Step::Kind::kCharacter, lead.size};
}

}  // namespace baton::model
