// The small tables that the machines stand on, against plain models of them.
#include <gtest/gtest.h>

#include <map>

#include "base/random.h"
#include "handover/ended_book.h"
#include "handover/index_map.h"
#include "handover/timer_heap.h"

namespace baton::handover {
namespace {

TEST(TimerHeap, GivesDeadlinesInOrderWhateverWasSetMovedAndCleared) {
  Rng rng(1);
  TimerHeap heap(40);
  std::map<std::uint32_t, Time> model;
  for (int round = 0; round < 20000; ++round) {
    const auto thing = static_cast<std::uint32_t>(rng.below(40));
    if (rng.chance(1, 4)) {
      heap.clear(thing);
      model.erase(thing);
    } else if (rng.chance(1, 4)) {
      const Time now{Duration(rng.below(1000))};
      const auto due = heap.pop_due(now);
      auto earliest = model.end();
      for (auto i = model.begin(); i != model.end(); ++i) {
        if (earliest == model.end() || i->second < earliest->second) earliest = i;
      }
      ASSERT_EQ(due.has_value(), earliest != model.end() && earliest->second <= now);
      if (due) {
        ASSERT_EQ(model.at(*due), earliest->second);
        model.erase(*due);
      }
    } else {
      const Time at{Duration(rng.below(1000))};
      heap.set(thing, at);
      model[thing] = at;
    }
    Time next = kNever;
    for (const auto& [t, at] : model) next = std::min(next, at);
    ASSERT_EQ(heap.next(), next);
  }
}

struct Clumsy {  // puts everything into few homes
  std::size_t operator()(std::uint64_t key) const { return (key % 5) << 20; }
};

TEST(IndexMap, AgreesWithAPlainMapUnderCollisions) {
  Rng rng(2);
  IndexMap<std::uint64_t, Clumsy> map(64);
  std::map<std::uint64_t, std::uint32_t> model;
  for (int round = 0; round < 50000; ++round) {
    const std::uint64_t key = rng.below(100);
    if (rng.chance(1, 2)) {
      if (!model.contains(key) && model.size() < 64) {
        map.insert(key, static_cast<std::uint32_t>(round));
        model[key] = static_cast<std::uint32_t>(round);
      }
    } else {
      ASSERT_EQ(map.erase(key), model.erase(key) == 1);
    }
    ASSERT_EQ(map.size(), model.size());
    const auto found = map.find(key);
    ASSERT_EQ(found.has_value(), model.contains(key));
    if (found) {
      ASSERT_EQ(*found, model[key]);
    }
  }
  for (const auto& [key, row] : model) ASSERT_EQ(map.find(key), row);
}

EndRecord record(Epoch epoch) {
  EndRecord out;
  out.key.epoch = epoch;
  return out;
}

TEST(EndedBook, WhatIsForgottenIsBelowTheFloor) {
  EndedBook book(3);
  for (const Epoch epoch : {5U, 2U, 9U}) book.add(record(epoch));
  EXPECT_NE(book.find(2), nullptr);
  EXPECT_FALSE(book.below_floor(1));
  book.add(record(7));
  EXPECT_EQ(book.find(2), nullptr);
  EXPECT_TRUE(book.below_floor(2));
  EXPECT_FALSE(book.below_floor(3));
  book.add(record(1));  // below: stays forgotten
  EXPECT_EQ(book.size(), 3U);
  book.raise_floor(8);
  EXPECT_EQ(book.size(), 1U);
  EXPECT_TRUE(book.below_floor(7));
  book.raise_floor(4);  // an older word changes nothing
  EXPECT_TRUE(book.below_floor(7));
}

}  // namespace
}  // namespace baton::handover
