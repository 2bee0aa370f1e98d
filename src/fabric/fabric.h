// The port to whatever carries bytes: register memory once, connect, write one-sidedly with a
// 32-bit immediate or read one-sidedly, poll.
//
// Shaped after libfabric's reliable datagram endpoint (one-sided write with remote CQ data, and
// one-sided read): one local and one remote segment each, no ordering between them or between
// immediates, and a local completion of a write that may come before the remote side can see the
// bytes unless `delivery_complete`. Adapters: shm/ (same host), libfabric/ (between hosts), choice/
// (whichever of these reaches the peer), sim/ (the fake, the strictest).
//
// One connection is for writes or for reads, never both: the offer says which. Whoever offers is
// passive in both (the receiver of writes, the source of reads); whoever connects posts.
//
// Threads: the agent's owner thread makes every call. No call waits: what takes time ends in an
// event from poll(). Errors of a posted operation are completions, never return values; a return
// value says that nothing was posted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "baton/geometry.h"
#include "baton/ids.h"
#include "baton/result.h"

namespace baton::fabric {

using Bytes = std::vector<std::byte>;

// Handles, made by the adapter, never reused within a process.
struct InboundId {
  std::uint32_t value = 0;
  auto operator<=>(const InboundId&) const = default;
};
struct OutboundId {
  std::uint32_t value = 0;
  auto operator<=>(const OutboundId&) const = default;
};

// What an offer grants to the one peer that it is made for.
enum class Access : std::uint8_t {
  kWrite,  // it writes into our registered regions
  kRead,   // it reads from them
};

struct Capabilities {
  std::string name;  // "shm", "libfabric", "auto", "sim"
  // False: open_inbound() for reads and post_read() answer kUnsupported.
  bool reads = false;
  // True: a completion means that the remote side sees the bytes; then data writes may go without
  // an immediate and one last 0-byte write carries it. False: every write must carry an immediate
  // and the receiver counts.
  bool delivery_complete = false;
  // True: a failed write is over too: nothing of it lands after its completion. False: it may still
  // be on its way, and only the fence ends it.
  bool failed_writes_final = false;
  // Posted and not completed, all peers together. Reads share it: a read counts as a write does.
  std::uint32_t writes_in_flight_max = 0;
  std::uint64_t write_bytes_max = 0;  // of one write or one read
  std::uint32_t immediates_max =
      0;  // that may wait unpolled at a receiver: the sum of credits stays below it
};

// One write. `length` 0 with an immediate is allowed. Local and remote are places in registered
// regions; the adapter checks both against the bounds of what was registered and exchanged, and
// refuses what does not fit.
struct Write {
  OutboundId to;
  std::uint32_t local_region = 0;
  std::uint64_t local_offset = 0;
  std::uint32_t remote_region = 0;
  std::uint64_t remote_offset = 0;
  std::uint64_t length = 0;
  std::optional<std::uint32_t> immediate;
  std::uint64_t context = 0;  // comes back with the completion
};

// One read: the peer's bytes come here. `length` is above 0. Places are checked as those of a
// write.
struct Read {
  OutboundId from;
  std::uint32_t local_region = 0;
  std::uint64_t local_offset = 0;
  std::uint32_t remote_region = 0;
  std::uint64_t remote_offset = 0;
  std::uint64_t length = 0;
  std::uint64_t context = 0;  // comes back with the completion
};

struct FabricEvent {
  enum class Kind : std::uint8_t {
    kConnected,       // outbound: writes, or reads, may be posted
    kConnectFailed,   // outbound is gone; `error` says why
    kWriteDone,       // context: completed; the local memory may change again
    kWriteFailed,     // context, error: it may or may not have landed, wholly or in part
    kReadDone,        // context: all bytes are in the local memory and visible to this process
    kReadFailed,      // context, error: the local memory holds anything. Unless `over`, bytes may
                      // land there until kOutboundClosed
    kOutboundClosed,  // outbound: after the last completion of that outbound; nothing of it is
                      // under way, and nothing that it read lands in the local memory any more.
                      // Unasked, with `error`, when the peer is gone. Each outbound ends with
                      // exactly one of kConnectFailed and kOutboundClosed
    kImmediate,       // inbound, immediate: all bytes of that write are visible
    kInboundFenced,   // inbound: no byte of that writer can land any more, ever; that reader can
                      // read nothing any more (what left before may still reach it). Last event of
                      // that inbound
  };
  Kind kind = Kind::kWriteDone;
  InboundId inbound;
  OutboundId outbound;
  std::uint32_t immediate = 0;
  std::uint64_t context = 0;
  std::string error;
  // kWriteFailed: nothing of this write lands any more, whatever `failed_writes_final` says of
  // others. kReadFailed: nothing of this read lands in the local memory any more;
  // `failed_writes_final` says nothing of reads.
  bool over = false;
  // kConnected, kImmediate: which fabric it was where one of several was chosen; static storage.
  std::string_view carrier;
};

class Fabric {
 public:
  virtual ~Fabric() = default;
  virtual const Capabilities& capabilities() const = 0;

  // Once, before anything else. Places in a region are offsets from its base; its length is
  // (num_blocks - 1) * stride_bytes + block_bytes. Errors: unsealed memfd, unsupported memory kind,
  // overflow.
  virtual Status register_regions(std::span<const Region> regions) = 0;

  // Lets one peer incarnation write here, or read here: the offer grants the one `access`, never
  // both. It goes to that peer in the handshake (at most 4 KiB). An inbound for reads has no
  // immediates, and the end of a read is not told here.
  struct Inbound {
    InboundId id;
    Bytes offer;
  };
  virtual Result<Inbound> open_inbound(const PeerId& peer, Access access) = 0;
  // Asks for the fence. kInboundFenced follows when nothing of that writer can land any more, or
  // when that reader can read nothing any more (shm: its process is dead by pidfd, or said that it
  // has unmapped our memory, or it never connected and the offer is void; libfabric: the peer's own
  // endpoint here is closed; never by time). May also come unasked when the peer dies.
  virtual void fence_inbound(InboundId inbound) = 0;

  // Which fabric the peer of that inbound uses where one of several was offered; static storage.
  // Empty: there is only this one, or it is not known. Before the peer has come it is the one that
  // does not say who comes (one-sided reads over libfabric show nothing here).
  virtual std::string_view carrier_of(InboundId) const { return {}; }

  // Connects to what `offer` describes, for the access that it grants; `regions` are the peer's, as
  // the validated handshake gave them (base pointers are never used, only stride, size and count).
  // The offer is hostile input; one that says another access than its maker granted ends in an
  // error or kConnectFailed. kConnected or kConnectFailed follows.
  virtual Result<OutboundId> connect(const PeerId& peer, std::span<const std::byte> offer,
                                     std::span<const Region> regions) = 0;
  // No more writes or reads; what is posted completes or fails, then kOutboundClosed.
  virtual void close_outbound(OutboundId outbound) = 0;

  // Writer. A write may not touch the gap between blocks (stride_bytes above block_bytes).
  // kResourceExhausted: try after a completion. Other errors: a range out of bounds, an
  // unknown or closed peer, an outbound that was connected to an offer of reads.
  virtual Status post(const Write& write) = 0;
  // Reader. As post(): the same bounds, the same gap, the same errors, each way round. The bytes
  // are the peer's of any moments between this call and the completion, not all of one moment;
  // meanwhile the local memory holds anything.
  virtual Status post_read(const Read& read) = 0;

  // Moves work along for a bounded time (shm: at most 256 KiB of copying) and takes up to
  // out.size() events.
  virtual std::size_t poll(std::span<FabricEvent> out) = 0;
  // True: poll() has work now (a copy to go on with, a full queue to drain): do not sleep. False:
  // sleep on wait_fd().
  virtual bool busy() const = 0;
  // An epoll-able descriptor that becomes readable when poll() may have something to tell.
  virtual int wait_fd() const = 0;
  // Another one of the same kind, or -1 (epolls can be put into each other only a few times).
  virtual int second_wait_fd() const { return -1; }
};

}  // namespace baton::fabric
