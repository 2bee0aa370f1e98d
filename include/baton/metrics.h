// The agent's counters: raised by the owner thread, read by anybody at any time.
#pragma once

#include <array>

#include "base/metrics.h"

namespace baton {

// Upper bounds in seconds: from ten microseconds to a minute.
inline constexpr std::array<double, 18> kHandoverSeconds{1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4,
                                                         1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2,
                                                         0.1,  0.25,   0.5,  1.0,  10.0,   60.0};

// Of the link that AgentOptions::link_bytes_per_second and post_cost emulate; all 0 without.
// busy_nanoseconds over the time that passed is the share for which the link was in use.
struct LinkMetrics {
  Counter busy_nanoseconds;     // taken by bytes
  Counter posting_nanoseconds;  // taken by posts
  // For which the link stood still although something waited for it: this machine's cores, and not
  // the link, were the limit.
  Counter lost_nanoseconds;
  Counter refusals;  // posts that came too early, and were tried again
};

struct AgentMetrics {
  // Ends of attempts on this side.
  Counter prefill_done, prefill_failed, prefill_cancelled;
  Counter decode_done, decode_failed, decode_cancelled;
  // Payload.
  Counter reads_posted;  // pull's D
  Counter bytes_written, writes_posted, runs_merged, blocks_written, bytes_received,
      blocks_received;
  Counter immediates_received, immediates_unknown;
  Counter blocks_verified, blocks_corrupt;
  // The contract at work.
  Counter stale_messages;         // of an old incarnation, connection, attempt or generation [I6]
  Counter refused_messages;       // hostile or malformed [I7]
  Counter refused_peers;          // at the handshake [I9]
  Counter unauthenticated_peers;  // did not prove that they belong to the pool, or we to them [I10]
  Counter refused_connections;    // too many, or too many a second
  Counter leases_expired, leases_renewed, retransmits, peers_lost;
  Counter quota_refusals;  // P: what one decode peer asked for past its quotas [I7]
  Counter unknown_fields;  // fields and messages of a newer protocol that were ignored
  Gauge transfers_prefill, transfers_decode;  // open now
  Gauge blocks_quarantined, leases_held, peers_connected;
  Gauge blocks_quarantined_worst_peer;  // of the peer that holds most; capped for each peer [I1]
  // Parts of a hand-over, seconds. P: match (later of registration and ready -> first write), write
  // (first write -> last completion). D: handover (registered -> told), detect (last immediate ->
  // told), register_wait on P (ready before registration).
  Histogram match_seconds{kHandoverSeconds}, write_seconds{kHandoverSeconds},
      handover_seconds{kHandoverSeconds}, detect_seconds{kHandoverSeconds},
      register_wait_seconds{kHandoverSeconds};
};

}  // namespace baton
