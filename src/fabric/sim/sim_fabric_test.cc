// That the fake is as strict as it says: each licence it gives itself is seen to be taken.
#include "fabric/sim/sim_fabric.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace baton::fabric::sim {
namespace {

using Kind = FabricEvent::Kind;
using namespace std::chrono_literals;

constexpr std::uint64_t kBytes = 4096;

struct Party {
  Party(Network& network, std::string name, std::uint64_t incarnation = 1)
      : id{std::move(name), incarnation}, memory(kBytes), fabric(network.make_endpoint(id)) {
    Region region;
    region.name = "r";
    region.base = memory.data();
    region.block_bytes = region.stride_bytes = kBytes;
    region.num_blocks = 1;
    regions = {region};
    EXPECT_TRUE(fabric->register_regions(regions));
  }
  std::vector<FabricEvent> take() {
    std::vector<FabricEvent> events(4096);
    events.resize(fabric->poll(events));
    return events;
  }
  bool all(std::byte value) const { return memory == Bytes(kBytes, value); }
  bool none(std::byte value) const {
    return std::find(memory.begin(), memory.end(), value) == memory.end();
  }

  PeerId id;
  Bytes memory;
  std::vector<Region> regions;
  std::unique_ptr<Fabric> fabric;
};

struct World {
  explicit World(std::uint64_t seed, const Options& options = {})
      : network(seed, options), p(network, "p"), d(network, "d") {
    inbound = d.fabric->open_inbound(p.id, Access::kWrite).value();
    outbound = p.fabric->connect(d.id, inbound.offer, d.regions).value();
    network.settle();
    EXPECT_EQ(p.take().at(0).kind, Kind::kConnected);
  }
  void post(std::uint32_t immediate) {
    Write write;
    write.to = outbound;
    write.length = kBytes;
    write.immediate = immediate;
    write.context = immediate;
    ASSERT_TRUE(p.fabric->post(write));
  }
  Network network;
  Party p;
  Party d;
  Fabric::Inbound inbound;
  OutboundId outbound;
};

std::string trace(std::uint64_t seed) {
  World world(seed);
  std::string text;
  for (std::uint32_t i = 0; i < 20; ++i) world.post(i);
  while (world.network.pending() > 0) {
    text += world.network.describe(0) + "\n";
    world.network.step();
  }
  for (const FabricEvent& event : world.d.take()) text += std::to_string(event.immediate) + " ";
  return text;
}

TEST(Sim, TheSameSeedGivesTheSameRun) {
  EXPECT_EQ(trace(1), trace(1));
  EXPECT_NE(trace(1), trace(2));
}

TEST(Sim, ImmediatesOvertakeEachOtherAndCompletionsOvertakeTheBytes) {
  bool overtaken = false;
  bool completed_early = false;
  bool torn = false;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    World world(seed);
    std::fill(world.p.memory.begin(), world.p.memory.end(), std::byte{1});
    world.post(0);
    world.post(1);
    std::vector<std::uint32_t> order;
    while (world.network.step()) {
      const bool complete = world.d.all(std::byte{1});
      torn |= !complete && !world.d.none(std::byte{1});
      for (const FabricEvent& event : world.d.take()) {
        order.push_back(event.immediate);
        EXPECT_TRUE(complete);  // both writes carry the same bytes
      }
      for (const FabricEvent& event : world.p.take()) {
        completed_early |= event.kind == Kind::kWriteDone && !complete;
      }
    }
    overtaken |= order == std::vector<std::uint32_t>{1, 0};
    EXPECT_EQ(order.size(), 2U);
  }
  EXPECT_TRUE(overtaken);
  EXPECT_TRUE(completed_early);
  EXPECT_TRUE(torn);
}

TEST(Sim, WithDeliveryCompleteTheBytesAreThereAtCompletion) {
  Options options;
  options.delivery_complete = true;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    World world(seed, options);
    std::fill(world.p.memory.begin(), world.p.memory.end(), std::byte{1});
    world.post(0);
    while (world.network.step()) {
      if (!world.p.take().empty()) {
        EXPECT_TRUE(world.d.all(std::byte{1}));
      }
    }
  }
}

TEST(Sim, BytesLandAfterFailureAndCloseUntilFenced) {
  bool landed_late = false;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    World world(seed);
    std::fill(world.p.memory.begin(), world.p.memory.end(), std::byte{1});
    world.network.fail_writes(world.p.id, world.d.id, 1);
    world.post(0);
    world.p.fabric->close_outbound(world.outbound);
    std::vector<FabricEvent> events;
    while (events.size() < 2) {
      ASSERT_TRUE(world.network.step());
      for (FabricEvent& event : world.p.take()) events.push_back(event);
    }
    EXPECT_EQ(events[0].kind, Kind::kWriteFailed);
    EXPECT_EQ(events[1].kind, Kind::kOutboundClosed);
    const Bytes before = world.d.memory;
    // P's memory is its own again: what lands late is what was posted.
    std::fill(world.p.memory.begin(), world.p.memory.end(), std::byte{2});
    if (seed % 2 == 0) world.network.fence(world.d.id, world.p.id);
    world.network.settle();
    EXPECT_TRUE(world.d.none(std::byte{2}));
    if (seed % 2 == 0) {
      EXPECT_EQ(world.d.memory, before);
      EXPECT_EQ(world.d.take().back().kind, Kind::kInboundFenced);
    } else {
      landed_late |= world.d.memory != before;
    }
  }
  EXPECT_TRUE(landed_late);
}

TEST(Sim, AHeldLinkDeliversNothingUntilReleased) {
  World world(3);
  std::fill(world.p.memory.begin(), world.p.memory.end(), std::byte{1});
  world.network.hold(world.p.id, world.d.id, true);
  world.post(5);
  world.network.settle();
  EXPECT_TRUE(world.d.none(std::byte{1}));
  EXPECT_TRUE(world.d.take().empty());
  world.network.hold(world.p.id, world.d.id, false);
  world.network.settle();
  EXPECT_EQ(world.d.take().at(0).immediate, 5U);
  EXPECT_TRUE(world.d.all(std::byte{1}));
}

TEST(Sim, TimeFiresWhatIsDueAndNoMore) {
  World world(4);
  EXPECT_EQ(world.network.next_due(), kNever);
  world.post(1);
  const Time start = world.network.now();
  ASSERT_NE(world.network.next_due(), kNever);
  world.network.advance_to(world.network.next_due() - 1ns);
  EXPECT_EQ(world.network.stats().bytes_landed, 0U);
  world.network.advance_to(start + 1s);
  EXPECT_EQ(world.network.next_due(), kNever);
  EXPECT_EQ(world.network.now(), start + 1s);
  EXPECT_EQ(world.network.stats().bytes_landed, kBytes);
  EXPECT_EQ(world.d.take().size(), 1U);
}

TEST(Sim, AnOverrunReceiverLosesImmediatesAndSaysSo) {
  Options options;
  options.immediates_max = 2;
  World world(5, options);
  for (std::uint32_t i = 0; i < 3; ++i) world.post(i);
  world.network.settle();
  EXPECT_EQ(world.network.stats().immediates_overrun, 1U);
  EXPECT_EQ(world.d.take().size(), 2U);
}

TEST(Sim, ACrashedReceiversMemoryIsNotTouchedAndItsRestartIsAnotherPeer) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    World world(seed);
    std::fill(world.p.memory.begin(), world.p.memory.end(), std::byte{1});
    world.post(0);
    world.network.step();
    world.network.crash(world.d.id);
    const Bytes before = world.d.memory;
    Party again(world.network, "d", 2);
    world.network.settle();
    EXPECT_EQ(world.d.memory, before);
    EXPECT_EQ(world.p.take().back().kind, Kind::kOutboundClosed);
    // The old offer leads nowhere, a new one does.
    const auto old = world.p.fabric->connect(again.id, world.inbound.offer, again.regions).value();
    world.network.settle();
    const auto events = world.p.take();
    ASSERT_EQ(events.size(), 1U);
    EXPECT_EQ(events[0].kind, Kind::kConnectFailed);
    EXPECT_EQ(events[0].outbound, old);
    const auto offer = again.fabric->open_inbound(world.p.id, Access::kWrite).value().offer;
    world.outbound = world.p.fabric->connect(again.id, offer, again.regions).value();
    world.network.settle();
    world.post(7);
    world.network.settle();
    EXPECT_EQ(again.take().at(0).immediate, 7U);
    EXPECT_TRUE(again.all(std::byte{1}));
  }
}

TEST(Sim, FencesByRequestOnlyWhereToldTo) {
  for (const bool on_request : {false, true}) {
    Options options;
    options.fence_on_request = on_request;
    World world(6, options);
    world.d.fabric->fence_inbound(world.inbound.id);
    world.network.settle();
    EXPECT_EQ(world.d.take().size(), on_request ? 1U : 0U);
    EXPECT_EQ(world.p.take().size(), on_request ? 1U : 0U);  // its outbound closed
  }
}

TEST(Sim, WithoutFenceOnCrashTheDeadMayStillWrite) {
  Options options;
  options.fence_on_crash = false;
  World world(7, options);
  std::fill(world.p.memory.begin(), world.p.memory.end(), std::byte{1});
  world.post(0);
  world.network.crash(world.p.id);
  std::fill(world.p.memory.begin(), world.p.memory.end(), std::byte{2});
  world.network.settle();
  EXPECT_TRUE(world.d.all(std::byte{1}));
  EXPECT_EQ(world.d.take().size(), 1U);
  world.network.fence(world.d.id, world.p.id);
  EXPECT_EQ(world.d.take().at(0).kind, Kind::kInboundFenced);
}

TEST(Sim, AWriteThatLandsAfterItsWriterDiedCompletesNowhere) {
  Options options;
  options.fence_on_crash = false;
  options.delivery_complete = true;
  World world(9, options);
  std::fill(world.p.memory.begin(), world.p.memory.end(), std::byte{1});
  world.post(0);
  world.network.crash(world.p.id);
  world.network.settle();
  EXPECT_TRUE(world.d.all(std::byte{1}));
  EXPECT_EQ(world.d.take().size(), 1U);
  EXPECT_TRUE(world.p.take().empty());
}

TEST(Sim, ItsDescriptorIsReadableWhileEventsWait) {
  World world(8);
  const int fd = world.d.fabric->wait_fd();
  const auto readable = [&] {
    pollfd state{fd, POLLIN, 0};
    return ::poll(&state, 1, 0) == 1;
  };
  EXPECT_FALSE(readable());
  world.post(1);
  world.network.settle();
  EXPECT_TRUE(readable());
  EXPECT_TRUE(world.d.fabric->busy());
  world.d.take();
  EXPECT_FALSE(readable());
  EXPECT_FALSE(world.d.fabric->busy());
}

// Reads: D takes P's bytes.
struct ReadWorld {
  explicit ReadWorld(std::uint64_t seed, const Options& options = {})
      : network(seed, options), p(network, "p"), d(network, "d") {
    inbound = p.fabric->open_inbound(d.id, Access::kRead).value();
    outbound = d.fabric->connect(p.id, inbound.offer, p.regions).value();
    network.settle();
    EXPECT_EQ(d.take().at(0).kind, Kind::kConnected);
    paint(p, 1);
  }
  static void paint(Party& party, int value) {
    std::fill(party.memory.begin(), party.memory.end(), std::byte(value));
  }
  void post(std::uint64_t context) {
    Read read;
    read.from = outbound;
    read.length = kBytes;
    read.context = context;
    ASSERT_TRUE(d.fabric->post_read(read));
  }
  // Steps until D is told something of this kind.
  FabricEvent until(Kind kind) {
    while (network.step()) {
      for (FabricEvent& event : d.take()) {
        if (event.kind == kind) return event;
      }
    }
    ADD_FAILURE() << "nothing of the kind";
    return {};
  }
  Network network;
  Party p;
  Party d;
  Fabric::Inbound inbound;
  OutboundId outbound;
};

TEST(SimReads, BringBytesOfSeveralMomentsInPiecesAndOutOfOrder) {
  bool overtaken = false;
  bool torn = false;
  bool of_two_moments = false;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    ReadWorld world(seed);
    world.post(0);
    world.post(1);
    std::vector<std::uint64_t> order;
    for (int steps = 0; world.network.step(); ++steps) {
      if (steps == 3) ReadWorld::paint(world.p, 2);
      const bool zeros = !world.d.none(std::byte{0});
      torn |= zeros && !world.d.all(std::byte{0});
      for (const FabricEvent& event : world.d.take()) {
        EXPECT_EQ(event.kind, Kind::kReadDone);
        EXPECT_FALSE(zeros);
        of_two_moments |= !world.d.none(std::byte{1}) && !world.d.none(std::byte{2});
        order.push_back(event.context);
      }
    }
    EXPECT_EQ(order.size(), 2U);
    overtaken |= order == std::vector<std::uint64_t>{1, 0};
    EXPECT_TRUE(world.p.take().empty());
  }
  EXPECT_TRUE(overtaken);
  EXPECT_TRUE(torn);
  EXPECT_TRUE(of_two_moments);
}

TEST(SimReads, AFailedOneLandsUntilItIsOverOrItsOutboundIsClosed) {
  bool landed_late = false;
  bool was_over = false;
  bool landed_all_the_same = false;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    ReadWorld world(seed);
    world.network.fail_reads(world.d.id, world.p.id, 1);
    world.post(7);
    const FabricEvent failed = world.until(Kind::kReadFailed);
    EXPECT_EQ(failed.context, 7U);
    landed_all_the_same |= !world.d.none(std::byte{1});
    was_over |= failed.over;
    if (seed % 2 == 0) {
      world.d.fabric->close_outbound(world.outbound);
      world.until(Kind::kOutboundClosed);
    }
    const Bytes before = world.d.memory;
    world.network.settle();
    if (seed % 2 == 0 || failed.over) {
      EXPECT_EQ(world.d.memory, before) << seed;
    } else {
      landed_late |= world.d.memory != before;
    }
  }
  EXPECT_TRUE(landed_all_the_same);
  EXPECT_TRUE(was_over);
  EXPECT_TRUE(landed_late);
}

TEST(SimReads, TakeNothingAfterTheFence) {
  bool landed_after = false;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    ReadWorld world(seed);
    for (std::uint64_t i = 0; i < 4; ++i) world.post(i);
    for (std::uint64_t steps = seed % 6; steps > 0; --steps) world.network.step();
    world.network.fence(world.p.id, world.d.id);
    EXPECT_EQ(world.p.take().back().kind, Kind::kInboundFenced);
    ReadWorld::paint(world.p, 2);
    const Bytes before = world.d.memory;
    world.until(Kind::kOutboundClosed);
    EXPECT_TRUE(world.d.none(std::byte{2}));
    landed_after |= world.d.memory != before;
  }
  EXPECT_TRUE(landed_after);  // what had left P before
}

TEST(SimReads, AHeldLinkKeepsTheBytesOrTheDemand) {
  ReadWorld world(3);
  world.network.hold(world.p.id, world.d.id, true);
  world.post(0);
  world.network.settle();  // taken, and on the way
  ReadWorld::paint(world.p, 2);
  EXPECT_TRUE(world.d.all(std::byte{0}));
  world.network.hold(world.p.id, world.d.id, false);
  world.until(Kind::kReadDone);
  EXPECT_TRUE(world.d.all(std::byte{1}));
  world.network.hold(world.d.id, world.p.id, true);
  world.post(1);
  world.network.settle();
  EXPECT_TRUE(world.d.take().empty());
  world.network.hold(world.d.id, world.p.id, false);
  world.until(Kind::kReadDone);
  EXPECT_TRUE(world.d.all(std::byte{2}));
}

TEST(SimReads, ADeadSourceIsNotTakenFromAndADeadReaderGetsNothing) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    ReadWorld world(seed);
    for (std::uint64_t i = 0; i < 4; ++i) world.post(i);
    for (std::uint64_t steps = seed % 6; steps > 0; --steps) world.network.step();
    Party& dies = seed % 2 == 0 ? world.p : world.d;
    world.network.crash(dies.id);
    ReadWorld::paint(world.p, 2);
    const Bytes before = world.d.memory;
    if (seed % 2 == 0) {
      EXPECT_FALSE(world.until(Kind::kOutboundClosed).error.empty());
    }
    world.network.settle();
    EXPECT_TRUE(world.d.none(std::byte{2}));
    if (seed % 2 == 1) {
      EXPECT_EQ(world.d.memory, before);
      EXPECT_EQ(world.p.take().back().kind, Kind::kInboundFenced);
    }
  }
}

TEST(SimReads, AnOfferBentToTheOtherAccessIsRefusedByName) {
  for (const Access access : {Access::kWrite, Access::kRead}) {
    ReadWorld world(1);
    Bytes offer = world.p.fabric->open_inbound(world.d.id, access).value().offer;
    offer[offer.size() - 8] ^= std::byte{3};  // the access: 1 or 2
    ASSERT_TRUE(world.d.fabric->connect(world.p.id, offer, world.p.regions));
    const std::string why = world.until(Kind::kConnectFailed).error;
    EXPECT_EQ(why, access == Access::kWrite ? "the offer grants writes, it was used for reads"
                                            : "the offer grants reads, it was used for writes");
  }
}

TEST(SimReads, AreRefusedWhereTheFabricHasNone) {
  Options options;
  options.reads = false;
  World world(1, options);
  EXPECT_FALSE(world.d.fabric->capabilities().reads);
  EXPECT_EQ(world.d.fabric->open_inbound(world.p.id, Access::kRead).error().code,
            Errc::kUnsupported);
  Read read;
  read.from = world.outbound;
  read.length = 8;
  EXPECT_EQ(world.p.fabric->post_read(read).error().code, Errc::kUnsupported);
}

}  // namespace
}  // namespace baton::fabric::sim
