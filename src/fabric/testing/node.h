// One process of a fabric test: a fabric, a pool of memory with one region, and what the test asks
// of them. LocalNode lives here; RemoteNode is a child process that obeys the same calls, so that
// it can be stopped and killed.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "fabric/fabric.h"

namespace baton::fabric::testing {

enum class Memory : std::uint8_t { kSealedMemfd, kPrivate };

class Node {
 public:
  virtual ~Node() = default;
  virtual Result<Fabric::Inbound> open_inbound(const PeerId& peer, Access access) = 0;
  virtual void fence_inbound(InboundId inbound) = 0;
  virtual Result<OutboundId> connect(const PeerId& peer, const Bytes& offer,
                                     const std::vector<Region>& regions) = 0;
  virtual void close_outbound(OutboundId outbound) = 0;
  // Posts all of them, stops at the first refusal; answers how many were accepted and that refusal.
  struct Posted {
    std::size_t accepted = 0;
    Status status;
  };
  virtual Posted post(const std::vector<Write>& writes) = 0;
  virtual Posted post_reads(const std::vector<Read>& reads) = 0;
  virtual std::vector<FabricEvent> poll(std::size_t max) = 0;
  virtual bool busy() = 0;
  // The pool: bytes that name `seed` and their own place; a read of it; the fabric's limits.
  virtual void fill(std::uint64_t offset, std::uint64_t length, std::uint32_t seed) = 0;
  virtual Bytes read(std::uint64_t offset, std::uint64_t length) = 0;
  virtual Capabilities capabilities() = 0;
  // Its region as a handshake would tell it to peers.
  virtual std::vector<Region> regions() = 0;
};

// The byte that fill() puts at `offset`.
std::byte pattern(std::uint64_t offset, std::uint32_t seed);
Bytes pattern(std::uint64_t offset, std::uint64_t length, std::uint32_t seed);

std::unique_ptr<Node> make_local_node(std::unique_ptr<Fabric> fabric, Memory memory,
                                      std::uint64_t bytes);

class RemoteNode : public Node {
 public:
  virtual pid_t pid() const = 0;
  // kill(pid, signal); after SIGKILL waits until the process is gone, after SIGSTOP until it
  // stopped.
  virtual void signal(int number) = 0;
};
// Forks. `make` runs in the child.
std::unique_ptr<RemoteNode> make_remote_node(std::function<std::unique_ptr<Node>()> make);

}  // namespace baton::fabric::testing
