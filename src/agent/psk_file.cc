#include "agent/psk_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/unique_fd.h"

namespace baton::tls {
namespace {

constexpr std::size_t kFileBytesMax = 64 * 1024;

int nibble(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

Status parse_key(std::string_view hex, std::vector<unsigned char>& key) {
  if (hex.size() % 2 != 0 || hex.size() < 2 * kPskBytesMin || hex.size() > 2 * kPskBytesMax) {
    return fail(Errc::kInvalidArgument,
                fmt::format("the key has {} hex digits, {} to {} are wanted (an even number)",
                            hex.size(), 2 * kPskBytesMin, 2 * kPskBytesMax));
  }
  key.reserve(hex.size() / 2);  // growing would leave copies behind
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    const int high = nibble(hex[i]);
    const int low = nibble(hex[i + 1]);
    if (high < 0 || low < 0) {
      return fail(Errc::kInvalidArgument,
                  fmt::format("the key's digits {} and {} are not hexadecimal", i + 1, i + 2));
    }
    key.push_back(static_cast<unsigned char>(high * 16 + low));
  }
  return {};
}

Result<Psk> parse_line(std::string_view line) {
  constexpr std::size_t kIdentityMax = 128;
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) {
    return fail(Errc::kInvalidArgument, "there is no ':' between identity and key");
  }
  const std::string_view identity = line.substr(0, colon);
  const bool printable =
      std::all_of(identity.begin(), identity.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (identity.empty() || identity.size() > kIdentityMax || !printable) {
    return fail(Errc::kInvalidArgument,
                fmt::format("the identity must be 1 to {} printable characters without spaces",
                            kIdentityMax));
  }
  Psk out;
  out.identity = identity;
  if (auto ok = parse_key(line.substr(colon + 1), out.key); !ok) return tl::unexpected(ok.error());
  return out;
}

std::string_view trimmed(std::string_view line) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!line.empty() && blank(line.front())) line.remove_prefix(1);
  while (!line.empty() && blank(line.back())) line.remove_suffix(1);
  return line;
}

}  // namespace

Result<std::vector<Psk>> parse_psk_lines(std::string_view text) {
  std::vector<Psk> keys;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    auto key = parse_line(line);
    if (!key) {
      return fail(key.error().code, fmt::format("line {}: {}", number, key.error().message));
    }
    for (const Psk& other : keys) {
      if (other.identity != key->identity) continue;
      return fail(Errc::kInvalidArgument,
                  fmt::format("line {}: the identity {} is there already", number, key->identity));
    }
    keys.push_back(std::move(*key));
    if (keys.size() > kPskKeysMax) {
      return fail(Errc::kInvalidArgument, fmt::format("there are more than {} keys", kPskKeysMax));
    }
  }
  if (keys.empty()) return fail(Errc::kInvalidArgument, "there is no key in it");
  return keys;
}

Result<std::string> read_secret_file(std::string_view what, const std::string& path) {
  const auto wrong = [&](std::string_view why) {
    return fail(Errc::kInvalidArgument, fmt::format("{} {}: {}", what, path, why));
  };
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return wrong(std::strerror(errno));
  struct stat state{};
  if (::fstat(fd.get(), &state) != 0) return wrong(std::strerror(errno));
  if (!S_ISREG(state.st_mode)) return wrong("is no regular file");
  constexpr mode_t kForbidden = S_IWGRP | S_IXGRP | S_IRWXO;
  if ((state.st_mode & kForbidden) != 0) {
    return wrong(
        fmt::format("its mode is {:04o}: only its owner may write it, others may not read "
                    "it (chmod 600)",
                    state.st_mode & 07777));
  }
  std::string bytes(kFileBytesMax + 1, '\0');
  std::size_t length = 0;
  while (length < bytes.size()) {
    const ssize_t got = ::read(fd.get(), bytes.data() + length, bytes.size() - length);
    if (got < 0) return wrong(std::strerror(errno));
    if (got == 0) break;
    length += static_cast<std::size_t>(got);
  }
  if (length > kFileBytesMax) return wrong(fmt::format("is longer than {} bytes", kFileBytesMax));
  bytes.resize(length);
  return bytes;
}

}  // namespace baton::tls
