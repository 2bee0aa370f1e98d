// The one epoll of the owner thread. Everything it may sleep on is here: the wake of submissions,
// the control sockets, the fabric. Level triggered, so that work left over for the next turn is
// seen again.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <cstdint>
#include <span>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "baton/result.h"

namespace baton {

class Poller {
 public:
  static Result<Poller> create();

  // `tag` comes back with each event of `fd`.
  Status add(int fd, std::uint32_t events, std::uint64_t tag);
  void modify(int fd, std::uint32_t events, std::uint64_t tag);
  void remove(int fd);

  // Waits until something is ready or `timeout` passed (rounded up to milliseconds; kForever: no
  // limit; zero: only looks). At most kEventsMax a call; the kernel takes ready descriptors in
  // turn, so none is starved.
  static constexpr Duration kForever = Duration::max();
  static constexpr std::size_t kEventsMax = 64;
  std::span<const epoll_event> wait(Duration timeout);

 private:
  explicit Poller(UniqueFd fd) : fd_(std::move(fd)) {}

  UniqueFd fd_;
  std::array<epoll_event, kEventsMax> events_{};
};

}  // namespace baton
