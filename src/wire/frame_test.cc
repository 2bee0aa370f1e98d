#include "wire/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/random.h"

namespace baton::wire {
namespace {

using ::testing::HasSubstr;

std::vector<std::byte> make_frame(MessageType type, std::size_t bytes, std::byte fill) {
  std::vector<std::byte> frame(kHeaderBytes + bytes, fill);
  write_header(std::span(frame).first(kHeaderBytes), type, std::span(frame).subspan(kHeaderBytes));
  return frame;
}

void feed(FrameReader& reader, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto room = reader.prepare();
    const std::size_t n = std::min(room.size(), bytes.size());
    std::memcpy(room.data(), bytes.data(), n);
    reader.commit(n);
    bytes = bytes.subspan(n);
  }
}

TEST(Frame, SurvivesAnyCutOfTheStream) {
  std::vector<std::byte> stream;
  for (int i = 0; i < 20; ++i) {
    const auto frame =
        make_frame(MessageType::kPing, static_cast<std::size_t>(i) * 8, static_cast<std::byte>(i));
    stream.insert(stream.end(), frame.begin(), frame.end());
  }
  Rng rng(3);
  for (int round = 0; round < 50; ++round) {
    FrameReader reader;
    std::size_t at = 0;
    int frames = 0;
    while (at < stream.size()) {
      const std::size_t n = std::min<std::size_t>(1 + rng.below(300), stream.size() - at);
      feed(reader, std::span(stream).subspan(at, n));
      at += n;
      for (auto frame = reader.next(); frame && *frame; frame = reader.next()) {
        EXPECT_EQ((*frame)->payload.size(), static_cast<std::size_t>(frames) * 8);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>((*frame)->payload.data()) % 8, 0U);
        for (const std::byte b : (*frame)->payload) EXPECT_EQ(b, static_cast<std::byte>(frames));
        ++frames;
      }
    }
    EXPECT_EQ(frames, 20);
  }
}

TEST(Frame, ALargeFrameArrivesWhole) {
  FrameReader reader(kFrameBytesMax);
  feed(reader, make_frame(MessageType::kRegister, 3 << 20, std::byte{9}));
  const auto frame = reader.next();
  ASSERT_TRUE(frame && *frame);
  EXPECT_EQ((*frame)->payload.size(), std::size_t{3} << 20);
}

std::string refusal(std::vector<std::byte> bytes) {
  FrameReader reader;
  feed(reader, bytes);
  const auto frame = reader.next();
  return frame ? "accepted" : frame.error().message;
}

TEST(Frame, RefusesWhatIsNoFrame) {
  auto good = make_frame(MessageType::kPing, 16, std::byte{1});
  EXPECT_EQ(refusal(good), "accepted");
  auto bytes = good;
  bytes[0] = std::byte{'X'};
  EXPECT_THAT(refusal(bytes), HasSubstr("magic"));
  bytes = good;
  bytes[4] = std::byte{9};
  EXPECT_THAT(refusal(bytes), HasSubstr("version is 9, expected 1"));
  bytes = good;
  bytes[8] = std::byte{17};
  EXPECT_THAT(refusal(bytes), HasSubstr("length is 17"));
  bytes = good;
  bytes[11] = std::byte{0x70};
  EXPECT_THAT(refusal(bytes), HasSubstr("at most"));
  bytes = good;
  bytes[30] = std::byte{2};
  EXPECT_THAT(refusal(bytes), HasSubstr("checksum"));
  bytes = good;
  bytes[6] = std::byte{2};  // another type: the checksum covers it
  EXPECT_THAT(refusal(bytes), HasSubstr("checksum"));
}

TEST(Frame, MemoryGrowsWithWhatCameNotWithWhatAHeaderPromises) {
  FrameReader reader(kFrameBytesMax);
  auto frame = make_frame(MessageType::kRegister, 4 << 10, std::byte{0});
  const std::uint32_t promised = 3 << 20;
  std::memcpy(frame.data() + 8, &promised, 4);
  feed(reader, frame);
  EXPECT_FALSE(reader.next()->has_value());
  EXPECT_LT(reader.prepare().size(), std::size_t{256} << 10);
}

}  // namespace
}  // namespace baton::wire
