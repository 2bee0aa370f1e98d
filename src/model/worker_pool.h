// A few threads that share the tasks of one forward pass. Which thread runs a task has no influence
// on its result: a task is cut the same way whatever the number of threads.
//
// run() is called by one thread at a time. Helpers that find nothing to do look again for some
// microseconds, so that the short gaps between two runs of a forward pass cost no wake-up, and then
// sleep. The caller never waits for a helper that has no task in hand: on busy cores a helper that
// does not get to run costs nothing.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace baton::model {

class WorkerPool {
 public:
  explicit WorkerPool(int threads);  // the caller of run() is one of them
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Calls body(task, thread) once for each task in [0, tasks), tasks < 2^32, and returns when all
  // are done. `thread` is in [0, threads()): no two calls with the same one overlap.
  template <typename Body>
  void run(std::size_t tasks, const Body& body) {
    run_erased(tasks, &body, [](const void* context, std::size_t task, int thread) {
      (*static_cast<const Body*>(context))(task, thread);
    });
  }

 private:
  using Invoke = void (*)(const void* context, std::size_t task, int thread);

  void run_erased(std::size_t tasks, const void* context, Invoke invoke);
  void help(int thread);
  // Takes tasks of the round in `ticket_` until none is left.
  void work(int thread);
  bool work_left() const;

  // High half: the number of the round; low half: its next task. A helper that was late finds
  // another round and takes nothing from the old one, so the fields below are only used by those
  // who hold one of its tasks.
  std::atomic<std::uint64_t> ticket_{0};
  std::atomic<std::uint32_t> tasks_{0};
  std::atomic<const void*> context_{nullptr};
  std::atomic<Invoke> invoke_{nullptr};
  std::atomic<std::uint32_t> done_{0};

  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> helpers_;
};

}  // namespace baton::model
