#include "fabric/shm/inbound.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "fabric/access.h"
#include "fabric/events.h"

namespace baton::fabric::shm {
namespace {

// Datagrams taken from one socket in one poll, and from a dead writer's: more than a socket buffer
// holds.
constexpr int kReadsMax = 4;
constexpr int kLastReadsMax = 4096;

}  // namespace

std::optional<std::string> Inbound::objection(Access access, const PeerProcess& process) const {
  if (voided_) return "the offer was taken back";
  if (access != access_) {
    return fmt::format("the offer grants {}, it was used for {}", name_of(access_),
                       name_of(access));
  }
  if (process_ && !process_->is(process)) {
    return fmt::format("process {} uses the offer already, this one is {}", process_->pid(),
                       process.pid());
  }
  return std::nullopt;
}

bool Inbound::admit(UniqueFd socket, PeerProcess process) {
  socket_ = std::move(socket);
  left_ = false;
  if (process_) return false;
  process_ = std::move(process);
  return true;
}

void Inbound::void_offer() {
  voided_ = true;
  if (socket_) ::shutdown(socket_.get(), SHUT_WR);
}

void Inbound::read_immediates(EventRing& events, bool all) {
  std::array<std::uint32_t, kImmediatesMax> words;
  for (int i = 0; socket_ && i < (all ? kLastReadsMax : kReadsMax); ++i) {
    if (!all && !voided_ && queued_ >= kQueuedMax) return;
    const ssize_t n = ::recv(socket_.get(), words.data(), sizeof words, MSG_DONTWAIT | MSG_TRUNC);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) return socket_.reset();
    const auto bytes = static_cast<std::size_t>(n);
    if (bytes == kFarewell.size() && std::memcmp(words.data(), kFarewell.data(), bytes) == 0) {
      left_ = true;
      return socket_.reset();
    }
    if (access_ == Access::kRead) {
      log::warning("shm: {} sent {} bytes, a reader sends none; its connection is closed",
                   peer_.to_string(), bytes);
      return socket_.reset();
    }
    if (bytes > sizeof words || bytes % sizeof words[0] != 0) {
      log::warning("shm: {} sent {} bytes, expected 1 to {} words of {}; its connection is closed",
                   peer_.to_string(), bytes, kImmediatesMax, sizeof words[0]);
      return socket_.reset();
    }
    if (voided_) continue;  // nobody waits for them
    const std::size_t count = bytes / sizeof words[0];
    for (std::size_t w = 0; w < count; ++w) {
      events.push(inbound_event(FabricEvent::Kind::kImmediate, id_, words[w]));
    }
    queued_ += static_cast<std::uint32_t>(count);
  }
}

}  // namespace baton::fabric::shm
