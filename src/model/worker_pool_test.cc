#include "model/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace baton::model {
namespace {

TEST(WorkerPool, EachTaskRunsOnceAndIsDoneOnReturn) {
  for (const int threads : {1, 2, 3, 8}) {
    WorkerPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (std::size_t round = 0; round < 400; ++round) {
      // Neighbouring rounds differ in size, and their counters lie on a stack that is used again: a
      // helper that was late and worked for an old round would be seen.
      std::vector<int> runs(round % 37);
      pool.run(runs.size(), [&runs](std::size_t task, int) { ++runs[task]; });
      for (std::size_t task = 0; task < runs.size(); ++task)
        ASSERT_EQ(runs[task], 1) << round << ", " << task;
    }
  }
}

TEST(WorkerPool, NoTwoTasksOfAThreadOverlap) {
  constexpr int kThreads = 4;
  WorkerPool pool(kThreads);
  std::vector<std::atomic<int>> inside(kThreads);
  std::atomic<int> overlaps = 0;
  for (int round = 0; round < 50; ++round) {
    pool.run(64, [&](std::size_t, int thread) {
      std::atomic<int>& mine = inside[static_cast<std::size_t>(thread)];
      if (mine.fetch_add(1) != 0) ++overlaps;
      mine.fetch_sub(1);
    });
  }
  EXPECT_EQ(overlaps, 0);
}

TEST(WorkerPool, HelpersReallyHelp) {
  WorkerPool pool(2);
  // The first task ends only when the second has begun: one thread alone would never return.
  std::atomic<bool> second_began = false;
  pool.run(2, [&](std::size_t task, int) {
    if (task == 1) {
      second_began = true;
      second_began.notify_all();
    } else {
      second_began.wait(false);
    }
  });
  EXPECT_TRUE(second_began);
}

TEST(WorkerPool, SleepingHelpersWakeUp) {
  WorkerPool pool(2);
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(
        std::chrono::milliseconds(2));  // long enough to fall asleep, not relied upon
    std::atomic<int> began = 0;
    pool.run(2, [&](std::size_t, int) {
      began.fetch_add(1);
      began.notify_all();
      for (int now = began; now < 2; now = began) began.wait(now);
    });
    EXPECT_EQ(began, 2);
  }
}

}  // namespace
}  // namespace baton::model
