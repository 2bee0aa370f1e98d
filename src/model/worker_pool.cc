#include "model/worker_pool.h"

#include <chrono>

#include "base/check.h"

namespace baton::model {
namespace {

constexpr std::chrono::microseconds kLookAgain(30);
constexpr int kLooksBetweenClockReads = 32;

void pause() {
  __builtin_ia32_pause();
}

// Calls `ready` until it answers true or kLookAgain has passed; answers what it last said.
template <typename Ready>
bool look_for_a_while(const Ready& ready) {
  const auto until = std::chrono::steady_clock::now() + kLookAgain;
  do {
    for (int i = 0; i < kLooksBetweenClockReads; ++i) {
      if (ready()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < until);
  return ready();
}

constexpr std::uint64_t round_of(std::uint64_t ticket) {
  return ticket >> 32;
}
constexpr std::uint32_t task_of(std::uint64_t ticket) {
  return static_cast<std::uint32_t>(ticket);
}

}  // namespace

WorkerPool::WorkerPool(int threads) {
  BATON_CHECK(threads > 0, "{} threads", threads);
  for (int i = 1; i < threads; ++i) helpers_.emplace_back([this, i] { help(i); });
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

bool WorkerPool::work_left() const {
  return task_of(ticket_.load(std::memory_order_seq_cst)) < tasks_.load(std::memory_order_seq_cst);
}

void WorkerPool::run_erased(std::size_t tasks, const void* context, Invoke invoke) {
  BATON_CHECK(tasks <= 0xffffffffU, "{} tasks", tasks);
  if (helpers_.empty() || tasks <= 1) {
    for (std::size_t task = 0; task < tasks; ++task) invoke(context, task, 0);
    return;
  }
  // Nobody holds a task now, and `tasks_` is zero, so that nobody takes one before the round is
  // complete.
  context_.store(context, std::memory_order_relaxed);
  invoke_.store(invoke, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  const std::uint64_t round = (round_of(ticket_.load(std::memory_order_relaxed)) + 1) & 0xffffffffU;
  ticket_.store(round << 32, std::memory_order_seq_cst);
  tasks_.store(static_cast<std::uint32_t>(tasks), std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    const std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  work(0);
  const auto all_done = [this, tasks] { return done_.load(std::memory_order_acquire) == tasks; };
  while (!look_for_a_while(all_done)) std::this_thread::yield();
  tasks_.store(0, std::memory_order_release);
}

void WorkerPool::work(int thread) {
  std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
  for (;;) {
    const std::uint32_t tasks = tasks_.load(std::memory_order_acquire);
    const void* const context = context_.load(std::memory_order_relaxed);
    const Invoke invoke = invoke_.load(std::memory_order_relaxed);
    if (task_of(ticket) >= tasks) return;
    // Succeeds only if the round is still the one that the ticket named. Its task is then ours, so
    // the round cannot have ended, and the fields read before are its own.
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
      continue;
    }
    invoke(context, task_of(ticket), thread);
    done_.fetch_add(1, std::memory_order_release);
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void WorkerPool::help(int thread) {
  const auto something_to_do = [this] {
    return work_left() || stop_.load(std::memory_order_relaxed);
  };
  for (;;) {
    if (!look_for_a_while(something_to_do)) {
      std::unique_lock lock(mutex_);
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, something_to_do);
      sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    }
    if (stop_.load(std::memory_order_relaxed)) return;
    work(thread);
  }
}

}  // namespace baton::model
