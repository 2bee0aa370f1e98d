// The fake fabric: a network of endpoints in one process and one thread, driven by hand and by a
// seed. It allows itself everything that the port allows any adapter: writes land in pieces and in
// any order, local completions come before the bytes land or long after, failed writes land all the
// same, later, and go on landing after the outbound was closed or the writer crashed, until the
// inbound is fenced. A read takes the source's bytes piece by piece, each at a moment of its own
// between the post and the completion, and each piece lands at a later moment, so that it may hold
// bytes of several times; a failed one may land wholly, in part or not at all, and unless it is
// `over` goes on landing until its outbound is closed. The same seed and the same calls give the
// same run.
//
// What happens waits as pending actions, each with a time at which it is due. Drive them by time
// (next_due, advance_to) or one by one in an order of your choosing (pending, fire, step); both may
// be mixed. Not thread-safe. Endpoints may outlive the Network, and then nothing moves any more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "fabric/fabric.h"

namespace baton::fabric::sim {

// Drawn uniformly from [min, max].
struct Delay {
  Duration min{0};
  Duration max{0};
};

struct Options {
  // False, the stricter: a local completion says only that the local memory may change; bytes may
  // land before or after it, also after kOutboundClosed. True: a successful completion comes after
  // all bytes of the write have landed.
  bool delivery_complete = false;
  bool reads = true;  // as the capability of that name
  // True: nothing of a failed write or read lands after its completion (as shm, where the one that
  // connected copies itself). False: a failed read says by its `over`, drawn for each, whether it
  // is.
  bool failed_writes_final = false;
  // Completions in error, of writes and of reads; the bytes land wholly, in part or not at all.
  std::uint32_t write_failures_per_1000 = 0;
  std::uint32_t connect_failures_per_1000 = 0;
  std::uint32_t pieces_max = 4;  // a write or a read lands in 1 to pieces_max pieces, in any order
  // When a writer crashes its inbounds are fenced without being asked (as shm does by pidfd). Off:
  // only fence() does it.
  bool fence_on_crash = true;
  // fence_inbound() of a connected inbound is granted by itself (as closing a libfabric endpoint
  // does). Off: as shm, only fence() or the writer's crash does it. An inbound that never connected
  // is always fenced when asked.
  bool fence_on_request = false;
  Delay connect{std::chrono::microseconds(10), std::chrono::microseconds(200)};
  // A write: from the post to the landing of a piece. A read: to the moment when the source's bytes
  // are taken, and from there to the landing.
  Delay landing{std::chrono::microseconds(1), std::chrono::microseconds(500)};
  Delay completion{std::chrono::microseconds(1), std::chrono::microseconds(500)};
  Delay immediate{std::chrono::microseconds(1), std::chrono::microseconds(500)};
  Delay fence{std::chrono::microseconds(10), std::chrono::microseconds(500)};
  std::uint32_t writes_in_flight_max = 256;
  std::uint64_t write_bytes_max = 1ULL << 30;
  std::uint32_t immediates_max = 1U << 16;
};

// Facts for checkers; they never go down.
struct Stats {
  std::uint64_t writes_posted = 0;
  std::uint64_t reads_posted = 0;
  std::uint64_t bytes_landed = 0;          // of writes at receivers and of reads at readers
  std::uint64_t bytes_dropped = 0;         // of writes: fenced, or the receiver was gone
  std::uint64_t immediates_delivered = 0;  // queued at a receiver
  // A receiver had more than immediates_max unpolled: real hardware loses its queue here. The
  // immediate is lost; a user who keeps to credits never sees this above 0.
  std::uint64_t immediates_overrun = 0;
  std::uint64_t actions = 0;
};

class Network {
 public:
  explicit Network(std::uint64_t seed, const Options& options = {});
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // One process' fabric. Destroying it is the death of that process, like crash(). A restart is a
  // new endpoint with a new incarnation.
  std::unique_ptr<Fabric> make_endpoint(const PeerId& self);

  // By time. advance_to() fires whatever is due, in order of due time, and moves the clock; it
  // never goes backwards.
  Time now() const;
  Time next_due() const;  // kNever: nothing is pending
  void advance_to(Time now);

  // One by one, whatever the due times (firing moves the clock on to the action's due time if that
  // is later).
  std::size_t pending() const;
  std::string describe(std::size_t index) const;  // "land 3/4 of write 17 p#1 -> d#1"
  void fire(std::size_t index);                   // index < pending()
  bool step();                                    // a seeded choice; false: nothing was pending
  void settle();                                  // steps until nothing is pending

  // The process dies: it gets no event any more, its memory is never touched again (bytes under way
  // were copied out), what it had posted may still land until fenced, and writes to it and reads of
  // it fail. What a read had taken of it may still land at the reader.
  void crash(const PeerId& self);
  // Fences all inbounds at `receiver` for `writer`, now: nothing lands any more and nothing is
  // taken by reads any more, kInboundFenced is queued and the outbounds of `writer` there fail and
  // close.
  void fence(const PeerId& receiver, const PeerId& writer);
  // The next `count` writes from `writer` to `receiver` complete in error.
  void fail_writes(const PeerId& writer, const PeerId& receiver, std::uint32_t count);
  // The next `count` reads by `reader` of `source` complete in error.
  void fail_reads(const PeerId& reader, const PeerId& source, std::uint32_t count);
  // Of writes, reads and connections made from now on; replaces what Options said.
  void set_failures(std::uint32_t writes_per_1000, std::uint32_t connects_per_1000);
  // While held, nothing crosses from `writer` to `receiver`: no connection, byte, immediate, or
  // demand of a read. Released, it goes on. The bytes of a read cross from the source to the
  // reader.
  void hold(const PeerId& writer, const PeerId& receiver, bool held);

  const Stats& stats() const;

 private:
  class Core;
  friend class Endpoint;
  std::shared_ptr<Core> core_;
};

}  // namespace baton::fabric::sim
