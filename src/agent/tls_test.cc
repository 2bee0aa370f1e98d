// TLS 1.3 between two sessions over a socket pair: who is let in, who is not, and what both are
// told.
#include "agent/tls.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstring>

#include "agent/psk_file.h"
#include "agent/testing/pool_keys.h"
#include "base/unique_fd.h"

namespace baton::tls {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::PoolKeys;

std::shared_ptr<const Context> context(const Security& security, const std::string& engine_id) {
  auto made = Context::create(security, engine_id);
  EXPECT_TRUE(made) << made.error().message;
  return made ? *made : nullptr;
}

std::string problem(const Security& security, const std::string& engine_id = "prefill-1") {
  const auto made = Context::create(security, engine_id);
  return made ? "created" : made.error().message;
}

class Pair {
 public:
  Pair(std::shared_ptr<const Context> dials, std::shared_ptr<const Context> listens) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
    fds_[0].reset(ends[0]);
    fds_[1].reset(ends[1]);
    dialer = std::make_unique<Session>(std::move(dials), ends[0], Side::kDial);
    listener = std::make_unique<Session>(std::move(listens), ends[1], Side::kAccept);
  }
  // Steps both until neither wants more of the other.
  void shake() {
    for (int i = 0; i < 10; ++i) {
      if (dialed != Io::kDone && dialed != Io::kFailed) dialed = dialer->handshake();
      if (accepted != Io::kDone && accepted != Io::kFailed) accepted = listener->handshake();
    }
  }
  // What the dialer hears first, as an alert comes after its handshake.
  Io dialer_reads() {
    std::array<std::byte, 16> bytes{};
    std::size_t count = 0;
    return dialer->read(bytes, count);
  }
  bool passes(const std::string& text) {
    std::size_t count = 0;
    if (dialer->write(std::as_bytes(std::span(text)), count) != Io::kDone) return false;
    std::string got(text.size(), '\0');
    return listener->read(std::as_writable_bytes(std::span(got)), count) == Io::kDone &&
           got == text;
  }
  int listener_fd() const { return fds_[1].get(); }
  int dialer_fd() const { return fds_[0].get(); }

  std::unique_ptr<Session> dialer, listener;
  Io dialed = Io::kWantRead, accepted = Io::kWantRead;

 private:
  std::array<UniqueFd, 2> fds_;
};

TEST(Tls, CertificatesOfOnePoolMeet) {
  const PoolKeys keys;
  Pair pair(context(keys.certificate("decode-1"), "decode-1"),
            context(keys.certificate("prefill-1"), "prefill-1"));
  pair.shake();
  ASSERT_EQ(pair.dialed, Io::kDone) << pair.dialer->why();
  ASSERT_EQ(pair.accepted, Io::kDone) << pair.listener->why();
  EXPECT_TRUE(pair.passes("baton"));
  EXPECT_TRUE(pair.dialer->may_be("prefill-1"));
  EXPECT_FALSE(pair.dialer->may_be("prefill-2"));
  EXPECT_TRUE(pair.listener->may_be("decode-1"));
  EXPECT_FALSE(pair.listener->may_be("decode"));
  EXPECT_EQ(pair.listener->peer_names(), "decode-1");
}

// Two engine ids that are one host name to a browser are two engines here.
TEST(Tls, ACertificateNamesItsEngineByteForByte) {
  const PoolKeys keys;
  for (const auto& [name, engine_id] : {std::pair{"*.pool", "d.pool"},
                                        {"*", "d"},
                                        {"decode-1", "Decode-1"},
                                        {"DECODE", "decode"},
                                        {"a.pool", ".pool"},
                                        {"d.pool.", "d.pool"}}) {
    EXPECT_THAT(problem(keys.certificate(std::string(name)), engine_id),
                HasSubstr(std::string("it is for ") + name + ", and engine_id is '" + engine_id))
        << name;
  }
  for (const char* name : {"*.pool", "d.pool", "Decode-1"}) {
    EXPECT_EQ(problem(keys.certificate(std::string(name)), name), "created");
  }
  Pair pair(context(keys.certificate("d"), "d"), context(keys.certificate("*.pool"), "*.pool"));
  pair.shake();
  ASSERT_EQ(pair.dialed, Io::kDone) << pair.dialer->why();
  EXPECT_FALSE(pair.dialer->may_be("p.pool"));
  EXPECT_TRUE(pair.dialer->may_be("*.pool"));
}

TEST(Tls, TheCommonNameCountsWhereThereIsNoOtherAndByteForByte) {
  const PoolKeys keys;
  EXPECT_EQ(problem(keys.certificate(PoolKeys::Wish{}), "instance"), "created");
  EXPECT_THAT(problem(keys.certificate(PoolKeys::Wish{}), "Instance"), HasSubstr("it is for"));
  EXPECT_THAT(problem(keys.certificate(PoolKeys::Wish{.names = {"p"}}), "instance"),
              HasSubstr("it is for p"));
}

TEST(Tls, ASharedKeyMeetsItself) {
  const PoolKeys keys;
  const auto line = PoolKeys::psk_line("pool-1", 1);
  Pair pair(context(keys.psk(line), "d"), context(keys.psk("# ours\n\n" + line), "p"));
  pair.shake();
  ASSERT_EQ(pair.dialed, Io::kDone) << pair.dialer->why();
  ASSERT_EQ(pair.accepted, Io::kDone) << pair.listener->why();
  EXPECT_TRUE(pair.passes("baton"));
  EXPECT_TRUE(pair.listener->may_be("anybody"));
}

TEST(Tls, KeysAreRotatedByTakingBothForAWhile) {
  const PoolKeys keys;
  const auto old_key = PoolKeys::psk_line("old", 1);
  const auto new_key = PoolKeys::psk_line("new", 2);
  for (const auto& [dials, listens] : {std::pair{old_key + new_key, new_key + old_key},
                                       {new_key + old_key, old_key + new_key},
                                       {new_key, old_key + new_key}}) {
    Pair pair(context(keys.psk(dials), "d"), context(keys.psk(listens), "p"));
    pair.shake();
    EXPECT_EQ(pair.dialed, Io::kDone) << pair.dialer->why();
    EXPECT_EQ(pair.accepted, Io::kDone) << pair.listener->why();
  }
}

TEST(Tls, AnUnknownKeyIdentityIsRefused) {
  const PoolKeys keys;
  Pair pair(context(keys.psk(PoolKeys::psk_line("other", 1)), "d"),
            context(keys.psk(PoolKeys::psk_line("pool-1", 1)), "p"));
  pair.shake();
  EXPECT_EQ(pair.accepted, Io::kFailed);
  EXPECT_THAT(pair.listener->why(), HasSubstr("key identity"));
  EXPECT_EQ(pair.dialed, Io::kFailed);
  EXPECT_THAT(pair.dialer->why(), HasSubstr("the peer refuses us"));
}

TEST(Tls, AnotherKeyUnderTheSameNameIsRefused) {
  const PoolKeys keys;
  Pair pair(context(keys.psk(PoolKeys::psk_line("pool-1", 2)), "d"),
            context(keys.psk(PoolKeys::psk_line("pool-1", 1)), "p"));
  pair.shake();
  EXPECT_EQ(pair.accepted, Io::kFailed);
  EXPECT_THAT(pair.listener->why(), HasSubstr("binder"));
  EXPECT_EQ(pair.dialed, Io::kFailed);
  EXPECT_THAT(pair.dialer->why(), HasSubstr("the peer refuses us"));
}

TEST(Tls, KeyAndCertificatesDoNotMix) {
  const PoolKeys keys;
  const auto psk = context(keys.psk(PoolKeys::psk_line("pool-1", 1)), "x");
  const auto certificate = context(keys.certificate("x"), "x");
  for (const bool key_dials : {true, false}) {
    Pair pair(key_dials ? psk : certificate, key_dials ? certificate : psk);
    pair.shake();
    const Io first = pair.dialed == Io::kDone ? pair.dialer_reads() : pair.dialed;
    EXPECT_EQ(first, Io::kFailed) << key_dials;
    EXPECT_FALSE(pair.dialer->why().empty());
    EXPECT_EQ(pair.accepted, Io::kFailed) << key_dials;
    EXPECT_FALSE(pair.listener->why().empty());
  }
}

TEST(Tls, AForeignCertificateIsNamedOnBothSides) {
  const PoolKeys ours;
  const PoolKeys foreign;
  // The listener's is foreign to the dialer.
  Pair pair(context(ours.certificate("d"), "d"), context(foreign.certificate("p"), "p"));
  pair.shake();
  EXPECT_EQ(pair.dialed, Io::kFailed);
  EXPECT_THAT(pair.dialer->why(), HasSubstr("the peer's certificate for p: self-signed"));
  EXPECT_EQ(pair.accepted, Io::kFailed);
  EXPECT_THAT(pair.listener->why(), HasSubstr("the peer refuses us: unknown CA"));
  // The dialer's is foreign to the listener, who says so after the dialer's handshake.
  Pair other(context(foreign.signed_here_trusting(ours, "d"), "d"),
             context(ours.certificate("p"), "p"));
  other.shake();
  EXPECT_EQ(other.accepted, Io::kFailed);
  EXPECT_THAT(other.listener->why(), HasSubstr("the peer's certificate for d: self-signed"));
  EXPECT_EQ(other.dialer_reads(), Io::kFailed);
  EXPECT_THAT(other.dialer->why(), HasSubstr("the peer refuses us: unknown CA"));
}

TEST(Tls, WhoAnswersWithoutTlsIsNamed) {
  const PoolKeys keys;
  Pair pair(context(keys.certificate("d"), "d"), context(keys.certificate("p"), "p"));
  EXPECT_EQ(pair.dialer->handshake(), Io::kWantRead);
  ASSERT_EQ(::send(pair.listener_fd(), "BTON1234567890", 14, 0), 14);
  EXPECT_EQ(pair.dialer->handshake(), Io::kFailed);
  EXPECT_THAT(pair.dialer->why(), HasSubstr("answers without TLS"));
}

TEST(Tls, ARecordThatWasTouchedEndsTheStream) {
  const PoolKeys keys;
  const auto psk = context(keys.psk(PoolKeys::psk_line("pool-1", 1)), "x");
  Pair pair(psk, psk);
  pair.shake();
  ASSERT_TRUE(pair.passes("baton"));
  std::size_t count = 0;
  const std::string text = "secret";
  ASSERT_EQ(pair.dialer->write(std::as_bytes(std::span(text)), count), Io::kDone);
  std::array<char, 256> record{};
  const ssize_t size = ::recv(pair.listener_fd(), record.data(), record.size(), 0);
  ASSERT_GT(size, 0);
  EXPECT_EQ(std::string_view(record.data(), static_cast<std::size_t>(size)).find("secret"),
            std::string_view::npos);
  record[static_cast<std::size_t>(size) - 1] ^= 1;
  ASSERT_EQ(::send(pair.dialer_fd(), record.data(), static_cast<std::size_t>(size), 0), size);
  std::array<std::byte, 16> bytes{};
  EXPECT_EQ(pair.listener->read(bytes, count), Io::kFailed);
}

// What was recorded on the way in does nothing when it is sent again.
TEST(Tls, AReplayedConnectionIsRefused) {
  const PoolKeys keys;
  const auto psk = context(keys.psk(PoolKeys::psk_line("pool-1", 1)), "x");
  Pair first(psk, psk);
  ASSERT_EQ(first.dialer->handshake(), Io::kWantRead);
  std::string recorded(4096, '\0');
  const auto take = [&](std::size_t at) {
    const ssize_t got =
        ::recv(first.listener_fd(), recorded.data() + at, recorded.size() - at, MSG_PEEK);
    return got > 0 ? static_cast<std::size_t>(got) : 0;
  };
  std::size_t length = take(0);
  ASSERT_EQ(first.listener->handshake(), Io::kWantRead);
  ASSERT_EQ(first.dialer->handshake(), Io::kDone);
  std::size_t count = 0;
  const std::string text = "a registration";
  ASSERT_EQ(first.dialer->write(std::as_bytes(std::span(text)), count), Io::kDone);
  length += take(length);
  ASSERT_EQ(first.listener->handshake(), Io::kDone);

  Pair second(psk, psk);
  ASSERT_EQ(::send(second.dialer_fd(), recorded.data(), length, 0), static_cast<ssize_t>(length));
  Io io = Io::kWantRead;
  for (int i = 0; i < 5 && io == Io::kWantRead; ++i) io = second.listener->handshake();
  EXPECT_EQ(io, Io::kFailed);
}

TEST(TlsFiles, WhatPeersWouldRefuseIsRefusedAtTheStart) {
  const PoolKeys keys;
  const PoolKeys foreign;
  EXPECT_EQ(problem(keys.certificate("prefill-1")), "created");
  EXPECT_THAT(problem(keys.certificate("prefill-2")),
              AllOf(HasSubstr("it is for prefill-2"), HasSubstr("engine_id is 'prefill-1'")));
  EXPECT_EQ(problem(keys.certificate(PoolKeys::Wish{.names = {"decode-1", "prefill-1"}})),
            "created");
  EXPECT_THAT(problem(keys.certificate(
                  PoolKeys::Wish{.names = {"prefill-1"}, .valid_for = std::chrono::hours(-1)})),
              HasSubstr("certificate has expired"));
  EXPECT_THAT(
      problem(keys.certificate(PoolKeys::Wish{.names = {"prefill-1"}, .server_only = true})),
      HasSubstr("TLS client"));
  Security mixed = keys.certificate("prefill-1");
  mixed.ca_file = foreign.certificate("prefill-1").ca_file;
  EXPECT_THAT(problem(mixed), HasSubstr("local issuer"));
  mixed = keys.certificate("prefill-1");
  mixed.private_key_file = keys.certificate("prefill-1").private_key_file;
  EXPECT_THAT(problem(mixed), HasSubstr("private_key_file"));
  mixed.private_key_file.clear();
  EXPECT_THAT(problem(mixed), HasSubstr("need three files"));
  mixed.psk_file = "keys";
  EXPECT_THAT(problem(mixed), HasSubstr("not both"));
  mixed = keys.certificate("prefill-1");
  mixed.certificate_file = "/nowhere";
  EXPECT_THAT(problem(mixed), AllOf(HasSubstr("/nowhere"), HasSubstr("No such file")));
}

TEST(TlsFiles, SecretsThatOthersCanReadAreRefused) {
  const PoolKeys keys;
  Security security;
  security.psk_file = keys.write(PoolKeys::psk_line("pool-1", 1), 0644);
  EXPECT_THAT(problem(security), AllOf(HasSubstr("0644"), HasSubstr("chmod 600")));
  security.psk_file = keys.write(PoolKeys::psk_line("pool-1", 1), 0440);
  EXPECT_EQ(problem(security), "created");
  security.psk_file = "/dev/null";
  EXPECT_THAT(problem(security), HasSubstr("no regular file"));
  security = keys.certificate("prefill-1");
  ASSERT_EQ(::chmod(security.private_key_file.c_str(), 0604), 0);
  EXPECT_THAT(problem(security), AllOf(HasSubstr("private_key_file"), HasSubstr("0604")));
}

TEST(TlsFiles, KeyLinesAreNamedAndNeverShown) {
  const std::string hex64(64, 'a');
  const std::pair<std::string, const char*> table[] = {
      {"", "no key"},
      {"# nothing\n", "no key"},
      {"pool-1\n", "line 1: there is no ':'"},
      {"\npool-1:" + hex64.substr(2) + "\n", "line 2: the key has 62 hex digits, 64 to 128"},
      {"pool-1:" + hex64 + hex64 + "aa", "130 hex digits"},
      {"pool-1:" + hex64.substr(1) + "g", "digits 63 and 64"},
      {":" + hex64, "identity"},
      {"two words:" + hex64, "identity"},
      {std::string(129, 'i') + ":" + hex64, "identity"},
      {"a:" + hex64 + "\na:" + hex64, "line 2: the identity a is there already"},
  };
  for (const auto& [text, words] : table) {
    const auto keys = parse_psk_lines(text);
    ASSERT_FALSE(keys) << text;
    EXPECT_THAT(keys.error().message, HasSubstr(words));
    EXPECT_THAT(keys.error().message, ::testing::Not(HasSubstr("aaaa")));
  }
  std::string many;
  for (int i = 0; i < 17; ++i) many += "k" + std::to_string(i) + ":" + hex64 + "\n";
  EXPECT_FALSE(parse_psk_lines(many));
  const auto two = parse_psk_lines("  a:" + hex64 + "\r\n\nb:" + hex64 + "00");
  ASSERT_TRUE(two);
  EXPECT_EQ(two->size(), 2U);
  EXPECT_EQ(two->at(1).key.size(), 33U);
}

}  // namespace
}  // namespace baton::tls
