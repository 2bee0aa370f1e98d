// For tests: a control channel with a clock of the test's own, and peers that are only sockets.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/control_channel.h"

namespace baton::testing {

using namespace std::chrono_literals;

inline std::vector<std::byte> frame(std::size_t payload, std::byte fill = std::byte{7}) {
  const std::size_t rounded = (payload + 7) / 8 * 8;
  std::vector<std::byte> bytes(wire::kHeaderBytes + rounded, fill);
  wire::write_header(std::span(bytes).first(wire::kHeaderBytes), wire::MessageType::kPing,
                     std::span(bytes).subspan(wire::kHeaderBytes));
  return bytes;
}

inline std::vector<std::byte> payload_of(const std::vector<std::byte>& frame) {
  return {frame.begin() + wire::kHeaderBytes, frame.end()};
}

struct Closed {
  CloseReason reason;
  std::string text;
};

class ChannelWorld : public ChannelUser {
 public:
  explicit ChannelWorld(ChannelOptions options = {}) : poller_(std::move(*Poller::create())) {
    auto channel = ControlChannel::create(options, "127.0.0.1", 0, poller_, *this);
    EXPECT_TRUE(channel) << channel.error().message;
    channel_ = std::move(*channel);
  }
  ~ChannelWorld() override { channel_.reset(); }

  void on_open(ConnId conn, bool dialed) override {
    (dialed ? dialed_ : accepted_).push_back(conn);
  }
  void on_frame(ConnId conn, const wire::Frame& frame) override {
    ++frames_[conn];
    last_payload_.assign(frame.payload.begin(), frame.payload.end());
    if (react_) react_(conn);
  }
  void on_bad_stream(ConnId conn, const Error& error) override {
    bad_.emplace(conn, error);
    if (react_bad_) react_bad_(conn);
  }
  void on_close(ConnId conn, CloseReason reason, const std::string& text) override {
    closed_.emplace(conn, Closed{reason, text});
  }
  void on_turned_away(const std::string& from, CloseReason reason,
                      const std::string& text) override {
    turned_away_.push_back({reason, from + ": " + text});
  }

  // One turn of a loop such as the owner's. The clock moves only when a test moves it.
  void turn() {
    const bool more = channel_->handle_backlog(now_);
    for (const epoll_event& event : poller_.wait(more ? Duration{0} : Duration{1ms})) {
      channel_->handle(event.data.u64, event.events, now_);
    }
    channel_->handle_timers(now_);
    channel_->flush(now_);
  }
  bool turn_until(const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + 20s;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      turn();
    }
    return true;
  }

  std::uint64_t handshakes() const { return channel_->counters().handshake_steps.value(); }

  Poller poller_;
  std::unique_ptr<ControlChannel> channel_;
  Time now_ = Time{} + 1h;
  std::vector<ConnId> dialed_, accepted_;
  std::map<ConnId, int> frames_;
  std::map<ConnId, Closed> closed_;
  std::map<ConnId, Error> bad_;
  std::vector<Closed> turned_away_;
  std::vector<std::byte> last_payload_;
  std::function<void(ConnId)> react_, react_bad_;
};

// A peer that is only a socket, so that it can misbehave.
class RawSocket {
 public:
  explicit RawSocket(const ChannelWorld& world) {
    fd_ = std::move(*tcp::start_connect(*tcp::parse("127.0.0.1", world.channel_->port())));
  }
  // As much as the socket takes.
  std::size_t write(std::span<const std::byte> bytes) {
    const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    return sent < 0 ? 0 : static_cast<std::size_t>(sent);
  }
  // -1: nothing there; 0: the end.
  ssize_t read(std::span<std::byte> into) { return ::recv(fd_.get(), into.data(), into.size(), 0); }
  void close() { fd_.reset(); }
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
};

inline ConnId accept_one(ChannelWorld& world) {
  const std::size_t before = world.accepted_.size();
  EXPECT_TRUE(world.turn_until([&] { return world.accepted_.size() > before; }));
  return world.accepted_.back();
}

}  // namespace baton::testing
