// A fabric that moves nothing: every connection succeeds, every write and read completes at the
// next poll, nothing arrives anywhere. For measuring what planning and posting cost alone. It
// checks bounds and access as the others do and allocates nothing once it is warm.
#pragma once

#include <memory>

#include "fabric/fabric.h"

namespace baton::fabric {

std::unique_ptr<Fabric> make_null_fabric();

}  // namespace baton::fabric
