// A bounded queue from many threads to one, for the hand-over's submissions and for its events.
// `try_push` never waits for room: a full queue is the caller's answer, not a delay. The lock is
// held only to move one element, so a push costs well under a microsecond; batches are taken in one
// go by the single consumer.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "base/check.h"

namespace baton {

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(std::size_t capacity) : capacity_(capacity) {
    BATON_CHECK(capacity > 0);
    items_.reserve(capacity);
  }

  // Any thread. False: full, and `item` is untouched.
  [[nodiscard]] bool try_push(T&& item) {
    const std::lock_guard lock(mutex_);
    if (items_.size() >= capacity_) return false;
    items_.push_back(std::move(item));
    return true;
  }

  // The one consumer. Swaps everything out into `out` (emptied first); keeps both buffers'
  // capacity.
  void take_all(std::vector<T>& out) {
    out.clear();
    const std::lock_guard lock(mutex_);
    if (out.capacity() < capacity_) out.reserve(capacity_);
    out.swap(items_);
  }

  std::size_t capacity() const { return capacity_; }
  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return items_.size();
  }

 private:
  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::vector<T> items_;
};

}  // namespace baton
