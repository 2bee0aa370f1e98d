// Deadlines of numbered things: an indexed binary heap. Each thing has at most one deadline;
// setting, moving and clearing it are O(log n), the earliest is O(1), and expiry does not depend on
// the order in which deadlines were set [I5]. Memory is taken once, by the constructor.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/clock.h"

namespace baton::handover {

class TimerHeap {
 public:
  explicit TimerHeap(std::uint32_t things) : place_(things, kAbsent), at_(things, kNever) {
    heap_.reserve(things);
  }

  // kNever clears.
  void set(std::uint32_t thing, Time at) {
    BATON_CHECK(thing < place_.size());
    if (at == kNever) return clear(thing);
    at_[thing] = at;
    if (place_[thing] == kAbsent) {
      place_[thing] = static_cast<std::uint32_t>(heap_.size());
      heap_.push_back(thing);
    }
    sift_up(place_[thing]);
    sift_down(place_[thing]);
  }

  void clear(std::uint32_t thing) {
    const std::uint32_t place = place_[thing];
    if (place == kAbsent) return;
    place_[thing] = kAbsent;
    at_[thing] = kNever;
    const std::uint32_t moved = heap_.back();
    heap_.pop_back();
    if (moved == thing) return;
    heap_[place] = moved;
    place_[moved] = place;
    sift_up(place);
    sift_down(place_[moved]);
  }

  Time next() const { return heap_.empty() ? kNever : at_[heap_.front()]; }

  // The thing whose deadline has come, if any; its deadline is cleared.
  std::optional<std::uint32_t> pop_due(Time now) {
    if (heap_.empty() || at_[heap_.front()] > now) return std::nullopt;
    const std::uint32_t thing = heap_.front();
    clear(thing);
    return thing;
  }

 private:
  static constexpr std::uint32_t kAbsent = UINT32_MAX;

  void put(std::uint32_t place, std::uint32_t thing) {
    heap_[place] = thing;
    place_[thing] = place;
  }
  void sift_up(std::uint32_t place) {
    const std::uint32_t thing = heap_[place];
    while (place > 0 && at_[heap_[(place - 1) / 2]] > at_[thing]) {
      put(place, heap_[(place - 1) / 2]);
      place = (place - 1) / 2;
    }
    put(place, thing);
  }
  void sift_down(std::uint32_t place) {
    const std::uint32_t thing = heap_[place];
    for (;;) {
      std::uint32_t child = 2 * place + 1;
      if (child >= heap_.size()) break;
      if (child + 1 < heap_.size() && at_[heap_[child + 1]] < at_[heap_[child]]) ++child;
      if (at_[heap_[child]] >= at_[thing]) break;
      put(place, heap_[child]);
      place = child;
    }
    put(place, thing);
  }

  std::vector<std::uint32_t> place_;  // thing -> index in heap_
  std::vector<Time> at_;
  std::vector<std::uint32_t> heap_;
};

}  // namespace baton::handover
