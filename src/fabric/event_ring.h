// A queue of events that stops allocating once it has been as long as it gets.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "fabric/fabric.h"

namespace baton::fabric {

class EventRing {
 public:
  EventRing() : slots_(256) {}
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  void push(FabricEvent event) {
    if (size_ == slots_.size()) grow();
    slots_[(head_ + size_++) & (slots_.size() - 1)] = std::move(event);
  }
  FabricEvent pop() {
    FabricEvent event = std::move(slots_[head_]);
    head_ = (head_ + 1) & (slots_.size() - 1);
    --size_;
    return event;
  }

 private:
  void grow() {
    std::vector<FabricEvent> larger(slots_.size() * 2);
    for (std::size_t i = 0; i < size_; ++i) {
      larger[i] = std::move(slots_[(head_ + i) & (slots_.size() - 1)]);
    }
    slots_ = std::move(larger);
    head_ = 0;
  }

  std::vector<FabricEvent> slots_;  // a power of two of them
  std::size_t head_ = 0;
  std::size_t size_ = 0;
};

}  // namespace baton::fabric
