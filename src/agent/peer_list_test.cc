#include "agent/peer_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

PeerList list(std::vector<std::string> entries, bool insecure = false) {
  Security security;
  security.allowed_peers = std::move(entries);
  security.insecure = insecure;
  auto made = PeerList::parse(security);
  EXPECT_TRUE(made) << made.error().message;
  return made ? *made : PeerList();
}

bool allows(const PeerList& peers, const std::string& host, std::uint16_t port = 5600) {
  return static_cast<bool>(peers.check({host, port, "prefill-1", 0}));
}

TEST(PeerList, WithoutEntriesThisHostOnly) {
  const PeerList none = list({});
  for (const char* host : {"127.0.0.1", "127.8.9.1", "localhost", "::1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(allows(none, host)) << host;
  }
  for (const char* host : {"10.0.0.1", "169.254.169.254", "0.0.0.0", "*", "", "::", "fe80::1",
                           "metadata.internal", "::ffff:10.0.0.1", "127.0.0.1.example"}) {
    EXPECT_FALSE(allows(none, host)) << host;
  }
  EXPECT_TRUE(allows(list({}, true), "10.0.0.1"));
}

TEST(PeerList, EntriesReplaceTheDefault) {
  const PeerList peers = list({"10.1.0.0/16", "10.2.0.7:5601", "[2001:db8::]/32", "[2001:db9::1]:7",
                               "P1.Pool", "p2.pool:9", "2001:dba::1"});
  EXPECT_TRUE(allows(peers, "10.1.255.3"));
  EXPECT_TRUE(allows(peers, "::ffff:10.1.255.3"));
  EXPECT_FALSE(allows(peers, "10.2.0.3"));
  EXPECT_TRUE(allows(peers, "10.2.0.7", 5601));
  EXPECT_FALSE(allows(peers, "10.2.0.7", 5600));
  EXPECT_TRUE(allows(peers, "2001:db8:1::9"));
  EXPECT_TRUE(allows(peers, "2001:db9::1", 7));
  EXPECT_FALSE(allows(peers, "2001:db9::1", 8));
  EXPECT_TRUE(allows(peers, "2001:dba::1"));
  EXPECT_TRUE(allows(peers, "p1.pool"));
  EXPECT_FALSE(allows(peers, "p1.pool.example"));
  EXPECT_TRUE(allows(peers, "P2.POOL", 9));
  EXPECT_FALSE(allows(peers, "p2.pool", 10));
  EXPECT_FALSE(allows(peers, "127.0.0.1"));
  EXPECT_FALSE(allows(list({"10.0.0.1"}, true), "10.0.0.2"));
  EXPECT_TRUE(allows(list({"0.0.0.0/0"}), "192.0.2.1"));
  EXPECT_FALSE(allows(list({"0.0.0.0/0"}), "2001:db8::1"));
}

TEST(PeerList, ARefusalNamesAddressAndEntries) {
  const auto refused = list({"10.1.0.0/16", "p1"}).check({"169.254.169.254", 80, "prefill-1", 0});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message,
              AllOf(HasSubstr("169.254.169.254:80"), HasSubstr("10.1.0.0/16, p1")));
  EXPECT_THAT(list({}).check({"10.0.0.1", 80, "prefill-1", 0}).error().message,
              HasSubstr("this host only"));
}

TEST(PeerList, BadEntriesAreNamed) {
  for (const char* entry : {"", ":5600", "host:", "host:0", "host:65536", "host:x", "10.0.0.0/33",
                            "10.0.0.0/x", "[::1", "[::]/129", "host/8", "10.0.0.1/"}) {
    Security security;
    security.allowed_peers = {entry};
    const auto made = PeerList::parse(security);
    ASSERT_FALSE(made) << entry;
    EXPECT_THAT(made.error().message, HasSubstr(std::string("'") + entry + "'"));
  }
}

}  // namespace
}  // namespace baton
