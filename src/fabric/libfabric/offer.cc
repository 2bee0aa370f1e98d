#include "fabric/libfabric/offer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace baton::fabric::libfabric {
namespace {

constexpr std::uint32_t kMagic = 0x464e5442;  // "BTNF"
constexpr std::uint32_t kVersion = 1;

// FNV-1a: the offer comes over a checked channel, so this only has to know bytes from other bytes.
std::uint64_t checksum(std::span<const std::byte> bytes) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const std::byte b : bytes) {
    hash = (hash ^ static_cast<std::uint64_t>(b)) * 0x100000001b3ULL;
  }
  return hash;
}

class Writer {
 public:
  template <typename T>
  void put(T value) {
    static_assert(std::is_integral_v<T>);
    put_bytes(&value, sizeof value);
  }
  void put_bytes(const void* data, std::size_t size) {
    const auto* from = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), from, from + size);
  }
  std::vector<std::byte> finish() {
    put(checksum(bytes_));
    return std::move(bytes_);
  }

 private:
  std::vector<std::byte> bytes_;
};

// Every read is bounded; after the first that is not, all are zero and ok() is false.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  T get() {
    T value{};
    const auto from = get_bytes(sizeof value);
    if (from.size() == sizeof value) std::memcpy(&value, from.data(), sizeof value);
    return value;
  }
  std::span<const std::byte> get_bytes(std::size_t size) {
    if (size > bytes_.size()) {
      ok_ = false;
      bytes_ = {};
      return {};
    }
    const auto taken = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    return taken;
  }
  bool ok() const { return ok_; }
  bool ended() const { return ok_ && bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

tl::unexpected<Error> corrupt(std::string what) {
  return fail(Errc::kCorrupt, "offer: " + std::move(what));
}

Status read_rails(Reader& in, Offer& offer) {
  const auto count = in.get<std::uint16_t>();
  if (count == 0 || count > kRailsMax) {
    return corrupt(fmt::format("{} rails, 1 to {} are allowed", count, kRailsMax));
  }
  for (std::uint16_t i = 0; i < count; ++i) {
    const auto size = in.get<std::uint16_t>();
    if (size == 0 || size > kAddressMax) {
      return corrupt(fmt::format("an address of {} bytes, 1 to {} are allowed", size, kAddressMax));
    }
    const auto address = in.get_bytes(size);
    offer.rails.push_back({{address.begin(), address.end()}});
  }
  return {};
}

Status read_places(Reader& in, Offer& offer) {
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
  Writer out;
  out.put(kMagic);
  out.put(kVersion);
  out.put(static_cast<std::uint16_t>(offer.provider.size()));
  out.put_bytes(offer.provider.data(), offer.provider.size());
  out.put(offer.address_format);
  out.put(static_cast<std::uint16_t>(offer.rails.size()));
  for (const Offer::Rail& rail : offer.rails) {
    out.put(static_cast<std::uint16_t>(rail.address.size()));
    out.put_bytes(rail.address.data(), rail.address.size());
  }
  out.put(static_cast<std::uint16_t>(offer.places.size()));
  for (const Offer::Place& place : offer.places) {
    out.put(place.key);
    out.put(place.base);
    out.put(place.length);
  }
  return out.finish();
}

Result<Offer> decode_offer(std::span<const std::byte> bytes) {
  constexpr std::size_t kSum = sizeof(std::uint64_t);
  if (bytes.size() < kSum || bytes.size() > kOfferBytesMax) {
    return corrupt(
        fmt::format("{} bytes, {} to {} are allowed", bytes.size(), kSum, kOfferBytesMax));
  }
  Reader sum(bytes.last(kSum));
  if (sum.get<std::uint64_t>() != checksum(bytes.first(bytes.size() - kSum))) {
    return corrupt(fmt::format("the checksum of its {} bytes is wrong", bytes.size()));
  }
  Reader in(bytes.first(bytes.size() - kSum));
  if (const auto magic = in.get<std::uint32_t>(); magic != kMagic) {
    return corrupt(fmt::format("begins with {:#x}, expected {:#x}", magic, kMagic));
  }
  if (const auto version = in.get<std::uint32_t>(); version != kVersion) {
    return fail(Errc::kMismatch, fmt::format("offer: version {}, expected {}", version, kVersion));
  }
  Offer offer;
  const auto name_size = in.get<std::uint16_t>();
  if (name_size > kProviderMax) {
    return corrupt(
        fmt::format("provider has {} characters, at most {} are allowed", name_size, kProviderMax));
  }
  for (const std::byte b : in.get_bytes(name_size)) {
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
