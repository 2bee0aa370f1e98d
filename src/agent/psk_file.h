// The file of pre-shared keys: a line each, "identity:key", the key in hex; empty lines and those
// that begin with # are skipped.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "baton/result.h"

namespace baton::tls {

struct Psk {
  std::string identity;  // 1 to 128 printable characters without ':'
  std::vector<unsigned char> key;
};

inline constexpr std::size_t kPskBytesMin = 32;
inline constexpr std::size_t kPskBytesMax = 64;
inline constexpr std::size_t kPskKeysMax = 16;

// At least one key. Errors name the line, and never show a key.
Result<std::vector<Psk>> parse_psk_lines(std::string_view text);

// The bytes of a file that only its owner and group can read; `what` names it in errors.
Result<std::string> read_secret_file(std::string_view what, const std::string& path);

}  // namespace baton::tls
