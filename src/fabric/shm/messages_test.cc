#include "fabric/shm/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"

namespace baton::fabric::shm {
namespace {

using ::testing::HasSubstr;

Offer some_offer() {
  Offer offer;
  offer.access = Access::kRead;
  offer.socket.fill('c');
  offer.token.fill(std::byte{7});
  return offer;
}

TEST(Offer, RoundTripsAndRefusesWhatIsNotExactlyOne) {
  const auto bytes = encode(some_offer());
  const auto decoded = decode_offer(bytes);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->access, Access::kRead);
  EXPECT_EQ(decoded->socket, some_offer().socket);
  EXPECT_EQ(decoded->token, some_offer().token);
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_FALSE(decode_offer(std::span(bytes).first(n))) << n;
  }
  auto changed = bytes;
  changed.push_back(std::byte{0});
  EXPECT_FALSE(decode_offer(changed));
  changed = bytes;
  changed[4] = std::byte{9};
  EXPECT_THAT(decode_offer(changed).error().message, HasSubstr("version 9, expected 2"));
  changed = bytes;
  changed[12] = std::byte{3};
  EXPECT_THAT(decode_offer(changed).error().message, HasSubstr("access is 3, expected 1 (writes)"));
  changed = bytes;
  changed[16] = std::byte{'/'};
  EXPECT_THAT(decode_offer(changed).error().message, HasSubstr("not a hex digit"));
}

TEST(Hello, IsNoOffer) {
  EXPECT_EQ(decode_hello(encode(Hello{Access::kRead, {}}))->access, Access::kRead);
  EXPECT_EQ(decode_hello(encode(Hello{Access::kWrite, {}}))->access, Access::kWrite);
  EXPECT_FALSE(decode_hello(encode(some_offer())));
}

TEST(Welcome, RoundTripsAndCountsItsRegions) {
  const Welcome welcome{{{4096, 0, 0, 0}, {512, 1 << 20, kNoMemfd, 0}}};
  auto bytes = encode(welcome);
  EXPECT_LE(bytes.size(), welcome_bytes_max(2));
  const auto decoded = decode_welcome(bytes);
  ASSERT_TRUE(decoded);
  ASSERT_EQ(decoded->regions.size(), 2U);
  EXPECT_EQ(decoded->regions[1].place, 1U << 20);
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_FALSE(decode_welcome(std::span(bytes).first(n))) << n;
  }
  bytes[8] = std::byte{0xFF};
  bytes[11] = std::byte{0xFF};
  EXPECT_THAT(decode_welcome(bytes).error().message, HasSubstr("regions"));
}

TEST(Welcome, ARefusalIsShownShortAndPrintable) {
  const auto refusal = [](std::string_view reason) {
    return decode_welcome(encode_refusal(reason)).error().message;
  };
  EXPECT_EQ(refusal("no offer has this token"), "the peer refused: no offer has this token");
  EXPECT_EQ(refusal("a\x1b[31mb\n"), "the peer refused: a?[31mb?");
  EXPECT_LT(refusal(std::string(100000, 'x')).size(), 400U);
}

TEST(Decoders, SurviveRandomBytes) {
  Rng rng(5);
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> bytes =
        i % 2 == 0 ? encode(Welcome{{{1, 2, 3, 0}}}) : encode(some_offer());
    for (std::uint64_t flips = rng.below(8) + 1; flips > 0; --flips) {
      bytes[rng.below(bytes.size())] = static_cast<std::byte>(rng.next());
    }
    bytes.resize(rng.below(bytes.size() + 1));
    (void)decode_offer(bytes);
    (void)decode_hello(bytes);
    (void)decode_welcome(bytes);
  }
}

}  // namespace
}  // namespace baton::fabric::shm
