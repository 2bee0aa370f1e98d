// Where a decode instance may connect to. The address of its peer comes with a request, so whoever
// reaches the instance's API could otherwise make it connect anywhere.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "baton/peer.h"
#include "baton/result.h"
#include "baton/security.h"

namespace baton {

class PeerList {
 public:
  // Errors name the entry of Security::allowed_peers and what is wrong with it.
  static Result<PeerList> parse(const Security& security);

  // Asks no name server: a host name is allowed only by an entry of the same name. A refusal names
  // the peer's address and what is allowed.
  Status check(const PeerAddress& peer) const;

 private:
  struct Entry {
    std::string text;  // as configured
    std::string name;  // lower case; empty: a network
    std::array<std::uint8_t, 16> network{};
    unsigned bits = 0;
    std::uint16_t port = 0;  // 0: any
  };
  static Result<Entry> parse_entry(const std::string& text);
  static bool allows(const Entry& entry, const PeerAddress& peer);

  std::vector<Entry> entries_;
  bool anywhere_ = false;  // none configured, and insecure
};

}  // namespace baton
