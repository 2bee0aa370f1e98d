// What an engine asked for, on its way to the owner thread.
#pragma once

#include <cstdint>
#include <variant>

#include "baton/agent.h"

namespace baton {

struct ClaimCall {
  TransferId transfer;
  PeerAddress peer;
};
struct WithdrawCall {
  TransferId transfer;
};
struct ExpectCall {
  TransferId transfer;
  std::uint32_t prompt_tokens = 0;
};
struct CancelCall {
  TransferId transfer;
};

// The agent is about to stop: nothing new, or nothing at all any more.
struct DrainCall {};
struct AbandonCall {};

using Submission = std::variant<ClaimCall, Registration, WithdrawCall, ExpectCall, ReadyPiece,
                                CancelCall, DrainCall, AbandonCall>;

}  // namespace baton
