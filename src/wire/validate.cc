#include "wire/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/check.h"

namespace baton::wire {
namespace {

using layout::Mismatch;

tl::unexpected<Error> refuse(std::string message) {
  return fail(Errc::kInvalidArgument, std::move(message));
}

std::string_view name_of(Mode mode) {
  return mode == Mode::kPush ? "push" : "pull";
}

std::string_view name_of(Role role) {
  switch (role) {
    case Role::kProducer:
      return "producer";
    case Role::kConsumer:
      return "consumer";
    case Role::kBoth:
      return "both";
  }
  return "unknown";
}

std::string versions(const Hello& hello) {
  return fmt::format("{} to {}", hello.version_min, hello.version);
}

std::optional<Mismatch> check_identity(const Hello& ours, const Hello& theirs) {
  const PeerId& expected = theirs.expected;
  if (!expected.engine_id.empty() && expected.engine_id != ours.from.engine_id) {
    return Mismatch{"engine_id", ours.from.engine_id, expected.engine_id};
  }
  if (expected.incarnation != 0 && expected.incarnation != ours.from.incarnation) {
    return Mismatch{"incarnation", fmt::format("{:016x}", ours.from.incarnation),
                    fmt::format("{:016x}", expected.incarnation)};
  }
  return std::nullopt;
}

// "auto" has shm and libfabric, and its offers list both.
bool share_fabric(std::string_view ours, std::string_view theirs) {
  const auto in_auto = [](std::string_view name) { return name == "shm" || name == "libfabric"; };
  return ours == theirs || (ours == "auto" && in_auto(theirs)) ||
         (theirs == "auto" && in_auto(ours));
}

}  // namespace

std::optional<Mismatch> check_handshake(const Hello& ours, const Hello& theirs, Role peer_role) {
  if (theirs.version_min > theirs.version || theirs.version < ours.version_min ||
      ours.version < theirs.version_min) {
    return Mismatch{"version", versions(ours), versions(theirs)};
  }
  if (auto mismatch = check_identity(ours, theirs)) return mismatch;
  if (ours.mode != theirs.mode) {
    return Mismatch{"mode", std::string(name_of(ours.mode)), std::string(name_of(theirs.mode))};
  }
  if (theirs.role != peer_role && theirs.role != Role::kBoth) {
    return Mismatch{"role",
                    fmt::format("{} (a {} is needed)", name_of(ours.role), name_of(peer_role)),
                    std::string(name_of(theirs.role))};
  }
  if (!share_fabric(ours.fabric, theirs.fabric)) {
    return Mismatch{"fabric", ours.fabric, theirs.fabric};
  }
  if (const Status status = layout::validate(theirs.geometry, layout::Whose::kTheirs); !status) {
    return Mismatch{"geometry", "valid", status.error().message};
  }
  return layout::find_mismatch(ours.geometry, theirs.geometry);
}

std::uint16_t spoken_version(const Hello& ours, const Hello& theirs) {
  return std::min(ours.version, theirs.version);
}

std::optional<BlockId> DuplicateFinder::find(std::span<const BlockId> ids) {
  if (++round_ == 0) {  // after 2^32 lists: old marks would look new
    std::fill(seen_.begin(), seen_.end(), 0);
    round_ = 1;
  }
  for (const BlockId id : ids) {
    BATON_CHECK(id < seen_.size());
    if (seen_[id] == round_) return id;
    seen_[id] = round_;
  }
  return std::nullopt;
}

std::uint32_t largest_pool(const Geometry& geometry) {
  std::uint32_t most = 0;
  for (const Region& r : geometry.regions) most = std::max(most, r.num_blocks);
  return most;
}

Status check_block_shape(const Geometry& pool, const TokenRange& range,
                         std::span<const std::span<const BlockId>> lists) {
  if (range.end < range.begin) {
    return refuse(fmt::format("range ends at {} before it begins at {}", range.end, range.begin));
  }
  if (range.begin % pool.block_size != 0) {
    return refuse(fmt::format("range.begin is {}, block_size is {}: it must be a multiple",
                              range.begin, pool.block_size));
  }
  const std::uint32_t wanted = layout::blocks_of(range, pool.block_size).size();
  if (lists.size() != pool.num_groups && !(wanted == 0 && lists.empty())) {
    return refuse(
        fmt::format("block_ids has {} groups, num_groups is {}", lists.size(), pool.num_groups));
  }
  for (std::size_t g = 0; g < lists.size(); ++g) {
    if (lists[g].size() != wanted) {
      return refuse(fmt::format("group {} lists {} blocks, tokens {} to {} need {}", g,
                                lists[g].size(), range.begin, range.end, wanted));
    }
    const std::uint32_t blocks = layout::pool_blocks(pool, static_cast<std::uint16_t>(g));
    // Without a way out of the loop, so that it is done several ids at a time.
    BlockId highest = 0;
    for (const BlockId id : lists[g]) highest = std::max(highest, id);
    if (wanted > 0 && highest >= blocks) {
      return refuse(fmt::format("group {} names block {}, the pool has {}", g, highest, blocks));
    }
  }
  return {};
}

Status check_block_lists(const Geometry& pool, const TokenRange& range,
                         std::span<const std::span<const BlockId>> lists, DuplicateFinder& finder) {
  if (const Status status = check_block_shape(pool, range, lists); !status) return status;
  for (std::size_t g = 0; g < lists.size(); ++g) {
    if (const auto twice = finder.find(lists[g])) {
      return refuse(fmt::format("group {} names block {} twice", g, *twice));
    }
  }
  return {};
}

Status check_register(const Geometry& ours, const Geometry& pool, const Register& message,
                      DuplicateFinder& finder) {
  if (message.transfer.is_null()) return refuse("transfer is null");
  if (message.num_grants != 1) {
    return refuse(
        fmt::format("{} grants were sent, this instance has 1 writer rank", message.num_grants));
  }
  if (message.grant.writer != ours.rank) {
    return refuse(fmt::format("the grant is for rank tp {} pp {}, this is tp {} pp {}",
                              message.grant.writer.tp, message.grant.writer.pp, ours.rank.tp,
                              ours.rank.pp));
  }
  if (message.range.end > message.prompt_tokens) {
    return refuse(fmt::format("range.end is {}, prompt_tokens is {}", message.range.end,
                              message.prompt_tokens));
  }
  return check_block_lists(pool, message.range,
                           std::span(message.block_ids).first(message.num_groups), finder);
}

}  // namespace baton::wire
