// TCP as the control channel needs it: numeric addresses, non-blocking sockets, errors as
// sentences.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "base/unique_fd.h"
#include "baton/result.h"

namespace baton::tcp {

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  bool is_loopback() const;
  bool is_v4() const;  // also when it is mapped into IPv6
  // Without the port, as IPv6 has it: those of IPv4 are mapped (::ffff:a.b.c.d), however a socket
  // shows them.
  std::array<std::uint8_t, 16> bytes() const;
  std::uint16_t port() const;
  std::string to_string() const;  // "127.0.0.1:5600", "[::1]:5600"
  std::string host() const;       // "127.0.0.1", "::1"; "": no address
};

// "127.0.0.1", "::1", "localhost", "" and "*" (all addresses). Nothing that would have to ask a
// name server.
std::optional<Address> parse(const std::string& host, std::uint16_t port);
// Without the words: "" is no address.
std::optional<Address> parse_numeric(const std::string& host, std::uint16_t port);
// Asks the system's resolver, which may take seconds: never on the owner thread.
Result<Address> resolve(const std::string& host, std::uint16_t port);

// A bound, listening, non-blocking socket. A port in use is kAlreadyExists and says so.
Result<UniqueFd> listen(const Address& address);
Address local_address(int fd);

// The next waiting connection, non-blocking and without Nagle's delay; `error` is errno where there
// is none.
UniqueFd accept(int listener, Address& from, int& error);
// Starts to connect; the socket becomes writable when it is decided, and connect_error() then says
// how.
Result<UniqueFd> start_connect(const Address& address);
int connect_error(int fd);

}  // namespace baton::tcp
