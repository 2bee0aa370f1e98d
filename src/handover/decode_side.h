// D's half of the hand-over: registrations, completion slots, quarantine, and the connections it
// dials.
//
// Events in (engine, links, fabric, time), actions out (Port). Pure: no thread, socket, clock or
// randomness; one thread drives it, `now` never goes back. Bounded: Config says by what.
//
// A driver's turn: hand in everything that happened, then on_time(now), then work(now); sleep until
// next_deadline() unless work() said that there is more to do.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "base/clock.h"
#include "baton/agent.h"
#include "baton/metrics.h"
#include "handover/config.h"
#include "handover/port.h"
#include "wire/frame.h"

namespace baton::handover {

// The caller's mistakes, named: run on the caller's thread before a registration is queued. Pure,
// and linear in the block ids with a very small factor; an id that is listed twice is found later,
// by register_blocks().
Status check_registration(const Geometry& ours, Mode mode, const Registration& registration);

class DecodeSide {
 public:
  DecodeSide(const Config& config, Port& port, AgentMetrics& metrics);
  ~DecodeSide();
  DecodeSide(const DecodeSide&) = delete;
  DecodeSide& operator=(const DecodeSide&) = delete;

  // From the engine. Each accepted registration gets exactly one Event::kEnded [I3].
  void claim(TransferId transfer, const PeerAddress& peer, Time now);
  void register_blocks(Registration&& registration, Time now);
  void withdraw(TransferId transfer, Time now);
  void cancel(TransferId transfer, Time now);

  // Of the links that this side dialled. `why` is a sentence for people.
  void on_link_up(LinkId link, Time now);
  void on_link_down(LinkId link, std::string_view why, Time now);
  void on_frame(LinkId link, const wire::Frame& frame, Time now);
  // The stream could not be cut into frames: the link is refused and hung up.
  void on_bad_stream(LinkId link, const Error& error, Time now);

  // From the fabric.
  void on_immediate(Inbound inbound, std::uint32_t immediate, Time now);
  void on_fenced(Inbound inbound, Time now);
  // Pull: of the outbounds and reads of this side.
  void on_connected(Outbound outbound, Time now);
  void on_connect_failed(Outbound outbound, std::string_view error, Time now);
  void on_read_done(std::uint64_t context, Time now);
  // `over`: nothing of it lands here any more, whatever Config::failed_writes_final says of others.
  void on_read_failed(std::uint64_t context, std::string_view error, Time now, bool over = false);
  void on_outbound_closed(Outbound outbound, Time now);

  void on_time(Time now);
  Time next_deadline() const;
  // Does a bounded piece of work that waits for no one (verification; pull: posts reads). True:
  // call again at once.
  bool work(Time now);

  // From here on only transfers that are claimed or registered already may be registered; others
  // end as failed (kShutdown) at once. What runs goes on.
  void drain(Time now);
  // The first half of stopping: every registration ends as failed (kShutdown) and its writer is
  // told to drain, claims are given back, and nothing new is taken. Drive on until
  // quarantined_blocks() is 0, or for as long as there is time.
  void abandon(Time now);
  // Ends everything without events, fences every writer and tells peers. Afterwards only the
  // destructor may be called.
  void shutdown(Time now);

  std::uint32_t open_transfers() const;  // registered and not ended
  std::uint32_t quarantined_blocks()
      const;  // ended and not yet released, all peers; groups counted separately
  // No transfer, claim or quarantined slot is left.
  bool idle() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace baton::handover
