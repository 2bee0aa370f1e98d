#include "engine/block_pool.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace baton::engine {

BlockPool::BlockPool(std::uint32_t total, std::function<void(BlockId)> lost)
    : lost_(std::move(lost)), blocks_(total) {
  BATON_CHECK(total > 0);
  counts_.total = total;
  counts_.free = total;
  add_run(0, total);
}

bool BlockPool::allocate(std::uint32_t n, std::vector<BlockId>& out, std::optional<BlockId> after) {
  if (n > counts_.free) return false;
  while (counts_.free - evictable_.size() < n) lose_oldest();
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

void BlockPool::share(std::span<const BlockId> blocks) {
  std::uint32_t taken = 0;
  for (const BlockId id : blocks) {
    Block& block = at(id);
    if (block.users++ > 0) continue;
    BATON_CHECK(block.cached, "block {} is shared, and nothing is cached in it", id);
    set_state(id, State::kFree, State::kUsed);
    evictable_.erase(block.in_evictable);
    ++taken;
  }
  publish(counts_.free - taken, counts_.used + taken, counts_.quarantined);
}

void BlockPool::mark_cached(BlockId id) {
  Block& block = at(id);
  BATON_CHECK(block.state == State::kUsed, "block {} is marked as cached, and not used", id);
  block.cached = true;
}

// From the last one on: what is lost first must be the end of a prompt, not its beginning.
void BlockPool::free(std::span<const BlockId> blocks) {
  std::uint32_t freed = 0;
  for (std::size_t i = blocks.size(); i-- > 0;) {
    const BlockId id = blocks[i];
    Block& block = at(id);
    BATON_CHECK(block.users > 0, "block {} is freed, and not used", id);
    if (--block.users > 0) continue;
    set_state(id, State::kUsed, State::kFree);
    ++freed;
    if (block.cached) {
      block.in_evictable = evictable_.insert(evictable_.end(), id);
    } else {
      insert_free(id);
    }
  }
  publish(counts_.free + freed, counts_.used - freed, counts_.quarantined);
}

void BlockPool::lose_oldest() {
  const BlockId id = evictable_.front();
  evictable_.pop_front();
  blocks_[id].cached = false;
  if (lost_) lost_(id);
  insert_free(id);
}

void BlockPool::quarantine(std::span<const BlockId> blocks) {
  for (const BlockId id : blocks) {
    set_state(id, State::kUsed, State::kQuarantined);
    BATON_CHECK(blocks_[id].users == 1 && !blocks_[id].cached,
                "block {} may still be written into, and has {} users", id, blocks_[id].users);
    blocks_[id].users = 0;
  }
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

BlockPool::Block& BlockPool::at(BlockId id) {
  BATON_CHECK(id < blocks_.size(), "block {} of a pool of {}", id, blocks_.size());
  return blocks_[id];
}

void BlockPool::set_state(BlockId id, State from, State to) {
  State& state = at(id).state;
  BATON_CHECK(state == from, "block {} is in state {}, not {}", id, static_cast<int>(state),
              static_cast<int>(from));
  state = to;
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
    blocks_[block].users = 1;
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
