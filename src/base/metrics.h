// Counters that any thread may raise and a scrape may read: relaxed atomics, no locks, no names.
// serving/ gives them names in /metrics.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace baton {

class Counter {
 public:
  void add(std::uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

class Gauge {
 public:
  void set(std::int64_t value) { value_.store(value, std::memory_order_relaxed); }
  void add(std::int64_t n) { value_.fetch_add(n, std::memory_order_relaxed); }
  std::int64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> value_{0};
};

// Cumulative buckets as Prometheus wants them; the last bucket is +Inf.
class Histogram {
 public:
  static constexpr std::size_t kBucketsMax = 32;
  explicit Histogram(std::span<const double> upper_bounds) {
    for (const double bound : upper_bounds) {
      if (size_ < kBucketsMax - 1) bounds_[size_++] = bound;
    }
  }
  void observe(double value) {
    std::size_t i = 0;
    while (i < size_ && value > bounds_[i]) ++i;
    counts_[i].fetch_add(1, std::memory_order_relaxed);
    double sum = sum_.load(std::memory_order_relaxed);
    while (!sum_.compare_exchange_weak(sum, sum + value, std::memory_order_relaxed)) {
    }
  }
  std::span<const double> bounds() const { return {bounds_.data(), size_}; }
  std::uint64_t count(std::size_t bucket) const {
    return counts_[bucket].load(std::memory_order_relaxed);
  }
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  std::array<double, kBucketsMax> bounds_{};
  std::size_t size_ = 0;
  std::array<std::atomic<std::uint64_t>, kBucketsMax> counts_{};
  std::atomic<double> sum_{0};
};

}  // namespace baton
