#include "fabric/paced/pacer.h"

#include <algorithm>

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

Duration ByteTime::of(std::uint64_t bytes) {
  if (rate_ == 0) return Duration{0};
  __extension__ using Wide = unsigned __int128;
  const Wide parts = Wide{bytes} * static_cast<std::uint64_t>(kNsPerSecond) + rest_;
  rest_ = static_cast<std::uint64_t>(parts % rate_);
  return Duration(static_cast<Duration::rep>(parts / rate_));
}

std::uint64_t bytes_in(Duration time, std::uint64_t bytes_per_second) {
  const double bytes =
      static_cast<double>(bytes_per_second) * static_cast<double>(time.count()) / kNsPerSecond;
  return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(bytes));
}

}  // namespace baton::fabric::paced
