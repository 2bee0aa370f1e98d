// The fabric between processes of one host. The pool of the one that offers is a sealed memfd that
// the writer or reader maps (a reader read-only); the owner thread of the one that connected copies
// straight into it or out of it. Memory that is in no memfd is written with process_vm_writev and
// read with process_vm_readv. A read needs nothing of the source's threads. Immediates are
// datagrams on a unix socket. What is trusted and what is a fence: README.md in this folder's
// parent.
//
// Additions to the port's contract:
//   - an offer may be used again, by the same process, after its connection closed; a newer
//   connection ends the older;
//   - fence_inbound() of a connected inbound also closes the connection; kInboundFenced waits for
//   the process' death;
//   - close_outbound() fails what is posted and not yet completed: wait for the completions first
//   to end in peace;
//   - a failed read is always over;
//   - after kConnected the peer's pages are made present piece by piece while nothing is to be
//   copied; busy() is
//     true until they are.
#pragma once

#include <memory>

#include "fabric/fabric.h"

namespace baton::fabric::shm {

// Errors: no descriptor or socket to be had.
Result<std::unique_ptr<Fabric>> make_shm_fabric();

}  // namespace baton::fabric::shm
