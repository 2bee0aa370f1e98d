// The half of the one that offers, for one writer's or reader's incarnation: an endpoint of its
// own, and a key of its own for each region, so that closing it takes both away from that peer and
// from nobody else. Owner thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "fabric/event_ring.h"
#include "fabric/fabric.h"
#include "fabric/libfabric/device.h"
#include "fabric/libfabric/endpoint.h"
#include "fabric/libfabric/offer.h"

namespace baton::fabric::libfabric {

class Inbound {
 public:
  // Immediates that may wait in the queue of one writer; more are held by the provider on software
  // providers, and lost on hardware.
  static constexpr std::uint32_t kQueue = 8192;

  static Result<std::unique_ptr<Inbound>> open(InboundId id, Access access, const Device& device,
                                               std::span<const std::span<std::byte>> regions);

  const Bytes& offer() const { return offer_; }
  Endpoint& endpoint() { return endpoint_; }

  // Takes immediates from the queue, at most Endpoint::kBatch, and lets the provider answer reads.
  // True: there may be more.
  bool read(EventRing& events);
  ~Inbound() { close(); }
  // Takes the immediates that are there. When it returns, no byte of that writer lands any more,
  // and nothing is read for that reader.
  void fence(EventRing& events);

 private:
  Inbound(InboundId id, Access access, Endpoint endpoint)
      : id_(id), access_(access), endpoint_(std::move(endpoint)) {}
  // The keys after the endpoint (closing it is the fence, closing them is not), and before the
  // domain.
  void close();
  Status make_offer(const Device& device, std::span<const std::span<std::byte>> regions);

  InboundId id_;
  Access access_;
  Endpoint endpoint_;
  std::vector<Fid<fid_mr>> keys_;
  Bytes offer_;
};

}  // namespace baton::fabric::libfabric
