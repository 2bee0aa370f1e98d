// The offer of a receiver that has several fabrics. Hostile input on the writer's side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "baton/result.h"

namespace baton::fabric {

enum class Carrier : std::uint16_t { kShm = 1, kLibfabric = 2 };

struct Menu {
  struct Item {
    Carrier carrier = Carrier::kShm;
    std::vector<std::byte> offer;
  };
  std::string host_id;
  std::vector<Item> items;
};

inline constexpr std::size_t kMenuBytesMax = 4096;

std::vector<std::byte> encode(const Menu& menu);
// True: these bytes mean to be a menu.
bool is_menu(std::span<const std::byte> bytes);
// Carriers that are not known are left out: a newer receiver may have more.
Result<Menu> decode_menu(std::span<const std::byte> bytes);

}  // namespace baton::fabric
