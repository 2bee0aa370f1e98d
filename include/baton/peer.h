// Who is at the other end of a hand-over, and which part each side plays.
#pragma once

#include <cstdint>
#include <string>

namespace baton {

enum class Mode : std::uint8_t { kPush, kPull };
enum class Role : std::uint8_t { kProducer, kConsumer, kBoth };

// Where P's control channel is, and who must answer there.
struct PeerAddress {
  std::string host;
  std::uint16_t port = 0;
  std::string engine_id;
  std::uint64_t incarnation = 0;  // 0: any
};

}  // namespace baton
