// UTF-8 as bytes that may be broken: what a user sends and what tokens, cut anywhere, make.
#pragma once

#include <cstddef>
#include <string_view>

namespace baton::model {

struct Utf8Step {
  enum class Kind { kCharacter, kBroken, kIncomplete };
  Kind kind = Kind::kBroken;
  // kCharacter: its bytes. kBroken: the bytes that one U+FFFD stands for (the longest start of a
  // character that cannot go on, or one byte). kIncomplete: all bytes that are left; more could
  // still make a character of them.
  std::size_t size = 0;
};

// Looks at the front of `bytes`, which is not empty. Overlong forms, surrogates and what lies above
// U+10FFFF are broken.
Utf8Step utf8_step(std::string_view bytes);

}  // namespace baton::model
