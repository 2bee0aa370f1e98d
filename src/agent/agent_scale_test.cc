// Trials made of public bug reports (docs/testing.md lists them by number): what a hand-over costs
// as pools, peers and fragmentation grow. Asserted are counts; times are printed, because they hang
// on the machine. BATON_TRIAL_FACTOR makes the idle trial longer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <numeric>
#include <thread>

#include "agent/testing/instance.h"
#include "base/random.h"
#include "wire/messages.h"

namespace baton {
namespace {

using namespace std::chrono_literals;
using testing::Instance;
using ::testing::IsEmpty;
using testing::options_of;
using testing::Shape;

double milliseconds(std::int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / 1e6;
}

// --- B36: descriptors and posting with a fragmented pool
// --------------------------------------------

// 32 layers, blocks of 16 tokens and 1 KiB a layer, 6,000 of them.
constexpr Shape kManyLayers{32, 6000, 16, 4};
constexpr std::uint32_t kPromptBlocks = 256;  // 4,096 tokens

std::vector<BlockId> fresh(std::uint32_t first) {
  std::vector<BlockId> blocks(kPromptBlocks);
  std::iota(blocks.begin(), blocks.end(), first);
  return blocks;
}

// As a free list hands them out after ten thousand random requests.
std::vector<BlockId> fragmented(Rng& rng) {
  std::vector<BlockId> all(kManyLayers.blocks);
  std::iota(all.begin(), all.end(), 0U);
  for (int i = 0; i < 10000; ++i) std::swap(all[rng.below(all.size())], all[rng.below(all.size())]);
  return {all.begin(), all.begin() + kPromptBlocks};
}

// Stretches that are adjacent on both sides.
std::uint32_t stretches(const std::vector<BlockId>& from, const std::vector<BlockId>& to) {
  std::uint32_t count = 1;
  for (std::size_t i = 1; i < from.size(); ++i) {
    count += from[i] != from[i - 1] + 1 || to[i] != to[i - 1] + 1 ? 1 : 0;
  }
  return count;
}

Event push(Instance& p, Instance& d, const std::vector<BlockId>& from,
           const std::vector<BlockId>& to) {
  const auto transfer = TransferId::random();
  Registration registration;
  registration.transfer = transfer;
  registration.attempt = 1;
  registration.peer = p.address();
  registration.range = {0, kPromptBlocks * kManyLayers.block_size};
  registration.prompt_tokens = registration.range.end;
  registration.block_ids = {to};
  EXPECT_TRUE(d.agent().register_blocks(std::move(registration)));
  ReadyPiece piece;
  piece.transfer = transfer;
  piece.range = {0, kPromptBlocks * kManyLayers.block_size};
  piece.block_ids = {from};
  EXPECT_TRUE(p.agent().ready(std::move(piece)));
  EXPECT_TRUE(d.wait_end(transfer, Side::kDecode));
  EXPECT_TRUE(p.wait_end(transfer, Side::kPrefill));
  EXPECT_EQ(d.ends(transfer, Side::kDecode).at(0).outcome, Outcome::kDone);
  return p.ends(transfer, Side::kPrefill).at(0);
}

TEST(ScaleReports, B36_DescriptorsGrowWithRunsAndNotWithBlocks) {
  Instance p(options_of("prefill-1", Role::kProducer), kManyLayers);
  Instance d(options_of("decode-1", Role::kConsumer), kManyLayers);
  push(p, d, fresh(0), fresh(0));  // connects
  const auto say = [](std::string_view what, const Event& end) {
    std::cout << fmt::format("{}: {} writes, {:.2f} ms from the match to the last byte\n", what,
                             end.writes, milliseconds(end.times.last_byte - end.times.first_write));
  };
  const Event contiguous = push(p, d, fresh(300), fresh(1000));
  say("fresh pool", contiguous);
  // One write for a region, none of them larger than a write may be, and the one that says "done".
  EXPECT_EQ(contiguous.bytes, std::uint64_t{kPromptBlocks} * kManyLayers.layers * 1024);
  EXPECT_LE(contiguous.writes, kManyLayers.layers + 1);
  Rng rng(36);
  for (int round = 0; round < 3; ++round) {
    const auto from = fragmented(rng);
    const auto to = fragmented(rng);
    const Event scattered = push(p, d, from, to);
    say("fragmented pool", scattered);
    EXPECT_EQ(scattered.bytes, contiguous.bytes);
    EXPECT_LE(scattered.writes, kManyLayers.layers * stretches(from, to) + 1);
  }
  // Half fragmented: neighbours are still found.
  auto from = fresh(500);
  auto to = fresh(2000);
  for (std::uint32_t i = 0; i < kPromptBlocks; i += 16) std::swap(to[i], to[i + 1]);
  const Event mixed = push(p, d, from, to);
  say("pool with gaps", mixed);
  EXPECT_LE(mixed.writes, kManyLayers.layers * stretches(from, to) + 1);
  EXPECT_LT(mixed.writes, kManyLayers.layers * kPromptBlocks / 3);
}

// --- B37: first contact with a large pool
// -----------------------------------------------------------

std::size_t hello_bytes(std::uint32_t blocks) {
  Shape shape{32, blocks, 1, 4};
  const Instance instance(options_of("decode-1", Role::kConsumer), shape);
  wire::Hello hello;
  hello.from = {"decode-1", 1};
  hello.expected = {"prefill-1", 0};
  hello.fabric = "shm";
  hello.geometry = instance.geometry();
  wire::Encoder encoder;
  return encoder.encode(hello).size();
}

TEST(ScaleReports, B37_TheHandshakeGrowsWithRegionsAndNotWithBlocks) {
  EXPECT_EQ(hello_bytes(100000), hello_bytes(8));
  std::cout << fmt::format("Hello: {} bytes for 100,000 blocks in 32 regions\n",
                           hello_bytes(100000));
}

// Eight fresh peers with 100,000 blocks of 32 layers each are met at once while hand-overs with an
// old one go on: nobody fails, and what the old one hands over meanwhile does not wait for them.
TEST(ScaleReports, B37_EightFreshPeersAreMetAtOnce) {
  const Shape shape{32, 100000, 1, 4};
  Instance d(options_of("decode-1", Role::kConsumer), shape);
  Instance old(options_of("prefill-0", Role::kProducer), shape);
  std::vector<std::unique_ptr<Instance>> peers;
  for (int i = 1; i <= 8; ++i) {
    peers.push_back(std::make_unique<Instance>(
        options_of(fmt::format("prefill-{}", i), Role::kProducer), shape));
  }
  const auto hand_over = [&](Instance& p) {
    const auto transfer = TransferId::random();
    EXPECT_TRUE(p.ready(transfer, 7, 16));
    EXPECT_TRUE(d.register_blocks(transfer, p.address(), 16));
    return transfer;
  };
  const auto finish = [&](TransferId transfer) {
    EXPECT_TRUE(d.wait_end(transfer, Side::kDecode));
    const Event end = d.ends(transfer, Side::kDecode).at(0);
    EXPECT_EQ(end.outcome, Outcome::kDone) << end.text;
    return milliseconds(end.times.told - end.times.registered);
  };
  finish(hand_over(old));
  for (const char* what : {"first contact", "second time"}) {
    std::vector<TransferId> transfers;
    for (const auto& peer : peers) transfers.push_back(hand_over(*peer));
    const double meanwhile = finish(hand_over(old));
    double slowest = 0;
    for (const TransferId transfer : transfers) slowest = std::max(slowest, finish(transfer));
    std::cout << fmt::format("{}: slowest of 8 after {:.1f} ms, an old peer meanwhile {:.1f} ms\n",
                             what, slowest, meanwhile);
  }
  EXPECT_TRUE(d.wait_until([&] { return d.free_blocks() == shape.blocks; }));
  EXPECT_THAT(d.faults(), IsEmpty());
}

// --- B41: many agents, nothing to do
// ----------------------------------------------------------------

int threads_of_this_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<int>(std::distance(begin(tasks), end(tasks)));
}

std::uint64_t wakeups_of_this_process() {
  std::uint64_t sum = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("voluntary_ctxt_switches:")) sum += std::stoull(line.substr(24));
    }
  }
  return sum;
}

double cpu_seconds_of_this_process() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Eight prefill and eight decode agents that all know each other, in one process: one thread each,
// and while nothing is handed over they sleep but for their signs of life.
TEST(ScaleReports, B41_SixteenIdleAgentsSleep) {
  constexpr int kRanks = 8;
  const char* text = std::getenv("BATON_TRIAL_FACTOR");
  const double idle_seconds = 3.0 * std::max(1, text == nullptr ? 1 : std::atoi(text));
  const int before = threads_of_this_process();
  std::vector<std::unique_ptr<Instance>> prefill, decode;
  for (int i = 0; i < kRanks; ++i) {
    prefill.push_back(
        std::make_unique<Instance>(options_of(fmt::format("p{}", i), Role::kProducer)));
    decode.push_back(
        std::make_unique<Instance>(options_of(fmt::format("d{}", i), Role::kConsumer)));
  }
  const auto hand_over = [&](int p, int d, std::uint64_t seed) {
    const auto transfer = TransferId::random();
    ASSERT_TRUE(prefill[p]->ready(transfer, seed, 20));
    ASSERT_TRUE(decode[d]->register_blocks(transfer, prefill[p]->address(), 20));
    ASSERT_TRUE(decode[d]->wait_end(transfer, Side::kDecode));
    EXPECT_EQ(decode[d]->ends(transfer, Side::kDecode).at(0).outcome, Outcome::kDone);
    ASSERT_TRUE(prefill[p]->wait_end(transfer, Side::kPrefill));
  };
  for (int p = 0; p < kRanks; ++p) {
    for (int d = 0; d < kRanks; ++d) hand_over(p, d, static_cast<std::uint64_t>(p * kRanks + d));
  }
  EXPECT_EQ(threads_of_this_process() - before, 2 * kRanks) << "an agent is one thread";

  const std::uint64_t wakeups = wakeups_of_this_process();
  const double cpu = cpu_seconds_of_this_process();
  std::this_thread::sleep_for(std::chrono::duration<double>(idle_seconds));
  const double each = static_cast<double>(wakeups_of_this_process() - wakeups) / (2 * kRanks);
  const double share = (cpu_seconds_of_this_process() - cpu) / idle_seconds;
  std::cout << fmt::format(
      "idle for {:g} s: {:.1f} wake-ups a second and agent, {:.2f} % of a core "
      "for all 16\n",
      idle_seconds, each / idle_seconds, share * 100);
  // Each of 8 links: a ping and its answer every 1.25 s, and the spin before the sleep may split
  // one.
  EXPECT_LT(each / idle_seconds, 50);
  // One that spins takes a whole core whatever the machine; sixteen that sleep take almost nothing.
  EXPECT_LT(share, 0.3);

  for (int i = 0; i < 50; ++i) hand_over(i % kRanks, (i * 3) % kRanks, 1000 + i);
  for (int i = 0; i < kRanks; ++i) {
    EXPECT_TRUE(decode[i]->wait_until([&] { return decode[i]->free_blocks() == 64; }));
    EXPECT_THAT(decode[i]->faults(), IsEmpty());
  }
}

// --- B57: bytes and time of a hand-over in pieces
// ---------------------------------------------------

// Eight pieces with pauses between: the time runs from the first write to the last completion with
// the pauses in it, the bytes are those of all pieces, and two at once do not share their figures.
TEST(ScaleReports, B57_TimeCoversAllPiecesAndBytesAreCountedOnce) {
  constexpr auto kPause = 50ms;
  constexpr std::uint32_t kPiece = 16, kPieces = 8;  // tokens
  const Shape shape{4, 128, 16, 16};
  Instance p(options_of("prefill-1", Role::kProducer), shape);
  Instance d(options_of("decode-1", Role::kConsumer), shape);
  const auto a = TransferId::random();
  const auto b = TransferId::random();
  for (const auto transfer : {a, b}) {
    ASSERT_TRUE(p.agent().expect(transfer, kPiece * kPieces));
    ASSERT_TRUE(d.register_blocks(transfer, p.address(), kPiece * kPieces));
  }
  const auto written = [&] { return p.agent().metrics().bytes_written.value(); };
  ASSERT_TRUE(p.ready_piece(a, 1, {0, kPiece}, false));
  ASSERT_TRUE(p.wait_until([&] { return p.agent().metrics().writes_posted.value() > 0; }));
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint32_t i = 1; i < kPieces; ++i) {
    std::this_thread::sleep_for(kPause);
    ASSERT_TRUE(p.ready_piece(a, 1, {i * kPiece, (i + 1) * kPiece}, i + 1 == kPieces));
  }
  const auto pauses = std::chrono::steady_clock::now() - begin;
  ASSERT_TRUE(p.ready(b, 2, kPiece * kPieces));  // in one piece, beside it
  for (const auto transfer : {a, b}) {
    ASSERT_TRUE(p.wait_end(transfer, Side::kPrefill));
    ASSERT_TRUE(d.wait_end(transfer, Side::kDecode));
  }
  const Event slow = p.ends(a, Side::kPrefill).at(0);
  const Event quick = p.ends(b, Side::kPrefill).at(0);
  const auto span = [](const Event& end) {
    return std::chrono::nanoseconds(end.times.last_byte - end.times.first_write);
  };
  EXPECT_GE(span(slow), pauses - kPause) << "time of the last piece only";
  EXPECT_GE(std::chrono::nanoseconds(quick.times.first_write - slow.times.first_write),
            pauses - kPause)
      << "another's pauses";
  const std::uint64_t bytes = std::uint64_t{kPieces} * shape.layers * 2 * 2 * 16 * 16 * 4;
  EXPECT_EQ(slow.bytes, bytes);
  EXPECT_EQ(quick.bytes, bytes);
  EXPECT_EQ(written(), 2 * bytes);
  EXPECT_EQ(d.agent().metrics().bytes_received.value(), 2 * bytes);
  EXPECT_EQ(d.ends(a, Side::kDecode).at(0).bytes, bytes);
}

}  // namespace
}  // namespace baton
