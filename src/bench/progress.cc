#include "bench/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace baton::bench {
namespace {

constexpr std::size_t kBarWidth = 24;

double seconds(Duration d) {
  return std::chrono::duration<double>(d).count();
}

}  // namespace

Duration time_left(const ProgressState& s) {
  const Duration arrivals = std::max(Duration::zero(), s.last_arrival - s.elapsed);
  if (s.done == 0) return arrivals;
  const double each = static_cast<double>(s.elapsed.count()) / static_cast<double>(s.done);
  const Duration work(static_cast<std::int64_t>(each * static_cast<double>(s.total - s.done)));
  return s.done == s.total ? Duration::zero() : std::max(arrivals, work);
}

std::string progress_line(const ProgressState& s) {
  const std::size_t filled = s.total == 0 ? 0 : kBarWidth * s.done / s.total;
  return fmt::format("[{}{}] {}/{} done, {} running, {} failed, {:.0f} s, {:.0f} s left",
                     std::string(filled, '#'), std::string(kBarWidth - filled, '.'), s.done,
                     s.total, s.sent - s.done, s.failed, seconds(s.elapsed), seconds(time_left(s)));
}

Progress::Progress(bool wanted) : shown_(wanted), is_bar_(::isatty(STDERR_FILENO) == 1) {}

Duration Progress::every() const {
  return is_bar_ ? std::chrono::milliseconds(200) : Duration(std::chrono::seconds(10));
}

void Progress::draw(const ProgressState& state) {
  if (!shown_) return;
  if (!is_bar_) {
    fmt::print(stderr, "{}\n", progress_line(state));
    return;
  }
  // Back to the line's start, and what a longer line left there is cleared.
  fmt::print(stderr, "\r{}\x1b[K", progress_line(state));
  std::fflush(stderr);
}

void Progress::end(const ProgressState& state) {
  if (!shown_ || !is_bar_) return;
  draw(state);
  std::fputc('\n', stderr);
}

}  // namespace baton::bench
