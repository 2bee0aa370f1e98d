// How blocks of one geometry become blocks of another: compiled once a peer, expanded to merged
// runs per request.
//
// Whole blocks are copied: pieces begin and end at block boundaries except at the end of the
// prompt, and what lies behind the last token of a prompt is never read by anybody.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "baton/geometry.h"
#include "baton/ids.h"
#include "baton/result.h"
#include "layout/geometry_check.h"

namespace baton::layout {

// One contiguous piece of memory on both sides. Regions are indices into the geometries' lists.
struct Run {
  std::uint32_t local_region = 0;
  std::uint32_t remote_region = 0;
  std::uint64_t local_offset = 0;
  std::uint64_t remote_offset = 0;
  std::uint64_t length = 0;
};

// `next` begins where `before` ends, on both sides: one write could have carried both.
bool continues(const Run& before, const Run& next);

class CopyPlan {
 public:
  // Both geometries passed validate(). Errors: kMismatch with field and both values.
  static Result<CopyPlan> compile(const Geometry& local, const Geometry& remote);

  // From here on every block is a run of its own.
  void keep_blocks_apart();

  // A region here and the one of the same name there.
  struct Pair {
    std::uint32_t local_region = 0;
    std::uint32_t remote_region = 0;
    std::uint16_t group = 0;
    std::uint64_t local_stride = 0;
    std::uint64_t remote_stride = 0;
    std::uint64_t block_bytes = 0;
    bool mergeable = false;  // blocks touch each other on both sides
  };
  std::span<const Pair> pairs() const { return pairs_; }
  std::uint16_t num_groups() const { return num_groups_; }
  // Payload of one block of `group` over all its regions.
  std::uint64_t bytes_per_block(std::uint16_t group) const { return bytes_per_block_[group]; }

 private:
  std::vector<Pair> pairs_;
  std::array<std::uint64_t, kGroupsMax> bytes_per_block_{};
  std::uint16_t num_groups_ = 1;
};

// The block ids of one stretch of a request, by group: `local[g][i]` goes to `remote[g][i]`. Ids
// are within the pools.
struct BlockLists {
  std::array<std::span<const BlockId>, kGroupsMax> local;
  std::array<std::span<const BlockId>, kGroupsMax> remote;
};

// Walks a stretch as merged runs, at most `run_bytes_max` each, region by region. Allocates
// nothing; the plan outlives the cursor, and the lists are handed in anew at each step, so that
// they may move in between.
class RunCursor {
 public:
  RunCursor() = default;
  RunCursor(const CopyPlan& plan, std::uint64_t run_bytes_max)
      : plan_(&plan), run_bytes_max_(run_bytes_max) {}

  // False: the stretch is finished.
  bool next(const BlockLists& lists, Run& out);

 private:
  const CopyPlan* plan_ = nullptr;
  std::uint64_t run_bytes_max_ = 0;
  std::size_t pair_ = 0;
  std::size_t block_ = 0;     // next block in the pair's lists
  std::uint64_t within_ = 0;  // bytes of that block already handed out (blocks larger than a run)
};

}  // namespace baton::layout
