// What a mistyped word may have meant.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace baton {

// The known word with the fewest letters to change; "" if none is near enough to be meant.
std::string nearest_word(std::string_view word, std::span<const std::string> known);

}  // namespace baton
