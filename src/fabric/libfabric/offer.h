// What a receiver tells one writer, or a source one reader: which provider, where its endpoint is
// reached, and the keys of its regions. Hostile input on the other side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "baton/result.h"
#include "fabric/fabric.h"

namespace baton::fabric::libfabric {

struct Offer {
  // One way to the endpoint: a network interface. Several may be listed, the first one is used.
  struct Rail {
    std::vector<std::byte> address;  // as the provider's fi_getname() gave it
  };
  struct Place {
    std::uint64_t key = 0;     // lets the holder write to, or read, the region, through one
                               // endpoint only
    std::uint64_t base = 0;    // remote address of the region's first byte; 0: offsets are used
    std::uint64_t length = 0;  // compared with what the handshake told
  };
  Access access = Access::kWrite;    // what the keys are for
  std::string provider;              // "net", "tcp;ofi_rxm": both sides must name the same
  std::uint32_t address_format = 0;  // FI_SOCKADDR_IN, ...
  std::vector<Rail> rails;
  std::vector<Place> places;  // one for each region
};

inline constexpr std::size_t kOfferBytesMax = 4096;
inline constexpr std::size_t kProviderMax = 64;
inline constexpr std::size_t kRailsMax = 8;
inline constexpr std::size_t kAddressMax = 256;
// With this many regions the offer fits, beside that of another fabric.
inline constexpr std::size_t kPlacesMax = 144;

std::vector<std::byte> encode(const Offer& offer);
// Errors name the field. A damaged offer is known by its checksum; that is no proof of who made it.
Result<Offer> decode_offer(std::span<const std::byte> bytes);

}  // namespace baton::fabric::libfabric
