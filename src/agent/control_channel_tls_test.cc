// The control channel with keys: who gets through, who is turned away with what reason, and that
// neither slow, noisy nor countless strangers disturb a peer that is in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/testing/channel_world.h"
#include "agent/testing/pool_keys.h"

namespace baton {
namespace {

using namespace std::chrono_literals;
using testing::accept_one;
using ::testing::AllOf;
using testing::ChannelWorld;
using testing::frame;
using ::testing::HasSubstr;
using testing::payload_of;
using testing::PoolKeys;
using testing::RawSocket;

const PoolKeys& keys() {
  static const PoolKeys made;
  return made;
}

std::shared_ptr<const tls::Context> context_of(const Security& security, const std::string& id) {
  auto made = tls::Context::create(security, id);
  EXPECT_TRUE(made) << made.error().message;
  return made ? *made : nullptr;
}

std::shared_ptr<const tls::Context> shared_key() {
  static const auto made = context_of(keys().psk(PoolKeys::psk_line("pool-1", 1)), "x");
  return made;
}

ChannelOptions options_with(std::shared_ptr<const tls::Context> tls) {
  ChannelOptions options;
  options.tls = std::move(tls);
  options.plain_refusal = frame(40, std::byte{0x21});
  return options;
}

// A peer with the pool's key over a socket of its own, so that it can misbehave inside of TLS.
class SecureSocket {
 public:
  SecureSocket(ChannelWorld& world, std::shared_ptr<const tls::Context> context)
      : socket_(world), session_(std::move(context), socket_.fd(), tls::Side::kDial) {
    EXPECT_TRUE(world.turn_until([&] {
      if (done_) return true;
      done_ = session_.handshake() == tls::Io::kDone;
      return done_;
    })) << session_.why();
  }
  void write(std::span<const std::byte> bytes) {
    std::size_t sent = 0;
    while (!bytes.empty() && session_.write(bytes, sent) == tls::Io::kDone) {
      bytes = bytes.subspan(sent);
    }
  }
  tls::Session& session() { return session_; }
  RawSocket& socket() { return socket_; }

 private:
  RawSocket socket_;
  tls::Session session_;
  bool done_ = false;
};

// Two channels until both know the other.
struct Met {
  ConnId dialed, accepted;
};
Met meet(ChannelWorld& a, ChannelWorld& b) {
  Met met;
  met.dialed = a.channel_->dial("127.0.0.1", b.channel_->port(), a.now_);
  EXPECT_TRUE(a.turn_until([&] {
    b.turn();
    return !a.dialed_.empty() && !b.accepted_.empty();
  }));
  if (!b.accepted_.empty()) met.accepted = b.accepted_.back();
  return met;
}

TEST(SecureChannel, FramesOfAllSizesGoBothWays) {
  ChannelWorld a(options_with(context_of(keys().certificate("a"), "a")));
  ChannelWorld b(options_with(context_of(keys().certificate("b"), "b")));
  const Met met = meet(a, b);
  EXPECT_EQ(a.channel_->name_problem(met.dialed, "b"), "");
  EXPECT_THAT(b.channel_->name_problem(met.accepted, "c"),
              AllOf(HasSubstr("'c'"), HasSubstr("certificate is for a")));
  a.channel_->admit(met.dialed, a.now_);
  b.channel_->admit(met.accepted, b.now_);
  int sent = 0;
  for (const std::size_t size : {0UL, 8UL, 16'384UL, 1'000'000UL, 3'900'000UL, 100UL}) {
    const auto bytes = frame(size);
    ++sent;
    a.channel_->send(met.dialed, bytes, a.now_);
    b.channel_->send(met.accepted, bytes, b.now_);
    ASSERT_TRUE(a.turn_until([&] {
      b.turn();
      return a.frames_[met.dialed] == sent && b.frames_[met.accepted] == sent;
    })) << size;
    EXPECT_EQ(a.last_payload_, payload_of(bytes));
    EXPECT_EQ(b.last_payload_, payload_of(bytes));
  }
  b.channel_->close_after_flush(met.accepted, b.now_);
  ASSERT_TRUE(a.turn_until([&] {
    b.turn();
    return a.closed_.contains(met.dialed);
  }));
  EXPECT_EQ(a.closed_.at(met.dialed).reason, CloseReason::kPeerClosed);
}

TEST(SecureChannel, ManyFramesInOneRecordAllComeWithoutAnotherByte) {
  ChannelOptions options = options_with(shared_key());
  options.read_bytes_per_turn = 1000;  // much less than the record, of which no socket tells again
  ChannelWorld world(options);
  SecureSocket peer(world, shared_key());
  const ConnId conn = accept_one(world);
  std::vector<std::byte> many;
  const auto small = frame(0);
  for (int i = 0; i < 600; ++i) many.insert(many.end(), small.begin(), small.end());
  ASSERT_LT(many.size(), 16'384U);
  peer.write(many);
  EXPECT_TRUE(world.turn_until([&] { return world.frames_[conn] == 600; }));
}

TEST(SecureChannel, APlainPeerHearsWhyAndIsClosed) {
  ChannelWorld world(options_with(shared_key()));
  RawSocket plain(world);
  plain.write(frame(100));
  std::vector<std::byte> got;
  std::vector<std::byte> piece(4096);
  EXPECT_TRUE(world.turn_until([&] {
    const ssize_t bytes = plain.read(piece);
    if (bytes > 0) got.insert(got.end(), piece.begin(), piece.begin() + bytes);
    return bytes == 0;
  }));
  EXPECT_EQ(got, frame(40, std::byte{0x21}));
  ASSERT_EQ(world.turned_away_.size(), 1U);
  EXPECT_EQ(world.turned_away_[0].reason, CloseReason::kUnauthenticated);
  EXPECT_THAT(world.turned_away_[0].text, AllOf(HasSubstr("127.0.0.1:"), HasSubstr("no TLS")));
  EXPECT_TRUE(world.accepted_.empty());
  plain.close();
  EXPECT_TRUE(
      world.turn_until([&] { return world.channel_->counters().connections.value() == 0; }));
}

TEST(SecureChannel, ATlsPeerOfAPlainListenerIsToldOnBothSides) {
  ChannelWorld secure(options_with(shared_key()));
  ChannelWorld plain;
  const ConnId conn = secure.channel_->dial("127.0.0.1", plain.channel_->port(), secure.now_);
  // As the owner does: last words in plain.
  plain.react_bad_ = [&](ConnId id) { plain.channel_->send(id, frame(24), plain.now_); };
  ASSERT_TRUE(secure.turn_until([&] {
    plain.turn();
    return secure.closed_.contains(conn) && !plain.bad_.empty();
  }));
  EXPECT_EQ(secure.closed_.at(conn).reason, CloseReason::kUnauthenticated);
  EXPECT_THAT(secure.closed_.at(conn).text, HasSubstr("answers without TLS"));
  EXPECT_THAT(plain.bad_.begin()->second.message, HasSubstr("the peer speaks TLS"));
}

TEST(SecureChannel, AForeignCertificateIsRefusedOnBothSides) {
  const PoolKeys foreign;
  ChannelWorld a(options_with(context_of(foreign.signed_here_trusting(keys(), "a"), "a")));
  ChannelWorld b(options_with(context_of(keys().certificate("b"), "b")));
  const ConnId conn = a.channel_->dial("127.0.0.1", b.channel_->port(), a.now_);
  ASSERT_TRUE(a.turn_until([&] {
    b.turn();
    return a.closed_.contains(conn) && !b.turned_away_.empty();
  }));
  EXPECT_EQ(a.closed_.at(conn).reason, CloseReason::kUnauthenticated);
  EXPECT_THAT(a.closed_.at(conn).text, HasSubstr("the peer refuses us: unknown CA"));
  EXPECT_EQ(b.turned_away_[0].reason, CloseReason::kUnauthenticated);
  EXPECT_THAT(b.turned_away_[0].text, HasSubstr("certificate for a: self-signed"));
  EXPECT_TRUE(b.accepted_.empty());
}

TEST(SecureChannel, GarbageOfAllKindsIsTurnedAway) {
  ChannelWorld world(options_with(shared_key()));
  const std::vector<std::byte> noise(2000, std::byte{0x16});  // begins like a handshake
  std::vector<std::byte> huge{std::byte{0x16}, std::byte{3}, std::byte{1}, std::byte{0xFF},
                              std::byte{0xFF}};
  huge.resize(70'000, std::byte{1});
  const std::vector<std::byte> web(100, std::byte{'G'});
  // A ClientHello of TLS 1.2 alone.
  std::vector<std::byte> old{std::byte{0x16}, std::byte{3}, std::byte{1}, std::byte{0},
                             std::byte{47},   std::byte{1}, std::byte{0}, std::byte{0},
                             std::byte{43},   std::byte{3}, std::byte{3}};
  old.resize(5 + 47, std::byte{0});
  old[5 + 4 + 2 + 32 + 2] = std::byte{2};  // two bytes of cipher suites
  std::size_t turned_away = 0;
  for (const auto& bytes : {noise, huge, web, old}) {
    RawSocket peer(world);
    peer.write(bytes);
    ++turned_away;
    ASSERT_TRUE(world.turn_until([&] { return world.turned_away_.size() == turned_away; }));
    EXPECT_EQ(world.turned_away_.back().reason, CloseReason::kUnauthenticated)
        << world.turned_away_.back().text;
  }
  EXPECT_TRUE(world.accepted_.empty());
  // And an honest one gets in.
  SecureSocket peer(world, shared_key());
  const ConnId conn = accept_one(world);
  peer.write(frame(3));
  EXPECT_TRUE(world.turn_until([&] { return world.frames_[conn] == 1; }));
}

TEST(SecureChannel, AHandshakeThatStopsHalfWayMeetsItsDeadline) {
  ChannelWorld world(options_with(shared_key()));
  RawSocket silent(world);
  RawSocket half(world);
  const std::vector<std::byte> start{std::byte{0x16}, std::byte{3}, std::byte{1}, std::byte{1}};
  half.write(start);
  EXPECT_TRUE(world.turn_until([&] { return world.channel_->counters().accepted.value() == 2; }));
  world.now_ += 1900ms;
  world.turn();
  EXPECT_TRUE(world.turned_away_.empty());
  world.now_ += 200ms;
  ASSERT_TRUE(world.turn_until([&] { return world.turned_away_.size() == 2; }));
  for (const auto& turned_away : world.turned_away_) {
    EXPECT_EQ(turned_away.reason, CloseReason::kNotAdmitted);
    EXPECT_THAT(turned_away.text, HasSubstr("no TLS handshake within"));
  }
}

TEST(SecureChannel, ADialThatIsNotAnsweredMeetsItsDeadline) {
  ChannelWorld world(options_with(shared_key()));
  UniqueFd mute = std::move(*tcp::listen(*tcp::parse("127.0.0.1", 0)));
  const auto port = tcp::local_address(mute.get()).port();
  const ConnId conn = world.channel_->dial("127.0.0.1", port, world.now_);
  for (int i = 0; i < 50; ++i) world.turn();
  EXPECT_TRUE(world.closed_.empty());
  world.now_ += 2100ms;
  ASSERT_TRUE(world.turn_until([&] { return world.closed_.contains(conn); }));
  EXPECT_EQ(world.closed_.at(conn).reason, CloseReason::kDialFailed);
  EXPECT_THAT(world.closed_.at(conn).text, HasSubstr("no TLS handshake within"));
}

TEST(SecureChannel, AFloodOfHandshakesLeavesAPeerThatIsInItsTurn) {
  ChannelOptions options = options_with(shared_key());
  options.strangers_max = 16;
  ChannelWorld world(options);
  SecureSocket good(world, shared_key());
  const ConnId conn = accept_one(world);
  world.channel_->admit(conn, world.now_);
  std::vector<std::unique_ptr<RawSocket>> flood;
  std::vector<std::unique_ptr<tls::Session>> hellos;
  for (int round = 0; round < 40; ++round) {
    for (int i = 0; i < 5; ++i) {
      flood.push_back(std::make_unique<RawSocket>(world));
      hellos.push_back(
          std::make_unique<tls::Session>(shared_key(), flood.back()->fd(), tls::Side::kDial));
      hellos.back()->handshake();
    }
    good.write(frame(8));
    for (int turns = 0; world.frames_[conn] == round && turns < 10; ++turns) {
      const auto before = world.handshakes();
      world.turn();
      EXPECT_LE(world.handshakes() - before, 1U);
    }
    ASSERT_EQ(world.frames_[conn], round + 1);
  }
  EXPECT_FALSE(world.closed_.contains(conn));
  EXPECT_LE(world.channel_->counters().connections.value(), 17);
}

TEST(SecureChannel, AFloodFromOneAddressIsCutOffAndCounted) {
  ChannelOptions options = options_with(shared_key());
  options.gate.spare_loopback = false;
  options.gate.address_per_second = 4;
  options.gate.address_burst = 8;
  ChannelWorld world(options);
  std::vector<std::unique_ptr<RawSocket>> flood;
  for (int i = 0; i < 30; ++i) flood.push_back(std::make_unique<RawSocket>(world));
  ASSERT_TRUE(world.turn_until([&] { return world.turned_away_.size() == 22; }));
  EXPECT_EQ(world.channel_->counters().dropped_strangers.value(), 22U);
  for (const auto& turned_away : world.turned_away_) {
    EXPECT_EQ(turned_away.reason, CloseReason::kCrowded);
    EXPECT_THAT(turned_away.text, HasSubstr("more than 4 connections a second"));
  }
  world.now_ += 1s;
  SecureSocket good(world, shared_key());
  accept_one(world);
}

TEST(SecureChannel, ValidTlsWithGarbageInsideIsABadStream) {
  ChannelWorld world(options_with(shared_key()));
  SecureSocket peer(world, shared_key());
  const ConnId conn = accept_one(world);
  const std::vector<std::byte> noise(1000, std::byte{0x5A});
  peer.write(noise);
  ASSERT_TRUE(world.turn_until([&] { return world.bad_.contains(conn); }));
  EXPECT_EQ(world.channel_->counters().dropped_hostile.value(), 1U);
}

TEST(SecureChannel, RawBytesInsideAnOpenConnectionEndIt) {
  ChannelWorld world(options_with(shared_key()));
  SecureSocket peer(world, shared_key());
  const ConnId conn = accept_one(world);
  world.channel_->admit(conn, world.now_);
  peer.socket().write(frame(100));
  ASSERT_TRUE(world.turn_until([&] { return world.closed_.contains(conn); }));
  EXPECT_EQ(world.closed_.at(conn).reason, CloseReason::kPeerClosed);
  EXPECT_THAT(world.closed_.at(conn).text, HasSubstr("TLS: "));
  EXPECT_EQ(world.channel_->counters().dropped_hostile.value(), 1U);
  EXPECT_EQ(world.frames_[conn], 0);
}

TEST(SecureChannel, ATruncatedRecordIsNeverAFrame) {
  ChannelWorld world(options_with(shared_key()));
  SecureSocket peer(world, shared_key());
  const ConnId conn = accept_one(world);
  world.channel_->admit(conn, world.now_);
  // The first bytes of a record of application data, then the end.
  const std::vector<std::byte> start{std::byte{0x17}, std::byte{3}, std::byte{3}, std::byte{0},
                                     std::byte{100},  std::byte{9}, std::byte{9}};
  peer.socket().write(start);
  peer.socket().close();
  ASSERT_TRUE(world.turn_until([&] { return world.closed_.contains(conn); }));
  EXPECT_EQ(world.closed_.at(conn).reason, CloseReason::kPeerClosed);
  EXPECT_EQ(world.frames_[conn], 0);
}

TEST(SecureChannel, APeerThatNeverReadsIsDropped) {
  ChannelOptions options = options_with(shared_key());
  options.output_max = 1U << 20;
  ChannelWorld world(options);
  SecureSocket deaf(world, shared_key());
  const ConnId conn = accept_one(world);
  world.channel_->admit(conn, world.now_);
  const auto bytes = frame(100'000);
  for (int i = 0; i < 1000 && !world.closed_.contains(conn); ++i) {
    world.channel_->send(conn, bytes, world.now_);
    world.turn();
  }
  ASSERT_TRUE(world.closed_.contains(conn));
  EXPECT_EQ(world.closed_.at(conn).reason, CloseReason::kNotReading);
}

// ---- beyond this host ----

TEST(ChannelExposure, OtherHostsNeedKeysOrTheWordInsecure) {
  Poller poller = std::move(*Poller::create());
  ChannelWorld user;
  const auto problem = [&](const std::string& host, const ChannelOptions& options) {
    const auto made = ControlChannel::create(options, host, 0, poller, user);
    return made ? std::string("created") : made.error().message;
  };
  for (const char* host : {"0.0.0.0", "", "*", "::"}) {
    EXPECT_THAT(problem(host, {}), AllOf(HasSubstr("can be reached by other hosts"),
                                         HasSubstr("TLS"), HasSubstr("insecure")))
        << host;
  }
  for (const char* host : {"127.0.0.1", "127.0.0.9", "localhost", "::1"}) {
    EXPECT_EQ(problem(host, {}), "created") << host;
  }
  ChannelOptions insecure;
  insecure.insecure = true;
  EXPECT_EQ(problem("0.0.0.0", insecure), "created");
  EXPECT_EQ(problem("0.0.0.0", options_with(shared_key())), "created");
}

TEST(ChannelExposure, NoPlainConnectionLeavesThisHost) {
  ChannelWorld world;
  const ConnId conn = world.channel_->dial("192.0.2.1", 5600, world.now_);
  ASSERT_TRUE(world.turn_until([&] { return world.closed_.contains(conn); }));
  EXPECT_EQ(world.closed_.at(conn).reason, CloseReason::kDialFailed);
  EXPECT_THAT(world.closed_.at(conn).text, HasSubstr("no plain connection leaves"));
}

// The system's resolver, on a thread of its own.
TEST(ChannelExposure, HostNamesAreLookedUp) {
  ChannelWorld a;
  ChannelWorld b;
  // Not spelt as the channel knows it by heart: this one asks the resolver.
  const ConnId good = a.channel_->dial("LOCALHOST", b.channel_->port(), a.now_);
  const ConnId bad = a.channel_->dial("no-such-host.invalid", 5600, a.now_);
  EXPECT_TRUE(a.turn_until([&] {
    b.turn();
    return !a.dialed_.empty() && a.closed_.contains(bad);
  }));
  EXPECT_EQ(a.dialed_.front(), good);
  EXPECT_EQ(a.closed_.at(bad).reason, CloseReason::kDialFailed);
  EXPECT_THAT(a.closed_.at(bad).text, HasSubstr("no-such-host.invalid"));
}

}  // namespace
}  // namespace baton
