// How often and how many connections are taken from one remote address and from all: a handshake
// costs more to answer than to ask for. Bounded memory; the owner thread alone.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "agent/tcp.h"
#include "base/clock.h"

namespace baton {

struct GateOptions {
  std::uint32_t per_second = 256;
  std::uint32_t burst = 512;
  // Of one address; of IPv6 one /64, which is one customer's.
  std::uint32_t address_per_second = 32;
  std::uint32_t address_burst = 128;
  std::uint32_t address_connections_max = 256;
  // All processes of this host share an address, honest and not.
  bool spare_loopback = true;
};

class Gate {
 public:
  explicit Gate(const GateOptions& options)
      : options_(options), all_(options.per_second, options.burst) {}

  // Empty: come in, and leave() later. Otherwise a sentence that says why not.
  std::string enter(const tcp::Address& from, Time now);
  void leave(const tcp::Address& from);
  std::size_t addresses() const { return entries_.size(); }  // remembered

 private:
  using Key = std::array<std::uint8_t, 16>;

  class Bucket {
   public:
    Bucket(std::uint32_t per_second, std::uint32_t burst)
        : per_second_(per_second), burst_(burst), tokens_(burst) {}
    bool take(Time now) {
      tokens_ = level(now);
      filled_ = now;
      if (tokens_ < 1) return false;
      tokens_ -= 1;
      return true;
    }
    bool is_full(Time now) const { return level(now) >= burst_; }

   private:
    double level(Time now) const {
      const double seconds = std::chrono::duration<double>(now - filled_).count();
      return std::min(burst_, tokens_ + std::max(0.0, seconds) * per_second_);
    }
    double per_second_;
    double burst_;
    double tokens_;
    Time filled_{};
  };
  struct Entry {
    Bucket bucket;
    std::uint32_t connections = 0;
  };
  static constexpr std::size_t kEntriesMax = 4096;

  static Key key_of(const tcp::Address& address);
  Entry& entry_of(const Key& key, Time now);

  const GateOptions options_;
  Bucket all_;
  std::map<Key, Entry> entries_;
};

}  // namespace baton
