// Pull: registrations whose reads are not all posted yet, so that an engine that posts in its own
// step can wait for them. The engine's threads and the owner thread share it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <unordered_set>

#include "baton/ids.h"

namespace baton {

class PostedBook {
 public:
  // Before the registration is handed in.
  void open(TransferId transfer) {
    const std::lock_guard lock(mutex_);
    open_.insert(transfer);
  }
  // All of its reads are posted, or it is over.
  void close(TransferId transfer) {
    {
      const std::lock_guard lock(mutex_);
      if (open_.erase(transfer) == 0) return;
    }
    closed_.notify_all();
  }
  // False: not within this time.
  [[nodiscard]] bool wait(TransferId transfer, std::chrono::milliseconds at_most) {
    std::unique_lock lock(mutex_);
    return closed_.wait_for(lock, at_most, [&] { return !open_.contains(transfer); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable closed_;
  std::unordered_set<TransferId> open_;
};

}  // namespace baton
