#include "http/resolve.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>

#include <array>
#include <exception>
#include <future>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

namespace baton::http {
namespace {

bool is_address(const std::string& host) {
  std::array<std::byte, sizeof(in6_addr)> parsed;
  return ::inet_pton(AF_INET, host.c_str(), parsed.data()) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), parsed.data()) == 1;
}

}  // namespace

Result<Addresses> look_up(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int rc = ::getaddrinfo(host.c_str(), nullptr, &hints, &list); rc != 0) {
    return fail(Errc::kNotFound, fmt::format("host '{}': {}", host, ::gai_strerror(rc)));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  Addresses found;
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    std::array<char, NI_MAXHOST> text{};
    if (::getnameinfo(one->ai_addr, one->ai_addrlen, text.data(), text.size(), nullptr, 0,
                      NI_NUMERICHOST) == 0) {
      found.emplace_back(text.data());
    }
  }
  if (found.empty()) return fail(Errc::kNotFound, fmt::format("host '{}': no address", host));
  return found;
}

Result<Addresses> resolve_within(const std::string& host, Duration timeout, const Lookup& lookup) {
  if (is_address(host)) return Addresses{host};
  const auto answer = std::make_shared<std::promise<Result<Addresses>>>();
  auto answered = answer->get_future();
  try {
    std::thread([answer, host, lookup] {
      try {
        answer->set_value(lookup(host));
      } catch (const std::exception& error) {  // no memory
        answer->set_value(
            fail(Errc::kResourceExhausted, fmt::format("host '{}': {}", host, error.what())));
      }
    }).detach();
  } catch (const std::system_error& error) {
    return fail(Errc::kResourceExhausted,
                fmt::format("host '{}': no thread to look it up: {}", host, error.what()));
  }
  if (answered.wait_for(timeout) != std::future_status::ready) {
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
    return fail(Errc::kDeadlineExceeded,
                fmt::format("host '{}': the resolver has not answered within {} ms", host, ms));
  }
  return answered.get();
}

}  // namespace baton::http
