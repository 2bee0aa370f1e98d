// The control channel against well-meaning and hostile peers, on real sockets and a clock of the
// test's own.
#include "agent/control_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/testing/channel_world.h"

namespace baton {
namespace {

using namespace std::chrono_literals;

using testing::accept_one;
using testing::frame;
using testing::payload_of;
using RawPeer = testing::RawSocket;
using World = testing::ChannelWorld;

TEST(ControlChannel, PortInUseIsAClearError) {
  World world;
  Poller poller = std::move(*Poller::create());
  ChannelOptions options;
  const auto second =
      ControlChannel::create(options, "127.0.0.1", world.channel_->port(), poller, world);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Errc::kAlreadyExists);
  EXPECT_NE(second.error().message.find("is in use"), std::string::npos);
}

TEST(ControlChannel, FramesArriveWholeHoweverTheyAreCut) {
  World world;
  RawPeer peer(world);
  const ConnId conn = accept_one(world);
  const auto bytes = frame(100);
  for (const std::byte& byte : bytes) {
    peer.write({&byte, 1});
    world.turn();
  }
  ASSERT_TRUE(world.turn_until([&] { return world.frames_[conn] == 1; }));
  EXPECT_EQ(world.last_payload_, payload_of(bytes));
  auto two = frame(5);
  two.insert(two.end(), bytes.begin(), bytes.end());
  peer.write(two);
  EXPECT_TRUE(world.turn_until([&] { return world.frames_[conn] == 3; }));
}

TEST(ControlChannel, TwoChannelsTalkAndLearnOfAnEnd) {
  World a;
  World b;
  const ConnId to_b = a.channel_->dial("localhost", b.channel_->port(), a.now_);
  ASSERT_TRUE(a.turn_until([&] {
    b.turn();
    return !a.dialed_.empty() && !b.accepted_.empty();
  }));
  EXPECT_EQ(a.dialed_.front(), to_b);
  a.channel_->admit(to_b, a.now_);
  b.channel_->admit(b.accepted_.front(), b.now_);
  const auto large = frame(1'000'000);
  a.channel_->send(to_b, large, a.now_);
  ASSERT_TRUE(a.turn_until([&] {
    b.turn();
    return b.frames_[b.accepted_.front()] == 1;
  }));
  EXPECT_EQ(b.last_payload_, payload_of(large));
  b.channel_->close(b.accepted_.front());
  ASSERT_TRUE(a.turn_until([&] { return a.closed_.contains(to_b); }));
  EXPECT_EQ(a.closed_.at(to_b).reason, CloseReason::kPeerClosed);
  EXPECT_TRUE(b.closed_.empty());  // it closed it itself
}

TEST(ControlChannel, DialToNobodyFails) {
  World world;
  std::uint16_t port = 0;
  {
    World gone;
    port = gone.channel_->port();
  }
  const ConnId conn = world.channel_->dial("127.0.0.1", port, world.now_);
  ASSERT_TRUE(world.turn_until([&] { return world.closed_.contains(conn); }));
  EXPECT_EQ(world.closed_.at(conn).reason, CloseReason::kDialFailed);
  EXPECT_NE(world.closed_.at(conn).text.find(std::to_string(port)), std::string::npos);
}

TEST(ControlChannel, RandomBytesAreDroppedWithAReason) {
  World world;
  RawPeer peer(world);
  const ConnId conn = accept_one(world);
  const std::vector<std::byte> noise(1000, std::byte{0x5A});
  peer.write(noise);
  ASSERT_TRUE(world.turn_until([&] { return world.bad_.contains(conn); }));
  EXPECT_FALSE(world.bad_.at(conn).message.empty());
  EXPECT_EQ(world.channel_->counters().dropped_hostile.value(), 1U);
  std::array<std::byte, 16> sink{};
  EXPECT_TRUE(world.turn_until([&] { return peer.read(sink) == 0; }));
  peer.close();
  EXPECT_TRUE(
      world.turn_until([&] { return world.channel_->counters().connections.value() == 0; }));
}

TEST(ControlChannel, HugeLengthIsRefusedBeforeItsBytesCome) {
  World world;
  RawPeer peer(world);
  const ConnId conn = accept_one(world);
  const auto large = frame(wire::kHandshakeBytesMax);  // fine after the handshake, not before
  peer.write(std::span(large).first(wire::kHeaderBytes));
  ASSERT_TRUE(world.turn_until([&] { return world.bad_.contains(conn); }));
}

TEST(ControlChannel, StrangerWithoutHandshakeIsDropped) {
  World world;
  RawPeer peer(world);
  const ConnId conn = accept_one(world);
  world.now_ += 1900ms;
  world.turn();
  EXPECT_TRUE(world.closed_.empty());
  world.now_ += 200ms;
  ASSERT_TRUE(world.turn_until([&] { return world.closed_.contains(conn); }));
  EXPECT_EQ(world.closed_.at(conn).reason, CloseReason::kNotAdmitted);
}

TEST(ControlChannel, HalfAFrameDrippedSlowlyIsDropped) {
  World world;
  RawPeer peer(world);
  const ConnId conn = accept_one(world);
  world.channel_->admit(conn, world.now_);
  const auto bytes = frame(100);
  // A byte a second: never silent, never done.
  for (std::size_t i = 0; i < 8 && world.closed_.empty(); ++i) {
    peer.write({&bytes[i], 1});
    const auto before = world.channel_->counters().bytes_in.value();
    world.turn_until([&] {
      return world.channel_->counters().bytes_in.value() > before || !world.closed_.empty();
    });
    world.now_ += 1s;
    world.turn();
  }
  ASSERT_TRUE(world.closed_.contains(conn));
  EXPECT_EQ(world.closed_.at(conn).reason, CloseReason::kHalfFrame);
}

TEST(ControlChannel, SilentPeerIsLostAfterThePeerTimeout) {
  World world;
  RawPeer peer(world);
  const ConnId conn = accept_one(world);
  world.channel_->admit(conn, world.now_);
  world.now_ += 4s;
  world.turn();
  peer.write(frame(8));
  ASSERT_TRUE(world.turn_until([&] { return world.frames_[conn] == 1; }));
  world.now_ += 4900ms;  // of the frame, not of the beginning
  world.turn();
  EXPECT_TRUE(world.closed_.empty());
  world.now_ += 200ms;
  ASSERT_TRUE(world.turn_until([&] { return world.closed_.contains(conn); }));
  EXPECT_EQ(world.closed_.at(conn).reason, CloseReason::kSilent);
}

TEST(ControlChannel, BytesThatCameWhileThisSideWasStoppedCount) {
  World world;
  RawPeer peer(world);
  const ConnId conn = accept_one(world);
  world.channel_->admit(conn, world.now_);
  peer.write(frame(8));
  // A stopped process wakes up long after the time-out, and its first turn takes both times.
  world.now_ += 60s;
  for (const epoll_event& event : world.poller_.wait(1s)) {
    world.channel_->handle(event.data.u64, event.events, world.now_);
  }
  world.channel_->handle_timers(world.now_);
  EXPECT_EQ(world.frames_[conn], 1);
  EXPECT_TRUE(world.closed_.empty());
}

TEST(ControlChannel, PeerThatNeverReadsIsDroppedAndDelaysNobody) {
  ChannelOptions options;
  options.output_max = 1U << 20;
  World world(options);
  RawPeer deaf(world);
  const ConnId deaf_conn = accept_one(world);
  RawPeer good(world);
  const ConnId good_conn = accept_one(world);
  world.channel_->admit(deaf_conn, world.now_);
  world.channel_->admit(good_conn, world.now_);
  const auto bytes = frame(100'000);
  std::vector<std::byte> sink(1U << 20);
  std::size_t good_bytes = 0;
  int sent = 0;
  while (!world.closed_.contains(deaf_conn) && sent < 1000) {
    ++sent;
    world.channel_->send(deaf_conn, bytes, world.now_);
    world.channel_->send(good_conn, bytes, world.now_);
    world.turn_until([&] {
      const ssize_t got = good.read(sink);
      if (got > 0) good_bytes += static_cast<std::size_t>(got);
      return good_bytes == static_cast<std::size_t>(sent) * bytes.size();
    });
  }
  ASSERT_TRUE(world.closed_.contains(deaf_conn));
  EXPECT_EQ(world.closed_.at(deaf_conn).reason, CloseReason::kNotReading);
  EXPECT_FALSE(world.closed_.contains(good_conn));
  EXPECT_EQ(good_bytes, static_cast<std::size_t>(sent) * bytes.size());
}

TEST(ControlChannel, FloodOfFramesLeavesOthersTheirTurn) {
  World world;
  RawPeer flood(world);
  const ConnId flood_conn = accept_one(world);
  RawPeer good(world);
  const ConnId good_conn = accept_one(world);
  std::vector<std::byte> many;
  const auto small = frame(0);
  for (int i = 0; i < 20'000; ++i) many.insert(many.end(), small.begin(), small.end());
  flood.write(many);
  good.write(small);
  // Between two looks at the sockets the flood gets no more than its share.
  int turns = 0;
  while (world.frames_[good_conn] == 0 && turns < 100) {
    const int before = world.frames_[flood_conn];
    world.turn();
    ++turns;
    EXPECT_LE(world.frames_[flood_conn] - before, 2 * 32);
  }
  EXPECT_EQ(world.frames_[good_conn], 1);
  EXPECT_LT(world.frames_[flood_conn], 20'000);
  EXPECT_TRUE(world.turn_until([&] { return world.frames_[flood_conn] >= 15'000; }));
}

TEST(ControlChannel, FloodOfConnectionsEvictsTheOldestStrangersOnly) {
  ChannelOptions options;
  options.strangers_max = 8;
  World world(options);
  RawPeer good(world);
  const ConnId good_conn = accept_one(world);
  world.channel_->admit(good_conn, world.now_);
  std::vector<std::unique_ptr<RawPeer>> flood;
  for (int i = 0; i < 50; ++i) {
    flood.push_back(std::make_unique<RawPeer>(world));
    accept_one(world);
  }
  EXPECT_EQ(world.closed_.size(), 50U - 8U);
  EXPECT_FALSE(world.closed_.contains(good_conn));
  EXPECT_EQ(world.channel_->counters().connections.value(), 9);
  for (const auto& [conn, closed] : world.closed_) EXPECT_EQ(closed.reason, CloseReason::kCrowded);
  good.write(frame(3));
  EXPECT_TRUE(world.turn_until([&] { return world.frames_[good_conn] == 1; }));
}

TEST(ControlChannel, LastWordsReachAPeerThatStillSends) {
  World world;
  RawPeer peer(world);
  const ConnId conn = accept_one(world);
  peer.write(frame(1000));
  ASSERT_TRUE(world.turn_until([&] { return world.frames_[conn] == 1; }));
  const auto words = frame(200);
  world.channel_->send(conn, words, world.now_);
  world.channel_->close_after_flush(conn, world.now_);
  peer.write(frame(5000));
  std::vector<std::byte> got;
  std::vector<std::byte> piece(4096);
  const bool ended = world.turn_until([&] {
    peer.write(frame(1000));
    const ssize_t bytes = peer.read(piece);
    if (bytes > 0) got.insert(got.end(), piece.begin(), piece.begin() + bytes);
    return bytes == 0;
  });
  EXPECT_TRUE(ended);
  EXPECT_EQ(got, words);
  EXPECT_EQ(world.frames_[conn], 1);  // nothing is listened to any more
  world.now_ += 2s;
  EXPECT_TRUE(
      world.turn_until([&] { return world.channel_->counters().connections.value() == 0; }));
  EXPECT_TRUE(world.closed_.empty());
}

TEST(ControlChannel, ClosingTheConnectionAtHandInsideItsOwnCallIsSafe) {
  World world;
  RawPeer peer(world);
  const ConnId conn = accept_one(world);
  world.react_ = [&](ConnId id) { world.channel_->close(id); };
  auto two = frame(10);
  const auto more = frame(10);
  two.insert(two.end(), more.begin(), more.end());
  peer.write(two);
  EXPECT_TRUE(
      world.turn_until([&] { return world.channel_->counters().connections.value() == 0; }));
  EXPECT_EQ(world.frames_[conn], 1);
}

}  // namespace
}  // namespace baton
