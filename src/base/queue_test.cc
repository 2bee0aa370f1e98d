#include "base/queue.h"

#include <gtest/gtest.h>

#include <thread>

namespace baton {
namespace {

TEST(BoundedQueue, RefusesWhenFullAndLeavesTheItemAlone) {
  BoundedQueue<std::vector<int>> queue(1);
  EXPECT_TRUE(queue.try_push({1}));
  std::vector<int> second{2};
  EXPECT_FALSE(queue.try_push(std::move(second)));
  EXPECT_EQ(second, std::vector<int>{2});
}

TEST(BoundedQueue, KeepsEachProducersOrderAndLosesNothing) {
  constexpr int kEach = 20000;
  BoundedQueue<std::pair<int, int>> queue(256);
  std::vector<std::thread> producers;
  for (int p = 0; p < 3; ++p) {
    producers.emplace_back([&queue, p] {
      for (int i = 0; i < kEach; ++i) {
        while (!queue.try_push({p, i})) std::this_thread::yield();
      }
    });
  }
  int next[3] = {0, 0, 0};
  std::vector<std::pair<int, int>> batch;
  while (next[0] + next[1] + next[2] < 3 * kEach) {
    queue.take_all(batch);
    if (batch.empty()) std::this_thread::yield();
    for (const auto& [producer, i] : batch) ASSERT_EQ(i, next[producer]++);
  }
  for (auto& producer : producers) producer.join();
}

}  // namespace
}  // namespace baton
