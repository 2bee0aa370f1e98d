// The bounds of one side's registered regions, and the check that every write passes before an
// address is formed.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "baton/geometry.h"
#include "baton/result.h"

namespace baton::fabric {

class RegionTable {
 public:
  static constexpr std::size_t kRegionsMax = 4096;

  RegionTable() = default;
  // Refuses, naming region, field and value: no blocks, empty blocks, blocks that overlap (stride
  // below block size), a length beyond 2^63, memory other than the host's, more than kRegionsMax
  // regions.
  static Result<RegionTable> make(std::span<const Region> regions);

  std::size_t size() const { return bounds_.size(); }
  std::uint64_t length(std::size_t region) const { return bounds_[region].length; }
  // `side` is "local" or "remote". A range of length 0 fits anywhere. The gap between blocks is
  // outside.
  Status check(std::string_view side, std::uint32_t region, std::uint64_t offset,
               std::uint64_t length) const;

 private:
  struct Bounds {
    std::uint64_t length = 0;
    std::uint64_t stride = 0;
    std::uint64_t block = 0;
  };
  std::vector<Bounds> bounds_;
};

}  // namespace baton::fabric
