#include "agent/gate.h"

#include <fmt/format.h>

namespace baton {

Gate::Key Gate::key_of(const tcp::Address& address) {
  Key key = address.bytes();
  if (!address.is_v4()) std::fill(key.begin() + 8, key.end(), std::uint8_t{0});
  return key;
}

// Whoever has not been here for a while needs no entry; should all be recent, those without a
// connection go, and start with a full bucket again: the bucket of all still holds.
Gate::Entry& Gate::entry_of(const Key& key, Time now) {
  if (const auto it = entries_.find(key); it != entries_.end()) return it->second;
  if (entries_.size() >= kEntriesMax) {
    std::erase_if(entries_, [&](const auto& e) {
      return e.second.connections == 0 && e.second.bucket.is_full(now);
    });
  }
  if (entries_.size() >= kEntriesMax) {
    std::erase_if(entries_, [](const auto& e) { return e.second.connections == 0; });
  }
  const Bucket full(options_.address_per_second, options_.address_burst);
  return entries_.emplace(key, Entry{full, 0}).first->second;
}

std::string Gate::enter(const tcp::Address& from, Time now) {
  const bool spared = options_.spare_loopback && from.is_loopback();
  if (!spared) {
    Entry& entry = entry_of(key_of(from), now);
    if (entry.connections >= options_.address_connections_max) {
      return fmt::format("{} connections stand from its address, {} may", entry.connections,
                         options_.address_connections_max);
    }
    if (!entry.bucket.take(now)) {
      return fmt::format("more than {} connections a second from its address",
                         options_.address_per_second);
    }
  }
  if (!all_.take(now)) {
    return fmt::format("more than {} connections a second from all addresses", options_.per_second);
  }
  if (!spared) ++entry_of(key_of(from), now).connections;
  return {};
}

void Gate::leave(const tcp::Address& from) {
  const auto it = entries_.find(key_of(from));
  if (it != entries_.end() && it->second.connections > 0) --it->second.connections;
}

}  // namespace baton
