// GET /baton/upstreams: what a router routes, as the doctor reads it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "baton/result.h"
#include "serving/upstream_pool.h"

namespace baton::serving {

struct UpstreamEntry {
  Stage stage = Stage::kPrefill;
  std::string url;  // as the router was given it
  bool up = false;
  std::string reason;     // why it is not up
  std::string engine_id;  // "": it has not said yet
  std::uint64_t incarnation = 0;
};

std::string upstreams_body(std::span<const UpstreamPool::Snapshot> upstreams);

// At most kInfoListMax of them. kInvalidArgument where it is no such body; what is missing in an
// entry has its default.
Result<std::vector<UpstreamEntry>> parse_upstreams(std::string_view body);

}  // namespace baton::serving
