// Two protocol versions side by side: what a link of the older one carries, what the newer one
// adds, and what an unknown one is told. Then replays: what was recorded has no second effect.
#include <flatbuffers/flatbuffers.h>
#include <gmock/gmock.h>

#include "handover/testing/pair.h"

namespace baton::handover::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

RecordingPort::Sent made(LinkId link, std::span<const std::byte> frame) {
  RecordingPort wire;
  wire.send(link, frame);
  return wire.out.front();
}

class VersionTest : public PairTest {
 protected:
  void start_with(std::uint16_t d_version, std::uint16_t p_version) {
    d_config.version_max = d_version;
    p_config.version_max = p_version;
    d_port.~RecordingPort();
    new (&d_port) RecordingPort;
    p_port.~RecordingPort();
    new (&p_port) RecordingPort;
    now = Time{std::chrono::seconds(100)};
    start();
  }

  // A stay of everything: transfers done, cancelled, renewed and failed, a lost link, the end of P.
  void live() {
    d->claim({1, 1}, address(), now);
    register_range({0, 8}, {3, 4});
    p->expect(kId, 8, now);
    exchange();
    ready({0, 8}, {1, 2});
    complete_all();
    EXPECT_EQ(d_event().outcome, Outcome::kDone);
    EXPECT_EQ(p_event().outcome, Outcome::kDone);
    ready({0, 4}, {1}, true, {1, 1});
    register_range({0, 4}, {5}, {0, 1}, 4, {1, 1});
    exchange();
    d->cancel({1, 1}, now);
    exchange();
    complete_all();
    pass(milliseconds(7000));
    p->on_link_down(link, "reset", now);
    d->on_link_down(link, "reset", now);
    register_range({0, 4}, {6}, {0, 1}, 4, {1, 2});
    pass(milliseconds(100));
    p->cancel({1, 2}, now);
    exchange();
    register_range({0, 4}, {7}, {0, 1}, 4, {1, 3});
    exchange();
    p->shutdown(now);
    exchange();
  }

  static std::vector<std::string> bytes_of(const RecordingPort& port) {
    std::vector<std::string> out;
    for (const auto& sent : port.sent_ever) {
      std::string text(wire::to_string(sent.type));
      if (sent.type != wire::MessageType::kHello) {
        text.append(reinterpret_cast<const char*>(sent.bytes.data()), sent.size);
      }
      out.push_back(text);
    }
    return out;
  }
};

TEST_F(VersionTest, AVersion2PGivesAVersion1DExactlyTheBytesOfVersion1) {
  start_with(1, 1);
  live();
  const auto first = bytes_of(p_port);
  const auto first_d = bytes_of(d_port);
  ASSERT_GT(first.size(), 10U);
  for (const auto& sent : p_port.sent_ever) {  // nothing that version 1 has not
    EXPECT_LE(sent.type, wire::MessageType::kPong);
    if (sent.type != wire::MessageType::kHelloAck) continue;
    const auto ack = std::get<wire::HelloAck>(*wire::decode(sent.frame()));
    EXPECT_EQ(ack.version, 1);
    EXPECT_EQ(ack.connection, 0U);
  }
  start_with(1, 2);
  live();
  EXPECT_EQ(bytes_of(p_port), first);
  EXPECT_EQ(bytes_of(d_port), first_d);
}

TEST_F(VersionTest, AVersion2DGivesAVersion1PExactlyTheBytesOfVersion1) {
  start_with(1, 1);
  live();
  const auto first = bytes_of(d_port);
  start_with(2, 1);
  live();
  EXPECT_EQ(bytes_of(d_port), first);  // Hello itself says what its sender can speak
}

TEST_F(VersionTest, Version2SaysMoreAndIsSpokenWhenBothCan) {
  start_with(2, 2);
  live();
  EXPECT_EQ(last_to_d.count(wire::MessageType::kGoodbye), 1U);
}

TEST_F(VersionTest, OnAVersion1LinkTheEndOfPIsLearntFromTheSocketWithinItsGrace) {
  for (const auto& [d_version, p_version] : {std::pair{1, 2}, std::pair{2, 1}}) {
    last_to_d.clear();
    start_with(static_cast<std::uint16_t>(d_version), static_cast<std::uint16_t>(p_version));
    ready({0, 8}, {1, 2});
    d->claim({2, 2}, address(), now);
    exchange();
    p->shutdown(now);
    exchange();
    EXPECT_EQ(last_to_d.count(wire::MessageType::kGoodbye), 0U);
    d->on_link_down(link, "closed by the peer", now);
    register_range({0, 8}, {3, 4}, {0, 1}, 0, {2, 2});
    const Time lost = now;
    while (d_port.events.empty() && now < lost + milliseconds(1000)) {
      for (const LinkId dialled : d_port.dialled) d->on_link_down(dialled, "refused", now);
      d_port.dialled.clear();
      now += milliseconds(10);
      d->on_time(now);
    }
    EXPECT_EQ(d_event().cause, Cause::kPeerDied);
    EXPECT_LE(now - lost, milliseconds(500));
  }
}

// ---- B58: versions and keys that one side does not know ----

wire::Hello hello_of(const Config& d_config, std::uint16_t oldest, std::uint16_t newest) {
  wire::Hello hello;
  hello.version_min = oldest;
  hello.version = newest;
  hello.from = {"other", 9};
  hello.role = Role::kConsumer;
  hello.fabric = d_config.fabric;
  hello.peer_timeout = d_config.peer_timeout;
  hello.lease = d_config.lease;
  hello.session = hello.connection = 1;
  hello.geometry = d_config.geometry;
  return hello;
}

TEST_F(VersionTest, B58_APeerOneVersionAheadOrBehindIsServedAndOneBeyondIsRefusedNamingBoth) {
  wire::Encoder encoder;
  LinkId at = 200;
  const auto say = [&](std::uint16_t oldest, std::uint16_t newest) {
    p->on_link_accepted(++at, now);
    wire::Hello hello = hello_of(d_config, oldest, newest);
    hello.from.incarnation = at;
    const auto sent = made(at, encoder.encode(hello));
    p->on_frame(at, sent.frame(), now);
    return *wire::decode(p_port.sent_ever.back().frame());
  };
  EXPECT_EQ(std::get<wire::HelloAck>(say(2, 3)).version, 2);
  EXPECT_EQ(std::get<wire::HelloAck>(say(1, 1)).version, 1);
  for (const auto& [oldest, newest] : {std::pair{3, 9}, std::pair{0, 0}, std::pair{5, 2}}) {
    const auto refuse = std::get<wire::Refuse>(
        say(static_cast<std::uint16_t>(oldest), static_cast<std::uint16_t>(newest)));
    EXPECT_EQ(refuse.field, "version");
    EXPECT_EQ(refuse.ours, "1 to 2");
    EXPECT_EQ(refuse.theirs, std::to_string(oldest) + " to " + std::to_string(newest));
    EXPECT_EQ(p_port.hung_up.back(), at);
  }
  EXPECT_EQ(p_metrics.refused_peers.value(), 3U);
  register_range({0, 8}, {3, 4});  // others are served on
  ready({0, 8}, {1, 2});
  exchange();
  complete_all();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
}

TEST_F(VersionTest, B58_ADThatIsRefusedForItsVersionFailsItsRegistrationWithBoth) {
  d_config.version_max = 1;
  start();
  wire::Encoder encoder;
  register_range({0, 8}, {3, 4});
  const LinkId dialled = d_port.dialled.front();
  d->on_link_up(dialled, now);
  wire::HelloAck ack{hello_of(d_config, 3, 4)};
  ack.from = {"p", 2};
  ack.role = Role::kProducer;
  d->on_frame(dialled, made(dialled, encoder.encode(ack)).frame(), now);
  const Event event = d_event();
  EXPECT_EQ(event.cause, Cause::kRefused);
  EXPECT_THAT(event.text, HasSubstr("version: ours is 1 to 1, theirs is 3 to 4"));
}

TEST_F(VersionTest, B58_UnknownOptionalFieldsAndMessagesAreIgnoredAndCounted) {
  d->claim(kId, address(), now);
  exchange();
  flatbuffers::FlatBufferBuilder builder;
  const auto begin = builder.StartTable();
  builder.AddElement<std::uint64_t>(4, 77, 0);  // Ping.token
  builder.AddElement<std::uint64_t>(6, 1, 0);   // Ping.oldest_epoch
  builder.AddElement<std::uint64_t>(8, 5, 0);   // of a later version
  builder.AddElement<std::uint32_t>(10, 6, 0);
  builder.Finish(flatbuffers::Offset<void>(builder.EndTable(begin)));
  std::vector<std::uint64_t> bytes((builder.GetSize() + 7) / 8);
  std::memcpy(bytes.data(), builder.GetBufferPointer(), builder.GetSize());
  const auto payload = std::as_bytes(std::span(bytes));
  p->on_frame(link, {wire::MessageType::kPing, payload}, now);
  EXPECT_EQ(p_metrics.unknown_fields.value(), 2U);
  EXPECT_EQ(std::get<wire::Pong>(*wire::decode(p_port.out.back().frame())).token, 77U);
  d->on_frame(link, {wire::MessageType::kPing, payload}, now);
  EXPECT_EQ(d_metrics.unknown_fields.value(), 2U);
  p->on_frame(link, {static_cast<wire::MessageType>(99), payload}, now);
  EXPECT_EQ(p_metrics.unknown_fields.value(), 3U);
  EXPECT_EQ(p_metrics.refused_messages.value(), 0U);
  register_range({0, 8}, {3, 4});
  ready({0, 8}, {1, 2});
  exchange();
  complete_all();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
}

TEST_F(VersionTest, B58_ARequiredFieldThatIsMissingIsRefusedByName) {
  d->claim(kId, address(), now);
  exchange();
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(flatbuffers::Offset<void>(builder.EndTable(builder.StartTable())));
  std::vector<std::uint64_t> bytes((builder.GetSize() + 7) / 8);
  std::memcpy(bytes.data(), builder.GetBufferPointer(), builder.GetSize());
  p->on_frame(link, {wire::MessageType::kRegister, std::as_bytes(std::span(bytes))}, now);
  EXPECT_EQ(p_metrics.refused_messages.value(), 1U);
  const auto refuse = std::get<wire::Refuse>(*wire::decode(p_port.out.back().frame()));
  EXPECT_EQ(refuse.field, "Register");
  EXPECT_THAT(refuse.text, HasSubstr("transfer is missing"));
}

// ---- version 2: since when P remembers ----

class MemoryTest : public VersionTest {
 protected:
  MemoryTest() {
    p_config.peers_max = 1;
    start();
  }
  // Another decode process takes the only place that P has. False: P refused it.
  bool another_takes_the_place() {
    wire::Encoder encoder;
    p->on_link_accepted(300, now);
    p->on_frame(300, made(300, encoder.encode(hello_of(d_config, 1, 2))).frame(), now);
    const bool served = p_port.sent_ever.back().type == wire::MessageType::kHelloAck;
    p->on_link_down(300, "closed by the peer", now);
    now += milliseconds(501);
    p->on_time(now);
    lose_messages();
    return served;
  }
  void fail_all_writes() {
    while (!p_port.writes.empty()) {
      p->on_write_failed(p_port.writes.front().context, "link error", now);
      p_port.writes.pop_front();
    }
  }
};

TEST_F(MemoryTest, TheWordOfAPThatForgotItsFailedWritesReleasesNothing) {
  ready({0, 8}, {1, 2});
  register_range({0, 8}, {3, 4});
  exchange();
  deliver_messages = false;
  pass(milliseconds(5001));  // both give each other up
  lose_messages();
  EXPECT_FALSE(d_event().blocks_released);
  fail_all_writes();  // and may still land
  ASSERT_TRUE(another_takes_the_place());
  deliver_messages = true;
  pass(milliseconds(10000));
  EXPECT_TRUE(last_to_d.contains(wire::MessageType::kStopped));  // "drained", it says
  EXPECT_TRUE(d_port.events.empty());
  EXPECT_EQ(d->quarantined_blocks(), 2U);
  d->on_fenced(Inbound{1}, now);
  EXPECT_EQ(d_event().kind, Event::Kind::kReleased);
}

TEST_F(MemoryTest, ASessionThatPForgotIsGivenUpByD) {
  p->expect(kId, 8, now);
  register_range({0, 8}, {3, 4});
  exchange();
  p->on_link_down(link, "reset", now);  // D does not see it
  now += milliseconds(501);
  p->on_time(now);
  EXPECT_EQ(p_event().cause, Cause::kPeerDied);
  lose_messages();
  ASSERT_TRUE(another_takes_the_place());
  d->on_link_down(link, "reset", now);
  pass(milliseconds(100));
  const Event event = d_event();
  EXPECT_EQ(event.cause, Cause::kUnknownTransfer);
  EXPECT_THAT(event.text, HasSubstr("it forgot what was registered there"));
  EXPECT_FALSE(event.blocks_released);
  ASSERT_EQ(d_port.fences.size(), 1U);
  d->on_fenced(d_port.fences.front(), now);
  EXPECT_EQ(d_event().kind, Event::Kind::kReleased);
}

TEST_F(MemoryTest, APeerOfVersion1WhoseWritesFailedIsNotForgotten) {
  d_config.version_max = 1;
  start();
  ready({0, 8}, {1, 2});
  register_range({0, 8}, {3, 4});
  exchange();
  deliver_messages = false;
  pass(milliseconds(5001));
  lose_messages();
  d_port.events.clear();
  fail_all_writes();
  EXPECT_FALSE(another_takes_the_place());
  deliver_messages = true;
  pass(milliseconds(10000));
  EXPECT_TRUE(d_port.events.empty());  // P remembered, and says that they may still land
  EXPECT_EQ(d->quarantined_blocks(), 2U);
}

// ---- grants that are older than what is remembered ----

class ForgottenGrant : public PairTest {
 protected:
  void forget(bool delivery_complete, bool fail_write) {
    p_config.ends_remembered_max = 1;
    d_config.delivery_complete = p_config.delivery_complete = delivery_complete;
    start();
    d->claim(kId, address(), now);
    exchange();
    register_range({0, 8}, {3, 4});
    const auto late = d_port.out.front();
    exchange();
    if (fail_write) {
      p->expect(kId, 8, now);
      ready({0, 4}, {1}, false);
      p->on_write_failed(p_port.writes.front().context, "link error", now);
      p_port.writes.pop_front();
      while (!p_port.writes.empty()) {
        p->on_write_done(p_port.writes.front().context, now);
        p_port.writes.pop_front();
      }
    } else {
      p->cancel(kId, now);
    }
    p_port.out.clear();  // D does not hear of it
    p_port.events.clear();
    for (std::uint32_t i = 0; i < 3; ++i) {
      const TransferId id{5, i + 1};
      ready({0, 4}, {1}, true, id);
      register_range({0, 4}, {5}, {0, 1}, 0, id);
      exchange();
      for (int round = 0; round < 3; ++round) complete_all();
    }
    d_port.events.clear();
    pass(milliseconds(500));  // D repeats its Register
  }
};

TEST_F(ForgottenGrant, IsMadeAnewWhereCompletionMeansDelivery) {
  forget(true, false);
  EXPECT_TRUE(d_port.fences.empty());
}

TEST_F(ForgottenGrant, IsFencedWhereBytesMayBeUnderWayBehindTheirCompletion) {
  forget(false, false);
  ASSERT_EQ(d_port.fences.size(), 1U);
  const Event event = d_event();
  EXPECT_EQ(event.transfer, kId);
  EXPECT_FALSE(event.blocks_released);
}

TEST_F(ForgottenGrant, IsFencedWhereAWriteFailedAndWasForgottenWithIt) {
  forget(true, true);
  ASSERT_EQ(d_port.fences.size(), 1U);
  EXPECT_EQ(d->quarantined_blocks(), 2U);
}

// ---- replays ----

TEST_F(PairTest, AReplayedHelloNeitherTakesTheConnectionNorTheSession) {
  p->expect(kId, 8, now);
  register_range({0, 8}, {3, 4});
  exchange();
  const auto hello = last_to_p.at(wire::MessageType::kHello);
  const auto stale = p_metrics.stale_messages.value();
  p->on_link_accepted(400, now);
  p->on_frame(400, hello.frame(), now);
  EXPECT_EQ(p_port.hung_up, std::vector<LinkId>{400});
  EXPECT_EQ(p_metrics.stale_messages.value(), stale + 1);
  p->on_link_accepted(401, now);  // without a Hello there is no way in either
  p->on_frame(401, last_to_p.at(wire::MessageType::kRegister).frame(), now);
  EXPECT_EQ(p_port.hung_up.back(), 401U);
  ready({0, 8}, {1, 2});
  exchange();
  complete_all();
  EXPECT_EQ(d_event().outcome, Outcome::kDone);
}

TEST_F(PairTest, AReplayedRegisterOfAnOldSessionWritesNothing) {
  p->expect(kId, 8, now);
  register_range({0, 8}, {3, 4});
  exchange();
  const auto old = last_to_p.at(wire::MessageType::kRegister);
  deliver_messages = false;
  pass(milliseconds(5001));
  lose_messages();
  deliver_messages = true;
  ASSERT_EQ(d_port.fences.size(), 1U);
  d->on_fenced(d_port.fences.front(), now);
  d_port.events.clear();
  p_port.events.clear();
  register_range({0, 8}, {3, 4}, {0, 1}, 0, {9, 9});  // a new session; the blocks are another's
  exchange();
  p->expect(kId, 8, now);
  const auto stale = d_metrics.stale_messages.value();
  p->on_frame(link, old.frame(), now);
  ready({0, 8}, {1, 2});
  exchange();
  EXPECT_TRUE(p_port.posted_ever.empty());
  EXPECT_GT(d_metrics.stale_messages.value(), stale);  // P's answer names nothing that D has
}

}  // namespace
}  // namespace baton::handover::testing
