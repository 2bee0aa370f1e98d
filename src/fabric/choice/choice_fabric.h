// The fabric that an agent uses: the one asked for by name, or "auto": the receiver offers both,
// and the writer takes shm where the boot id is its own and the receiver's unix socket answers,
// libfabric otherwise.
//
// An offer of "auto" lists what a writer may use; an offer of one fabric is that fabric's own. A
// writer reads either and tries what it has itself, in that order.
//
// "auto" promises what both keep: its fence is both fences, its limits are the lower ones. A write
// that failed over shm is over all the same, and says so (FabricEvent::over). An offer of reads is
// the same list, of reads.
#pragma once

#include <memory>
#include <string>

#include "fabric/fabric.h"
#include "fabric/libfabric/libfabric_fabric.h"

namespace baton::fabric {

struct Choice {
  std::string fabric = "auto";  // "auto", "shm", "libfabric"
  libfabric::Options libfabric;
  std::string host_id;  // what shows that a peer is on this host; empty: the kernel's boot id
};

// Errors: an unknown name; what the fabric's own maker says. With "auto", a libfabric that cannot
// be had is a warning and peers on other hosts are out of reach.
Result<std::unique_ptr<Fabric>> make_fabric(const Choice& choice);

}  // namespace baton::fabric
