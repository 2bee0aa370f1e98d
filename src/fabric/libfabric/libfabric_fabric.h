// The fabric between hosts: libfabric's reliable datagram endpoints, one-sided writes and reads.
// Each inbound has an endpoint, a completion queue and region keys of its own, so that closing them
// is a true fence, whether the writer lives, is stopped or dead. What was measured and what was
// never run: README.md in this folder's parent.
//
// Additions to the port's contract:
//   - fence_inbound() is done when it returns; kInboundFenced follows whatever the writer does.
//   Immediates that had arrived come before it. It never comes unasked: nobody tells a receiver
//   that its writer died;
//   - an offer may be used again by the same writer after its outbound closed;
//   - kConnected says that a write of nothing was acknowledged by the receiver, or that the source
//   gave its first byte: the address answers and the first key is right. No answer within
//   Options::connect_timeout is kConnectFailed;
//   - the first write or read that fails ends its outbound: the others of it fail, kOutboundClosed
//   follows. A failed read is always over: its endpoint is closed before it is told;
//   - reads need the source's owner thread: over tcp its provider sends the bytes from poll();
//   - close_outbound() fails what is posted and not yet completed.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "fabric/fabric.h"

namespace baton::fabric::libfabric {

struct Options {
  // "tcp" (the native reliable datagrams over TCP, which libfabric 1.17 calls "net"),
  // "tcp;ofi_rxm", "efa", "verbs;ofi_rxm".
  std::string provider = "tcp";
  // The interface that endpoints are bound to: an IP address, a host name that is one of this
  // host's, or an interface's name. "0.0.0.0", "::" and "*": the first interface that is up and not
  // loopback. For efa: the device's name, or empty.
  std::string address = "127.0.0.1";
  std::chrono::milliseconds connect_timeout{2000};
};

// The IP address, or the host name of one, that endpoints would be bound to; nothing where the
// provider's addresses are no IP addresses (efa). For whoever must know who can reach them before
// they are open. Errors: an unknown provider, an interface that is down.
Result<std::optional<std::string>> bound_address(const Options& options);

// Errors: unknown provider, one that this host or this libfabric does not have, or one that lacks
// what is needed; each a sentence that names it.
Result<std::unique_ptr<Fabric>> make_libfabric_fabric(const Options& options);

}  // namespace baton::fabric::libfabric
