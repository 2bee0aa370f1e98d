// The half of the one that connects, for one incarnation of the other: an endpoint of its own and
// the writes, or reads, posted to it. One endpoint each, because closing it is the only way to be
// rid of a peer that no longer answers: what is posted to it ends at once, and nobody else's does.
// Owner thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "fabric/event_ring.h"
#include "fabric/fabric.h"
#include "fabric/libfabric/device.h"
#include "fabric/libfabric/endpoint.h"
#include "fabric/libfabric/offer.h"
#include "fabric/region_table.h"

namespace baton::fabric::libfabric {

class Outbound {
 public:
  // Begins to connect: a write of nothing, or a read of the first byte, whose completion is
  // kConnected. Errors: the offer does not fit this provider or `remote`; nothing was begun then.
  static Result<std::unique_ptr<Outbound>> start(OutboundId id, const Device& device, Offer offer,
                                                 RegionTable remote, EventRing& events);

  // Closes the endpoint before anything that it may touch goes.
  ~Outbound();
  Outbound(const Outbound&) = delete;
  Outbound& operator=(const Outbound&) = delete;

  OutboundId id() const { return id_; }
  Endpoint& endpoint() { return endpoint_; }
  Access access() const { return offer_.access; }
  bool ended() const { return state_ == State::kEnded; }
  // Since when it tries; kNever: it is connected.
  Time connecting_since() const { return connecting_since_; }
  // True: writes or reads wait that the provider did not take, and no completion will come to say
  // when it does.
  bool stalled() const { return !waiting_.empty() && issued_ == 0; }

  // A write, or a read put as one (as_write); the caller has checked that it is what this is for.
  // `local` is the address of its first byte here, `descriptor` its registration where the provider
  // wants one; both checked by the caller.
  Status post(const Write& op, std::byte* local, void* descriptor);
  // Hands what waits to the provider and takes completions, at most Endpoint::kBatch. True:
  // there may be more.
  bool work();
  // Fails whatever is not completed and closes the endpoint: the local memory is no longer read, or
  // written.
  // `why` empty: the user asked.
  void end(std::string why);

 private:
  enum class State : std::uint8_t { kConnecting, kOpen, kEnded };

  struct Slot {
    std::array<void*, 8> provider{};  // fi_context2, first: what a completion points at
    std::byte* local = nullptr;
    void* descriptor = nullptr;
    std::uint64_t address = 0;
    std::uint64_t key = 0;
    std::uint64_t length = 0;
    std::uint64_t context = 0;
    std::optional<std::uint32_t> immediate;
    bool used = false;
  };

  Outbound(OutboundId id, const Device& device, Endpoint endpoint, Offer offer, RegionTable remote,
           EventRing& events);
  Status check_offer(const Device& device) const;
  Status prepare_probe();
  std::uint32_t take_slot();
  void free_slot(std::uint32_t index);
  void issue_waiting();
  int issue(Slot& slot);
  void complete(std::uint32_t index);
  void complete_found(bool& more, std::string& why);
  std::uint32_t index_of(const void* context) const;

  static constexpr std::uint32_t kProbe = 0;  // the slot of what connects

  OutboundId id_;
  const Device& device_;
  std::byte probe_byte_{};  // where a probe reads to
  Endpoint endpoint_;
  Fid<fid_mr>
      probe_key_;  // null where the provider wants none; closes before the endpoint's domain
  Offer offer_;
  RegionTable remote_;
  EventRing& events_;
  State state_ = State::kConnecting;
  Time connecting_since_;
  std::uint64_t destination_ = 0;
  std::vector<Slot> slots_;  // never resized: completions point into it
  std::vector<std::uint32_t> free_;
  std::deque<std::uint32_t> waiting_;  // posted, not yet taken by the provider
  std::uint32_t issued_ = 0;           // taken and not completed
};

}  // namespace baton::fabric::libfabric
