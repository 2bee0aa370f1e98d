// Who may have something to post, in turn: each row at most once, a bounded number of posts for
// each and in all, so that the driver looks at its sockets again soon and nobody waits for one long
// request. Allocates nothing after it was made.
#pragma once

#include <boost/circular_buffer.hpp>
#include <cstdint>
#include <vector>

namespace baton::handover {

class Turns {
 public:
  // kBlocked waits for room, kStarved for an event (which adds the row again).
  enum class Step : std::uint8_t { kPosted, kBlocked, kStarved };

  explicit Turns(std::size_t rows) : queue_(rows), queued_(rows, false) {}

  void add(std::uint32_t row) {
    if (queued_[row]) return;
    queued_[row] = true;
    queue_.push_back(row);
  }
  bool empty() const { return queue_.empty(); }

  // One round: `step(row)` posts one piece. True: something was posted.
  template <typename Take>
  bool run(Take&& step) {
    bool progress = false;
    int posts = kPostsPerRound;
    for (std::size_t rows = queue_.size(); rows > 0 && posts > 0; --rows) {
      const std::uint32_t row = queue_.front();
      queue_.pop_front();
      queued_[row] = false;
      Step last = Step::kPosted;
      for (int i = 0; i < kPostsInARow && last == Step::kPosted && posts > 0; ++i, --posts) {
        last = step(row);
        progress = progress || last == Step::kPosted;
      }
      if (last != Step::kStarved) add(row);
    }
    return progress;
  }

 private:
  static constexpr int kPostsPerRound = 256;
  static constexpr int kPostsInARow = 32;

  boost::circular_buffer<std::uint32_t> queue_;
  std::vector<bool> queued_;
};

}  // namespace baton::handover
