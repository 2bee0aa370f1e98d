// The bytes of one connection: a socket, with TLS over it where the channel has keys. Plain sockets
// pay one test of a pointer a call.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "agent/tls.h"
#include "base/unique_fd.h"

namespace baton {

class Stream {
 public:
  void open(UniqueFd fd) { fd_ = std::move(fd); }
  void secure(std::shared_ptr<const tls::Context> context, tls::Side side) {
    tls_ = std::make_unique<tls::Session>(std::move(context), fd_.get(), side);
  }
  // Last words in the clear, for a peer that speaks no TLS.
  void drop_tls() { tls_.reset(); }
  void close() {
    tls_.reset();
    fd_.reset();
  }

  int fd() const { return fd_.get(); }
  bool is_open() const { return static_cast<bool>(fd_); }
  // Null: plain.
  tls::Session* session() const { return tls_.get(); }

  // `bytes` are set with kDone only. With TLS a short read does not mean that nothing is left.
  tls::Io read(std::span<std::byte> into, std::size_t& bytes);
  tls::Io write(std::span<const std::byte> from, std::size_t& bytes);
  bool has_pending() const { return tls_ && tls_->has_pending(); }
  // Nothing more is written; what the peer still sends can be thrown away.
  void end_output();
  // After kEnd and kFailed.
  const std::string& why() const { return tls_ ? tls_->why() : why_; }

 private:
  tls::Io outcome(ssize_t rc, std::size_t& bytes, tls::Io wait);

  UniqueFd fd_;
  std::unique_ptr<tls::Session> tls_;  // goes before the descriptor
  std::string why_;
};

}  // namespace baton
