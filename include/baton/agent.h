// The hand-over engine of one rank of one instance: one owner thread that moves KV blocks from
// prefill (P) to decode (D) instances by one-sided writes.
//
//   D: claim()            as soon as its server accepted the request: renews P's lease [I5]
//   D: register_blocks()  in the step that reserves blocks: P may write from here on
//   P: expect()           as soon as its server accepted the request: registrations wait for it
//   P: ready()            when blocks are computed, in one piece or several
//
// Push (AgentOptions::mode): the second of the two sides starts P's writes. Pull: P's finished
// blocks are announced to D by whoever places the request (Registration::source), and
// register_blocks() starts D's reads. Both sides hear of it once an attempt: Event::kEnded, through
// event_fd() and poll_events().
//
// Threads: every method may be called from any thread and, wait_posted() aside, never waits for a
// peer, a socket or the owner thread; it copies its arguments into a bounded queue. Answers that
// need a peer come as events. A full queue is kResourceExhausted and nothing was accepted.
// Ownership: the caller's KV memory (Geometry::regions) must outlive the agent. Blocks named in
// register_blocks() belong to the agent until its end (or release) event; blocks named in ready()
// are read until P's end event and must not change until then [I2].
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "baton/event.h"
#include "baton/geometry.h"
#include "baton/ids.h"
#include "baton/metrics.h"
#include "baton/peer.h"
#include "baton/result.h"
#include "baton/security.h"

namespace baton {

struct AgentOptions {
  std::string engine_id;  // stable name of the instance; 1 to 128 printable characters
  Role role = Role::kBoth;
  Mode mode = Mode::kPush;
  std::string host = "127.0.0.1";  // where the control channel listens; anything but loopback needs
                                   // keys in `security`, or its word `insecure` [I10]
  std::uint16_t port = 0;          // 0: the system chooses; control_address() tells
  Security security;
  // What carries the bytes: "shm" (processes of this host), "libfabric" (any host), "auto" (shm
  // where the peer's boot id and unix socket show it to be on this host, else libfabric).
  std::string fabric = "auto";
  std::string fabric_provider = "tcp";  // libfabric's: "tcp", "tcp;ofi_rxm", "efa", "verbs;ofi_rxm"
  // The interface that libfabric uses: an address, a name of this host or an interface's name.
  // Empty: `host`; where that is every interface, the first that is not loopback. What other hosts
  // can reach needs keys or `insecure`, as `host` does [I10].
  std::string fabric_address;
  std::chrono::milliseconds peer_timeout{5000};
  std::chrono::milliseconds lease{30000};
  std::chrono::milliseconds lease_renewal{5000};
  std::chrono::milliseconds transfer_timeout{60000};
  // The most that a peer which keeps saying it is at work can make of transfer_timeout, from
  // registration.
  std::chrono::milliseconds transfer_total{600000};
  std::uint32_t transfers_max = 4096;  // registered, expected or ready at once; more are refused
  std::uint32_t quarantine_blocks_max =
      0;  // a peer; past it that peer gets no new grant; 0: half of the pool
  // Quotas of one decode peer at P: open registrations (0: transfers_max), those of them without a
  // request here, blocks that they name (0: twice the peer's pool), and claims or cancels that came
  // before their request. What is past them is refused, counted, and touches no other peer.
  std::uint32_t registrations_max = 0;
  std::uint32_t unmatched_max = 1024;
  std::uint64_t registered_blocks_max = 0;
  std::uint32_t claims_max = 1024;
  // The newest protocol offered to peers; 0: the newest this build speaks.
  std::uint16_t protocol_max = 0;
  // P hashes each block before it writes it, D hashes what landed; unlike hashes end the attempt as
  // failed(kCorrupt).
  bool verify_blocks = false;
  // Emulation of another network, for measurements: what this agent posts goes through a link of so
  // many bytes a second (0: as fast as the fabric), all peers together, and each post takes
  // `post_cost` of a poster that does one after another, beside the bytes. Agent::link() counts.
  std::uint64_t link_bytes_per_second = 0;
  std::chrono::nanoseconds post_cost{0};
  // False, for measurements: neighbouring blocks are written one by one instead of as one run.
  bool merge_runs = true;
  // How long the owner thread goes on looking for work before it sleeps: saves wake-ups, costs a
  // core while it looks.
  std::chrono::microseconds spin{20};
};

// Pull. P's finished blocks of one request, as P announced them: what D reads. They begin at
// range.begin, a multiple of the block size. `announcement` is ReadyPiece's.
struct SourceBlocks {
  TokenRange range;
  std::vector<std::vector<BlockId>> block_ids;  // by group, in token order
  std::uint64_t announcement = 0;
};

// D. `block_ids[g]` are the blocks of cache group g, one for each block of `range`, in token order;
// range.begin is a multiple of the block size. An empty range says "nothing wanted, free it".
struct Registration {
  TransferId transfer;
  std::uint32_t binding = 0;
  std::uint32_t attempt = 0;  // higher than any this D registered before under (transfer, binding)
  PeerAddress peer;
  TokenRange range;
  std::vector<std::vector<BlockId>> block_ids;
  std::uint32_t prompt_tokens = 0;        // of the whole prompt; P refuses if its own count differs
  std::optional<SourceBlocks> source;     // pull: required, and covers `range`; push: refused
  std::chrono::milliseconds deadline{0};  // 0: transfer_timeout
  std::chrono::milliseconds total{0};     // 0: transfer_total
};

// P. A piece of finished blocks; pieces come in token order without gaps and the last one has
// `last` set.
struct ReadyPiece {
  TransferId transfer;
  TokenRange range;  // begin is a multiple of the block size
  std::vector<std::vector<BlockId>> block_ids;
  bool last = true;
  std::optional<TokenId> first_token;  // with the last piece: handed to D with the final message
  // Pull, with the last piece: a number never used before for this transfer id. Whoever reads names
  // it, so that blocks of an earlier request under the same id are not vouched for.
  std::uint64_t announcement = 0;
};

class Agent {
 public:
  // Registers the memory, opens the control channel and starts the owner thread. Errors: a bad
  // option or geometry (names the field), port in use, unsealed memfd.
  static Result<std::unique_ptr<Agent>> create(const AgentOptions& options,
                                               const Geometry& geometry);
  // Ends what is under way as failed(kShutdown) without events, stops writing, tells peers, joins
  // the owner thread.
  virtual ~Agent() = default;

  // D side. Claims are kept for transfers_max transfers; P's lease does not live by those beyond.
  virtual Status claim(TransferId transfer, const PeerAddress& peer) = 0;
  virtual Status register_blocks(Registration registration) = 0;
  // Takes the registration back; P keeps its blocks under the lease, and another attempt may
  // follow. If P has begun to write, the attempt still ends (as cancelled) once P has drained.
  virtual Status withdraw(TransferId transfer) = 0;
  // Pull: waits until every read of the registration is posted, or it ended. For an engine that
  // does its transfers' work in its own step (`engine-loop`). Returns at once for a transfer that
  // is not registered. Errors: kDeadlineExceeded after `at_most`, kUnsupported in push mode.
  virtual Status wait_posted(TransferId transfer, std::chrono::milliseconds at_most) {
    static_cast<void>(transfer);
    static_cast<void>(at_most);
    return fail(Errc::kUnsupported, "wait_posted: this agent does not read");
  }

  // P side.
  virtual Status expect(TransferId transfer, std::uint32_t prompt_tokens) = 0;
  virtual Status ready(ReadyPiece piece) = 0;

  // Either side: the request is over. Ends the attempt as cancelled, tells the other side, frees
  // P's blocks at once; D's stay quarantined until P drained or is fenced. Also forgets a claim or
  // an expectation that never got further (no event then). Unknown ids are fine.
  virtual Status cancel(TransferId transfer) = 0;

  // Before the process stops. From here on what is new is refused as failed(kShutdown): a request
  // that was never expected (P), a registration of a transfer that was neither claimed nor
  // registered before (D). What runs goes on, with further attempts where it needs them.
  virtual Status drain() { return {}; }
  // No more time: everything that runs ends as failed(kShutdown), with its events; peers are told,
  // nothing more is posted, D's blocks stay quarantined until their writers have drained. New calls
  // are refused as by drain(). What is left to do is to poll the events and destroy the agent.
  virtual Status abandon() { return {}; }

  // Readable while events wait.
  virtual int event_fd() const = 0;
  // Takes up to out.size() events, oldest first. Any one thread.
  virtual std::size_t poll_events(std::span<Event> out) = 0;

  virtual const PeerId& id() const = 0;
  virtual PeerAddress control_address() const = 0;
  virtual const AgentMetrics& metrics() const = 0;
  // Of the emulated link; null where none was asked for.
  virtual const LinkMetrics* link() const { return nullptr; }
};

}  // namespace baton
