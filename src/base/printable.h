// Text that somebody else said, for a log line or a terminal: control characters, terminal escapes
// and bytes that are no UTF-8 are shown and do not act.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace baton {

// "\n" as \n; other control characters (C0, DEL, C1), the marks that turn the direction of text,
// and stray bytes as \xNN each. What is longer than `bytes_max` is cut, and "..." says so.
std::string printable(std::string_view text, std::size_t bytes_max = std::string_view::npos);

}  // namespace baton
