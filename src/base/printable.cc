#include "base/printable.h"

#include <fmt/format.h>

#include <cstdint>

namespace baton {
namespace {

// The code point that begins at `at` and its bytes; 0 bytes: no shortest form of one.
struct Point {
  std::uint32_t value = 0;
  std::size_t bytes = 0;
};
Point point_at(std::string_view text, std::size_t at) {
  const auto byte = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  if (lead < 0x80) return {lead, 1};
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() - at < bytes) return {};
  std::uint32_t value = lead & (0x7fU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(at + i) & 0xc0U) != 0x80) return {};
    value = value << 6 | (byte(at + i) & 0x3fU);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = value >= 0xd800 && value <= 0xdfff;
  if (value < kLeast[bytes] || value > 0x10ffff || surrogate) return {};
  return {value, bytes};
}

bool acts(std::uint32_t point) {
  const bool turns = (point >= 0x202a && point <= 0x202e) || (point >= 0x2066 && point <= 0x2069) ||
                     point == 0x200e || point == 0x200f;
  return point < 0x20 || (point >= 0x7f && point < 0xa0) || turns;
}

}  // namespace

std::string printable(std::string_view text, std::size_t bytes_max) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    if (at >= bytes_max) return out + "...";
    const Point point = point_at(text, at);
    const std::string_view raw = text.substr(at, std::max<std::size_t>(point.bytes, 1));
    at += raw.size();
    if (point.bytes != 0 && !acts(point.value)) {
      out += raw;
    } else if (raw == "\n") {
      out += "\\n";
    } else {
      for (const char c : raw) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

}  // namespace baton
