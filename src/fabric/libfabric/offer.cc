#include "fabric/libfabric/offer.h"

#include <fmt/format.h>

#include "fabric/access.h"
#include "fabric/byte_codec.h"

namespace baton::fabric::libfabric {
namespace {

constexpr std::uint32_t kMagic = 0x464e5442;  // "BTNF"
constexpr std::uint32_t kVersion = 2;

tl::unexpected<Error> corrupt(std::string what) {
  return fail(Errc::kCorrupt, "offer: " + std::move(what));
}

Status read_rails(ByteReader& in, Offer& offer) {
  const auto count = in.get<std::uint16_t>();
  if (count == 0 || count > kRailsMax) {
    return corrupt(fmt::format("{} rails, 1 to {} are allowed", count, kRailsMax));
  }
  for (std::uint16_t i = 0; i < count; ++i) {
    const auto address = in.get_bytes();
    if (address.empty() || address.size() > kAddressMax) {
      return corrupt(
          fmt::format("an address of {} bytes, 1 to {} are allowed", address.size(), kAddressMax));
    }
    offer.rails.push_back({{address.begin(), address.end()}});
  }
  return {};
}

Status read_places(ByteReader& in, Offer& offer) {
  const auto count = in.get<std::uint16_t>();
  if (count > kPlacesMax) {
    return corrupt(fmt::format("{} regions, at most {} are allowed", count, kPlacesMax));
  }
  for (std::uint16_t i = 0; i < count; ++i) {
    Offer::Place place;
    place.key = in.get<std::uint64_t>();
    place.base = in.get<std::uint64_t>();
    place.length = in.get<std::uint64_t>();
    std::uint64_t end = 0;
    if (__builtin_add_overflow(place.base, place.length, &end)) {
      return corrupt(
          fmt::format("region {}: base {:#x} + length {} overflows", i, place.base, place.length));
    }
    offer.places.push_back(place);
  }
  return {};
}

}  // namespace

std::vector<std::byte> encode(const Offer& offer) {
  ByteWriter out;
  out.put(kMagic);
  out.put(kVersion);
  out.put(access_word(offer.access));
  out.put_bytes(offer.provider);
  out.put(offer.address_format);
  out.put(static_cast<std::uint16_t>(offer.rails.size()));
  for (const Offer::Rail& rail : offer.rails) out.put_bytes(rail.address);
  out.put(static_cast<std::uint16_t>(offer.places.size()));
  for (const Offer::Place& place : offer.places) {
    out.put(place.key);
    out.put(place.base);
    out.put(place.length);
  }
  return out.finish();
}

Result<Offer> decode_offer(std::span<const std::byte> bytes) {
  if (bytes.size() > kOfferBytesMax) {
    return corrupt(fmt::format("{} bytes, at most {} are allowed", bytes.size(), kOfferBytesMax));
  }
  ByteReader in = ByteReader::checked(bytes);
  if (!in.ok()) return corrupt(fmt::format("the checksum of its {} bytes is wrong", bytes.size()));
  if (const auto magic = in.get<std::uint32_t>(); magic != kMagic) {
    return corrupt(fmt::format("begins with {:#x}, expected {:#x}", magic, kMagic));
  }
  if (const auto version = in.get<std::uint32_t>(); version != kVersion) {
    return fail(Errc::kMismatch, fmt::format("offer: version {}, expected {}", version, kVersion));
  }
  const Result<Access> access = decode_access("offer", in.get<std::uint32_t>());
  if (!access) return tl::unexpected(access.error());
  Offer offer;
  offer.access = *access;
  const auto name = in.get_bytes();
  if (name.size() > kProviderMax) {
    return corrupt(fmt::format("provider has {} characters, at most {} are allowed", name.size(),
                               kProviderMax));
  }
  for (const std::byte b : name) {
    const auto c = static_cast<char>(b);
    offer.provider.push_back(c >= ' ' && c <= '~' ? c : '?');
  }
  offer.address_format = in.get<std::uint32_t>();
  if (Status ok = read_rails(in, offer); !ok) return tl::unexpected(ok.error());
  if (Status ok = read_places(in, offer); !ok) return tl::unexpected(ok.error());
  if (!in.ended()) return corrupt("its length and its counts disagree");
  return offer;
}

}  // namespace baton::fabric::libfabric
