#include "agent/poller.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace baton {

Result<Poller> Poller::create() {
  UniqueFd fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!fd) return fail(Errc::kIo, fmt::format("epoll_create1: {}", std::strerror(errno)));
  return Poller(std::move(fd));
}

Status Poller::add(int fd, std::uint32_t events, std::uint64_t tag) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  if (::epoll_ctl(fd_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return fail(Errc::kIo, fmt::format("epoll_ctl: {}", std::strerror(errno)));
  }
  return {};
}

void Poller::modify(int fd, std::uint32_t events, std::uint64_t tag) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  const int rc = ::epoll_ctl(fd_.get(), EPOLL_CTL_MOD, fd, &event);
  BATON_CHECK(rc == 0, "descriptor {} is not in the poller: {}", fd, std::strerror(errno));
}

void Poller::remove(int fd) {
  ::epoll_ctl(fd_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

std::span<const epoll_event> Poller::wait(Duration timeout) {
  int milliseconds = -1;
  if (timeout != kForever) {
    const auto whole = std::chrono::ceil<std::chrono::milliseconds>(std::max(timeout, Duration{0}));
    milliseconds =
        static_cast<int>(std::min<std::int64_t>(whole.count(), std::numeric_limits<int>::max()));
  }
  const int ready =
      ::epoll_wait(fd_.get(), events_.data(), static_cast<int>(events_.size()), milliseconds);
  // Interrupted by a signal: nothing is ready as far as this turn knows, the next one looks again.
  return {events_.data(), static_cast<std::size_t>(std::max(ready, 0))};
}

}  // namespace baton
