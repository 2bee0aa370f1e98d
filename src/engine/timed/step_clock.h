// The clock that steps are timed by: the real one, or a test's.
#pragma once

#include "base/clock.h"

namespace baton::engine::timed {

class StepClock {
 public:
  virtual ~StepClock() = default;
  virtual Time now() = 0;
  // Not before `deadline`; at once where it has passed. The engine thread.
  virtual void sleep_until(Time deadline) = 0;
};

// CLOCK_MONOTONIC, absolute deadlines, with this thread's timer slack at its least.
class MonotonicClock final : public StepClock {
 public:
  Time now() override;
  void sleep_until(Time deadline) override;
};

}  // namespace baton::engine::timed
