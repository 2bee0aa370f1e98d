#include "agent/tcp.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace baton::tcp {
namespace {

constexpr int kBacklog = 256;

// The socket API's own idiom: one storage, read as the family it holds.
const sockaddr* generic(const Address& address) {
  return reinterpret_cast<const sockaddr*>(&address.storage);
}
sockaddr* generic(Address& address) {
  return reinterpret_cast<sockaddr*>(&address.storage);
}
const sockaddr_in& as_v4(const Address& address) {
  return reinterpret_cast<const sockaddr_in&>(address.storage);
}
const sockaddr_in6& as_v6(const Address& address) {
  return reinterpret_cast<const sockaddr_in6&>(address.storage);
}

void disable_nagle(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

}  // namespace

std::array<std::uint8_t, 16> Address::bytes() const {
  std::array<std::uint8_t, 16> out{};
  if (storage.ss_family == AF_INET6) {
    std::memcpy(out.data(), &as_v6(*this).sin6_addr, out.size());
  } else if (storage.ss_family == AF_INET) {
    out[10] = out[11] = 0xFF;
    std::memcpy(&out[12], &as_v4(*this).sin_addr, 4);
  }
  return out;
}

bool Address::is_v4() const {
  constexpr std::array<std::uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
  const auto address = bytes();
  return std::equal(kMapped.begin(), kMapped.end(), address.begin());
}

bool Address::is_loopback() const {
  if (is_v4()) return bytes()[12] == 127;
  return storage.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&as_v6(*this).sin6_addr) != 0;
}

std::uint16_t Address::port() const {
  if (storage.ss_family == AF_INET) return ntohs(as_v4(*this).sin_port);
  if (storage.ss_family == AF_INET6) return ntohs(as_v6(*this).sin6_port);
  return 0;
}

std::string Address::host() const {
  char text[INET6_ADDRSTRLEN] = "";
  if (storage.ss_family == AF_INET) {
    ::inet_ntop(AF_INET, &as_v4(*this).sin_addr, text, sizeof(text));
  } else if (storage.ss_family == AF_INET6) {
    ::inet_ntop(AF_INET6, &as_v6(*this).sin6_addr, text, sizeof(text));
  }
  return text;
}

std::string Address::to_string() const {
  if (storage.ss_family == AF_INET) return fmt::format("{}:{}", host(), port());
  if (storage.ss_family == AF_INET6) return fmt::format("[{}]:{}", host(), port());
  return "(no address)";
}

std::optional<Address> parse_numeric(const std::string& host, std::uint16_t port) {
  Address address;
  auto& v4 = reinterpret_cast<sockaddr_in&>(address.storage);
  if (::inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    address.length = sizeof(sockaddr_in);
    return address;
  }
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address.storage);
  if (::inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    address.length = sizeof(sockaddr_in6);
    return address;
  }
  return std::nullopt;
}

std::optional<Address> parse(const std::string& host, std::uint16_t port) {
  if (host == "localhost") return parse_numeric("127.0.0.1", port);
  return parse_numeric(host.empty() || host == "*" ? "0.0.0.0" : host, port);
}

Result<Address> resolve(const std::string& host, std::uint16_t port) {
  if (auto address = parse(host, port)) return *address;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int rc = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (rc != 0) {
    return fail(Errc::kNotFound, fmt::format("host '{}': {}", host, ::gai_strerror(rc)));
  }
  Address address;
  address.length = found->ai_addrlen;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  return address;
}

Result<UniqueFd> listen(const Address& address) {
  UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return fail(Errc::kIo, fmt::format("socket: {}", std::strerror(errno)));
  // A restarted instance takes its old port although connections of its predecessor linger in
  // TIME_WAIT.
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(fd.get(), generic(address), address.length) != 0 ||
      ::listen(fd.get(), kBacklog) != 0) {
    if (errno == EADDRINUSE) {
      return fail(Errc::kAlreadyExists,
                  fmt::format("control port {} is in use", address.to_string()));
    }
    return fail(Errc::kIo, fmt::format("cannot listen on control address {}: {}",
                                       address.to_string(), std::strerror(errno)));
  }
  return fd;
}

Address local_address(int fd) {
  Address address;
  address.length = sizeof(address.storage);
  ::getsockname(fd, generic(address), &address.length);
  return address;
}

UniqueFd accept(int listener, Address& from, int& error) {
  from.length = sizeof(from.storage);
  UniqueFd fd(::accept4(listener, generic(from), &from.length, SOCK_NONBLOCK | SOCK_CLOEXEC));
  error = fd ? 0 : errno;
  if (fd) disable_nagle(fd.get());
  return fd;
}

Result<UniqueFd> start_connect(const Address& address) {
  UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return fail(Errc::kIo, fmt::format("socket: {}", std::strerror(errno)));
  disable_nagle(fd.get());
  if (::connect(fd.get(), generic(address), address.length) != 0 && errno != EINPROGRESS) {
    return fail(Errc::kUnavailable,
                fmt::format("cannot connect to {}: {}", address.to_string(), std::strerror(errno)));
  }
  return fd;
}

int connect_error(int fd) {
  int error = 0;
  socklen_t length = sizeof(error);
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  return error;
}

}  // namespace baton::tcp
