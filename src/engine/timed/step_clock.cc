#include "engine/timed/step_clock.h"

#include <sys/prctl.h>

#include <cerrno>
#include <ctime>

namespace baton::engine::timed {

Time MonotonicClock::now() {
  return baton::now();
}

void MonotonicClock::sleep_until(Time deadline) {
  // The kernel may add 50 us to a sleep otherwise. Once a thread.
  static thread_local const bool exact = ::prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL) == 0;
  static_cast<void>(exact);
  const auto since = deadline.time_since_epoch();
  timespec until{};
  until.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(since).count();
  until.tv_nsec = (since % std::chrono::seconds(1)).count();
  while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

}  // namespace baton::engine::timed
