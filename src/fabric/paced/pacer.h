// Arithmetic of something that does one thing after another at a set speed, such as a link: whether
// the next thing may begin, and for how much of the time it was in use. A token bucket whose tokens
// are time: what begins takes its time, and the next one waits until that is over.
//
// Told the time by its user: no clock, no descriptor. One thread.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/metrics.h"

namespace baton::fabric::paced {

class Pacer {
 public:
  // The most that a user who came late may catch up. A thread that the system kept from running is
  // not the link's doing; beyond this the cores are the limit, which `lost` says.
  static constexpr Duration kCatchUp = std::chrono::milliseconds(5);

  // Both in nanoseconds. `busy`: time that was taken. `lost`: time for which it stood still
  // although it was in demand. They outlive the pacer.
  Pacer(Counter& busy, Counter& lost) : busy_(&busy), lost_(&lost) {}

  // True: the next thing may begin. `in_demand`: something was refused or is still under way, so
  // that a real link would have gone on by itself; an idle one saves nothing up.
  bool may_begin(Time now, bool in_demand);
  // It begins, and takes so long.
  void take(Duration time);
  // The next thing begins no earlier than this.
  void not_before(Time time) { free_at_ = free_at_ < time ? time : free_at_; }

  Time free_at() const { return free_at_; }

 private:
  Counter* busy_;
  Counter* lost_;
  Time free_at_{};
};

// How long bytes take. Parts of a nanosecond are kept for the next ones, so that any number of
// short operations takes as long as one of all their bytes.
class ByteTime {
 public:
  // 0: no time.
  explicit ByteTime(std::uint64_t bytes_per_second) : rate_(bytes_per_second) {}
  Duration of(std::uint64_t bytes);

 private:
  std::uint64_t rate_;
  std::uint64_t rest_ = 0;  // of a nanosecond, in parts of `rate_`
};

// How many bytes go in `time`, at least one.
std::uint64_t bytes_in(Duration time, std::uint64_t bytes_per_second);

}  // namespace baton::fabric::paced
