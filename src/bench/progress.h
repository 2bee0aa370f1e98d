// How far a run is, on standard error: on a terminal one line, rewritten in place; else, as in a
// log, a line now and then of a run that lasts.
#pragma once

#include <cstddef>
#include <string>

#include "base/clock.h"

namespace baton::bench {

struct ProgressState {
  std::size_t total = 0, sent = 0, done = 0, failed = 0;
  Duration elapsed = Duration::zero();
  Duration last_arrival = Duration::zero();  // of the plan, since the start
};

// "[#####.....] 12/100 done, 3 running, 0 failed, 4 s, 33 s left".
std::string progress_line(const ProgressState& state);
// What is left, judged by what is done so far and by the arrivals still to come.
Duration time_left(const ProgressState& state);

class Progress {
 public:
  explicit Progress(bool wanted);
  bool is_shown() const { return shown_; }
  Duration every() const;  // so often it is to be drawn
  void draw(const ProgressState& state);
  void end(const ProgressState& state);  // leaves the bar standing as it is now

 private:
  bool shown_;
  bool is_bar_;
};

}  // namespace baton::bench
