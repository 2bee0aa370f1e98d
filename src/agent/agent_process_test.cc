// Prefill (P) and decode (D) as processes of their own, and what each knows when the other dies,
// stops or comes back. Bounds are those of the contract, asserted with a generous factor and
// printed as measured.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/testing/peer_process.h"

namespace baton {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::PeerProcess;

constexpr std::uint32_t kTokens = 6000;  // of 16 a block: 375 blocks of 4 times 16 KiB
constexpr std::size_t kBlocks = 400;

class AgentProcessTest : public ::testing::Test {
 protected:
  std::unique_ptr<PeerProcess> start_p(const std::string& port = "0",
                                       const std::string& fault = {}) {
    return start("prefill-1", "producer", port, fault);
  }
  std::unique_ptr<PeerProcess> start_d(const std::string& port = "0") {
    return start("decode-1", "consumer", port, {});
  }
  void pass(PeerProcess& p, PeerProcess& d, std::uint64_t seed) {
    const std::string t = TransferId::random().to_string();
    p.order(fmt::format("expect {} {}", t, kTokens));
    d.order(fmt::format("register {} {} {} 1", t, p.address(), kTokens));
    p.order(fmt::format("ready {} {} {}", t, seed, kTokens));
    EXPECT_THAT(d.event(t), HasSubstr(" done "));
    EXPECT_THAT(p.event(t), HasSubstr(" done "));
  }
  static std::string id() { return TransferId::random().to_string(); }

  std::vector<std::string> options_ = {"blocks=400", "head_dim=64", "block_size=16"};

 private:
  std::unique_ptr<PeerProcess> start(const std::string& name, const std::string& role,
                                     const std::string& port, const std::string& fault) {
    std::vector<std::string> arguments{name, role, port};
    arguments.insert(arguments.end(), options_.begin(), options_.end());
    return std::make_unique<PeerProcess>(BATON_TEST_PEER, arguments, fault);
  }
};

// Prints and bounds how long something took.
class Stopwatch {
 public:
  explicit Stopwatch(const char* what) : what_(what) {}
  void expect_below(std::chrono::milliseconds limit) const {
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now() - begin_);
    std::printf("  %s after %lld ms\n", what_, static_cast<long long>(took.count()));
    EXPECT_LT(took, limit) << what_;
  }

 private:
  const char* what_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

TEST_F(AgentProcessTest, PatternedBlocksCross) {
  auto p = start_p();
  auto d = start_d();
  d->order("keep");
  const std::string t = id();
  d->order(fmt::format("claim {} {}", t, p->address()));
  p->order(fmt::format("expect {} {}", t, kTokens));
  d->order(fmt::format("register {} {} {} 1", t, p->address(), kTokens));
  p->order(fmt::format("ready {} 77 {}", t, kTokens));
  EXPECT_THAT(d->event(t), HasSubstr(" done "));
  EXPECT_THAT(p->event(t), HasSubstr(" done "));
  EXPECT_EQ(d->ask(fmt::format("difference {} 77 1", t), "difference"), "difference ");
  EXPECT_TRUE(p->frees(kBlocks));
  EXPECT_EQ(d->quit(), 0);
  EXPECT_EQ(p->quit(), 0);
}

enum class When { kRegistered, kReady, kWriting };

class KilledAt : public AgentProcessTest, public ::testing::WithParamInterface<When> {};

TEST_P(KilledAt, PrefillDies) {
  auto p = start_p();
  auto d = start_d();
  pass(*p, *d, 1);  // connected and mapped
  const std::string t = id();
  if (GetParam() == When::kReady) {
    p->order(fmt::format("ready {} 5 {}", t, kTokens));
    p->kill(SIGKILL);
    d->order(fmt::format("register {} {} {} 1", t, p->address(), kTokens));
  } else {
    p->order(fmt::format("expect {} {}", t, kTokens));
    d->order(fmt::format("register {} {} {} 1", t, p->address(), kTokens));
    if (GetParam() == When::kWriting) p->tell(fmt::format("ready {} 5 {}", t, kTokens));
    if (GetParam() == When::kWriting) p->tell("writing");
    if (GetParam() == When::kWriting) p->line_with("writing");
    p->kill(SIGKILL);
  }
  const Stopwatch watch("D's engine knows that P died");
  const std::string end = d->event(t);
  // A transfer can be complete before the signal arrives; otherwise D must know.
  if (end.find(" done ") == std::string::npos) {
    watch.expect_below(5s);
    EXPECT_THAT(end, AnyOf(HasSubstr("peer_died"), HasSubstr("peer_unreachable"))) << end;
  }
  EXPECT_TRUE(d->frees(kBlocks));
  auto again = start_p(p->port());
  pass(*again, *d, 2);
  EXPECT_TRUE(d->frees(kBlocks));
  EXPECT_TRUE(again->frees(kBlocks));
}

TEST_P(KilledAt, DecodeDies) {
  // Whether its claim or registration had left D decides how P learns: by the death, or by the
  // lease. Either gives the blocks back.
  if (GetParam() != When::kWriting) options_.insert(options_.end(), {"lease=2000", "renewal=400"});
  auto p = start_p();
  auto d = start_d();
  pass(*p, *d, 1);
  const std::string t = id();
  if (GetParam() == When::kReady) {
    d->order(fmt::format("claim {} {}", t, p->address()));
    p->order(fmt::format("ready {} 5 {}", t, kTokens));
    d->kill(SIGKILL);
  } else {
    p->order(fmt::format("expect {} {}", t, kTokens));
    d->order(fmt::format("register {} {} {} 1", t, p->address(), kTokens));
    p->tell(fmt::format("ready {} 5 {}", t, kTokens));
    if (GetParam() == When::kWriting) p->tell("writing");
    if (GetParam() == When::kWriting) p->line_with("writing");
    d->kill(SIGKILL);
  }
  const Stopwatch watch("P's engine has its blocks back");
  const std::string end = p->event(t);
  watch.expect_below(5s);
  EXPECT_THAT(end, HasSubstr("ended prefill")) << end;
  EXPECT_TRUE(p->frees(kBlocks));
  auto again = start_d(d->port());
  pass(*p, *again, 2);
  EXPECT_TRUE(p->frees(kBlocks));
}

INSTANTIATE_TEST_SUITE_P(All, KilledAt,
                         ::testing::Values(When::kRegistered, When::kReady, When::kWriting),
                         [](const auto& info) {
                           return info.param == When::kRegistered ? "Registered"
                                  : info.param == When::kReady    ? "Ready"
                                                                  : "Writing";
                         });

TEST_F(AgentProcessTest, StoppedWriterHoldsItsBlocksUntilItIsDead) {
  options_.push_back("peer_timeout=2000");
  auto p = start_p();
  auto d = start_d();
  pass(*p, *d, 1);
  const std::string t = id();
  p->order(fmt::format("expect {} {}", t, kTokens));
  d->order(fmt::format("register {} {} {} 1", t, p->address(), kTokens));
  d->order(fmt::format("claim {} {}", id(), p->address()));  // the registration has surely arrived
  p->kill(SIGSTOP);
  const Stopwatch watch("D's engine knows that P is silent");
  const std::string end = d->event(t);
  watch.expect_below(10s);
  EXPECT_THAT(end, AllOf(HasSubstr(" failed peer_silent held "))) << end;
  EXPECT_THAT(d->ask("free", "free "), "free 25 0");  // no time makes reuse safe [I1]
  p->kill(SIGKILL);
  EXPECT_THAT(d->event(t), HasSubstr("event released"));
  EXPECT_TRUE(d->frees(kBlocks));
}

TEST_F(AgentProcessTest, StoppedWriterThatWakesDrains) {
  options_.push_back("peer_timeout=2000");
  auto p = start_p();
  auto d = start_d();
  pass(*p, *d, 1);
  const std::string t = id();
  p->order(fmt::format("expect {} {}", t, kTokens));
  d->order(fmt::format("register {} {} {} 1", t, p->address(), kTokens));
  p->kill(SIGSTOP);
  EXPECT_THAT(d->event(t), HasSubstr(" failed "));
  p->kill(SIGCONT);
  EXPECT_TRUE(d->frees(kBlocks));
  EXPECT_TRUE(p->frees(kBlocks));
  pass(*p, *d, 2);
}

TEST_F(AgentProcessTest, BrokenWriteIsNoticed) {
  for (const std::string fault : {"flip_byte:2", "drop_write:2"}) {
    options_ = {"blocks=400", "head_dim=64", "block_size=16", "verify=1"};
    auto p = start_p("0", fault);
    auto d = start_d();
    const std::string t = id();
    p->order(fmt::format("ready {} 5 {}", t, kTokens));
    d->order(fmt::format("register {} {} {} 1", t, p->address(), kTokens));
    EXPECT_THAT(d->event(t), HasSubstr("corrupt")) << fault;
    EXPECT_TRUE(d->frees(kBlocks));
    EXPECT_TRUE(p->frees(kBlocks));
  }
}

}  // namespace
}  // namespace baton
