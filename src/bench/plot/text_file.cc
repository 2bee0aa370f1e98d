#include "bench/plot/text_file.h"

#include <fmt/format.h>

#include <fstream>
#include <sstream>
#include <system_error>

namespace baton::bench::plot {
namespace fs = std::filesystem;
namespace {

// Bytes of the UTF-8 character that starts here; 0: none does. Overlong forms and surrogates are
// let through: a terminal shows them as broken, it does not obey them.
std::size_t character_length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const std::size_t length = lead < 0x80                   ? 1
                             : lead >= 0xC2 && lead < 0xE0 ? 2
                             : lead >= 0xE0 && lead < 0xF0 ? 3
                             : lead >= 0xF0 && lead < 0xF5 ? 4
                                                           : 0;
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) return 0;
  }
  return length;
}

bool is_control(std::string_view character) {
  const auto lead = static_cast<unsigned char>(character[0]);
  if (lead < 0x20 || lead == 0x7F) return true;
  return lead == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0;  // C1
}

}  // namespace

Result<std::string> read_file(const fs::path& path, std::size_t bytes_max) {
  const std::string name = printable(path.string());
  std::error_code error;
  if (!fs::is_regular_file(path, error)) {
    return fail(Errc::kNotFound, fmt::format("{}: no such file", name));
  }
  const auto size = fs::file_size(path, error);
  if (!error && size > bytes_max) {
    return fail(Errc::kResourceExhausted,
                fmt::format("{}: {} bytes, and at most {} are read", name, size, bytes_max));
  }
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return fail(Errc::kIo, fmt::format("{}: cannot be read", name));
  return std::move(text).str();
}

Status write_file(const fs::path& path, std::string_view text) {
  const std::string name = printable(path.string());
  std::error_code error;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), error);
  fs::path part = path;
  part += ".part";
  std::ofstream file(part, std::ios::binary | std::ios::trunc);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  if (file) fs::rename(part, path, error);
  if (!file || error) {
    return fail(Errc::kIo, fmt::format("{}: cannot be written{}", name,
                                       error ? ": " + error.message() : std::string()));
  }
  return {};
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    if (length == 0 || is_control(text.substr(0, length))) {
      for (std::size_t i = 0; i < std::max<std::size_t>(length, 1); ++i) {
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[i]));
      }
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out;
}

}  // namespace baton::bench::plot
