#include "agent/gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

tcp::Address at(const std::string& host) {
  return *tcp::parse_numeric(host, 1234);
}

GateOptions small() {
  GateOptions options;
  options.per_second = 10;
  options.burst = 20;
  options.address_per_second = 2;
  options.address_burst = 5;
  options.address_connections_max = 7;
  return options;
}

TEST(Gate, AnAddressHasItsBurstAndThenItsRate) {
  Gate gate(small());
  const Time start = Time{} + 1h;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(gate.enter(at("10.0.0.1"), start), "");
  EXPECT_THAT(gate.enter(at("10.0.0.1"), start), HasSubstr("more than 2 connections a second"));
  EXPECT_EQ(gate.enter(at("10.0.0.2"), start), "");  // another one is not disturbed
  EXPECT_EQ(gate.enter(at("10.0.0.1"), start + 500ms), "");
  EXPECT_NE(gate.enter(at("10.0.0.1"), start + 500ms), "");
}

TEST(Gate, ConnectionsThatStandAreCounted) {
  Gate gate(small());
  Time now = Time{} + 1h;
  for (int i = 0; i < 7; ++i) EXPECT_EQ(gate.enter(at("10.0.0.1"), now += 1s), "");
  EXPECT_THAT(gate.enter(at("10.0.0.1"), now += 1s), HasSubstr("7 connections stand"));
  gate.leave(at("10.0.0.1"));
  EXPECT_EQ(gate.enter(at("10.0.0.1"), now += 1s), "");
}

TEST(Gate, AllTogetherHaveABoundAsWell) {
  Gate gate(small());
  const Time now = Time{} + 1h;
  int let_in = 0;
  for (int i = 0; i < 100; ++i) {
    if (gate.enter(at("10.0.1." + std::to_string(i)), now).empty()) ++let_in;
  }
  EXPECT_EQ(let_in, 20);
}

TEST(Gate, OneNetworkOfIpv6AndMappedAddressesAreOneCaller) {
  Gate gate(small());
  const Time now = Time{} + 1h;
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(gate.enter(at("2001:db8::" + std::to_string(i + 1)), now), "");
  }
  EXPECT_NE(gate.enter(at("2001:db8::ffff:1"), now), "");
  EXPECT_EQ(gate.enter(at("2001:db8:0:1::1"), now), "");
  // Through a dual-stack socket, addresses of IPv4 are callers of their own, not one /64.
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(gate.enter(at(i % 2 == 0 ? "10.0.0.1" : "::ffff:10.0.0.1"), now), "");
  }
  EXPECT_NE(gate.enter(at("::ffff:10.0.0.1"), now), "");
  EXPECT_EQ(gate.enter(at("::ffff:10.0.0.2"), now), "");
}

TEST(Gate, ThisHostIsSparedByAddress) {
  Gate gate(small());
  const Time now = Time{} + 1h;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(gate.enter(at(i % 2 == 0 ? "127.0.0.1" : "::1"), now), "");
  }
  EXPECT_NE(gate.enter(at("127.0.0.1"), now), "");  // the bound of all
}

TEST(Gate, RemembersABoundedNumberOfAddresses) {
  GateOptions options = small();
  options.per_second = options.burst = 1'000'000;
  Gate gate(options);
  const Time now = Time{} + 1h;
  // One that stands, through a crowd of others.
  for (int i = 0; i < 5; ++i) EXPECT_EQ(gate.enter(at("10.0.0.1"), now), "");
  for (int i = 0; i < 20'000; ++i) {
    const auto from = at("172.16." + std::to_string(i / 250) + "." + std::to_string(i % 250));
    ASSERT_EQ(gate.enter(from, now), "");
    gate.leave(from);
  }
  EXPECT_LE(gate.addresses(), 4096U);
  EXPECT_NE(gate.enter(at("10.0.0.1"), now), "");
}

}  // namespace
}  // namespace baton
