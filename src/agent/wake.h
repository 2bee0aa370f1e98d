// Wakes one sleeping thread from any other. A wake that finds it awake costs one atomic exchange
// and no system call.
#pragma once

#include <sys/eventfd.h>

#include <atomic>
#include <cstdint>

#include "base/check.h"
#include "base/unique_fd.h"

namespace baton {

class Wake {
 public:
  Wake() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    BATON_CHECK(fd_, "no eventfd: out of descriptors");
  }

  int fd() const { return fd_.get(); }

  // Any thread, after it published its work.
  void wake() {
    if (!sleeping_.exchange(false, std::memory_order_seq_cst)) return;
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(fd_.get(), &one, sizeof(one));
  }

  // The sleeper: announce sleep, look for work once more, and only then wait on fd(). Work
  // published before the announcement is seen by that look, work published after it writes the
  // descriptor.
  void about_to_sleep() { sleeping_.store(true, std::memory_order_seq_cst); }
  void awake() { sleeping_.store(false, std::memory_order_relaxed); }
  void drain() {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(fd_.get(), &count, sizeof(count));
  }

 private:
  UniqueFd fd_;
  std::atomic<bool> sleeping_{false};
};

}  // namespace baton
