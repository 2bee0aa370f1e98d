// For tests: one end of a control connection that speaks TLS and then whatever the test wants.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <string>

#include "agent/tcp.h"
#include "agent/tls.h"
#include "base/unique_fd.h"
#include "wire/messages.h"

namespace baton::testing {

class SecurePeer {
 public:
  SecurePeer(UniqueFd fd, std::shared_ptr<const tls::Context> context, tls::Side side)
      : fd_(std::move(fd)), session_(std::move(context), fd_.get(), side) {}

  // False: the handshake failed, session().why() says how.
  bool shake_hands() {
    return finish([this] { return session_.handshake(); });
  }
  template <typename M>
  bool say(const M& message) {
    auto frame = encoder_.encode(message);
    std::span<const std::byte> bytes = frame;
    while (!bytes.empty()) {
      std::size_t sent = 0;
      if (!finish([&] { return session_.write(bytes, sent); })) return false;
      bytes = bytes.subspan(sent);
    }
    return true;
  }
  // The next message of type M into `take`; false: the stream ended, or nothing came.
  template <typename M, typename Take>
  bool hear(const Take& take) {
    while (true) {
      const auto frame = reader_.next();
      if (!frame) return false;
      if (!frame->has_value()) {
        const auto room = reader_.prepare();
        std::size_t got = 0;
        if (!finish([&] { return session_.read(room, got); })) return false;
        reader_.commit(got);
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
  tls::Session& session() { return session_; }

 private:
  template <typename Step>
  bool finish(const Step& step) {
    while (true) {
      const tls::Io io = step();
      if (io == tls::Io::kDone) return true;
      if (io == tls::Io::kEnd || io == tls::Io::kFailed) return false;
      pollfd state{fd_.get(), static_cast<short>(io == tls::Io::kWantRead ? POLLIN : POLLOUT), 0};
      constexpr int kPatienceMs = 10'000;
      if (::poll(&state, 1, kPatienceMs) != 1) return false;
    }
  }

  UniqueFd fd_;
  tls::Session session_;
  wire::Encoder encoder_;
  wire::FrameReader reader_;
};

}  // namespace baton::testing
