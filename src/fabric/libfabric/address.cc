#include "fabric/libfabric/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

namespace baton::fabric::libfabric {
namespace {

std::string text_of(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address == nullptr) return {};
  if (address->sa_family == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, address, sizeof in);
    ::inet_ntop(AF_INET, &in.sin_addr, text.data(), text.size());
  } else if (address->sa_family == AF_INET6) {
    sockaddr_in6 in{};
    std::memcpy(&in, address, sizeof in);
    if (IN6_IS_ADDR_LINKLOCAL(&in.sin6_addr)) return {};  // means nothing on another host
    ::inet_ntop(AF_INET6, &in.sin6_addr, text.data(), text.size());
  }
  return text.data();
}

}  // namespace

Result<std::string> source_address(const std::string& wanted) {
  const bool any = wanted.empty() || wanted == "*" || wanted == "0.0.0.0" || wanted == "::";
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    return fail(Errc::kIo, std::string("getifaddrs: ") + std::strerror(errno));
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  bool known_name = false;
  std::string found;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    const bool named = wanted == one->ifa_name;
    known_name = known_name || named;
    if (!named && !(any && (one->ifa_flags & IFF_LOOPBACK) == 0)) continue;
    if ((one->ifa_flags & IFF_UP) == 0) continue;
    const std::string text = text_of(one->ifa_addr);
    // IPv4 first, whatever the order of the list.
    if (!text.empty() && (found.empty() || (found.find(':') != std::string::npos &&
                                            text.find(':') == std::string::npos))) {
      found = text;
    }
  }
  if (!found.empty()) return found;
  if (known_name) {
    return fail(Errc::kUnavailable, "interface '" + wanted + "' is down or has no IP address");
  }
  if (any) return std::string("127.0.0.1");  // this host has nothing else
  return wanted;
}

}  // namespace baton::fabric::libfabric
