// Events on their way from the owner thread to the engine, and the bound that keeps them from
// overflowing.
//
// Whoever submits something that will end in an event reserves its place first; the place is given
// back when the engine has taken the event. So the owner thread always finds room, whatever the
// engine does, and an engine that never polls is refused new work instead of losing ends [I3].
#pragma once

#include <sys/eventfd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>

#include "base/check.h"
#include "base/unique_fd.h"
#include "baton/event.h"

namespace baton {

class EventQueue {
 public:
  EventQueue() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    BATON_CHECK(fd_, "no eventfd: out of descriptors");
  }

  // Readable while events wait.
  int fd() const { return fd_.get(); }

  // Any thread.
  std::uint32_t waiting() const { return waiting_.load(std::memory_order_relaxed); }

  // The owner thread.
  void push(Event&& event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    waiting_.store(static_cast<std::uint32_t>(events_.size()), std::memory_order_relaxed);
    if (events_.size() > 1) return;
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(fd_.get(), &one, sizeof(one));
  }

  // Any one thread. Oldest first.
  std::size_t take(std::span<Event> out) {
    const std::lock_guard lock(mutex_);
    std::size_t taken = 0;
    while (taken < out.size() && !events_.empty()) {
      out[taken++] = std::move(events_.front());
      events_.pop_front();
    }
    waiting_.store(static_cast<std::uint32_t>(events_.size()), std::memory_order_relaxed);
    if (taken > 0 && events_.empty()) {
      std::uint64_t count = 0;
      [[maybe_unused]] const auto got = ::read(fd_.get(), &count, sizeof(count));
    }
    return taken;
  }

 private:
  UniqueFd fd_;
  std::mutex mutex_;
  std::deque<Event> events_;
  std::atomic<std::uint32_t> waiting_{0};
};

}  // namespace baton
