#include "layout/copy_plan.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "base/check.h"

namespace baton::layout {

Result<CopyPlan> CopyPlan::compile(const Geometry& local, const Geometry& remote) {
  if (const auto mismatch = find_mismatch(local, remote)) {
    return fail(Errc::kMismatch, mismatch->to_string());
  }
  std::unordered_map<std::string_view, std::uint32_t> remote_index;
  for (std::uint32_t i = 0; i < remote.regions.size(); ++i) {
    remote_index.emplace(remote.regions[i].name, i);
  }
  CopyPlan plan;
  plan.num_groups_ = local.num_groups;
  plan.pairs_.reserve(local.regions.size());
  for (std::uint32_t i = 0; i < local.regions.size(); ++i) {
    const Region& ours = local.regions[i];
    const std::uint32_t j = remote_index.at(ours.name);
    const Region& theirs = remote.regions[j];
    plan.pairs_.push_back(
        {i, j, ours.group, ours.stride_bytes, theirs.stride_bytes, ours.block_bytes,
         ours.stride_bytes == ours.block_bytes && theirs.stride_bytes == theirs.block_bytes});
    plan.bytes_per_block_[ours.group] += ours.block_bytes;
  }
  return plan;
}

void CopyPlan::keep_blocks_apart() {
  for (Pair& pair : pairs_) pair.mergeable = false;
}

bool continues(const Run& before, const Run& next) {
  return before.length > 0 && before.local_region == next.local_region &&
         before.remote_region == next.remote_region &&
         before.local_offset + before.length == next.local_offset &&
         before.remote_offset + before.length == next.remote_offset;
}

bool RunCursor::next(const BlockLists& lists, Run& out) {
  BATON_CHECK(plan_ != nullptr && run_bytes_max_ > 0);
  const auto pairs = plan_->pairs();
  while (pair_ < pairs.size() && block_ >= lists.local[pairs[pair_].group].size()) {
    ++pair_;
    block_ = 0;
  }
  if (pair_ == pairs.size()) return false;
  const CopyPlan::Pair& pair = pairs[pair_];
  const std::span<const BlockId> local = lists.local[pair.group];
  const std::span<const BlockId> remote = lists.remote[pair.group];
  BATON_CHECK(local.size() == remote.size());

  const std::uint64_t here = local[block_];
  const std::uint64_t there = remote[block_];
  out.local_region = pair.local_region;
  out.remote_region = pair.remote_region;
  out.local_offset = here * pair.local_stride + within_;
  out.remote_offset = there * pair.remote_stride + within_;
  if (!pair.mergeable || pair.block_bytes >= run_bytes_max_) {
    out.length = std::min(pair.block_bytes - within_, run_bytes_max_);
    within_ += out.length;
    if (within_ == pair.block_bytes) {
      within_ = 0;
      ++block_;
    }
    return true;
  }
  const std::size_t most =
      std::min<std::uint64_t>(run_bytes_max_ / pair.block_bytes, local.size() - block_);
  std::size_t count = 1;
  while (count < most && local[block_ + count] == here + count &&
         remote[block_ + count] == there + count) {
    ++count;
  }
  out.length = count * pair.block_bytes;
  block_ += count;
  return true;
}

}  // namespace baton::layout
