// The table of bounds in docs/protocol.md is the table in the code.
#include "handover/bounds.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace baton::handover {
namespace {

TEST(Bounds, ThePageSaysWhatTheCodeSays) {
  std::ifstream file(BATON_PROTOCOL_PAGE);
  ASSERT_TRUE(file) << BATON_PROTOCOL_PAGE;
  std::stringstream page;
  page << file.rdbuf();
  EXPECT_NE(page.str().find(bounds_markdown() + '\n'), std::string::npos)
      << "docs/protocol.md must hold exactly this table:\n"
      << bounds_markdown();
}

// A reader finds each state of the table among the states of D, of P, or of an agent.
TEST(Bounds, EveryStateIsOneThatThePageExplains) {
  std::ifstream file(BATON_PROTOCOL_PAGE);
  std::stringstream page;
  page << file.rdbuf();
  for (const Bound& bound : kBounds) {
    std::stringstream states{std::string(bound.state)};
    for (std::string state; std::getline(states, state, ',');) {
      state.erase(0, state.find_first_not_of(' '));
      if (state == "any" || state == "pull" || state == "quarantine full") continue;  // no states
      EXPECT_NE(page.str().find("\n| " + state + " | "), std::string::npos) << state;
    }
  }
}

// No bound hides a time of its own: with every option twice as long it is twice as long.
TEST(Bounds, EveryRowStandsAtItsNumberAndFollowsTheOptions) {
  Config config, slow;
  for (auto time : {&Config::peer_timeout, &Config::lease, &Config::lease_renewal,
                    &Config::transfer_timeout, &Config::transfer_total, &Config::resend_min,
                    &Config::resend_max, &Config::reconnect_grace}) {
    slow.*time *= 2;
  }
  for (std::size_t i = 0; i < kBounds.size(); ++i) {
    EXPECT_EQ(kBounds[i].id, static_cast<BoundId>(i));
    const Duration within = kBounds[i].within(config);
    if (within == kNoBound) continue;
    EXPECT_EQ(kBounds[i].within(slow), 2 * within) << kBounds[i].state << ": " << kBounds[i].lost;
  }
  config.peer_timeout = std::chrono::milliseconds(70);
  config.lease = std::chrono::milliseconds(90);
  EXPECT_EQ(within(BoundId::kRegisteredSilence, config), std::chrono::milliseconds(70));
  EXPECT_EQ(within(BoundId::kReadyNeverRegistered, config), std::chrono::milliseconds(90));
  EXPECT_EQ(within(BoundId::kReadyRenewLost, config), std::chrono::milliseconds(30));
  EXPECT_EQ(within(BoundId::kEnding, config), std::chrono::milliseconds(70));
  EXPECT_EQ(within(BoundId::kQuarantinedPeerStopped, config), kNoBound);
}

// Whichever option is the longest, the sum is above every row.
TEST(Bounds, TheSumIsAboveEveryRow) {
  for (auto longest :
       {&Config::peer_timeout, &Config::lease, &Config::lease_renewal, &Config::transfer_timeout,
        &Config::transfer_total, &Config::resend_max, &Config::reconnect_grace}) {
    Config config;
    config.*longest *= 100;
    for (const Bound& bound : kBounds) {
      const Duration within = bound.within(config);
      if (within == kNoBound) continue;
      EXPECT_GT(everything_ends_within(config), within) << bound.state << ": " << bound.lost;
    }
  }
}

}  // namespace
}  // namespace baton::handover
