// Time as the hand-over sees it: nanoseconds of a monotonic clock, handed in by whoever drives.
// Deadlines never cross between processes as points in time, only as durations, so that clock skew
// is harmless.
#pragma once

#include <chrono>
#include <cstdint>

namespace baton {

using Duration = std::chrono::nanoseconds;
// A point on the local monotonic clock.
using Time = std::chrono::time_point<std::chrono::steady_clock, Duration>;

inline constexpr Time kNever = Time::max();

// Of two points as a Timeline holds them, in nanoseconds.
inline double seconds_between(std::int64_t from, std::int64_t to) {
  return static_cast<double>(to - from) * 1e-9;
}

// The real clock. handover/ never calls it: it is told the time.
inline Time now() {
  return std::chrono::steady_clock::now();
}
// The same as a Timeline holds it.
inline std::int64_t now_ns() {
  return now().time_since_epoch().count();
}

}  // namespace baton
