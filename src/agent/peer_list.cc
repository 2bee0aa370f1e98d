#include "agent/peer_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>

#include "agent/tcp.h"

namespace baton {
namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

template <typename T>
std::optional<T> number(std::string_view text, unsigned least, unsigned most) {
  unsigned value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool all = error == std::errc() && stop == text.data() + text.size();
  if (!all || value < least || value > most) return std::nullopt;
  return static_cast<T>(value);
}

// "host:port" and "[address]:port" apart; an address of IPv6 has colons of its own.
struct Split {
  std::string host;
  std::string port;
};
std::optional<Split> split(const std::string& text) {
  if (!text.empty() && text.front() == '[') {
    const std::size_t close = text.find(']');
    if (close == std::string::npos) return std::nullopt;
    const std::size_t colon = text.find(':', close);
    const std::string after =
        text.substr(close + 1, colon == std::string::npos ? std::string::npos : colon - close - 1);
    return Split{text.substr(1, close - 1) + after,
                 colon == std::string::npos ? "" : text.substr(colon + 1)};
  }
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos || text.find(':', colon + 1) != std::string::npos) {
    return Split{text, ""};
  }
  return Split{text.substr(0, colon), text.substr(colon + 1)};
}

}  // namespace

Result<PeerList::Entry> PeerList::parse_entry(const std::string& text) {
  const auto wrong = [&](std::string_view why) {
    return fail(Errc::kInvalidArgument, fmt::format("allowed_peers '{}': {}", text, why));
  };
  const auto parts = split(text);
  if (!parts || parts->host.empty()) {
    return wrong("is none of host, host:port, network/bits, network/bits:port");
  }
  Entry entry;
  entry.text = text;
  if (text.back() == ':') return wrong("ends with ':'");
  if (!parts->port.empty()) {
    const auto port = number<std::uint16_t>(parts->port, 1, 65535);
    if (!port) return wrong("the port is not from 1 to 65535");
    entry.port = *port;
  }
  const std::size_t slash = parts->host.find('/');
  const std::string host = parts->host.substr(0, slash);
  const auto address = tcp::parse_numeric(host, 0);
  if (!address) {
    if (slash != std::string::npos) return wrong("the network is no numeric address");
    entry.name = lower(host);
    return entry;
  }
  entry.network = address->bytes();
  const unsigned width = address->is_v4() ? 32 : 128;
  entry.bits = 128;
  if (slash != std::string::npos) {
    const auto bits = number<unsigned>(parts->host.substr(slash + 1), 0, width);
    if (!bits) return wrong(fmt::format("the number of bits is not from 0 to {}", width));
    entry.bits = 128 - width + *bits;
  }
  return entry;
}

Result<PeerList> PeerList::parse(const Security& security) {
  PeerList list;
  for (const std::string& text : security.allowed_peers) {
    auto entry = parse_entry(text);
    if (!entry) return tl::unexpected(entry.error());
    list.entries_.push_back(std::move(*entry));
  }
  list.anywhere_ = list.entries_.empty() && security.insecure;
  return list;
}

bool PeerList::allows(const Entry& entry, const PeerAddress& peer) {
  if (entry.port != 0 && entry.port != peer.port) return false;
  if (!entry.name.empty()) return entry.name == lower(peer.host);
  const auto address = tcp::parse(peer.host, peer.port);
  if (!address) return false;
  const auto bytes = address->bytes();
  for (unsigned bit = 0; bit < entry.bits; ++bit) {
    const unsigned mask = 0x80U >> (bit % 8);
    if (((bytes[bit / 8] ^ entry.network[bit / 8]) & mask) != 0) return false;
  }
  return true;
}

Status PeerList::check(const PeerAddress& peer) const {
  if (anywhere_) return {};
  std::string allowed;
  for (const Entry& entry : entries_) {
    if (allows(entry, peer)) return {};
    allowed += (allowed.empty() ? "" : ", ") + entry.text;
  }
  if (entries_.empty()) {
    const auto address = tcp::parse(peer.host, peer.port);
    if (address && address->is_loopback()) return {};
    allowed = "this host only";
  }
  return fail(Errc::kInvalidArgument,
              fmt::format("peer address {}:{} is not among the allowed peers: {}", peer.host,
                          peer.port, allowed));
}

}  // namespace baton
