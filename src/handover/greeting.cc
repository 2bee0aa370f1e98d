#include "handover/greeting.h"

#include <algorithm>

namespace baton::handover {

wire::Hello greeting(const Config& config) {
  wire::Hello out;
  out.version = config.version_max;
  out.version_min = std::min(wire::kVersionMin, config.version_max);
  out.from = config.id;
  out.mode = config.mode;
  out.role = config.role;
  out.fabric = config.fabric;
  out.verify = config.verify_blocks;
  out.peer_timeout = config.peer_timeout;
  out.lease = config.lease;
  out.geometry = config.geometry;
  return out;
}

}  // namespace baton::handover
