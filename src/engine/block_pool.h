// Which blocks of the KV pool are free, used or quarantined. Prefers runs of neighbours, because
// neighbours on both sides of a hand-over become one write.
//
// A block may have several users (requests that begin alike), and is free when the last one gives
// it back. A free block with contents that are worth something (mark_cached()) is handed out last:
// first those that nobody has used for longest, and of one request the last ones first.
//
// The engine thread alone calls it, except counts(), which any thread may call. It holds always:
// free + used + quarantined = total [I1]. Giving back what was not taken is a bug and ends the
// process.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "baton/ids.h"

namespace baton::engine {

class BlockPool {
 public:
  struct Counts {
    std::uint32_t free = 0, used = 0, quarantined = 0, total = 0;
  };

  // `total` > 0; all free. `lost`: what was cached in this block is about to be written over.
  explicit BlockPool(std::uint32_t total, std::function<void(BlockId)> lost = {});

  // Appends `n` blocks to `out` and marks them used; false and nothing done where fewer are free.
  // `after`: the block that the new ones should follow, if it can be had. Otherwise the smallest
  // run that holds all of them, otherwise the largest runs one after the other. O(log n) for each
  // run.
  [[nodiscard]] bool allocate(std::uint32_t n, std::vector<BlockId>& out,
                              std::optional<BlockId> after = std::nullopt);
  // One more user of each: used, or cached and free.
  void share(std::span<const BlockId> blocks);
  // What is in this used block is worth something after it is free, too.
  void mark_cached(BlockId block);
  void free(std::span<const BlockId> blocks);  // used -> free, or one user less
  // used -> quarantined. A peer may still write into them, so nobody else uses them [I1], and
  // nothing in them is cached.
  void quarantine(std::span<const BlockId> blocks);
  void release_quarantined(std::span<const BlockId> blocks);  // quarantined -> free

  std::uint32_t users(BlockId block) const { return blocks_.at(block).users; }
  Counts counts() const;

 private:
  enum class State : std::uint8_t { kFree, kUsed, kQuarantined };

  struct Block {
    State state = State::kFree;
    bool cached = false;
    std::uint32_t users = 0;                      // > 0: used
    std::list<BlockId>::iterator in_evictable{};  // cached and free
  };

  Block& at(BlockId block);
  void set_state(BlockId block, State from, State to);
  void lose_oldest();
  void add_run(BlockId begin, std::uint32_t length);
  void remove_run(std::map<BlockId, std::uint32_t>::iterator run);
  void take_from(std::map<BlockId, std::uint32_t>::iterator run, BlockId begin, std::uint32_t n,
                 std::vector<BlockId>& out);
  void insert_free(BlockId block);
  void publish(std::uint32_t free, std::uint32_t used, std::uint32_t quarantined);

  std::function<void(BlockId)> lost_;
  std::vector<Block> blocks_;
  std::list<BlockId> evictable_;           // cached and free, the oldest first
  std::map<BlockId, std::uint32_t> runs_;  // the other free ones: begin -> length, maximal
  std::set<std::pair<std::uint32_t, BlockId>> runs_by_length_;  // the same runs
  mutable std::mutex counts_mutex_;  // counts are published together, so that they always add up
  Counts counts_;
};

}  // namespace baton::engine
