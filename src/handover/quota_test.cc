// What one peer may ask for: past it the refusal names the quota and both values, is counted, and
// nobody else notices.
#include <gmock/gmock.h>

#include "handover/testing/pair.h"

namespace baton::handover::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class QuotaTest : public PairTest {
 protected:
  // The end that D is told of a registration which P refused.
  std::string refusal(TransferId id, std::vector<BlockId> blocks) {
    const auto before = p_metrics.quota_refusals.value();
    const auto end = static_cast<std::uint32_t>(4 * blocks.size());
    register_range({0, end}, std::move(blocks), {0, 1}, 0, id);
    exchange();
    if (d_port.events.empty()) return {};
    const Event event = d_event();
    EXPECT_EQ(event.transfer, id);
    EXPECT_EQ(event.cause, Cause::kRefused);
    EXPECT_TRUE(event.blocks_released);
    EXPECT_EQ(p_metrics.quota_refusals.value(), before + 1);
    return event.text;
  }
  // Another decode process is served whatever this one did.
  void expect_others_served() {
    wire::Encoder encoder;
    RecordingPort wire;
    wire::Hello hello;
    hello.from = {"other", 9};
    hello.role = Role::kConsumer;
    hello.fabric = d_config.fabric;
    hello.peer_timeout = hello.lease = milliseconds(5000);
    hello.session = hello.connection = 1;
    hello.geometry = d_config.geometry;
    wire.send(500, encoder.encode(hello));
    const std::vector<BlockId> ids{1, 2};
    wire::Register r;
    r.transfer = {99, 99};
    r.range = {0, 8};
    r.prompt_tokens = 8;
    r.num_groups = 1;
    r.block_ids[0] = ids;
    r.num_grants = 1;
    r.grant = {{0, 0}, {1, 1}, 1, 1};
    wire.send(500, encoder.encode(r));
    p->on_link_accepted(500, now);
    for (const auto& sent : wire.sent_ever) p->on_frame(500, sent.frame(), now);
    EXPECT_EQ(p_port.sent_ever.back().type, wire::MessageType::kRegisterState);
  }
};

TEST_F(QuotaTest, RegistrationsThatWaitForARequest) {
  p_config.unmatched_max = 2;
  start();
  EXPECT_EQ(refusal({1, 1}, {3}), "");
  EXPECT_EQ(refusal({1, 2}, {4}), "");
  EXPECT_THAT(refusal({1, 3}, {5}),
              HasSubstr("unmatched_max: 2 registrations of this peer wait for a request here, at "
                        "most 2 are allowed"));
  expect_others_served();
  p->expect({1, 4}, 4, now);
  EXPECT_EQ(refusal({1, 4}, {5}), "");  // what is expected here is not meant
  p->expect({1, 1}, 4, now);            // one waits no longer
  EXPECT_EQ(refusal({1, 5}, {6}), "");
  EXPECT_NE(refusal({1, 6}, {7}), "");
  d->cancel({1, 2}, now);
  d_port.events.clear();
  exchange();
  d_port.events.clear();
  EXPECT_EQ(refusal({1, 7}, {7}), "");
}

TEST_F(QuotaTest, RegistrationsInAll) {
  p_config.registrations_max = 1;
  start();
  p->expect({1, 1}, 4, now);
  p->expect({1, 2}, 4, now);
  EXPECT_EQ(refusal({1, 1}, {3}), "");
  EXPECT_THAT(refusal({1, 2}, {4}),
              HasSubstr("registrations_max: 1 registrations of this peer are open, at most 1 are "
                        "allowed"));
  expect_others_served();
}

TEST_F(QuotaTest, BlocksThatRegistrationsName) {
  p_config.registered_blocks_max = 3;
  start();
  EXPECT_EQ(refusal({1, 1}, {3, 4}), "");
  EXPECT_THAT(refusal({1, 2}, {5, 6}),
              HasSubstr("registered_blocks_max: registrations of this peer would name 4 blocks, at "
                        "most 3 are allowed"));
  EXPECT_EQ(refusal({1, 3}, {5}), "");
  expect_others_served();
}

TEST_F(QuotaTest, ClaimsAndCancelsThatComeBeforeTheirRequest) {
  p_config.claims_max = 2;
  start();
  for (std::uint32_t i = 0; i < 5; ++i) d->claim({1, i + 1}, address(), now);
  exchange();
  const auto refused = p_metrics.quota_refusals.value();
  EXPECT_GE(refused, 3U);
  EXPECT_TRUE(p->idle());
  expect_others_served();
  p->expect({1, 1}, 4, now);  // makes room, and the next renewal takes it
  pass(milliseconds(5000));
  for (std::uint32_t i = 0; i < 5; ++i) d->cancel({1, i + 1}, now);
  exchange();
  EXPECT_EQ(p_event().cause, Cause::kCancelledByPeer);
  pass(milliseconds(30001));  // early words are given back by time, whoever speaks or not
  const auto before = p_metrics.quota_refusals.value();
  d->claim({2, 1}, address(), now);
  d->claim({2, 2}, address(), now);
  exchange();
  EXPECT_EQ(p_metrics.quota_refusals.value(), before);
}

// ---- D's side: what a peer that never drains may keep, and a fabric that has no room ----

// Hand-overs of which D wants no block: their quarantine counts no blocks, only rows and credits.
class NeverDrainsTest : public PairTest {
 protected:
  void register_at(const PeerAddress& peer, TransferId id) {
    Registration r;
    r.transfer = id;
    r.attempt = 1;
    r.peer = peer;
    r.range = {8, 8};
    r.block_ids = {{}};
    r.prompt_tokens = 8;
    d->register_blocks(std::move(r), now);
  }
  // The peer is told of `count` grants, and hears of none of their ends.
  void quarantine(std::uint32_t count) {
    for (std::uint32_t i = 1; i <= count; ++i) {
      register_at(address(), {1, i});
      exchange();
      d->cancel({1, i}, now);
      lose_messages();
      const Event event = d_event();
      ASSERT_EQ(event.cause, Cause::kCancelledHere) << i << ": " << event.text;
      ASSERT_FALSE(event.blocks_released) << i;
    }
  }
  void expect_refused_and_others_served(const char* words) {
    register_at(address(), {2, 1});
    const Event event = d_event();
    EXPECT_EQ(event.cause, Cause::kRefused);
    EXPECT_THAT(event.text, HasSubstr(words));
    EXPECT_TRUE(event.blocks_released);
    EXPECT_EQ(d_metrics.quota_refusals.value(), 1U);
    register_at({"h2", 1, "other", 3}, {3, 1});
    EXPECT_TRUE(d_port.events.empty()) << d_port.events.front().text;
    d->cancel({3, 1}, now);
    d_port.events.clear();
  }
  void expect_served_once_drained() {
    pass(milliseconds(5000));  // D says it again, and P answers that nothing is under way
    d_port.events.clear();
    register_at(address(), {2, 2});
    EXPECT_TRUE(d_port.events.empty()) << d_port.events.front().text;
  }
};

TEST_F(NeverDrainsTest, KeepsThreeQuartersOfTheRows) {
  d_config.transfers_max = 4;
  start();
  quarantine(6);
  expect_refused_and_others_served(
      "rows: 6 attempts of peer p are open or wait for it to drain, "
      "6 may");
  expect_served_once_drained();
}

TEST_F(NeverDrainsTest, KeepsThreeQuartersOfTheCredits) {
  d_config.immediates_max = 8;
  d_config.delivery_complete = false;
  start();
  quarantine(5);  // two for the first one
  expect_refused_and_others_served("credits: peer p holds 6 immediates of the fabric, 6 may");
  expect_served_once_drained();
}

TEST_F(PairTest, QuarantineIsAMetricOfTheWorstPeerToo) {
  register_range({0, 8}, {3, 4});
  exchange();
  d->cancel(kId, now);
  EXPECT_EQ(d_metrics.blocks_quarantined.value(), 2);
  EXPECT_EQ(d_metrics.blocks_quarantined_worst_peer.value(), 2);
  exchange();
  EXPECT_EQ(d_metrics.blocks_quarantined.value(), 0);
  EXPECT_EQ(d_metrics.blocks_quarantined_worst_peer.value(), 0);
}

TEST_F(PairTest, AFabricWithoutRoomForAWriterRefusesClearlyAndServesLater) {
  d_port.inbound_error = true;
  register_range({0, 8}, {3, 4});
  exchange();
  const Event event = d_event();
  EXPECT_EQ(event.cause, Cause::kFabric);
  EXPECT_THAT(event.text, HasSubstr("4096 inbounds are open"));
  EXPECT_TRUE(event.blocks_released);
  EXPECT_TRUE(d->idle());
  d_port.inbound_error = false;
  ready({0, 8}, {1, 2});
  register_range({0, 8}, {3, 4}, {0, 2});
  exchange();
  complete_all();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
}

}  // namespace
}  // namespace baton::handover::testing
