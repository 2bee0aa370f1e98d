// GPT-2's spelling of bytes as printable characters, in which vocabularies and merges are written:
// printable ones stand for themselves, the others, in order, for U+0100 and up (blank is U+0120).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace baton::model {

// The character, as UTF-8, that stands for a byte.
std::string byte_to_character(unsigned char byte);

// The bytes that a token's text stands for. Characters outside the alphabet stand for themselves:
// no input is ever cut into them.
std::string text_to_bytes(std::string_view text);

}  // namespace baton::model
