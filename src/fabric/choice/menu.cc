#include "fabric/choice/menu.h"

#include <fmt/format.h>

#include "fabric/byte_codec.h"

namespace baton::fabric {
namespace {

constexpr std::uint32_t kMagic = 0x434e5442;  // "BTNC"
constexpr std::uint32_t kVersion = 1;
constexpr std::uint16_t kItemsMax = 8;
constexpr std::size_t kHostIdMax = 64;

}  // namespace

std::vector<std::byte> encode(const Menu& menu) {
  ByteWriter out;
  out.put(kMagic);
  out.put(kVersion);
  out.put_bytes(menu.host_id);
  out.put(static_cast<std::uint16_t>(menu.items.size()));
  for (const Menu::Item& item : menu.items) {
    out.put(static_cast<std::uint16_t>(item.carrier));
    out.put_bytes(item.offer);
  }
  return out.finish();
}

bool is_menu(std::span<const std::byte> bytes) {
  return ByteReader(bytes).get<std::uint32_t>() == kMagic;
}

Result<Menu> decode_menu(std::span<const std::byte> bytes) {
  const auto corrupt = [&](std::string what) {
    return fail(Errc::kCorrupt, fmt::format("offer of {} bytes: {}", bytes.size(), what));
  };
  ByteReader in = ByteReader::checked(bytes);
  if (!in.ok() || bytes.size() > kMenuBytesMax) return corrupt("its checksum is wrong");
  in.get<std::uint32_t>();
  if (const auto version = in.get<std::uint32_t>(); version != kVersion) {
    return fail(Errc::kMismatch, fmt::format("offer: version {}, expected {}", version, kVersion));
  }
  Menu menu;
  const auto host_id = in.get_bytes();
  if (host_id.size() > kHostIdMax) {
    return corrupt(fmt::format("host id has {} bytes, at most {}", host_id.size(), kHostIdMax));
  }
  for (const std::byte b : host_id) menu.host_id.push_back(static_cast<char>(b));
  const auto count = in.get<std::uint16_t>();
  if (count > kItemsMax) return corrupt(fmt::format("{} fabrics, at most {}", count, kItemsMax));
  for (std::uint16_t i = 0; i < count; ++i) {
    const auto carrier = static_cast<Carrier>(in.get<std::uint16_t>());
    const auto offer = in.get_bytes();
    if (carrier != Carrier::kShm && carrier != Carrier::kLibfabric) continue;
    menu.items.push_back({carrier, {offer.begin(), offer.end()}});
  }
  if (!in.ended()) return corrupt("its length and its counts disagree");
  return menu;
}

}  // namespace baton::fabric
