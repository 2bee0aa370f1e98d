#include "engine/block_pool.h"

#include <algorithm>

#include "base/check.h"

namespace baton::engine {

BlockPool::BlockPool(std::uint32_t total) : states_(total, State::kFree) {
  BATON_CHECK(total > 0);
  counts_.total = total;
  counts_.free = total;
  add_run(0, total);
}

bool BlockPool::allocate(std::uint32_t n, std::vector<BlockId>& out, std::optional<BlockId> after) {
  if (n > counts_.free) return false;
  std::uint32_t left = n;
  if (after.has_value() && left > 0) {
    const auto next = runs_.find(*after + 1);
    if (next != runs_.end() && (next->second >= left || runs_by_length_.rbegin()->first < left)) {
      const std::uint32_t part = std::min(left, next->second);
      take_from(next, next->first, part, out);
      left -= part;
    }
  }
  while (left > 0) {
    auto fit = runs_by_length_.lower_bound({left, 0});
    if (fit == runs_by_length_.end()) fit = std::prev(fit);  // none holds all: the largest
    const std::uint32_t part = std::min(left, fit->first);
    const auto run = runs_.find(fit->second);
    BATON_CHECK(run != runs_.end());
    take_from(run, run->first, part, out);
    left -= part;
  }
  publish(counts_.free - n, counts_.used + n, counts_.quarantined);
  return true;
}

void BlockPool::free(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    set_state(block, State::kUsed, State::kFree);
    insert_free(block);
  }
  const auto n = static_cast<std::uint32_t>(blocks.size());
  publish(counts_.free + n, counts_.used - n, counts_.quarantined);
}

void BlockPool::quarantine(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) set_state(block, State::kUsed, State::kQuarantined);
  const auto n = static_cast<std::uint32_t>(blocks.size());
  publish(counts_.free, counts_.used - n, counts_.quarantined + n);
}

void BlockPool::release_quarantined(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    set_state(block, State::kQuarantined, State::kFree);
    insert_free(block);
  }
  const auto n = static_cast<std::uint32_t>(blocks.size());
  publish(counts_.free + n, counts_.used, counts_.quarantined - n);
}

BlockPool::Counts BlockPool::counts() const {
  const std::lock_guard lock(counts_mutex_);
  return counts_;
}

void BlockPool::set_state(BlockId block, State from, State to) {
  BATON_CHECK(block < states_.size(), "block {} of a pool of {}", block, states_.size());
  BATON_CHECK(states_[block] == from, "block {} is in state {}, not {}", block,
              static_cast<int>(states_[block]), static_cast<int>(from));
  states_[block] = to;
}

void BlockPool::add_run(BlockId begin, std::uint32_t length) {
  runs_.emplace(begin, length);
  runs_by_length_.emplace(length, begin);
}

void BlockPool::remove_run(std::map<BlockId, std::uint32_t>::iterator run) {
  runs_by_length_.erase({run->second, run->first});
  runs_.erase(run);
}

void BlockPool::take_from(std::map<BlockId, std::uint32_t>::iterator run, BlockId begin,
                          std::uint32_t n, std::vector<BlockId>& out) {
  const std::uint32_t length = run->second;
  BATON_CHECK(begin == run->first && n <= length);
  remove_run(run);
  if (n < length) add_run(begin + n, length - n);
  for (BlockId block = begin; block < begin + n; ++block) {
    set_state(block, State::kFree, State::kUsed);
    out.push_back(block);
  }
}

void BlockPool::insert_free(BlockId block) {
  BlockId begin = block;
  std::uint32_t length = 1;
  auto next = runs_.lower_bound(block);
  if (next != runs_.begin()) {
    const auto before = std::prev(next);
    BATON_CHECK(before->first + before->second <= block, "block {} is already free", block);
    if (before->first + before->second == block) {
      begin = before->first;
      length += before->second;
      remove_run(before);
    }
  }
  next = runs_.lower_bound(block);
  if (next != runs_.end() && next->first == block + 1) {
    length += next->second;
    remove_run(next);
  }
  add_run(begin, length);
}

void BlockPool::publish(std::uint32_t free, std::uint32_t used, std::uint32_t quarantined) {
  const std::lock_guard lock(counts_mutex_);
  counts_.free = free;
  counts_.used = used;
  counts_.quarantined = quarantined;
  BATON_CHECK(counts_.free + counts_.used + counts_.quarantined == counts_.total,
              "blocks do not add up: {} free, {} used, {} quarantined of {}", free, used,
              quarantined, counts_.total);
}

}  // namespace baton::engine
