// Plain blocking sockets, for tests that must say and see every byte. Every wait ends after 20 s.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <chrono>
#include <future>
#include <string>
#include <string_view>
#include <thread>

#include "base/unique_fd.h"

namespace baton::http {

inline constexpr std::chrono::seconds kPatience{20};

inline sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

class TestSocket {
 public:
  explicit TestSocket(UniqueFd fd) : fd_(std::move(fd)) {
    const timeval patience{kPatience.count(), 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  static TestSocket connect(std::uint16_t port) {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = loopback(port);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    return TestSocket(std::move(fd));
  }

  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;  // the other side closed: what it answered is to be read
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
  // Until `text` holds `end`, or the other side closes.
  std::string read_until(std::string_view end) {
    std::string text = std::move(kept_);
    kept_.clear();
    for (;;) {
      if (const auto at = text.find(end); at != std::string::npos) {
        kept_ = text.substr(at + end.size());
        text.resize(at + end.size());
        return text;
      }
      char buffer[16384];
      const auto got = ::recv(fd_.get(), buffer, sizeof(buffer), 0);
      if (got <= 0) {
        closed_ = got == 0;
        reset_ = got < 0 && errno == ECONNRESET;
        return text;
      }
      text.append(buffer, static_cast<std::size_t>(got));
    }
  }
  std::string read_to_end() { return read_until("\x01 never \x01"); }
  bool closed() const { return closed_ || reset_; }

  // One response with a Content-Length.
  std::string read_response() {
    std::string text = read_until("\r\n\r\n");
    const auto at = text.find("Content-Length: ");
    if (at == std::string::npos) return text;
    std::size_t left = std::stoul(text.substr(at + 16));
    std::string body = std::move(kept_);
    kept_.clear();
    while (body.size() < left) {
      char buffer[16384];
      const auto got = ::recv(fd_.get(), buffer, sizeof(buffer), 0);
      if (got <= 0) break;
      body.append(buffer, static_cast<std::size_t>(got));
    }
    left = std::min(left, body.size());
    kept_ = body.substr(left);
    return text + body.substr(0, left);
  }
  void shut_down_sending() { ::shutdown(fd_.get(), SHUT_WR); }
  void close() { fd_.reset(); }
  void reset() {
    const linger at_once{1, 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    fd_.reset();
  }

 private:
  UniqueFd fd_;
  std::string kept_;
  bool closed_ = false;
  bool reset_ = false;
};

class TestListener {
 public:
  TestListener() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(fd_.get(), 16), 0);
    EXPECT_EQ(::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
  }
  std::uint16_t port() const { return port_; }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_) + "/"; }
  TestSocket accept() { return TestSocket(UniqueFd(::accept(fd_.get(), nullptr, nullptr))); }
  void close() { fd_.reset(); }

 private:
  UniqueFd fd_;
  std::uint16_t port_ = 0;
};

// Something that another thread will do once.
class Signal {
 public:
  void set() { promise_.set_value(); }
  bool wait() { return future_.wait_for(kPatience) == std::future_status::ready; }

 private:
  std::promise<void> promise_;
  std::future<void> future_ = promise_.get_future();
};

template <typename Condition>
bool eventually(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace baton::http
