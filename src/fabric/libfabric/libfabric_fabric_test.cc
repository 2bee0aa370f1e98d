// What only libfabric has: a fence that needs no death, keys and endpoints that are one writer's
// own, and offers that a test can bend to get past the writer's checks.
#include "fabric/libfabric/libfabric_fabric.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "base/random.h"
#include "fabric/libfabric/offer.h"
#include "fabric/testing/namespaces.h"
#include "fabric/testing/node.h"

namespace baton::fabric::libfabric {
namespace {

using ::testing::HasSubstr;
using testing::Memory;
using testing::Node;
using testing::RemoteNode;
using Kind = FabricEvent::Kind;

constexpr std::uint64_t kPool = 4ULL << 20;
constexpr std::uint64_t kHalf = kPool / 2;
constexpr auto kPatience = std::chrono::seconds(20);
constexpr std::byte kPoison{0xEE};
constexpr std::uint32_t kFirstSeed = 5;

// Rounds of each fence trial; the long command sets BATON_FENCE_ROUNDS.
int rounds() {
  const char* text = std::getenv("BATON_FENCE_ROUNDS");
  return text == nullptr ? 10 : std::max(1, std::atoi(text));
}

// Poisons a writer's half of the pool in the moment that fence_inbound() returns, before any other
// code of the receiver runs: whatever lands there later shows.
class PoisonAtFence final : public Fabric {
 public:
  explicit PoisonAtFence(std::unique_ptr<Fabric> real) : real_(std::move(real)) {}
  const Capabilities& capabilities() const override { return real_->capabilities(); }
  Status register_regions(std::span<const Region> regions) override {
    base_ = regions.front().base;
    return real_->register_regions(regions);
  }
  Result<Inbound> open_inbound(const PeerId& peer, Access access) override {
    return real_->open_inbound(peer, access);
  }
  void fence_inbound(InboundId inbound) override {
    real_->fence_inbound(inbound);
    std::memset(base_, static_cast<int>(kPoison), kHalf);
  }
  std::string_view carrier_of(InboundId inbound) const override {
    return real_->carrier_of(inbound);
  }
  Result<OutboundId> connect(const PeerId& receiver, std::span<const std::byte> offer,
                             std::span<const Region> regions) override {
    return real_->connect(receiver, offer, regions);
  }
  void close_outbound(OutboundId outbound) override { real_->close_outbound(outbound); }
  Status post(const Write& write) override { return real_->post(write); }
  Status post_read(const Read& read) override { return real_->post_read(read); }
  std::size_t poll(std::span<FabricEvent> out) override { return real_->poll(out); }
  bool busy() const override { return real_->busy(); }
  int wait_fd() const override { return real_->wait_fd(); }

 private:
  std::unique_ptr<Fabric> real_;
  std::byte* base_ = nullptr;
};

struct Peer {
  PeerId id;
  std::unique_ptr<RemoteNode> node;
  std::vector<FabricEvent> events{};
  bool stopped = false;

  void poll() {
    if (stopped) return;
    for (FabricEvent& event : node->poll(64)) events.push_back(std::move(event));
  }
  std::size_t count(Kind kind) const {
    return static_cast<std::size_t>(std::count_if(
        events.begin(), events.end(), [&](const FabricEvent& e) { return e.kind == kind; }));
  }
  bool is_told(Kind kind) const { return count(kind) > 0; }
};

class LibfabricTest : public ::testing::TestWithParam<const char*> {
 protected:
  Peer make(const std::string& name, std::uint64_t bytes = kPool) {
    const std::string provider = GetParam();
    const std::uint64_t number = ++incarnations_;
    // Where namespaces are given, the receiver is alone in the one.
    const std::size_t place = name == "d" ? 0 : 1;
    return {PeerId{name, number}, testing::make_remote_node([provider, bytes, place] {
              Options options;
              options.provider = provider;
              options.address = testing::enter_namespace(place);
              options.connect_timeout = std::chrono::milliseconds(1000);
              auto fabric = std::make_unique<PoisonAtFence>(make_libfabric_fabric(options).value());
              return testing::make_local_node(std::move(fabric), Memory::kPrivate, bytes);
            })};
  }
  struct Pair {
    InboundId inbound;
    OutboundId outbound;
    Bytes offer;
  };
  static Pair join(Peer& writer, Peer& receiver) {
    auto inbound = receiver.node->open_inbound(writer.id, Access::kWrite);
    EXPECT_TRUE(inbound) << inbound.error().message;
    const auto outbound =
        writer.node->connect(receiver.id, inbound->offer, receiver.node->regions());
    EXPECT_TRUE(outbound) << outbound.error().message;
    EXPECT_TRUE(until({&writer, &receiver}, [&] { return writer.is_told(Kind::kConnected); }));
    return {inbound->id, *outbound, inbound->offer};
  }
  static bool until(const std::vector<Peer*>& peers, const std::function<bool()>& done) {
    const Time deadline = now() + kPatience;
    while (!done()) {
      if (now() > deadline) return false;
      for (Peer* peer : peers) peer->poll();
    }
    return true;
  }
  static Write write_of(OutboundId to, std::uint64_t from, std::uint64_t at, std::uint64_t length,
                        std::optional<std::uint32_t> immediate = {}) {
    Write write;
    write.to = to;
    write.local_offset = from;
    write.remote_offset = at;
    write.length = length;
    write.immediate = immediate;
    return write;
  }
  // Keeps the queue of `writer` full of writes over the first half of the receiver's pool.
  static void flood(Peer& writer, OutboundId to, std::uint64_t length) {
    std::vector<Write> writes;
    for (std::uint64_t at = 0; at + length <= kHalf; at += length) {
      writes.push_back(write_of(to, at, at, length));
    }
    for (int i = 0; i < 8; ++i) writer.node->post(writes);
  }
  static std::size_t landed(Peer& receiver) {
    const Bytes bytes = receiver.node->read(0, kHalf);
    return static_cast<std::size_t>(
        std::count_if(bytes.begin(), bytes.end(), [](std::byte b) { return b != kPoison; }));
  }

  enum class State { kRunning, kStopped, kKilled };
  void fence_trials(State state);
  void fence_trial(Peer& writer, Peer& other, Peer& receiver, OutboundId others, State state,
                   int number);

  std::uint64_t incarnations_ = 0;
};

// One writer floods half of the pool and is fenced at a random moment; another writes the other
// half all the while and must notice nothing.
void LibfabricTest::fence_trial(Peer& writer, Peer& other, Peer& receiver, OutboundId others,
                                State state, int number) {
  const std::uint64_t length = number % 2 == 0 ? kHalf : 65536;
  for (Peer* peer : {&writer, &other, &receiver}) peer->events.clear();
  const Pair pair = join(writer, receiver);
  Rng rng(static_cast<std::uint64_t>(number) + 1);
  flood(writer, pair.outbound, length);
  ASSERT_TRUE(until({&writer, &receiver}, [&] { return writer.is_told(Kind::kWriteDone); }));
  for (std::uint64_t i = rng.below(20); i > 0; --i) {
    flood(writer, pair.outbound, length);
    writer.poll();
    receiver.poll();
  }
  flood(writer, pair.outbound, length);
  other.node->post({write_of(others, kHalf, kHalf, kHalf)});
  if (state == State::kStopped) writer.node->signal(SIGSTOP);
  if (state == State::kKilled) writer.node->signal(SIGKILL);
  writer.stopped = state != State::kRunning;

  receiver.node->fence_inbound(pair.inbound);
  ASSERT_TRUE(until({&receiver}, [&] { return receiver.is_told(Kind::kInboundFenced); }));
  const Time watched = now() + std::chrono::milliseconds(20);
  while (now() < watched) {
    for (Peer* peer : {&writer, &other, &receiver}) peer->poll();
    ASSERT_EQ(landed(receiver), 0U);
  }
  if (state == State::kStopped) {
    writer.node->signal(SIGCONT);
    writer.stopped = false;
  }
  if (state != State::kKilled) {
    ASSERT_TRUE(
        until({&writer, &receiver, &other}, [&] { return writer.is_told(Kind::kOutboundClosed); }));
    EXPECT_FALSE(writer.events.back().error.empty());
  }
  // The other one writes on: nothing of its own was lost, and its next write arrives as well.
  ASSERT_TRUE(until({&other, &receiver}, [&] { return other.is_told(Kind::kWriteDone); }));
  other.node->post({write_of(others, 0, kHalf, 64, 9)});
  ASSERT_TRUE(until({&other, &receiver}, [&] {
    return receiver.is_told(Kind::kImmediate) && other.count(Kind::kWriteDone) == 2;
  }));
  EXPECT_FALSE(other.is_told(Kind::kWriteFailed));
  EXPECT_EQ(receiver.node->read(kHalf + 64, kHalf - 64),
            testing::pattern(kHalf + 64, kHalf - 64, kFirstSeed + 1));
  EXPECT_EQ(landed(receiver), 0U);
  const auto fenced = std::find_if(receiver.events.begin(), receiver.events.end(),
                                   [](auto& e) { return e.kind == Kind::kInboundFenced; });
  EXPECT_TRUE(std::none_of(fenced + 1, receiver.events.end(),
                           [&](const FabricEvent& e) { return e.inbound == pair.inbound; }));
}

void LibfabricTest::fence_trials(State state) {
  Peer receiver = make("d");
  Peer other = make("q");
  Peer writer = make("p");
  other.node->fill(0, kPool, kFirstSeed + 1);
  writer.node->fill(0, kPool, kFirstSeed);
  const OutboundId others = join(other, receiver).outbound;
  for (int number = 0; number < rounds() && !HasFatalFailure(); ++number) {
    SCOPED_TRACE(number);
    fence_trial(writer, other, receiver, others, state, number);
    if (state == State::kKilled) {
      writer = make("p");
      writer.node->fill(0, kPool, kFirstSeed);
    }
  }
}

// A library below libfabric takes them over when it is loaded, before main().
TEST(LibfabricHandlers, SignalsAreTheProgramsOwn) {
  for (const int signal : {SIGINT, SIGABRT, SIGSEGV, SIGTERM}) {
    struct sigaction action{};
    ASSERT_EQ(::sigaction(signal, nullptr, &action), 0);
    EXPECT_TRUE(action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) << signal;
  }
}

TEST_P(LibfabricTest, AFenceHoldsAgainstARunningWriter) {
  fence_trials(State::kRunning);
}

TEST_P(LibfabricTest, AFenceHoldsAgainstAStoppedWriterThatWakes) {
  fence_trials(State::kStopped);
}

TEST_P(LibfabricTest, AFenceHoldsAgainstWhatAKilledWriterLeftInTheSockets) {
  fence_trials(State::kKilled);
}

TEST_P(LibfabricTest, ADeathIsNoFence) {
  Peer receiver = make("d");
  Peer writer = make("p");
  const Pair pair = join(writer, receiver);
  flood(writer, pair.outbound, kHalf);
  writer.node->signal(SIGKILL);
  for (int i = 0; i < 200; ++i) receiver.poll();
  EXPECT_FALSE(receiver.is_told(Kind::kInboundFenced));
  receiver.node->fence_inbound(pair.inbound);
  ASSERT_TRUE(until({&receiver}, [&] { return receiver.is_told(Kind::kInboundFenced); }));
}

TEST_P(LibfabricTest, AFencedOfferLetsNobodyInAgain) {
  Peer receiver = make("d");
  Peer writer = make("p");
  const Pair pair = join(writer, receiver);
  receiver.node->fence_inbound(pair.inbound);
  ASSERT_TRUE(until({&receiver}, [&] { return receiver.is_told(Kind::kInboundFenced); }));
  ASSERT_TRUE(writer.node->connect(receiver.id, pair.offer, receiver.node->regions()));
  ASSERT_TRUE(until({&writer, &receiver}, [&] { return writer.is_told(Kind::kConnectFailed); }));
  EXPECT_EQ(writer.count(Kind::kConnected), 1U);
}

// A writer that learnt another's address still has its own key only. Where each endpoint has a
// domain of its own the key is worth nothing there; elsewhere it goes with its fence.
TEST_P(LibfabricTest, AKeyEndsWithItsWriterWhereverItIsUsed) {
  Peer receiver = make("d");
  Peer writer = make("p");
  const auto own = receiver.node->open_inbound(writer.id, Access::kWrite).value();
  const auto others = receiver.node->open_inbound(PeerId{"q", 77}, Access::kWrite).value();
  Offer bent = decode_offer(own.offer).value();
  bent.rails = decode_offer(others.offer)->rails;
  const auto outbound = writer.node->connect(receiver.id, encode(bent), receiver.node->regions());
  ASSERT_TRUE(outbound);
  ASSERT_TRUE(until({&writer, &receiver}, [&] {
    return writer.is_told(Kind::kConnected) || writer.is_told(Kind::kConnectFailed);
  }));
  EXPECT_EQ(writer.is_told(Kind::kConnected), GetParam() != std::string_view("tcp"));
  if (!writer.is_told(Kind::kConnected)) return;  // and so posts nothing
  receiver.node->fence_inbound(own.id);
  writer.node->fill(0, kHalf, kFirstSeed);
  writer.node->post({write_of(*outbound, 0, 0, kHalf)});
  ASSERT_TRUE(until({&writer, &receiver}, [&] { return writer.is_told(Kind::kOutboundClosed); }));
  EXPECT_FALSE(writer.is_told(Kind::kWriteDone));
  EXPECT_EQ(landed(receiver), 0U);
}

TEST_P(LibfabricTest, AWrongKeyDoesNotConnect) {
  Peer receiver = make("d");
  Peer writer = make("p");
  const auto inbound = receiver.node->open_inbound(writer.id, Access::kWrite).value();
  Offer bent = decode_offer(inbound.offer).value();
  bent.places.front().key ^= 1;
  ASSERT_TRUE(writer.node->connect(receiver.id, encode(bent), receiver.node->regions()));
  ASSERT_TRUE(until({&writer, &receiver}, [&] { return writer.is_told(Kind::kConnectFailed); }));
  EXPECT_FALSE(writer.is_told(Kind::kConnected));
  // It harmed nobody: the true offer still stands.
  const auto good = writer.node->connect(receiver.id, inbound.offer, receiver.node->regions());
  ASSERT_TRUE(good);
  ASSERT_TRUE(until({&writer, &receiver}, [&] { return writer.is_told(Kind::kConnected); }));
}

// Past our own check: the writer is told of a region twice as long as it is.
TEST_P(LibfabricTest, TheReceiversProviderRefusesWhatIsOutOfBounds) {
  Peer receiver = make("d", kHalf);
  Peer writer = make("p");
  Peer other = make("q");
  const Pair other_pair = join(other, receiver);
  const auto inbound = receiver.node->open_inbound(writer.id, Access::kWrite).value();
  Offer bent = decode_offer(inbound.offer).value();
  bent.places.front().length = kPool;
  std::vector<Region> regions = receiver.node->regions();
  regions.front().block_bytes = regions.front().stride_bytes = kPool;
  for (const std::uint64_t at : {kHalf - 4096, kHalf, kPool - 8192}) {
    Peer liar = make("liar");
    const auto outbound = liar.node->connect(receiver.id, encode(bent), regions);
    ASSERT_TRUE(outbound);
    ASSERT_TRUE(until({&liar, &receiver}, [&] { return liar.is_told(Kind::kConnected); }));
    liar.node->fill(0, kPool, kFirstSeed);
    ASSERT_TRUE(liar.node->post({write_of(*outbound, 0, at, 8192, 1)}).status);
    ASSERT_TRUE(until({&liar, &receiver}, [&] { return liar.is_told(Kind::kOutboundClosed); }));
    EXPECT_TRUE(liar.is_told(Kind::kWriteFailed));
    EXPECT_FALSE(liar.is_told(Kind::kWriteDone));
  }
  EXPECT_FALSE(receiver.is_told(Kind::kImmediate));
  EXPECT_EQ(receiver.node->read(0, kHalf), Bytes(kHalf));
  other.node->post({write_of(other_pair.outbound, 0, 0, 64, 3)});
  ASSERT_TRUE(until({&other, &receiver}, [&] { return receiver.is_told(Kind::kImmediate); }));
}

TEST_P(LibfabricTest, AnOfferOfAnotherProviderIsRefusedByName) {
  Peer receiver = make("d");
  Peer writer = make("p");
  Offer bent = decode_offer(receiver.node->open_inbound(writer.id, Access::kWrite)->offer).value();
  bent.provider = "efa";
  ASSERT_TRUE(writer.node->connect(receiver.id, encode(bent), receiver.node->regions()));
  writer.poll();
  ASSERT_TRUE(writer.is_told(Kind::kConnectFailed));
  EXPECT_THAT(writer.events.back().error, HasSubstr("theirs is efa"));
  bent = decode_offer(receiver.node->open_inbound(writer.id, Access::kWrite)->offer).value();
  bent.rails.front().address.resize(200);
  ASSERT_TRUE(writer.node->connect(receiver.id, encode(bent), receiver.node->regions()));
  writer.poll();
  EXPECT_THAT(writer.events.back().error, HasSubstr("theirs is 200"));
}

// B29: a transfer of 96 descriptors stopped after exactly 16 elsewhere.
TEST_P(LibfabricTest, B29_EveryCountOfDescriptorsCompletes) {
  Peer receiver = make("d");
  Peer writer = make("p");
  const Pair pair = join(writer, receiver);
  writer.node->fill(0, kPool, kFirstSeed);
  for (const std::uint64_t length : {4096ULL, 1ULL << 20}) {
    for (const std::uint32_t count : {1U, 15U, 16U, 17U, 31U, 32U, 33U, 96U, 1000U}) {
      writer.events.clear();
      receiver.events.clear();
      std::vector<Write> writes;
      for (std::uint32_t i = 0; i < count; ++i) {
        const std::uint64_t at = i * length % kPool;
        writes.push_back(write_of(pair.outbound, at, at, length));
      }
      const std::vector<Peer*> both{&writer, &receiver};
      const bool all = until(both, [&] {
        const Node::Posted posted = writer.node->post(writes);
        writes.erase(writes.begin(), writes.begin() + static_cast<long>(posted.accepted));
        return writes.empty();
      });
      ASSERT_TRUE(all) << writes.size() << " of " << count << " were not accepted";
      ASSERT_TRUE(until(both, [&] { return writer.count(Kind::kWriteDone) == count; }))
          << writer.count(Kind::kWriteDone) << " of " << count << " of " << length << " bytes";
      ASSERT_TRUE(writer.node->post({write_of(pair.outbound, 0, 0, 0, count)}).status);
      ASSERT_TRUE(until(both, [&] {
        return receiver.is_told(Kind::kImmediate) && writer.count(Kind::kWriteDone) == count + 1;
      }));
      EXPECT_EQ(receiver.events.back().immediate, count);
    }
  }
  EXPECT_EQ(receiver.node->read(0, kPool), testing::pattern(0, kPool, kFirstSeed));
}

// Past our own checks: the keys of a reader do not write, and those of a writer do not read.
TEST_P(LibfabricTest, AnOfferBentToTheOtherAccessConnectsNobody) {
  Peer source = make("d");
  Peer reader = make("p");
  if (!source.node->capabilities().reads) GTEST_SKIP() << "no reads here";
  source.node->fill(0, kPool, kFirstSeed);
  for (const Access access : {Access::kWrite, Access::kRead}) {
    const auto inbound = source.node->open_inbound(reader.id, access).value();
    Offer bent = decode_offer(inbound.offer).value();
    bent.access = access == Access::kWrite ? Access::kRead : Access::kWrite;
    reader.events.clear();
    ASSERT_TRUE(reader.node->connect(source.id, encode(bent), source.node->regions()));
    ASSERT_TRUE(until({&reader, &source}, [&] { return reader.is_told(Kind::kConnectFailed); }));
    EXPECT_FALSE(reader.is_told(Kind::kConnected));
  }
}

TEST_P(LibfabricTest, WhereReadsWouldCrashTheyAreRefusedWithTheReason) {
  Peer source = make("d");
  Peer reader = make("p");
  if (source.node->capabilities().reads) GTEST_SKIP() << "there are reads here";
  const auto inbound = source.node->open_inbound(reader.id, Access::kRead);
  ASSERT_FALSE(inbound);
  EXPECT_EQ(inbound.error().code, Errc::kUnsupported);
  EXPECT_THAT(inbound.error().message, HasSubstr("1.18 is needed"));
  const Pair pair = join(reader, source);
  Read read;
  read.from = pair.outbound;
  read.length = 8;
  EXPECT_EQ(reader.node->post_reads({read}).status.error().code, Errc::kUnsupported);
  // A source that has them may offer: the reader says why not.
  Offer offer = decode_offer(source.node->open_inbound(reader.id, Access::kWrite)->offer).value();
  offer.access = Access::kRead;
  ASSERT_TRUE(reader.node->connect(source.id, encode(offer), source.node->regions()));
  ASSERT_TRUE(until({&reader, &source}, [&] { return reader.is_told(Kind::kConnectFailed); }));
  EXPECT_THAT(reader.events.back().error, HasSubstr("1.18 is needed"));
}

INSTANTIATE_TEST_SUITE_P(Providers, LibfabricTest, ::testing::Values("tcp", "tcp;ofi_rxm"),
                         [](const auto& test) {
                           return std::string(test.param) == "tcp" ? "Tcp" : "TcpRxm";
                         });

// Children again: a process that has opened libfabric must not fork.
std::string refusal_of(const Options& options) {
  int fds[2] = {-1, -1};
  if (::pipe(fds) != 0) return {};
  if (::fork() == 0) {
    const auto fabric = make_libfabric_fabric(options);
    const std::string text = fabric ? "none" : fabric.error().message;
    static_cast<void>(::write(fds[1], text.data(), text.size()));
    ::_exit(0);
  }
  ::close(fds[1]);
  std::string text(512, '\0');
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, ::read(fds[0], text.data(), 512))));
  ::close(fds[0]);
  return text;
}

TEST(LibfabricOptions, ProvidersAreRefusedInOneSentenceThatNamesThem) {
  Options options;
  options.provider = "sockets";
  EXPECT_THAT(refusal_of(options), HasSubstr("fabric provider is 'sockets', known are 'tcp'"));
  options.provider = "efa";
  EXPECT_THAT(refusal_of(options), HasSubstr("fabric provider 'efa' is not offered"));
  options.provider = "tcp";
  options.address = "203.0.113.9";  // of nobody here
  EXPECT_THAT(refusal_of(options), HasSubstr("'203.0.113.9'"));
  options.address = "lo";
  EXPECT_EQ(refusal_of(options), "none");
  options.address = "0.0.0.0";
  EXPECT_EQ(refusal_of(options), "none");
}

// One pool in this process, and fabrics over it: for tests that look at both ends between two
// polls.
struct Here {
  Here(std::size_t bytes, std::string provider) : pool(bytes) {
    region.name = "pool";
    region.base = pool.data();
    region.stride_bytes = region.block_bytes = bytes;
    region.num_blocks = 1;
    options.provider = std::move(provider);
  }
  std::unique_ptr<Fabric> make() const {
    auto fabric = make_libfabric_fabric(options).value();
    EXPECT_TRUE(fabric->register_regions({&region, 1}));
    return fabric;
  }

  std::vector<std::byte> pool;
  Region region;
  Options options;
};

// Writers that are anywhere in making their connection when their inbound is fenced, as happens to
// a receiver that was stopped and wakes: the receiver lives, and others are served.
TEST_P(LibfabricTest, AConnectionThatIsBeingMadeSurvivesNoFenceAndHarmsNobody) {
  Here here(1 << 20, GetParam());
  const Region& region = here.region;
  const auto receiver = here.make();
  const std::array writers = {here.make(), here.make()};
  std::vector<FabricEvent> events(64);
  Rng rng(7);
  const bool is_quick = GetParam() == std::string_view("tcp");  // rxm's endpoints take 100 ms each
  for (int round = 0; round < (is_quick ? 20 : 1) * rounds(); ++round) {
    std::array<Fabric::Inbound, 2> inbounds;
    std::array<OutboundId, 2> outbounds;
    for (std::size_t i = 0; i < 2; ++i) {
      inbounds[i] = receiver->open_inbound({"w", ++incarnations_}, Access::kWrite).value();
      outbounds[i] = writers[i]->connect({"d", 1}, inbounds[i].offer, {&region, 1}).value();
    }
    for (std::uint64_t steps = rng.below(16); steps > 0; --steps) {
      const std::uint64_t who = rng.below(3);
      (who == 2 ? receiver : writers[who])->poll(events);
    }
    receiver->fence_inbound(inbounds[0].id);
    for (std::uint64_t steps = rng.below(8); steps > 0; --steps) {
      receiver->poll(events);
      writers[steps % 2]->poll(events);
    }
    receiver->fence_inbound(inbounds[1].id);
    for (std::size_t i = 0; i < 2; ++i) writers[i]->close_outbound(outbounds[i]);
    for (int steps = 0; steps < 4; ++steps) {
      receiver->poll(events);
      for (const auto& writer : writers) writer->poll(events);
    }
  }
  // Afterwards a writer comes through.
  const auto inbound = receiver->open_inbound({"w", ++incarnations_}, Access::kWrite).value();
  ASSERT_TRUE(writers[0]->connect({"d", 1}, inbound.offer, {&region, 1}));
  bool connected = false;
  for (const Time end = now() + kPatience; !connected && now() < end;) {
    receiver->poll(events);
    const std::size_t count = writers[0]->poll(events);
    connected = std::any_of(events.begin(), events.begin() + static_cast<std::ptrdiff_t>(count),
                            [](const FabricEvent& e) { return e.kind == Kind::kConnected; });
  }
  EXPECT_TRUE(connected);
}

// The provider lost the connection and found no descriptor for another: the post that tried ends
// the outbound, and the polls after it ask nothing of an endpoint that is closed.
TEST(LibfabricOutbound, APostThatFindsNoWayEndsItOnce) {
  Here here(1 << 20, "tcp");  // the one that connects anew by itself
  const Region& region = here.region;
  const auto receiver = here.make();
  const auto writer = here.make();
  const auto inbound = receiver->open_inbound({"w", 1}, Access::kWrite).value();
  const OutboundId outbound = writer->connect({"d", 1}, inbound.offer, {&region, 1}).value();
  std::vector<FabricEvent> seen;
  const auto poll_until = [&](const std::function<bool()>& done) {
    std::vector<FabricEvent> events(64);
    for (const Time end = now() + kPatience; !done() && now() < end;) {
      receiver->poll(events);
      const std::size_t count = writer->poll(events);
      seen.insert(seen.end(), events.begin(), events.begin() + static_cast<std::ptrdiff_t>(count));
    }
    return done();
  };
  const auto sockets = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::count_if(begin(all), end(all), [](const auto& entry) {
      std::error_code gone;
      return std::filesystem::read_symlink(entry.path(), gone).string().starts_with("socket:");
    });
  };
  ASSERT_TRUE(poll_until([&] { return !seen.empty() && seen.back().kind == Kind::kConnected; }));
  const auto before = sockets();
  receiver->fence_inbound(inbound.id);
  // Both ends of the connection and the receiver's listener.
  ASSERT_TRUE(poll_until([&] { return sockets() <= before - 3; })) << before << " " << sockets();
  ASSERT_TRUE(poll_until([polls = 0]() mutable { return ++polls > 16; }));  // and knows of it
  seen.clear();
  Write write;
  write.to = outbound;
  write.length = 4096;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit none{0, limit.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &none);
  const Status posted = writer->post(write);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  ASSERT_TRUE(posted) << posted.error().message;
  const auto closed = [&] { return !seen.empty() && seen.back().kind == Kind::kOutboundClosed; };
  ASSERT_TRUE(poll_until(closed));
  ASSERT_EQ(seen.size(), 2U);
  EXPECT_EQ(seen.front().kind, Kind::kWriteFailed);
  EXPECT_THAT(seen.front().error, HasSubstr("fi_writemsg"));
}

// Two owner threads' ways in one: both sleep on their descriptors unless busy. A demand must wake
// the source, its bytes the reader, and a full socket's drain the source again.
TEST_P(LibfabricTest, ReadsWakeTheSourceAndTheReaderFromTheirSleep) {
  Here here(8 << 20, GetParam());
  std::vector<std::byte>& pool = here.pool;
  const Region& region = here.region;
  const auto source = here.make();
  if (!source->capabilities().reads) GTEST_SKIP() << "no reads here";
  const auto reader = here.make();
  const auto inbound = source->open_inbound({"d", 1}, Access::kRead).value();
  const OutboundId outbound = reader->connect({"p", 1}, inbound.offer, {&region, 1}).value();
  std::vector<FabricEvent> events(64);
  const auto next = [&](Kind kind) {
    for (const Time end = now() + kPatience; now() < end;) {
      std::array<pollfd, 2> fds{pollfd{source->wait_fd(), POLLIN, 0},
                                pollfd{reader->wait_fd(), POLLIN, 0}};
      const bool busy = source->busy() || reader->busy();
      if (!busy && ::poll(fds.data(), fds.size(), 10000) == 0) return false;
      source->poll(events);
      const std::size_t count = reader->poll(events);
      if (std::any_of(events.begin(), events.begin() + static_cast<std::ptrdiff_t>(count),
                      [&](const FabricEvent& e) { return e.kind == kind; })) {
        return true;
      }
    }
    return false;
  };
  ASSERT_TRUE(next(Kind::kConnected));
  const std::uint64_t half = pool.size() / 2;
  for (std::uint32_t round = 1; round <= 20; ++round) {
    for (std::uint64_t i = 0; i < half; ++i) pool[i] = testing::pattern(i, round);
    Read read;
    read.from = outbound;
    read.local_offset = half;
    read.length = round % 2 == 0 ? half : 4096;  // more than sockets hold, and less
    ASSERT_TRUE(reader->post_read(read));
    ASSERT_TRUE(next(Kind::kReadDone)) << round;
    ASSERT_EQ(std::memcmp(pool.data(), pool.data() + half, read.length), 0) << round;
  }
}

TEST(LibfabricOffer, ComesBackAsItWasAndIsKnownWhenDamaged) {
  Offer offer;
  offer.provider = "net";
  offer.address_format = 3;
  offer.rails = {{Bytes(16, std::byte{7})}, {Bytes(28, std::byte{8})}};
  offer.places = {{1, 2, 3}, {4, 5, 6}};
  const Bytes bytes = encode(offer);
  const Result<Offer> again = decode_offer(bytes);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->provider, "net");
  EXPECT_EQ(again->rails[1].address, offer.rails[1].address);
  EXPECT_EQ(again->places[1].length, 6U);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(decode_offer(std::span(bytes).first(size)));
  }
  offer.places.assign(kPlacesMax, {~0ULL, 0, 1});
  EXPECT_LE(encode(offer).size(), kOfferBytesMax);
  EXPECT_TRUE(decode_offer(encode(offer)));
  offer.places.push_back({});
  EXPECT_FALSE(decode_offer(encode(offer)));
  offer.places.assign(1, {1, ~0ULL, 2});
  EXPECT_THAT(decode_offer(encode(offer)).error().message, HasSubstr("overflows"));
  offer.rails.clear();
  EXPECT_THAT(decode_offer(encode(offer)).error().message, HasSubstr("0 rails"));
}

}  // namespace
}  // namespace baton::fabric::libfabric
