#include "fabric/libfabric/inbound.h"

#include <rdma/fi_domain.h>
#include <rdma/fi_errno.h>

#include <limits>
#include <optional>
#include <utility>

#include "base/log.h"
#include "fabric/events.h"

namespace baton::fabric::libfabric {
namespace {

constexpr int kLastLooks = 4;

}  // namespace

Result<std::unique_ptr<Inbound>> Inbound::open(InboundId id, Access access, const Device& device,
                                               std::span<const std::span<std::byte>> regions) {
  Result<Endpoint> endpoint = Endpoint::open(device, kQueue);
  if (!endpoint) return tl::unexpected(endpoint.error());
  std::unique_ptr<Inbound> inbound(new Inbound(id, access, std::move(*endpoint)));
  if (Status ok = inbound->make_offer(device, regions); !ok) return tl::unexpected(ok.error());
  return inbound;
}

Status Inbound::make_offer(const Device& device, std::span<const std::span<std::byte>> regions) {
  const Traits& traits = device.traits();
  const Device::Use use =
      access_ == Access::kWrite ? Device::Use::kWrittenByPeers : Device::Use::kReadByPeers;
  Offer offer;
  offer.access = access_;
  offer.provider = traits.provider;
  offer.address_format = traits.address_format;
  Result<std::vector<std::byte>> address = endpoint_.address();
  if (!address) return tl::unexpected(address.error());
  offer.rails.push_back({std::move(*address)});
  for (const std::span<std::byte> region : regions) {
    auto key = device.register_memory(endpoint_.domain(), region, use);
    if (!key) return tl::unexpected(key.error());
    offer.places.push_back({fi_mr_key(key->get()),
                            traits.offsets ? 0 : reinterpret_cast<std::uint64_t>(region.data()),
                            region.size()});
    keys_.push_back(std::move(*key));
  }
  offer_ = encode(offer);
  return {};
}

bool Inbound::read(EventRing& events) {
  std::optional<Endpoint::Failure> failure;
  const auto found = endpoint_.read(failure);
  if (failure) {
    // What a peer that died or broke a rule left half done. Nothing was announced by it, so nothing
    // is owed; whoever waits for the rest has its own deadline.
    log::debug("libfabric: inbound {}: a write or a read was not finished: {}", id_.value,
               fi_strerror(failure->code));
    return failure->context != nullptr;
  }
  for (const Endpoint::Completion& completion : found) {
    // Wider immediates are not ours, and a reader has none.
    if (completion.immediate && access_ == Access::kWrite &&
        *completion.immediate <= std::numeric_limits<std::uint32_t>::max()) {
      events.push(inbound_event(FabricEvent::Kind::kImmediate, id_,
                                static_cast<std::uint32_t>(*completion.immediate)));
    }
  }
  return found.size() == Endpoint::kBatch;
}

void Inbound::fence(EventRing& events) {
  // What is in the queue has landed; it is at most what the queue holds. The last looks let the
  // provider finish a connection that is being made: one that it has accepted and not heard costs
  // its descriptor until the process ends.
  for (std::size_t looks = 0; looks < kQueue && read(events); ++looks) {
  }
  for (int looks = 0; looks < kLastLooks; ++looks) read(events);
  close();
}

void Inbound::close() {
  endpoint_.close();
  keys_.clear();
}

}  // namespace baton::fabric::libfabric
