// For tests: a decode instance that is only a socket, so that it can say anything.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <string>
#include <vector>

#include "agent/tcp.h"
#include "base/check.h"
#include "baton/agent.h"
#include "wire/messages.h"

namespace baton::testing {

class RawPeer {
 public:
  explicit RawPeer(const PeerAddress& at) : at_(at) {
    const auto address = *tcp::parse(at.host, at.port);
    fd_.reset(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int rc =
        ::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length);
    BATON_CHECK(rc == 0, "cannot connect to {}", address.to_string());
    const timeval patience{10, 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }

  wire::Hello hello(const Geometry& geometry) const {
    wire::Hello out;
    out.from = {"decode-raw", 4711};
    out.expected = {at_.engine_id, 0};
    out.role = Role::kConsumer;
    out.fabric = "shm";
    out.peer_timeout = std::chrono::seconds(5);
    out.lease = std::chrono::seconds(30);
    out.geometry = geometry;
    return out;
  }
  template <typename M>
  bool say(const M& message) {
    return write(encoder_.encode(message));
  }
  // False: the other side has closed, or takes nothing.
  bool write(std::span<const std::byte> bytes, int flags = 0) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | flags);
      if (sent <= 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    }
    return true;
  }
  // The next message of type M (others are skipped) into `take`; false: the stream ended or nothing
  // came.
  template <typename M, typename Take>
  bool hear(const Take& take) {
    while (true) {
      const auto frame = reader_.next();
      if (!frame) return false;
      if (!frame->has_value()) {
        const auto room = reader_.prepare();
        const ssize_t got = ::recv(fd_.get(), room.data(), room.size(), 0);
        if (got <= 0) return false;
        reader_.commit(static_cast<std::size_t>(got));
        continue;
      }
      const auto message = wire::decode(**frame);
      if (!message) return false;
      if (const M* wanted = std::get_if<M>(&*message)) {
        take(*wanted);
        return true;
      }
    }
  }
  template <typename M>
  bool hear() {
    return hear<M>([](const M&) {});
  }
  bool closed_by_peer() {
    std::byte trash[4096];
    while (true) {
      const ssize_t got = ::recv(fd_.get(), trash, sizeof(trash), 0);
      if (got == 0) return true;
      if (got < 0) return errno == ECONNRESET;
    }
  }

 private:
  const PeerAddress at_;
  UniqueFd fd_;
  wire::Encoder encoder_;
  wire::FrameReader reader_;
};

}  // namespace baton::testing
