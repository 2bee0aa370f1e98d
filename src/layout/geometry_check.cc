#include "layout/geometry_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace baton::layout {
namespace {

constexpr std::size_t kNameBytesMax = 256;

tl::unexpected<Error> invalid(std::string message) {
  return fail(Errc::kInvalidArgument, std::move(message));
}

Status check_text(std::string_view field, const std::string& text) {
  if (text.empty() || text.size() > kNameBytesMax) {
    return invalid(
        fmt::format("{} has {} bytes, 1 to {} are allowed", field, text.size(), kNameBytesMax));
  }
  return {};
}

Status check_range(std::string_view field, std::uint64_t value, std::uint64_t low,
                   std::uint64_t high) {
  if (value < low || value > high) {
    return invalid(fmt::format("{} is {}, allowed is {} to {}", field, value, low, high));
  }
  return {};
}

Status check_shape(const Geometry& g) {
  Status status = check_text("model", g.model);
  const auto then = [&status](auto&& check) {
    if (status) status = check();
  };
  then([&] { return check_text("kv_dtype", g.kv_dtype); });
  then([&] { return check_range("num_layers", g.num_layers, 1, 65536); });
  then([&] { return check_range("num_kv_heads", g.num_kv_heads, 1, 65536); });
  then([&] { return check_range("head_dim", g.head_dim, 1, 65536); });
  then([&] { return check_range("block_size", g.block_size, 1, kBlockSizeMax); });
  then([&] { return check_range("num_groups", g.num_groups, 1, kGroupsMax); });
  then([&] { return check_range("tp_size", g.tp_size, 1, 65535); });
  then([&] { return check_range("pp_size", g.pp_size, 1, 65535); });
  then([&] { return check_range("rank.tp", g.rank.tp, 0, g.tp_size - 1U); });
  then([&] { return check_range("rank.pp", g.rank.pp, 0, g.pp_size - 1U); });
  then([&] { return check_range("regions", g.regions.size(), 1, kRegionsMax); });
  return status;
}

Status check_region(const Geometry& g, const Region& r, Whose whose) {
  if (Status status = check_text("region name", r.name); !status) return status;
  if (r.kind != MemoryKind::kHost) {
    return fail(Errc::kUnsupported,
                fmt::format("region {}: memory kind is {}, only host (0) is served", r.name,
                            static_cast<int>(r.kind)));
  }
  if (r.group >= g.num_groups) {
    return invalid(
        fmt::format("region {}: group is {}, num_groups is {}", r.name, r.group, g.num_groups));
  }
  if (r.num_blocks == 0 || r.num_blocks > kPoolBlocksMax) {
    return invalid(fmt::format("region {}: num_blocks is {}, allowed is 1 to {}", r.name,
                               r.num_blocks, kPoolBlocksMax));
  }
  if (r.block_bytes == 0 || r.block_bytes > r.stride_bytes) {
    return invalid(fmt::format("region {}: block_bytes is {}, stride_bytes is {}", r.name,
                               r.block_bytes, r.stride_bytes));
  }
  constexpr std::uint64_t kPlacesMax = std::numeric_limits<std::int64_t>::max();
  if (r.stride_bytes > kPlacesMax / r.num_blocks) {
    return invalid(fmt::format("region {}: {} blocks of stride {} exceed the address space", r.name,
                               r.num_blocks, r.stride_bytes));
  }
  if (whose == Whose::kOurs && r.base == nullptr) {
    return invalid(fmt::format("region {}: base is null", r.name));
  }
  return {};
}

Status check_regions(const Geometry& g, Whose whose) {
  std::unordered_set<std::string_view> names;
  std::vector<std::uint32_t> pools(g.num_groups, 0);
  for (const Region& r : g.regions) {
    if (Status status = check_region(g, r, whose); !status) return status;
    if (!names.insert(r.name).second) {
      return invalid(fmt::format("region {}: the name is used twice", r.name));
    }
    std::uint32_t& pool = pools[r.group];
    if (pool != 0 && pool != r.num_blocks) {
      return invalid(
          fmt::format("region {}: num_blocks is {}, others of group {} have {}: they share ids",
                      r.name, r.num_blocks, r.group, pool));
    }
    pool = r.num_blocks;
  }
  for (std::size_t group = 0; group < pools.size(); ++group) {
    if (pools[group] == 0) return invalid(fmt::format("group {} has no region", group));
  }
  return {};
}

template <typename T>
bool differ(std::optional<Mismatch>& out, std::string_view field, const T& ours, const T& theirs) {
  if (ours == theirs) return false;
  out = Mismatch{std::string(field), fmt::format("{}", ours), fmt::format("{}", theirs)};
  return true;
}

std::string_view name_of(BlockLayout layout) {
  return layout == BlockLayout::kHeadsFirst ? "heads-first" : "tokens-first";
}

std::optional<Mismatch> find_region_mismatch(const Geometry& ours, const Geometry& theirs) {
  std::unordered_map<std::string_view, const Region*> by_name;
  for (const Region& r : theirs.regions) by_name.emplace(r.name, &r);
  std::optional<Mismatch> out;
  for (const Region& r : ours.regions) {
    const auto found = by_name.find(r.name);
    if (found == by_name.end()) return Mismatch{"region " + r.name, "present", "missing"};
    const Region& other = *found->second;
    if (differ(out, "region " + r.name + " block_bytes", r.block_bytes, other.block_bytes) ||
        differ(out, "region " + r.name + " group", r.group, other.group)) {
      return out;
    }
    by_name.erase(found);
  }
  if (!by_name.empty()) {
    return Mismatch{"region " + std::string(by_name.begin()->first), "missing", "present"};
  }
  return out;
}

}  // namespace

Status validate(const Geometry& geometry, Whose whose) {
  if (Status status = check_shape(geometry); !status) return status;
  return check_regions(geometry, whose);
}

std::string Mismatch::to_string() const {
  return fmt::format("{}: ours is {}, theirs is {}", field, ours, theirs);
}

std::optional<Mismatch> find_mismatch(const Geometry& ours, const Geometry& theirs) {
  std::optional<Mismatch> out;
  if (differ(out, "model", ours.model, theirs.model) ||
      differ(out, "kv_dtype", ours.kv_dtype, theirs.kv_dtype) ||
      differ(out, "num_layers", ours.num_layers, theirs.num_layers) ||
      differ(out, "num_kv_heads", ours.num_kv_heads, theirs.num_kv_heads) ||
      differ(out, "head_dim", ours.head_dim, theirs.head_dim) ||
      differ(out, "block_size", ours.block_size, theirs.block_size) ||
      differ(out, "layout", name_of(ours.layout), name_of(theirs.layout)) ||
      differ(out, "num_groups", ours.num_groups, theirs.num_groups) ||
      differ(out, "tp_size", ours.tp_size, theirs.tp_size) ||
      differ(out, "pp_size", ours.pp_size, theirs.pp_size) ||
      differ(out, "rank.tp", ours.rank.tp, theirs.rank.tp) ||
      differ(out, "rank.pp", ours.rank.pp, theirs.rank.pp)) {
    return out;
  }
  return find_region_mismatch(ours, theirs);
}

std::optional<Mismatch> find_warning(const Geometry& ours, const Geometry& theirs) {
  std::optional<Mismatch> out;
  differ(out, "kernel_family", ours.kernel_family, theirs.kernel_family);
  return out;
}

BlockSpan blocks_of(const TokenRange& range, std::uint32_t block_size) {
  if (range.empty()) return {range.begin / block_size, range.begin / block_size};
  return {range.begin / block_size, (range.end - 1) / block_size + 1};
}

std::uint32_t pool_blocks(const Geometry& geometry, std::uint16_t group) {
  for (const Region& r : geometry.regions) {
    if (r.group == group) return r.num_blocks;
  }
  return 0;
}

}  // namespace baton::layout
