// Trials made of public bug reports (docs/testing.md lists them by number): crashes, races and
// releases under way, between agents over real sockets and shared memory. BATON_TRIAL_FACTOR makes
// them longer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "agent/tcp.h"
#include "agent/testing/instance.h"
#include "base/random.h"
#include "base/unique_fd.h"

namespace baton {
namespace {

using namespace std::chrono_literals;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::Instance;
using ::testing::IsEmpty;
using testing::options_of;
using testing::Shape;

int trial_factor() {
  const char* text = std::getenv("BATON_TRIAL_FACTOR");
  return text == nullptr ? 1 : std::max(1, std::atoi(text));
}

// Blocks of 64 KiB, so that a hand-over of many tokens is under way for a while.
Shape large(std::uint32_t blocks = 640) {
  Shape shape;
  shape.blocks = blocks;
  shape.block_size = 16;
  shape.head_dim = 64;
  return shape;
}

// The standing checks after a trial.
void expect_settled(Instance& instance, std::size_t blocks) {
  EXPECT_TRUE(instance.wait_until([&] { return instance.free_blocks() == blocks; }))
      << instance.free_blocks() << " of " << blocks;
  EXPECT_THAT(instance.faults(), IsEmpty());
}

void expect_pass(Instance& p, Instance& d, std::uint64_t seed, std::uint32_t tokens) {
  const auto t = TransferId::random();
  ASSERT_TRUE(p.ready(t, seed, tokens));
  ASSERT_TRUE(d.register_blocks(t, p.address(), tokens));
  ASSERT_TRUE(d.wait_end(t, Side::kDecode));
  EXPECT_EQ(d.ends(t, Side::kDecode).at(0).outcome, Outcome::kDone)
      << d.ends(t, Side::kDecode).at(0).text;
  ASSERT_TRUE(p.wait_end(t, Side::kPrefill));
}

// While eight hand-overs to D1 are under way, others join and leave every 50 ms.
TEST(BugReports, B28_OthersJoinAndLeaveWhileEightHandOversAreUnderWay) {
  const Shape shape = large(256);
  Instance p(options_of("prefill-1", Role::kProducer), shape);
  Instance d(options_of("decode-1", Role::kConsumer), shape);
  const PeerAddress address = p.address();
  std::atomic<bool> stop{false};
  std::atomic<int> joined{0};
  std::thread churn([&] {
    for (int n = 2; !stop; n = n == 9 ? 2 : n + 1) {
      Instance other(options_of("decode-" + std::to_string(n), Role::kConsumer), shape);
      if (other.register_blocks(TransferId::random(), address, 64)) ++joined;
      other.wait_until([] { return false; }, 50ms);
    }
  });
  struct Open {
    TransferId transfer;
    std::uint64_t seed;
  };
  std::vector<Open> open;
  std::uint64_t seed = 0;
  d.keep_decoded_blocks(true);
  const int wanted = 8 * 40 * trial_factor();
  int done = 0;
  while (done < wanted || (joined < 20 && done < 100 * wanted)) {
    while (open.size() < 8) {
      open.push_back({TransferId::random(), ++seed});
      ASSERT_TRUE(p.ready(open.back().transfer, seed, 200));
      ASSERT_TRUE(d.register_blocks(open.back().transfer, address, 200));
    }
    const Open first = open.front();
    open.erase(open.begin());
    ASSERT_TRUE(d.wait_end(first.transfer, Side::kDecode));
    const Event end = d.ends(first.transfer, Side::kDecode).at(0);
    ASSERT_EQ(end.outcome, Outcome::kDone) << end.text;
    ASSERT_EQ(d.difference(first.seed, 0, d.registered_blocks(first.transfer)), "");
    d.release_decoded(first.transfer);
    ASSERT_TRUE(p.wait_end(first.transfer, Side::kPrefill));
    ++done;
  }
  stop = true;
  churn.join();
  EXPECT_GE(joined, 20);
  EXPECT_THAT(p.faults(), IsEmpty());
  EXPECT_THAT(d.faults(), IsEmpty());
}

// Three P and four D meet for the first time, all at once; one D does not fit.
TEST(BugReports, B30_OneBadPairIsRefusedAndEverybodyElseWorks) {
  std::vector<std::unique_ptr<Instance>> ps;
  std::vector<std::unique_ptr<Instance>> ds;
  for (int i = 0; i < 3; ++i) {
    ps.push_back(
        std::make_unique<Instance>(options_of("prefill-" + std::to_string(i), Role::kProducer)));
  }
  for (int i = 0; i < 4; ++i) {
    Shape shape;
    if (i == 3) shape.block_size = 8;
    ds.push_back(std::make_unique<Instance>(
        options_of("decode-" + std::to_string(i), Role::kConsumer), shape));
  }
  std::map<std::pair<int, int>, TransferId> pairs;
  for (int d = 0; d < 4; ++d) {
    for (int p = 0; p < 3; ++p) {
      const auto t = pairs[{p, d}] = TransferId::random();
      ASSERT_TRUE(ds[static_cast<std::size_t>(d)]->register_blocks(
          t, ps[static_cast<std::size_t>(p)]->address(), 20));
    }
  }
  for (const auto& [pair, t] : pairs) {
    if (pair.second == 3) continue;
    ASSERT_TRUE(ps[static_cast<std::size_t>(pair.first)]->ready(t, 7, 20));
  }
  for (const auto& [pair, t] : pairs) {
    Instance& d = *ds[static_cast<std::size_t>(pair.second)];
    ASSERT_TRUE(d.wait_end(t, Side::kDecode));
    const Event end = d.ends(t, Side::kDecode).at(0);
    if (pair.second == 3) {
      EXPECT_EQ(end.cause, Cause::kRefused);
      EXPECT_THAT(end.text, HasSubstr("block_size"));
    } else {
      EXPECT_EQ(end.outcome, Outcome::kDone) << end.text;
    }
  }
  for (auto& p : ps) {
    EXPECT_EQ(p->agent().metrics().refused_peers.value(), 1U);  // once a pair
    expect_settled(*p, 64);
  }
  for (auto& d : ds) expect_settled(*d, 64);
}

// D with two P, one of another configuration: its twenty requests fail one by one, the twenty of
// the good one are untouched, then a P that goes away in the middle of the exchange.
TEST(BugReports, B32_ARefusedHandshakeFailsItsOwnRequestsOnly) {
  const Shape shape = {.blocks = 256};
  Instance good(options_of("prefill-good", Role::kProducer), shape);
  Instance bad(options_of("prefill-bad", Role::kProducer), shape, {},
               [](Geometry& geometry) { geometry.model = "another-model"; });
  Instance d(options_of("decode-1", Role::kConsumer), shape);
  std::vector<TransferId> to_good;
  std::vector<TransferId> to_bad;
  for (std::uint64_t i = 0; i < 20; ++i) {
    to_good.push_back(TransferId::random());
    to_bad.push_back(TransferId::random());
    ASSERT_TRUE(good.ready(to_good.back(), i, 20));
    ASSERT_TRUE(d.register_blocks(to_bad.back(), bad.address(), 20));
    ASSERT_TRUE(d.register_blocks(to_good.back(), good.address(), 20));
  }
  for (const auto t : to_bad) {
    ASSERT_TRUE(d.wait_end(t, Side::kDecode));
    EXPECT_EQ(d.ends(t, Side::kDecode).at(0).cause, Cause::kRefused);
    EXPECT_THAT(d.ends(t, Side::kDecode).at(0).text, HasSubstr("another-model"));
  }
  for (const auto t : to_good) {
    ASSERT_TRUE(d.wait_end(t, Side::kDecode));
    EXPECT_EQ(d.ends(t, Side::kDecode).at(0).outcome, Outcome::kDone);
  }
  // Whoever connects is hung up on after its greeting.
  const UniqueFd listener = std::move(*tcp::listen(*tcp::parse("127.0.0.1", 0)));
  std::atomic<bool> stop{false};
  std::thread dying([&] {
    while (!stop) {
      pollfd state{listener.get(), POLLIN, 0};
      if (::poll(&state, 1, 5) != 1) continue;
      tcp::Address from;
      int error = 0;
      const UniqueFd fd = tcp::accept(listener.get(), from, error);
      pollfd greeting{fd.get(), POLLIN, 0};
      ::poll(&greeting, 1, 1000);
    }
  });
  const PeerAddress at{"127.0.0.1", tcp::local_address(listener.get()).port(), "prefill-dying", 0};
  const auto t = TransferId::random();
  EXPECT_TRUE(d.register_blocks(t, at, 20));
  EXPECT_TRUE(d.wait_end(t, Side::kDecode));
  EXPECT_THAT(d.ends(t, Side::kDecode).at(0).cause,
              AnyOf(Cause::kPeerUnreachable, Cause::kPeerDied));
  stop = true;
  dying.join();
  expect_pass(good, d, 99, 20);
  expect_settled(d, 256);
  expect_settled(good, 256);
  expect_settled(bad, 256);
}

// A hand-over is dropped at a random moment, by either side, and its memory is used again at once.
TEST(BugReports, B34_AHandOverIsReleasedWhileItIsInFlight) {
  const Shape shape = large();
  Instance p(options_of("prefill-1", Role::kProducer), shape);
  Instance d(options_of("decode-1", Role::kConsumer), shape);
  Rng rng(34);
  constexpr std::uint32_t kTokens = 1024;
  const int rounds = 40 * trial_factor();
  int cut = 0;
  for (int round = 0; round < rounds; ++round) {
    const auto t = TransferId::random();
    ASSERT_TRUE(p.agent().expect(t, kTokens));
    ASSERT_TRUE(d.register_blocks(t, p.address(), kTokens));
    // Half of it is there and perhaps being written; the other half comes before or never.
    ASSERT_TRUE(p.ready_piece(t, 1, {0, kTokens / 2}, false));
    const bool all = round % 4 < 2;
    ASSERT_TRUE(!all || p.ready_piece(t, 1, {kTokens / 2, kTokens}, true));
    const auto moment = std::chrono::microseconds(rng.below(1000));
    const auto until = std::chrono::steady_clock::now() + moment;
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
    ASSERT_TRUE((round % 2 == 0 ? d : p).agent().cancel(t));
    ASSERT_TRUE(d.wait_end(t, Side::kDecode));
    ASSERT_TRUE(p.wait_end(t, Side::kPrefill));
    if (d.ends(t, Side::kDecode).at(0).outcome != Outcome::kDone) ++cut;
    // Whatever was given back is another request's now.
    ASSERT_TRUE(d.wait_until([&] { return d.free_blocks() == shape.blocks; }));
    if (round % 10 == 9) expect_pass(p, d, 1000 + static_cast<std::uint64_t>(round), 500);
  }
  EXPECT_GE(cut, rounds / 2);
  expect_settled(p, shape.blocks);
  expect_settled(d, shape.blocks);
}

// Sixteen hand-overs are held in mid-write while a side ends: it ends in time, and its memory goes.
TEST(BugReports, B34_AnAgentEndsWithSixteenHandOversInFlight) {
  const auto hold =
      std::filesystem::temp_directory_path() / ("baton-hold-" + TransferId::random().to_string());
  for (const bool prefill_ends : {true, false}) {
    std::ofstream(hold) << "held";
    ::setenv("BATON_FAULT", ("hold_writes:" + hold.string()).c_str(), 1);
    const Shape shape = large();
    auto p = std::make_unique<Instance>(options_of("prefill-1", Role::kProducer), shape);
    ::unsetenv("BATON_FAULT");
    auto d = std::make_unique<Instance>(options_of("decode-1", Role::kConsumer), shape);
    std::vector<TransferId> transfers;
    for (std::uint64_t i = 0; i < 16; ++i) {
      transfers.push_back(TransferId::random());
      ASSERT_TRUE(p->agent().expect(transfers.back(), 500));
      ASSERT_TRUE(d->register_blocks(transfers.back(), p->address(), 500));
      ASSERT_TRUE(p->ready(transfers.back(), i, 500));
    }
    EXPECT_TRUE(p->wait_until([&] { return p->agent().metrics().writes_posted.value() >= 16; }));
    const auto begin = std::chrono::steady_clock::now();
    (prefill_ends ? p : d).reset();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
    Instance& survivor = prefill_ends ? *d : *p;
    const Side side = prefill_ends ? Side::kDecode : Side::kPrefill;
    if (!prefill_ends) std::filesystem::remove(hold);
    for (const auto t : transfers) {
      ASSERT_TRUE(survivor.wait_end(t, side));
      EXPECT_NE(survivor.ends(t, side).at(0).outcome, Outcome::kDone);
    }
    EXPECT_THAT(survivor.faults(), IsEmpty());
    std::filesystem::remove(hold);
  }
}

// P's lease of A ends before D asks for it, and B fills A's blocks: no byte of B goes to A's D.
TEST(BugReports, B52_ALateRegistrationNeverGetsTheNextOwnersBytes) {
  AgentOptions prefill = options_of("prefill-1", Role::kProducer);
  prefill.lease = 100ms;
  prefill.lease_renewal = 20ms;
  Instance p(prefill);
  Instance d(options_of("decode-1", Role::kConsumer));
  d.keep_decoded_blocks(true);
  const auto a = TransferId::random();
  ASSERT_TRUE(p.ready(a, 1, 240));  // nearly the whole pool
  ASSERT_TRUE(p.wait_end(a, Side::kPrefill));
  EXPECT_EQ(p.ends(a, Side::kPrefill).at(0).cause, Cause::kLeaseExpired);
  const auto b = TransferId::random();
  ASSERT_TRUE(p.ready(b, 2, 240));
  ASSERT_TRUE(d.register_blocks(a, p.address(), 240));
  ASSERT_TRUE(d.wait_end(a, Side::kDecode));
  const Event end = d.ends(a, Side::kDecode).at(0);
  EXPECT_EQ(end.outcome, Outcome::kFailed);
  EXPECT_EQ(end.cause, Cause::kLeaseExpired) << end.text;
  EXPECT_TRUE(d.is_poison(d.registered_blocks(a)));
  ASSERT_TRUE(p.wait_end(b, Side::kPrefill));
  expect_settled(p, 64);
}

}  // namespace
}  // namespace baton
