#include "fabric/paced/pacer.h"

#include <algorithm>
#include <cmath>

namespace baton::fabric::paced {

namespace {

constexpr double kNsPerSecond = 1e9;

}  // namespace

bool Pacer::may_begin(Time now, bool in_demand) {
  if (free_at_ >= now) return free_at_ == now;
  const Time earliest = in_demand ? now - kCatchUp : now;
  if (free_at_ < earliest) {
    if (in_demand) lost_->add(static_cast<std::uint64_t>((earliest - free_at_).count()));
    free_at_ = earliest;
  }
  return true;
}

void Pacer::take(Duration time) {
  free_at_ += time;
  busy_->add(static_cast<std::uint64_t>(time.count()));
}

Duration time_of(std::uint64_t bytes, std::uint64_t bytes_per_second) {
  if (bytes_per_second == 0) return Duration{0};
  const double ns =
      static_cast<double>(bytes) / static_cast<double>(bytes_per_second) * kNsPerSecond;
  return Duration(std::llround(ns));
}

std::uint64_t bytes_in(Duration time, std::uint64_t bytes_per_second) {
  const double bytes =
      static_cast<double>(bytes_per_second) * static_cast<double>(time.count()) / kNsPerSecond;
  return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(bytes));
}

}  // namespace baton::fabric::paced
