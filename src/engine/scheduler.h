// Who computes in the next step, and who may have blocks. First come, first served; continuous
// batching with chunked prefill: each running sequence that has one token to compute goes first,
// then prompts in order of arrival until the step's token budget is used up. When the pool is dry
// the youngest running sequence gives its blocks back and is computed again later; never one whose
// blocks are under transfer.
//
// The engine thread alone. Sequences are the engine's; they stay put while they are in here.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "engine/block_pool.h"
#include "engine/sequence.h"

namespace baton::engine {

struct SchedulerLimits {
  std::uint32_t block_size = 16;
  std::uint32_t max_num_seqs = 64;
  std::uint32_t max_num_batched_tokens = 512;
};

struct Work {
  Sequence* sequence = nullptr;
  std::uint32_t num_tokens = 0;  // from sequence->computed on
};

class Scheduler {
 public:
  // `cache`: null where every request gets all its blocks afresh.
  Scheduler(BlockPool& pool, SchedulerLimits limits, const PrefixCache* cache = nullptr)
      : pool_(&pool), limits_(limits), cache_(cache) {}

  // Takes its place in the queue by arrival. Its blocks must be empty.
  void enqueue(Sequence& sequence);
  // Behind all that wait now: it had blocks and gave them up for the others.
  void enqueue_last(Sequence& sequence);
  // D: its KV is there: runs as soon as there is a place among the running.
  void arrived(Sequence& sequence);
  // Out of whatever list it is in. Its blocks stay with it.
  void remove(Sequence& sequence);

  // Moves sequences that arrived into running, and gives waiting ones all blocks for what they
  // have: those that the prefix cache has for their beginning, which then counts as computed, and
  // new ones. Those that want their KV from P (now kRemoteKv) are appended to `to_register`.
  void admit(std::vector<Sequence*>& to_register);
  // The next step's work; gives one more block where a sequence grows into it. May be empty
  // although sequences run: all blocks are under transfer, and an event of the agent will help.
  void plan(std::vector<Work>& work);

  // What the head of the queue did not get in the last admit(): the free blocks that it waits for.
  // 0: nobody waits for blocks.
  std::uint32_t wanted_blocks() const;
  Sequence* head() const { return waiting_.empty() ? nullptr : waiting_.front(); }
  std::size_t waiting() const { return waiting_.size(); }
  std::size_t running() const { return running_.size() + arrived_.size(); }
  std::uint64_t preemptions() const { return preemptions_; }

  std::uint32_t blocks_for(std::uint32_t tokens) const {
    return (tokens + limits_.block_size - 1) / limits_.block_size;
  }

 private:
  bool grant(Sequence& sequence);
  bool is_still_blocked(const Sequence& sequence, std::uint32_t reserve) const;
  std::uint64_t cache_changes() const { return cache_ == nullptr ? 0 : cache_->changes(); }
  bool grow(Sequence& sequence);
  Sequence* youngest_preemptible(const Sequence* but) const;
  void preempt(Sequence& sequence);
  void start(Sequence& sequence);
  void start_arrived(std::uint64_t before);

  BlockPool* pool_;
  SchedulerLimits limits_;
  const PrefixCache* cache_;
  std::deque<Sequence*> waiting_;   // by arrival
  std::deque<Sequence*> arrived_;   // by arrival
  std::vector<Sequence*> running_;  // by arrival
  std::uint64_t preemptions_ = 0;
  // Whom grant() refused last, and under what: while nothing has changed it says so at once, for a
  // long prompt is looked up in thousands of pieces.
  struct Blocked {
    const Sequence* sequence;
    std::uint32_t wanted, reserve;
    std::uint64_t cache_changes;
  };
  std::optional<Blocked> blocked_;
};

}  // namespace baton::engine
