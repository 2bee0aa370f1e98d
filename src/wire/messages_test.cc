#include "wire/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/random.h"
#include "layout/test_geometry.h"

namespace baton::wire {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

const Key kKey{{1, 2}, {3, 4}, {5, 6}, 7};

// Through bytes and back. The frame's memory lives in `keep`.
template <typename M>
Message round_trip(const M& message, std::vector<std::uint64_t>& keep) {
  Encoder encoder;
  const auto frame = encoder.encode(message);
  FrameReader reader(kFrameBytesMax);
  std::size_t done = 0;
  while (done < frame.size()) {
    const auto room = reader.prepare();
    const std::size_t n = std::min(room.size(), frame.size() - done);
    std::memcpy(room.data(), frame.data() + done, n);
    reader.commit(n);
    done += n;
  }
  const Frame out = *reader.next().value();
  keep.resize((out.payload.size() + 7) / 8);
  std::memcpy(keep.data(), out.payload.data(), out.payload.size());
  const auto bytes = std::as_bytes(std::span(keep)).first(out.payload.size());
  auto decoded = decode({out.type, bytes});
  EXPECT_TRUE(decoded) << decoded.error().message;
  return decoded ? *decoded : Message{};
}

TEST(Messages, HelloKeepsGeometryWithoutPointers) {
  std::vector<std::uint64_t> keep;
  Hello hello;
  hello.from = {"p0", 77};
  hello.expected = {"d0", 5};
  hello.mode = Mode::kPull;
  hello.role = Role::kProducer;
  hello.fabric = "shm";
  hello.verify = true;
  hello.peer_timeout = std::chrono::milliseconds(1234);
  hello.lease = std::chrono::milliseconds(99);
  hello.session = 8;
  hello.connection = 9;
  const auto pool = layout::make_pool(3, 8, 64, 32, 2);
  hello.geometry = pool.geometry;
  const Hello out = std::get<Hello>(round_trip(hello, keep));
  EXPECT_EQ(out.from, hello.from);
  EXPECT_EQ(out.expected, hello.expected);
  EXPECT_EQ(out.mode, Mode::kPull);
  EXPECT_EQ(out.role, Role::kProducer);
  EXPECT_EQ(out.peer_timeout, hello.peer_timeout);
  EXPECT_EQ(out.lease, hello.lease);
  EXPECT_EQ(out.session, 8U);
  EXPECT_EQ(out.connection, 9U);
  EXPECT_TRUE(out.verify);
  ASSERT_EQ(out.geometry.regions.size(), 3U);
  EXPECT_EQ(out.geometry.regions[1].name, "layer.1");
  EXPECT_EQ(out.geometry.regions[1].stride_bytes, 96U);
  EXPECT_EQ(out.geometry.regions[1].group, 1);
  EXPECT_EQ(out.geometry.regions[1].base, nullptr);
  EXPECT_EQ(out.geometry.block_size, pool.geometry.block_size);
}

TEST(Messages, RegisterKeepsItsListsInPlace) {
  std::vector<std::uint64_t> keep;
  const std::vector<BlockId> a{4, 9, 2}, b{1, 2, 3};
  Register message;
  message.transfer = {11, 12};
  message.attempt = {1, 2};
  message.range = {16, 60};
  message.prompt_tokens = 61;
  message.num_groups = 2;
  message.block_ids[0] = a;
  message.block_ids[1] = b;
  message.num_grants = 1;
  message.grant = {{0, 0}, {8, 9}, 10, 11};
  message.deadline = std::chrono::milliseconds(500);
  message.counted = 3;
  const Message decoded = round_trip(message, keep);
  const Register& out = std::get<Register>(decoded);
  EXPECT_EQ(out.key(), message.key());
  EXPECT_EQ(out.range, message.range);
  EXPECT_EQ(out.prompt_tokens, 61U);
  ASSERT_EQ(out.num_groups, 2U);
  EXPECT_THAT(out.block_ids[0], ElementsAreArray(a));
  EXPECT_THAT(out.block_ids[1], ElementsAreArray(b));
  EXPECT_EQ(out.grant.credits, 11U);
  EXPECT_EQ(out.deadline, message.deadline);
  EXPECT_EQ(out.counted, 3U);
}

TEST(Messages, TheOthersKeepTheirFields) {
  std::vector<std::uint64_t> keep;
  const std::uint64_t hashes[] = {1, 2, 3};
  const auto final =
      std::get<Final>(round_trip(Final{kKey, 4, {0, 8}, 100, 5, TokenId{-3}, hashes}, keep));
  EXPECT_EQ(final.key, kKey);
  EXPECT_EQ(final.first_token, -3);
  EXPECT_THAT(final.hashes, ElementsAre(1, 2, 3));
  const Message stopped_message =
      round_trip(Stopped{kKey, Cause::kFabric, "why", true, 6, false, true}, keep);
  const auto& stopped = std::get<Stopped>(stopped_message);
  EXPECT_EQ(stopped.cause, Cause::kFabric);
  EXPECT_EQ(stopped.text, "why");
  EXPECT_TRUE(stopped.drained && !stopped.clean && stopped.again);
  const auto cancel = std::get<Cancel>(round_trip(Cancel{kKey, Cause::kDeadline, "x", true}, keep));
  EXPECT_EQ(cancel.cause, Cause::kDeadline);
  EXPECT_TRUE(cancel.keep);
  EXPECT_EQ(std::get<Credit>(round_trip(Credit{kKey, 9}, keep)).counted, 9U);
  EXPECT_EQ(
      std::get<RegisterState>(round_trip(RegisterState{kKey, StandingState::kWriting}, keep)).state,
      StandingState::kWriting);
  const TransferId ids[] = {{1, 2}, {3, 4}};
  const Message renew = round_trip(Renew{ids}, keep);
  EXPECT_THAT(std::get<Renew>(renew).transfers, ElementsAre(TransferId{1, 2}, TransferId{3, 4}));
  EXPECT_EQ(std::get<Ping>(round_trip(Ping{3, 4}, keep)).oldest_epoch, 4U);
  EXPECT_EQ(std::get<Pong>(round_trip(Pong{3}, keep)).token, 3U);
  EXPECT_EQ(std::get<Refuse>(round_trip(Refuse{"f", "a", "b", "t"}, keep)).theirs, "b");
  const std::vector<std::byte> offer(100, std::byte{7});
  EXPECT_EQ(std::get<Offer>(round_trip(Offer{offer}, keep)).offer.size(), 100U);
}

TEST(Messages, AnUnknownTypeIsSkipped) {
  const auto message = decode({static_cast<MessageType>(999), {}});
  ASSERT_TRUE(message);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(*message));
}

TEST(Messages, LongTextIsCutNotRefused) {
  std::vector<std::uint64_t> keep;
  const std::string text(5000, 'x');
  const Message message = round_trip(Stopped{kKey, Cause::kFabric, text}, keep);
  EXPECT_EQ(std::get<Stopped>(message).text.size(), kTextBytesMax);
}

// Whatever the bytes: an error or a message within limits, never a crash. The sanitizer build looks
// closer.
TEST(Messages, RandomAndDamagedBytesAreRefusedOrHarmless) {
  Rng rng(5);
  Encoder encoder;
  std::vector<BlockId> ids(50);
  Register good;
  good.transfer = {1, 2};
  good.range = {0, 200};
  good.num_groups = 1;
  good.block_ids[0] = ids;
  good.num_grants = 1;
  good.grant = {{0, 0}, {1, 1}, 1, 1};
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    const auto frame = encoder.encode(good);
    std::vector<std::uint64_t> memory((frame.size() - kHeaderBytes) / 8);
    std::memcpy(memory.data(), frame.data() + kHeaderBytes, memory.size() * 8);
    auto bytes = std::as_writable_bytes(std::span(memory));
    const std::uint64_t hits = 1 + rng.below(6);
    for (std::uint64_t i = 0; i < hits; ++i) {
      bytes[rng.below(bytes.size())] = static_cast<std::byte>(rng.next());
    }
    const auto type = static_cast<MessageType>(rng.chance(1, 2) ? 5 : 1 + rng.below(14));
    const auto cut = bytes.first(rng.chance(1, 4) ? rng.below(bytes.size() / 8) * 8 : bytes.size());
    const auto message = decode({type, cut});
    if (!message) continue;
    ++accepted;
    if (const auto* r = std::get_if<Register>(&*message)) {
      std::uint64_t sum = 0;
      for (std::size_t g = 0; g < r->num_groups; ++g) {
        for (const BlockId id : r->block_ids[g]) sum += id;
      }
      EXPECT_LE(sum, std::uint64_t{kBlockIdsMax} << 32);
    }
  }
  EXPECT_GT(accepted, 100);
}

// A vector that a peer moved by half an element: whatever is read in place is aligned, or refused.
TEST(Messages, ListsThatAreNotAlignedAreRefused) {
  const std::array<TransferId, 2> ids = {TransferId{1, 1}, TransferId{1, 1}};
  Encoder encoder;
  const auto frame = encoder.encode(Renew{ids});
  const std::size_t size = frame.size() - kHeaderBytes;
  int refused = 0;
  for (std::size_t at = 0; at + 4 <= size; at += 4) {
    std::vector<std::uint64_t> payload(size / 8);
    std::memcpy(payload.data(), frame.data() + kHeaderBytes, size);
    std::uint32_t word = 0;
    auto* bytes = reinterpret_cast<std::byte*>(payload.data());
    std::memcpy(&word, bytes + at, 4);
    word += 4;
    std::memcpy(bytes + at, &word, 4);
    const auto decoded = decode({MessageType::kRenew, std::as_bytes(std::span(payload))});
    if (decoded) {
      const auto* data = std::get<Renew>(*decoded).transfers.data();
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % alignof(TransferId), 0U);
    } else if (decoded.error().message.find("not aligned") != std::string::npos) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
}

TEST(Messages, LimitsNameTheFieldAndTheValue) {
  Encoder encoder;
  Hello hello;
  hello.from = {"", 1};
  const auto frame = encoder.encode(hello);
  const auto message = decode({MessageType::kHello, frame.subspan(kHeaderBytes)});
  ASSERT_FALSE(message);
  EXPECT_THAT(message.error().message, HasSubstr("Hello: engine_id is 0, at least 1 is needed"));
}

}  // namespace
}  // namespace baton::wire
