#include "fabric/shm/process.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace baton::fabric::shm {
namespace {

#ifdef SO_PEERPIDFD
constexpr int kPeerPidfd = SO_PEERPIDFD;
#else
constexpr int kPeerPidfd = 77;  // Linux 6.5; older headers lack the name
#endif

UniqueFd open_pidfd(int socket, pid_t pid) {
  int fd = -1;
  socklen_t size = sizeof fd;
  if (::getsockopt(socket, SOL_SOCKET, kPeerPidfd, &fd, &size) == 0) return UniqueFd(fd);
  if (errno != ENOPROTOOPT && errno != EINVAL) return {};
  return hold_by_number(socket, pid);
}

}  // namespace

UniqueFd hold_by_number(int socket, pid_t pid) {
  UniqueFd opened(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  pollfd state{socket, POLLRDHUP, 0};
  if (::poll(&state, 1, 0) != 0) return {};
  return opened;
}

Result<PeerProcess> PeerProcess::of(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return fail(Errc::kIo, fmt::format("SO_PEERCRED: {}", std::strerror(errno)));
  }
  if (credentials.uid != ::geteuid()) {
    return fail(Errc::kMismatch,
                fmt::format("the peer's user id is {}, expected {}", credentials.uid, ::geteuid()));
  }
  if (credentials.pid <= 0) {
    return fail(Errc::kUnsupported, "the peer lives in a pid namespace that is not visible here");
  }
  PeerProcess process;
  process.pid_ = credentials.pid;
  process.pidfd_ = open_pidfd(socket, credentials.pid);
  if (!process.pidfd_) {
    return fail(Errc::kUnavailable, fmt::format("process {} cannot be held: {}", credentials.pid,
                                                std::strerror(errno)));
  }
  return process;
}

bool PeerProcess::alive() const {
  pollfd state{pidfd_.get(), POLLIN, 0};
  return pidfd_ && ::poll(&state, 1, 0) == 0;
}

}  // namespace baton::fabric::shm
