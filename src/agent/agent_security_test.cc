// Agents with keys, without, and with the wrong ones: who hands over to whom, what both sides are
// told, and where an agent listens and connects to at all [I10].
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>

#include <thread>

#include "agent/testing/instance.h"
#include "agent/testing/pool_keys.h"
#include "agent/testing/raw_peer.h"
#include "agent/testing/secure_peer.h"

namespace baton {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Instance;
using testing::options_of;
using testing::PoolKeys;
using testing::RawPeer;
using testing::SecurePeer;

AgentOptions with(AgentOptions options, const Security& security) {
  options.security = security;
  return options;
}

class SecurityTest : public ::testing::Test {
 protected:
  AgentOptions prefill(const Security& security) const {
    return with(options_of("prefill-1", Role::kProducer), security);
  }
  AgentOptions decode(const Security& security, const std::string& id = "decode-1") const {
    return with(options_of(id, Role::kConsumer), security);
  }
  Security psk() const { return keys_.psk(PoolKeys::psk_line("pool-1", 1)); }

  // One hand-over, to the last byte.
  static void expect_pass(Instance& p, Instance& d, std::uint64_t seed = 3) {
    d.keep_decoded_blocks(true);
    const auto t = TransferId::random();
    ASSERT_TRUE(p.ready(t, seed, 40));
    ASSERT_TRUE(d.register_blocks(t, p.address(), 40));
    ASSERT_TRUE(d.wait_end(t, Side::kDecode));
    const Event end = d.ends(t, Side::kDecode).at(0);
    EXPECT_EQ(end.outcome, Outcome::kDone) << end.text;
    EXPECT_EQ(d.difference(seed, 0, d.registered_blocks(t)), "");
    d.release_decoded(t);
    ASSERT_TRUE(p.wait_end(t, Side::kPrefill));
  }
  // What D's engine is told of a hand-over that ends before it began.
  static std::string refusal(Instance& p, Instance& d) {
    const auto t = TransferId::random();
    EXPECT_TRUE(d.register_blocks(t, p.address(), 40));
    EXPECT_TRUE(d.wait_end(t, Side::kDecode));
    const Event end = d.ends(t, Side::kDecode).at(0);
    EXPECT_EQ(end.outcome, Outcome::kFailed);
    EXPECT_EQ(end.cause, Cause::kRefused) << end.text;
    EXPECT_TRUE(end.blocks_released);
    return end.text;
  }
  static bool counted(Instance& instance, std::uint64_t least) {
    return instance.wait_until(
        [&] { return instance.agent().metrics().unauthenticated_peers.value() >= least; });
  }

  const PoolKeys keys_;
};

TEST_F(SecurityTest, CertificatesOnBothSides) {
  Instance p(prefill(keys_.certificate("prefill-1")));
  Instance d(decode(keys_.certificate("decode-1")));
  expect_pass(p, d);
  EXPECT_EQ(p.agent().metrics().unauthenticated_peers.value(), 0U);
}

TEST_F(SecurityTest, ASharedKey) {
  Instance p(prefill(psk()));
  Instance d(decode(psk()));
  expect_pass(p, d);
  EXPECT_EQ(p.agent().metrics().unauthenticated_peers.value(), 0U);
}

TEST_F(SecurityTest, APlainDecodeInstanceIsRefusedByASecureOne) {
  Instance p(prefill(psk()));
  Instance d(decode({}));
  EXPECT_THAT(refusal(p, d),
              AllOf(HasSubstr("TLS 1.3"), HasSubstr("plain"), HasSubstr("prefill-1")));
  EXPECT_TRUE(counted(p, 1));
  Instance good(decode(psk(), "decode-2"));
  expect_pass(p, good);
}

TEST_F(SecurityTest, ASecureDecodeInstanceIsRefusedByAPlainOne) {
  Instance p(prefill({}));
  Instance d(decode(psk()));
  EXPECT_THAT(refusal(p, d), HasSubstr("answers without TLS"));
  EXPECT_TRUE(counted(d, 1));
  EXPECT_TRUE(p.wait_until([&] { return p.agent().metrics().refused_messages.value() > 0; }));
  Instance good(decode({}, "decode-2"));
  expect_pass(p, good);
}

TEST_F(SecurityTest, AnotherPoolsKeysAreRefusedOnBothSides) {
  const PoolKeys foreign;
  Instance p(prefill(keys_.certificate("prefill-1")));
  Instance d(decode(foreign.signed_here_trusting(keys_, "decode-1")));
  EXPECT_THAT(refusal(p, d), HasSubstr("the peer refuses us: unknown CA"));
  EXPECT_TRUE(counted(p, 1));
  EXPECT_TRUE(counted(d, 1));
  Instance other(decode(foreign.certificate("decode-1"), "decode-1"));
  EXPECT_THAT(refusal(p, other), HasSubstr("certificate for prefill-1: self-signed"));
  Instance key(decode(psk()));
  EXPECT_THAT(refusal(p, key), HasSubstr("TLS: "));
  Instance good(decode(keys_.certificate("decode-2"), "decode-2"));
  expect_pass(p, good);
}

TEST_F(SecurityTest, AnotherKeyIsRefusedOnBothSides) {
  Instance p(prefill(psk()));
  Instance d(decode(keys_.psk(PoolKeys::psk_line("pool-1", 2))));
  EXPECT_THAT(refusal(p, d), HasSubstr("the peer refuses us"));
  EXPECT_TRUE(counted(p, 1));
  EXPECT_TRUE(counted(d, 1));
}

// A certificate of the pool does not let its holder take the name of another instance.
TEST_F(SecurityTest, ADecodeInstanceUnderAnothersNameIsRefused) {
  Instance p(prefill(keys_.certificate("prefill-1")));
  const auto context = *tls::Context::create(keys_.certificate("thief"), "thief");
  auto fd = tcp::start_connect(*tcp::parse("127.0.0.1", p.address().port));
  ASSERT_TRUE(fd);
  SecurePeer thief(std::move(*fd), context, tls::Side::kDial);
  ASSERT_TRUE(thief.shake_hands()) << thief.session().why();
  ASSERT_TRUE(thief.say(RawPeer(p.address()).hello(p.geometry())));  // says "decode-raw"
  std::string text;
  EXPECT_TRUE(thief.hear<wire::Refuse>([&](const wire::Refuse& refuse) { text = refuse.text; }));
  EXPECT_THAT(text, AllOf(HasSubstr("'decode-raw'"), HasSubstr("certificate is for thief")));
  EXPECT_TRUE(counted(p, 1));
}

TEST_F(SecurityTest, APrefillInstanceUnderAnothersNameIsRefused) {
  Instance d(decode(keys_.certificate("decode-1")));
  Instance model(prefill(keys_.certificate("prefill-1")));  // for its geometry
  const auto context = *tls::Context::create(keys_.certificate("thief"), "thief");
  UniqueFd listener = std::move(*tcp::listen(*tcp::parse("127.0.0.1", 0)));
  PeerAddress at = model.address();
  at.port = tcp::local_address(listener.get()).port();
  at.incarnation = 0;
  const auto t = TransferId::random();
  ASSERT_TRUE(d.register_blocks(t, at, 40));
  pollfd state{listener.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&state, 1, 10'000), 1);
  tcp::Address from;
  int error = 0;
  SecurePeer thief(tcp::accept(listener.get(), from, error), context, tls::Side::kAccept);
  ASSERT_TRUE(thief.shake_hands()) << thief.session().why();
  ASSERT_TRUE(thief.hear<wire::Hello>([&](const wire::Hello& hello) {
    wire::HelloAck ack;
    static_cast<wire::Hello&>(ack) = hello;
    ack.from = {"prefill-1", 99};
    ack.role = Role::kProducer;
    EXPECT_TRUE(thief.say(ack));
  }));
  ASSERT_TRUE(d.wait_end(t, Side::kDecode));
  const Event end = d.ends(t, Side::kDecode).at(0);
  EXPECT_EQ(end.cause, Cause::kRefused);
  EXPECT_THAT(end.text, AllOf(HasSubstr("'prefill-1'"), HasSubstr("certificate is for thief")));
  // No offer, which is the way into D's memory, has left.
  EXPECT_FALSE(thief.hear<wire::Offer>([](const wire::Offer&) {}));
  EXPECT_TRUE(counted(d, 1));
}

TEST_F(SecurityTest, StrangersOfAllKindsLeaveAGoodPeerItsTransfers) {
  Instance p(prefill(psk()));
  Instance d(decode(psk()));
  expect_pass(p, d, 1);
  std::vector<std::unique_ptr<RawPeer>> crowd;
  const std::vector<std::byte> hello{std::byte{0x16}, std::byte{3}, std::byte{1}, std::byte{2}};
  const std::vector<std::byte> noise(3000, std::byte{0x16});
  for (std::uint64_t round = 0; round < 20; ++round) {
    for (int i = 0; i < 6; ++i) {
      crowd.push_back(std::make_unique<RawPeer>(p.address()));
      if (i % 3 == 1) crowd.back()->write(hello);
      if (i % 3 == 2) crowd.back()->write(noise);
    }
    expect_pass(p, d, round);
  }
  EXPECT_TRUE(counted(p, 40));  // the noise of each round
}

// ---- where an agent listens ----

std::string created(const AgentOptions& options) {
  static Instance geometry(options_of("geometry", Role::kBoth));
  const auto agent = Agent::create(options, geometry.geometry());
  return agent ? "created" : agent.error().message;
}

TEST_F(SecurityTest, OtherHostsAreListenedToWithKeysOnly) {
  AgentOptions options = prefill({});
  for (const char* host : {"0.0.0.0", "", "*", "::"}) {
    options.host = host;
    EXPECT_THAT(created(options),
                AllOf(HasSubstr("can be reached by other hosts"), HasSubstr("insecure")))
        << host;
  }
  options.host = "localhost";
  EXPECT_EQ(created(options), "created");
  options.host = "0.0.0.0";
  options.security = psk();
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(created(options), "created");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::Not(HasSubstr("warning")));
}

// An interface of this host that other hosts can reach, or nothing.
std::string routable_interface() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    const bool up = (one->ifa_flags & IFF_UP) != 0 && (one->ifa_flags & IFF_LOOPBACK) == 0;
    if (up && one->ifa_addr != nullptr && one->ifa_addr->sa_family == AF_INET) return one->ifa_name;
  }
  return {};
}

// The control channel on loopback says nothing of where the bytes come in.
TEST_F(SecurityTest, OtherHostsReachTheFabricsEndpointsWithKeysOnly) {
  AgentOptions options = prefill({});
  std::vector<std::string> addresses = {"192.0.2.1", "2001:db8::1"};
  if (const auto name = routable_interface(); !name.empty()) addresses.push_back(name);
  for (const char* fabric : {"libfabric", "auto"}) {
    options.fabric = fabric;
    for (const std::string& address : addresses) {
      options.fabric_address = address;
      EXPECT_THAT(created(options),
                  AllOf(HasSubstr("fabric address '" + address + "'"),
                        HasSubstr("can be reached by other hosts"), HasSubstr("insecure")));
    }
    for (const char* address : {"127.0.0.1", "lo", "localhost", ""}) {
      options.fabric_address = address;
      EXPECT_EQ(created(options), "created") << address;
    }
  }
  options.fabric = "libfabric";
  options.fabric_provider = "efa";  // a device of a network, whatever it is called
  options.fabric_address = "rdmap0s31";
  EXPECT_THAT(created(options), HasSubstr("fabric address 'rdmap0s31' (provider efa)"));
  options.fabric_address.clear();  // no host is a device: the provider chooses one
  EXPECT_THAT(created(options), HasSubstr("fabric address '' (provider efa)"));
  options.fabric = "shm";  // opens nothing there
  EXPECT_EQ(created(options), "created");
}

TEST_F(SecurityTest, KeysOpenTheFabricToOtherHostsAndInsecureIsWarnedAbout) {
  std::string name = routable_interface();
  if (name.empty()) name = "0.0.0.0";  // a host that has loopback alone
  AgentOptions options = prefill(psk());
  options.fabric_address = name;
  EXPECT_EQ(created(options), "created");
  options.security = {};
  options.security.insecure = true;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(created(options), "created");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("endpoints on '" + name + "'"), HasSubstr("not authenticated")));
}

TEST_F(SecurityTest, AFaultOnPurposeStaysOnThisHost) {
  ::setenv("BATON_FAULT", "flip_byte", 1);
  AgentOptions options = prefill(psk());
  EXPECT_EQ(created(options), "created");
  options.host = "0.0.0.0";
  const std::string refusal = created(options);
  options.host = "127.0.0.1";
  options.fabric_address = "192.0.2.1";
  const std::string refusal_of_endpoints = created(options);
  ::unsetenv("BATON_FAULT");
  EXPECT_THAT(refusal_of_endpoints, AllOf(HasSubstr("BATON_FAULT is 'flip_byte'"),
                                          HasSubstr("fabric address is '192.0.2.1'")));
  EXPECT_THAT(refusal,
              AllOf(HasSubstr("BATON_FAULT is 'flip_byte'"), HasSubstr("host is '0.0.0.0'")));
}

TEST_F(SecurityTest, InsecureIsTakenAtItsWordAndWarnedAbout) {
  AgentOptions options = prefill({});
  options.host = "0.0.0.0";
  options.security.insecure = true;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(created(options), "created");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("0.0.0.0"), HasSubstr("not authenticated"),
                    HasSubstr("whoever connects can read and write KV blocks")));
  options.host = "127.0.0.1";
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(created(options), "created");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::Not(HasSubstr("not authenticated")));
}

TEST_F(SecurityTest, BadKeysAndPeersAreNamedAtTheStart) {
  AgentOptions options = prefill({});
  options.security.psk_file = "/nowhere/keys";
  EXPECT_THAT(created(options), HasSubstr("/nowhere/keys"));
  options.security = keys_.certificate("prefill-2");
  EXPECT_THAT(created(options), HasSubstr("engine_id is 'prefill-1'"));
  options.security = {};
  options.security.allowed_peers = {"10.0.0.0/40"};
  EXPECT_THAT(created(options), HasSubstr("10.0.0.0/40"));
}

// ---- where an agent connects to ----

// A client that reaches D's own API may name any peer. D connects to those that it was given.
TEST_F(SecurityTest, B51_APeerThatIsNotAllowedIsNeverConnectedTo) {
  UniqueFd listener = std::move(*tcp::listen(*tcp::parse("127.0.0.1", 0)));
  PeerAddress trap{"127.0.0.1", tcp::local_address(listener.get()).port(), "prefill-1", 0};
  Instance p(prefill({}));
  Security security;
  security.allowed_peers = {"127.0.0.1:" + std::to_string(p.address().port)};
  Instance d(decode(security));
  for (const char* host : {"127.0.0.1", "localhost", "169.254.169.254", "metadata.internal"}) {
    trap.host = host;
    const auto claimed = d.agent().claim(TransferId::random(), trap);
    ASSERT_FALSE(claimed);
    EXPECT_EQ(claimed.error().code, Errc::kInvalidArgument);  // 400 at the server
    EXPECT_THAT(claimed.error().message, AllOf(HasSubstr(host), HasSubstr("allowed peers")));
    EXPECT_FALSE(d.register_blocks(TransferId::random(), trap, 40));
  }
  expect_pass(p, d);
  pollfd state{listener.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&state, 1, 100), 0);
}

TEST_F(SecurityTest, B51_WithoutAListOnlyThisHostIsConnectedTo) {
  Instance d(decode({}));
  const auto claimed =
      d.agent().claim(TransferId::random(), {"169.254.169.254", 80, "prefill-1", 0});
  ASSERT_FALSE(claimed);
  EXPECT_THAT(claimed.error().message, HasSubstr("this host only"));
}

}  // namespace
}  // namespace baton
