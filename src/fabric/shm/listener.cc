#include "fabric/shm/listener.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/log.h"
#include "base/random.h"
#include "fabric/shm/refused.h"

namespace baton::fabric::shm {
namespace {

constexpr std::size_t kVisitorsMax = 64;
constexpr int kAcceptsMax = 16;

SocketName random_name() {
  SocketName name{};
  const std::string text = fmt::format("{:016x}{:016x}", random_u64(), random_u64());
  std::copy_n(text.begin(), name.size(), name.begin());
  return name;
}

}  // namespace

Result<Listener> Listener::open() {
  Listener listener;
  listener.name_ = random_name();
  listener.spare_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  listener.socket_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.socket_) return refused("socket");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, listener.name_.data(), listener.name_.size());
  const auto size =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + listener.name_.size());
  if (::bind(listener.socket_.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    return refused("bind");
  }
  if (::listen(listener.socket_.get(), SOMAXCONN) != 0) return refused("listen");
  return listener;
}

Listener::Visitor* Listener::accept(std::uint32_t id) {
  for (int i = 0; i < kAcceptsMax; ++i) {
    UniqueFd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno == EMFILE || errno == ENFILE) drop_one_connection();
      if (errno == ECONNABORTED || errno == EINTR) continue;
      return nullptr;
    }
    Result<PeerProcess> process = PeerProcess::of(socket.get());
    if (!process) {
      if (std::has_single_bit(++refusals_)) {
        log::warning("shm: a connection is refused: {} ({} so far)", process.error().message,
                     refusals_);
      }
      continue;
    }
    // Honest writers greet in the same breath as they connect; the oldest that has not is the least
    // likely one.
    if (visitors_.size() == kVisitorsMax) visitors_.pop_front();
    visitors_.push_back({id, std::move(socket), std::move(*process)});
    return &visitors_.back();
  }
  return nullptr;
}

void Listener::drop_one_connection() {
  spare_.reset();
  UniqueFd refused(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  refused.reset();
  spare_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (std::has_single_bit(++refusals_)) {
    log::warning("shm: a connection is refused: no descriptor is left ({} so far)", refusals_);
  }
}

std::optional<Listener::Visitor> Listener::take(std::uint32_t id) {
  const auto found = std::find_if(visitors_.begin(), visitors_.end(),
                                  [&](const Visitor& visitor) { return visitor.id == id; });
  if (found == visitors_.end()) return std::nullopt;
  Visitor visitor = std::move(*found);
  visitors_.erase(found);
  return visitor;
}

}  // namespace baton::fabric::shm
