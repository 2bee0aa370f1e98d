// How long to wait before an address that did not answer is tried again. The first try never waits;
// memory is bounded by forgetting whom nobody has tried for a while.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "base/clock.h"

namespace baton {

class Backoff {
 public:
  static constexpr Duration kFirst = std::chrono::milliseconds(20);
  static constexpr Duration kLongest = std::chrono::milliseconds(500);

  // When `address` may be tried; `now` at the earliest.
  Time next_try(const std::string& address, Time now) const {
    const auto it = entries_.find(address);
    return it == entries_.end() ? now : std::max(now, it->second.not_before);
  }
  void failed(const std::string& address, Time now) {
    if (entries_.size() >= kEntriesMax) {
      std::erase_if(entries_, [now](const auto& e) { return e.second.not_before < now; });
    }
    if (entries_.size() >= kEntriesMax) entries_.clear();
    Entry& entry = entries_[address];
    entry.wait = entry.wait == Duration{0} ? kFirst : std::min(2 * entry.wait, kLongest);
    entry.not_before = now + entry.wait;
  }
  void succeeded(const std::string& address) { entries_.erase(address); }

 private:
  struct Entry {
    Duration wait{0};
    Time not_before{};
  };
  static constexpr std::size_t kEntriesMax = 1024;
  std::unordered_map<std::string, Entry> entries_;
};

}  // namespace baton
