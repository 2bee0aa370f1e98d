// What the agent tells its engine. Every accepted attempt ends with exactly one kEnded on either
// side [I3]; kReleased is not an end: it gives back blocks that had to outlive one [I1].
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "baton/ids.h"

namespace baton {

enum class Side : std::uint8_t { kPrefill, kDecode };

enum class Outcome : std::uint8_t { kDone, kFailed, kCancelled };

// Why an attempt did not end as done. Closed: logs, metrics and error bodies use these words.
enum class Cause : std::uint8_t {
  kNone,
  kCancelledHere,    // this side's engine cancelled or withdrew
  kCancelledByPeer,  // the other side's engine cancelled
  kSuperseded,       // a higher (binding, attempt) took its place
  kPeerUnreachable,  // no connection could be made
  kPeerDied,         // its process ended or its connection closed
  kPeerSilent,       // nothing heard for the peer time-out
  kPeerRestarted,    // it answers with another incarnation
  kRefused,  // the handshake or the registration was refused; the text names field and both values
  kUnknownTransfer,  // the peer knows nothing of it, or forgot it
  kDeadline,         // the hand-over's deadline passed
  kLeaseExpired,     // nobody renewed P's finished blocks
  kFabric,           // a write failed
  kCorrupt,          // what landed is not what was sent (verification on)
  kShutdown,         // this agent is stopping
};
std::string_view to_string(Outcome outcome);
std::string_view to_string(Cause cause);

// Points of one hand-over on this side's monotonic clock, nanoseconds since its epoch; 0: did not
// happen here. CLOCK_MONOTONIC is one clock for all processes of a host, so P's and D's may be laid
// on one line there.
struct Timeline {
  std::int64_t registered = 0;   // D: register accepted; P: registration came
  std::int64_t ready = 0;        // P: first piece ready
  std::int64_t first_write = 0;  // P: first write posted; pull, D: first read posted
  std::int64_t last_write = 0;   // the last one that carried bytes, likewise
  std::int64_t last_byte = 0;   // P: last write completed; D: last immediate counted; pull, D: last
                                // read completed, P: D's word that it has read everything
  std::int64_t final_came = 0;  // D: P's final message came
  std::int64_t told = 0;        // the event was queued for the engine
};

struct Event {
  enum class Kind : std::uint8_t {
    kEnded,     // the attempt's one end
    kReleased,  // D: the blocks of an attempt that ended earlier may be reused now
  };
  Kind kind = Kind::kEnded;
  Side side = Side::kDecode;
  TransferId transfer;
  Attempt attempt;  // P: of the registration that stood; {0, 0} if none came
  Outcome outcome = Outcome::kDone;
  Cause cause = Cause::kNone;
  std::string text;  // for people: cause with names and values; empty when done
  // kEnded: true: the blocks are the engine's again. D: false after a failure or cancel whose
  // writer has neither drained nor been fenced: the blocks stay quarantined until kReleased. P:
  // always true.
  bool blocks_released = true;
  std::optional<TokenId> first_token;  // D, done: P's first sampled token, if it sent one
  TokenRange range;                    // done: token positions handed over
  // done: payload bytes (P: written, pull: lent; D: expected by plan, pull: read)
  std::uint64_t bytes = 0;
  std::uint64_t bytes_planned = 0;
  std::uint32_t writes = 0;           // P: writes posted; D: immediates counted; pull, D: reads
  std::uint32_t blocks_verified = 0;  // verification on: blocks whose hash agreed
  // Whoever posts (push: P, pull: D): stretches of neighbouring memory on both sides, the fewest
  // writes that would do. 0 at the other side.
  std::uint32_t runs = 0;
  std::string peer;    // the other side's engine id, if known
  std::string fabric;  // what carries bytes between the two, once it is known
  Timeline times;
};

}  // namespace baton
