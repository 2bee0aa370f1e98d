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

using Submission =
    std::variant<ClaimCall, Registration, WithdrawCall, ExpectCall, ReadyPiece, CancelCall>;

}  // namespace baton
