// Within what time each loss is known to those who survive it [I4]: the table of docs/protocol.md,
// as code. bounds_test.cc keeps the page and this table alike. The simulator tries the rows one by
// one (src/sim/bounds_test.cc); its random runs hold crashes and silence at D to their rows, and
// the end of everything to the sum.
//
// How to use it: within(bound, config) is the longest time between the loss and the moment the
// named survivor has acted (its engine has the event, or the message was sent again), for a process
// with that Config. Time that the loss shares with a second fault counts from the end of the later
// one. everything_ends_within() is the sum for a checker that knows no single cause: after the last
// fault every accepted attempt has had its end by then. A bound of kNoBound ends by an event and by
// no time ("no time alone makes reuse safe" [I1], "no lease ends under a posted write" [I5]).
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "handover/config.h"

namespace baton::handover {

enum class BoundId : std::uint8_t {
  // D's states.
  kWaitingRefused,
  kWaitingSilent,
  kWaitingHeldBack,
  kWaitingUnfit,
  kRegisteredLinkClosed,
  kRegisteredSilence,
  kRegisteredGoodbye,
  kRegisteredWriterDead,
  kRegisteredMessageLost,
  kRegisteredImmediateLost,
  kRegisteredUnmatched,
  kRegisteredComputing,
  kWithdrawingPeerLost,
  kVerifyingPeerLost,
  kQuarantinedMessageLost,
  kQuarantinedPeerStopped,
  kQuarantinedImmediateLost,
  kClaimCancelLost,
  // D's states in pull mode.
  kReadingUnanswered,
  kReadingStuck,
  kReadingNotHeld,
  kReadingLate,
  kReadingCancelLost,
  // P's states.
  kStranger,
  kEarlyForgotten,
  kUnmatchedRequestNeverComes,
  kExpectedAfterCancel,
  kExpectedHolderLost,
  kReadyNeverRegistered,
  kReadyHolderLost,
  kReadyRenewLost,
  kMatchedLinkClosed,
  kMatchedSilence,
  kMatchedGoodbye,
  kMatchedConnectUnanswered,
  kMatchedMessageLost,
  kMatchedWriteFailed,
  kMatchedWritesStuck,
  kEnding,
  // Either process.
  kCancelled,
  kCancelLost,
  kDrainNewRequest,
  kAbandoned,
};

struct Bound {
  BoundId id;
  std::string_view side;                     // whose state: D, P or both
  std::string_view state;                    // as in the tables of states
  std::string_view lost;                     // which party or message
  std::string_view knows;                    // who learns it
  std::string_view how;                      // by what
  std::string_view formula;                  // of `within`, in the words of Config and of the flags
  Duration (*within)(const Config& config);  // kNoBound: ends by an event alone
};

inline constexpr Duration kNoBound = Duration::max();

// One row for each BoundId, in its order.
inline constexpr std::size_t kBoundsCount = static_cast<std::size_t>(BoundId::kAbandoned) + 1;
extern const std::array<Bound, kBoundsCount> kBounds;

Duration within(BoundId id, const Config& config);

// Every attempt that was accepted has ended at its side this long after the last fault, whatever
// happened before: a registration may have to see the last of its deadlines first (of either side),
// be cancelled, and its peer be found silent and dialled again; finished blocks may have to see
// their lease. No row of the table that has a bound is above it. P's engine is in it as far as D
// waits for it; P's own row of a request lasts until its engine has handed it in or given it up.
Duration everything_ends_within(const Config& config);

// The lines of the table in docs/protocol.md, figures for the defaults of Config.
std::string bounds_markdown();

}  // namespace baton::handover
