#include "agent/stream.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace baton {

tls::Io Stream::outcome(ssize_t rc, std::size_t& bytes, tls::Io wait) {
  if (rc > 0) {
    bytes = static_cast<std::size_t>(rc);
    return tls::Io::kDone;
  }
  if (rc < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return wait;
  why_ = rc == 0 ? "the connection was closed" : std::strerror(errno);
  return tls::Io::kEnd;
}

tls::Io Stream::read(std::span<std::byte> into, std::size_t& bytes) {
  if (tls_) return tls_->read(into, bytes);
  return outcome(::recv(fd_.get(), into.data(), into.size(), 0), bytes, tls::Io::kWantRead);
}

tls::Io Stream::write(std::span<const std::byte> from, std::size_t& bytes) {
  if (tls_) return tls_->write(from, bytes);
  return outcome(::send(fd_.get(), from.data(), from.size(), MSG_NOSIGNAL), bytes,
                 tls::Io::kWantWrite);
}

void Stream::end_output() {
  if (tls_) tls_->close_notify();
  ::shutdown(fd_.get(), SHUT_WR);
}

}  // namespace baton
