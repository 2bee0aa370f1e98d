// Whole files, and text of strangers made fit for a line of the terminal.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include "baton/result.h"

namespace baton::bench::plot {

// Refuses what is larger than `bytes_max`, no regular file, or unreadable; the message names it.
Result<std::string> read_file(const std::filesystem::path& path, std::size_t bytes_max);

// Beside it first, then renamed: a reader sees the old text or the new one. The folder is made.
Status write_file(const std::filesystem::path& path, std::string_view text);

// Control characters and broken UTF-8 as \xNN: a file name must not steer the terminal.
std::string printable(std::string_view text);

}  // namespace baton::bench::plot
