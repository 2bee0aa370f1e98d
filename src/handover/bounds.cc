#include "handover/bounds.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace baton::handover {
namespace {

Duration none(const Config&) {
  return kNoBound;
}
Duration at_once(const Config&) {
  return Duration{};
}
Duration grace(const Config& c) {
  return c.reconnect_grace;
}
Duration two_graces(const Config& c) {
  return 2 * c.reconnect_grace;
}
Duration silence(const Config& c) {
  return c.peer_timeout;
}
Duration repeated(const Config& c) {
  return c.resend_max;
}
Duration patience(const Config& c) {
  return c.transfer_timeout;
}
Duration total(const Config& c) {
  return c.transfer_total;
}
Duration lease(const Config& c) {
  return c.lease;
}
Duration next_renewal(const Config& c) {
  return std::min<Duration>(c.lease_renewal, c.lease / 3);
}
// An accepted registration may bring its own deadline; P keeps none longer than this.
Duration unmatched(const Config& c) {
  return 4 * Duration(c.transfer_timeout);
}

constexpr std::string_view kD = "D";
constexpr std::string_view kP = "P";
constexpr std::string_view kBoth = "both";
constexpr std::string_view kDEngine = "D's engine";
constexpr std::string_view kPEngine = "P's engine";
constexpr std::string_view kGrace = "reconnect_grace";
constexpr std::string_view kSilence = "--peer-timeout";
constexpr std::string_view kRepeated = "resend_max";
constexpr std::string_view kMessage = "one message";
constexpr std::string_view kEvent = "no time; see how";

}  // namespace

const std::array<Bound, kBoundsCount> kBounds{{
    {BoundId::kWaitingRefused, kD, "waiting", "P's port is closed", kDEngine,
     "dials that fail; `peer_unreachable`", "2 x reconnect_grace", two_graces},
    {BoundId::kWaitingSilent, kD, "waiting", "P neither accepts nor answers Hello", kDEngine,
     "timer of the connection; `peer_unreachable` or `peer_silent`", kSilence, silence},
    {BoundId::kWaitingHeldBack, kD, "waiting, quarantine full", "P does not drain", kDEngine,
     "timer; `refused` with both numbers of blocks", kSilence, silence},
    {BoundId::kWaitingUnfit, kD, "waiting", "the handshake does not fit", kDEngine,
     "Refuse, or its own check; `refused` with field and both values", kMessage, at_once},
    {BoundId::kRegisteredLinkClosed, kD, "registered", "P's process, or the connection", kDEngine,
     "the socket closes and no new connection stands in time; `peer_died`", kGrace, grace},
    {BoundId::kRegisteredSilence, kD, "registered", "P stops, or the link is cut without a word",
     kDEngine, "nothing is heard; `peer_silent`", kSilence, silence},
    {BoundId::kRegisteredGoodbye, kD, "registered", "P shuts down", kDEngine,
     "Stopped, then Goodbye (version 1: the socket closes); `shutdown`", kMessage, at_once},
    {BoundId::kRegisteredWriterDead, kD, "registered", "P's process, told by the fabric", kDEngine,
     "the fence comes unasked (`shm`: pidfd); `peer_died`, blocks released", "at once", at_once},
    {BoundId::kRegisteredMessageLost, kD, "registered",
     "Register, RegisterState, Offer, Final or Stopped", kD,
     "Register is repeated, and answered from state or from the book of ends", kRepeated, repeated},
    {BoundId::kRegisteredImmediateLost, kD, "registered", "an immediate", kDEngine,
     "Final is there and the slot counts less; `deadline`", "--transfer-timeout", patience},
    {BoundId::kRegisteredUnmatched, kD, "registered", "the request that P should have", kDEngine,
     "no word but *pending*; `deadline`", "--transfer-timeout", patience},
    {BoundId::kRegisteredComputing, kD, "registered", "P's engine stands still, its agent lives",
     kDEngine, "*computing* and *writing* extend the deadline, but not for ever; `deadline`",
     "transfer_total", total},
    {BoundId::kWithdrawingPeerLost, kD, "withdrawing", "P, or Stopped", kDEngine,
     "Cancel is repeated; loss of P as when registered; at last the deadline; `cancelled`",
     "--transfer-timeout", patience},
    {BoundId::kVerifyingPeerLost, kD, "verifying", "P", "nobody",
     "everything has landed: it goes on and ends as done", "-", at_once},
    {BoundId::kQuarantinedMessageLost, kD, "quarantined", "Cancel or Stopped", kD,
     "Cancel is repeated until Stopped says drained", kRepeated, repeated},
    {BoundId::kQuarantinedPeerStopped, kD, "quarantined", "P stops and may wake", kDEngine,
     "blocks stay: P drains after it woke (D dials every resend_max), or the fence", kEvent, none},
    {BoundId::kQuarantinedImmediateLost, kD, "quarantined", "an immediate of a P that drained", kD,
     "fewer are counted than P posted: the session is given up and the fence asked for", kSilence,
     silence},
    {BoundId::kClaimCancelLost, kD, "claimed", "Cancel of the claim", kPEngine,
     "nobody renews: P's lease ends", "--lease", lease},
    {BoundId::kReadingUnanswered, kD, "registered, pull", "P's memory does not answer", kDEngine,
     "timer of the outbound; `fabric`, and P hears it", kSilence, silence},
    {BoundId::kReadingStuck, kD, "registered, pull", "the way of the bytes, while P's agent lives",
     kDEngine, "no read completes: the outbound is closed; `fabric`", kSilence, silence},
    {BoundId::kReadingNotHeld, kD, "registered, pull", "P's blocks: lease, cancel, restart",
     kDEngine, "P's answer when everything was read; what was read is discarded", kMessage,
     at_once},
    {BoundId::kReadingLate, kD, "quarantined, pull", "a completion that is late", kDEngine,
     "released with the last completion; if none comes, the outbound is closed", kSilence, silence},
    {BoundId::kReadingCancelLost, kD, "ended, pull", "Cancel", kPEngine,
     "said once, and nobody renews: P's lease ends", "--lease", lease},
    {BoundId::kStranger, kP, "no Hello yet", "Hello", kP,
     "timer; the connection is refused. At most this: the control channel closes it after 2 s",
     kSilence, silence},
    {BoundId::kEarlyForgotten, kP, "early", "the request, and D's next word of it", kP,
     "the claim or cancel that came before the request is forgotten", "--lease", lease},
    {BoundId::kUnmatchedRequestNeverComes, kP, "unmatched", "the request", kP,
     "D's deadline travels with Register; at most this", "4 x --transfer-timeout", unmatched},
    {BoundId::kExpectedAfterCancel, kP, "expected", "D cancelled before the request came", kPEngine,
     "the cancel was remembered; `cancelled_by_peer`", "at once", at_once},
    {BoundId::kExpectedHolderLost, kP, "expected", "D, which had claimed it", kPEngine,
     "as when matched: the socket closes or nothing is heard; `peer_died`, `peer_silent`", kSilence,
     silence},
    {BoundId::kReadyNeverRegistered, kP, "ready", "D never registers and never renews", kPEngine,
     "a heap of deadlines; `lease_expired`", "--lease", lease},
    {BoundId::kReadyHolderLost, kP, "ready", "D, which had claimed it", kPEngine,
     "the socket closes or nothing is heard; `peer_died`, `peer_silent`", kSilence, silence},
    {BoundId::kReadyRenewLost, kP, "ready", "Renew", kP, "the next one",
     "lease_renewal, at most a third of --lease", next_renewal},
    {BoundId::kMatchedLinkClosed, kP, "matched", "D's process, or the connection", kPEngine,
     "the socket closes and no new connection stands in time; `peer_died`", kGrace, grace},
    {BoundId::kMatchedSilence, kP, "matched", "D stops, or the link is cut without a word",
     kPEngine, "nothing is heard; `peer_silent`", kSilence, silence},
    {BoundId::kMatchedGoodbye, kP, "matched, expected, ready", "D shuts down", kPEngine,
     "Cancel; `cancelled_by_peer`. What is only claimed: Goodbye (version 1: the socket closes); "
     "`shutdown`",
     kMessage, at_once},
    {BoundId::kMatchedConnectUnanswered, kP, "matched", "D's memory does not answer", kPEngine,
     "timer of the outbound; `fabric`, and D hears it", kSilence, silence},
    {BoundId::kMatchedMessageLost, kP, "matched", "Credit, Cancel or Offer", kP,
     "D repeats: Register carries the count and comes with the Offer", kRepeated, repeated},
    {BoundId::kMatchedWriteFailed, kP, "matched", "a write fails", "both engines",
     "the completion, then Stopped; `fabric`", kMessage, at_once},
    {BoundId::kMatchedWritesStuck, kP, "matched", "the way of the bytes, while D's agent lives",
     "both engines", "no write completes: the outbound is closed, then Stopped; `fabric`", kSilence,
     silence},
    {BoundId::kEnding, kP, "ending", "a completion that is late", kPEngine,
     "the end comes with the last completion; if none comes, the outbound is closed", kSilence,
     silence},
    {BoundId::kCancelled, kBoth, "any", "one engine cancels", "the other engine",
     "Cancel or Stopped; `cancelled_by_peer`", kMessage, at_once},
    {BoundId::kCancelLost, kBoth, "any", "that message", "the other engine",
     "Cancel is repeated; a lost Stopped is the answer to the next Register", kRepeated, repeated},
    {BoundId::kDrainNewRequest, kBoth, "draining", "a new request or registration", "its engine",
     "refused; `shutdown`; what runs goes on", kMessage, at_once},
    {BoundId::kAbandoned, kBoth, "abandoned", "everything that runs", "both engines",
     "`shutdown` here, Stopped or Cancel there; writers are fenced", kMessage, at_once},
}};

Duration within(BoundId id, const Config& config) {
  const Bound& bound = kBounds[static_cast<std::size_t>(id)];
  BATON_CHECK(bound.id == id, "kBounds is not in the order of BoundId");
  return bound.within(config);
}

Duration everything_ends_within(const Config& c) {
  const Duration last_deadline = std::max({patience(c), total(c), unmatched(c)});
  return last_deadline + lease(c) + 4 * silence(c) + 8 * (repeated(c) + grace(c));
}

std::string bounds_markdown() {
  const Config config;
  std::string out =
      "| side | state | what is lost | who learns it | how | within | by default |\n"
      "|---|---|---|---|---|---|---|\n";
  for (const Bound& bound : kBounds) {
    const Duration longest = bound.within(config);
    std::string figure = "-";
    if (longest != kNoBound && longest != Duration{}) {
      figure = fmt::format("{:g} s", std::chrono::duration<double>(longest).count());
    }
    out += fmt::format("| {} | {} | {} | {} | {} | {} | {} |\n", bound.side, bound.state,
                       bound.lost, bound.knows, bound.how, bound.formula, figure);
  }
  return out;
}

}  // namespace baton::handover
