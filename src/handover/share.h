// One slow peer must not take every place that the fabric has.
#pragma once

#include <algorithm>
#include <cstdint>

namespace baton::handover {

// Of `most` posts at once, how many one peer may have out: all where it is the only one.
inline std::uint32_t share_of_peer(std::uint32_t most, bool is_only_one) {
  return is_only_one ? most : std::max(1U, most - most / 4);
}

}  // namespace baton::handover
