// What the state machines ask of the world. The agent implements it over sockets and a fabric, the
// tests over a fake. A port method never calls back into a machine: what comes of it is told later
// through an on_*() method.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "baton/agent.h"
#include "baton/event.h"
#include "baton/geometry.h"
#include "baton/ids.h"
#include "baton/result.h"

namespace baton::handover {

// A control connection. Made by the agent, for dialled and accepted ones from one counter, never
// reused, never 0.
using LinkId = std::uint64_t;
inline constexpr LinkId kNoLink = 0;

// The fabric's handles (fabric::InboundId / OutboundId), as plain values.
enum class Inbound : std::uint32_t {};
enum class Outbound : std::uint32_t {};

// fabric::Write, as the machines fill it.
struct WriteOp {
  Outbound to{};
  std::uint32_t local_region = 0;
  std::uint64_t local_offset = 0;
  std::uint32_t remote_region = 0;
  std::uint64_t remote_offset = 0;
  std::uint64_t length = 0;
  std::optional<std::uint32_t> immediate;
  std::uint64_t context = 0;
};

// fabric::Read: pull's D.
struct ReadOp {
  Outbound from{};
  std::uint32_t local_region = 0;
  std::uint64_t local_offset = 0;
  std::uint32_t remote_region = 0;
  std::uint64_t remote_offset = 0;
  std::uint64_t length = 0;
  std::uint64_t context = 0;
};

class Port {
 public:
  virtual ~Port() = default;

  // Control channel.
  // D: starts to connect; on_link_up() or on_link_down() of that link follows.
  virtual LinkId dial(const PeerAddress& peer) = 0;
  // Sends what was handed to send() as far as that goes without waiting, then closes. No
  // on_link_down() follows.
  virtual void hang_up(LinkId link) = 0;
  // Copies one whole frame towards the peer. A link whose peer does not read is the agent's to
  // close (on_link_down()).
  virtual void send(LinkId link, std::span<const std::byte> frame) = 0;
  // The peer shook hands: larger frames may be read from it (wire::kFrameBytesMax).
  virtual void trust(LinkId link) = 0;

  // Fabric, whose memory it is: push's D lets P write, pull's P lets D read.
  struct InboundOffer {
    Inbound id{};
    std::vector<std::byte> offer;
  };
  virtual Result<InboundOffer> open_inbound(const PeerId& writer) = 0;
  virtual Result<InboundOffer> open_source(const PeerId& reader) = 0;
  virtual void fence_inbound(Inbound inbound) = 0;

  // Fabric, who posts: push's P writes, pull's D reads.
  virtual Result<Outbound> connect(const PeerId& receiver, std::span<const std::byte> offer,
                                   std::span<const Region> regions) = 0;
  virtual void close_outbound(Outbound outbound) = 0;
  // kResourceExhausted: asked again after a completion. Other errors end the attempt.
  virtual Status post(const WriteOp& write) = 0;
  virtual Status post_read(const ReadOp& read) = 0;
  // Pull's D: every read of the registration is posted, or it ended. May be said more than once.
  virtual void posted(TransferId transfer) = 0;

  // Hash of one block of the local pool over all regions of its group (layout::hash_block()).
  // Verification only.
  virtual std::uint64_t hash_block(std::uint16_t group, BlockId block) = 0;

  // To the engine. The queue has room: every open transfer has its place reserved.
  virtual void deliver(Event&& event) = 0;
};

}  // namespace baton::handover
