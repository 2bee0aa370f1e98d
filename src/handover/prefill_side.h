// P's half of the hand-over: expectations, finished pieces, registrations, leases, and the writes
// themselves.
//
// Driven like DecodeSide. The engine's end event is per transfer: it comes when P's blocks are the
// engine's again, which is when the last write from them has completed [I2]. A registration that
// gives way to another (superseded, withdrawn) ends in the books and in the counters, and D is
// told; the engine hears only of the one that stood last.
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

// The caller's mistakes, named; whether pieces follow each other without gaps is found later. Pure.
Status check_ready(const Geometry& ours, const ReadyPiece& piece);

class PrefillSide {
 public:
  PrefillSide(const Config& config, Port& port, AgentMetrics& metrics);
  ~PrefillSide();
  PrefillSide(const PrefillSide&) = delete;
  PrefillSide& operator=(const PrefillSide&) = delete;

  // From the engine. A transfer gets exactly one Event::kEnded [I3] once it has a ready piece, or
  // its expectation met a registration, or its expectation was ended by the decode side (a
  // cancelled claim, a lost holder). An expectation that the engine itself cancels before any of
  // that is forgotten without one. ready() for a transfer that already ended is dropped (its end
  // event was, or is being, delivered); one that was never expected is taken as expected.
  void expect(TransferId transfer, std::uint32_t prompt_tokens, Time now);
  void ready(ReadyPiece&& piece, Time now);
  void cancel(TransferId transfer, Time now);

  // Of the links that peers dialled.
  void on_link_accepted(LinkId link, Time now);
  // `why` is the driver's to log: D may be back at once, and its end, if it is not, has its own
  // text.
  void on_link_down(LinkId link, std::string_view why, Time now);
  void on_frame(LinkId link, const wire::Frame& frame, Time now);
  void on_bad_stream(LinkId link, const Error& error, Time now);

  // From the fabric.
  void on_connected(Outbound outbound, Time now);
  void on_connect_failed(Outbound outbound, std::string_view error, Time now);
  void on_write_done(std::uint64_t context, Time now);
  // `over`: nothing of it lands any more, whatever Config::failed_writes_final says of others.
  void on_write_failed(std::uint64_t context, std::string_view error, Time now, bool over = false);
  void on_outbound_closed(Outbound outbound, Time now);
  // Pull: that reader can read nothing any more.
  void on_fenced(Inbound inbound, Time now);

  void on_time(Time now);
  Time next_deadline() const;
  // Plans and posts a bounded number of writes (and hashes, with verification on). True: call again
  // at once.
  bool work(Time now);

  // From here on a request that was not expected before is refused: its expectation (or first
  // piece) gets an end event, failed (kShutdown), and registrations for it are turned away. What
  // runs goes on.
  void drain(Time now);
  // As drain(), and everything that runs ends as failed (kShutdown), with its event once the writes
  // from its blocks are in.
  void abandon(Time now);
  // Stops posting, tells peers, ends everything without events. The driver goes on with
  // on_write_*() until writes_in_flight() is 0, then destroys.
  void shutdown(Time now);

  std::uint32_t open_transfers() const;
  std::uint32_t writes_in_flight() const;
  bool idle() const;  // no transfer, registration or write is left

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace baton::handover
