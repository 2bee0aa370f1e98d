// How many unlike states were seen, by linear counting over a bitmap: exact enough for a report
// (within a few per thousand below a million), at one bit a state.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace baton::sim {

class StateCount {
 public:
  StateCount() : words_(kBits / 64, 0) {}

  void add(std::uint64_t hash) {
    hash ^= hash >> 31;
    hash *= 0x9E3779B97F4A7C15ULL;
    const std::uint64_t bit = (hash >> 20) % kBits;
    words_[bit / 64] |= std::uint64_t{1} << (bit % 64);
  }
  void merge(const StateCount& other) {
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
  }
  std::uint64_t estimate() const {
    std::uint64_t set = 0;
    for (const std::uint64_t word : words_) {
      set += static_cast<std::uint64_t>(__builtin_popcountll(word));
    }
    if (set == kBits) return kBits;
    const double empty = static_cast<double>(kBits - set) / static_cast<double>(kBits);
    return static_cast<std::uint64_t>(-static_cast<double>(kBits) * std::log(empty));
  }

 private:
  static constexpr std::uint64_t kBits = std::uint64_t{1} << 24;
  std::vector<std::uint64_t> words_;
};

}  // namespace baton::sim
