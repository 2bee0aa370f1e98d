#include "fabric/region_table.h"

#include <fmt/format.h>

namespace baton::fabric {

Result<RegionTable> RegionTable::make(std::span<const Region> regions) {
  if (regions.size() > kRegionsMax) {
    return fail(Errc::kInvalidArgument, fmt::format("regions: {} given, at most {} are allowed",
                                                    regions.size(), kRegionsMax));
  }
  RegionTable table;
  table.bounds_.reserve(regions.size());
  for (std::size_t i = 0; i < regions.size(); ++i) {
    const Region& region = regions[i];
    const auto refuse = [&](Errc code, std::string what) {
      return fail(code, fmt::format("region {} ({}): {}", i, region.name, what));
    };
    if (region.kind != MemoryKind::kHost) {
      return refuse(Errc::kUnsupported, fmt::format("kind is {}, only host memory (0) is supported",
                                                    static_cast<unsigned>(region.kind)));
    }
    if (region.num_blocks == 0) return refuse(Errc::kInvalidArgument, "num_blocks is 0");
    if (region.block_bytes == 0) return refuse(Errc::kInvalidArgument, "block_bytes is 0");
    if (region.stride_bytes < region.block_bytes) {
      return refuse(Errc::kInvalidArgument, fmt::format("stride_bytes {} is below block_bytes {}",
                                                        region.stride_bytes, region.block_bytes));
    }
    std::uint64_t length = 0;
    if (__builtin_mul_overflow(region.stride_bytes, region.num_blocks - 1ULL, &length) ||
        __builtin_add_overflow(length, region.block_bytes, &length) || (length >> 63) != 0) {
      return refuse(Errc::kInvalidArgument,
                    fmt::format("{} blocks of stride_bytes {} do not fit an address space",
                                region.num_blocks, region.stride_bytes));
    }
    table.bounds_.push_back({length, region.stride_bytes, region.block_bytes});
  }
  return table;
}

Status RegionTable::check(std::string_view side, std::uint32_t region, std::uint64_t offset,
                          std::uint64_t length) const {
  if (length == 0) return {};
  if (region >= bounds_.size()) {
    return fail(Errc::kInvalidArgument,
                fmt::format("{}_region {} is not below the {} registered regions", side, region,
                            bounds_.size()));
  }
  const Bounds& bounds = bounds_[region];
  if (offset > bounds.length || length > bounds.length - offset) {
    return fail(Errc::kInvalidArgument,
                fmt::format("{}_offset {} + length {} is beyond the {} bytes of region {}", side,
                            offset, length, bounds.length, region));
  }
  if (bounds.stride != bounds.block && offset % bounds.stride + length > bounds.block) {
    return fail(Errc::kInvalidArgument,
                fmt::format("{}_offset {} + length {} runs over the end of a block of {} bytes in "
                            "region {} (stride {})",
                            side, offset, length, bounds.block, region, bounds.stride));
  }
  return {};
}

}  // namespace baton::fabric
