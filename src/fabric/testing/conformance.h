// The worlds in which every fabric is tried: the fake within this process, shm and libfabric
// between forked processes. conformance_test.cc and conformance_reads_test.cc say what all must do.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "fabric/choice/choice_fabric.h"
#include "fabric/libfabric/libfabric_fabric.h"
#include "fabric/paced/paced_fabric.h"
#include "fabric/shm/shm_fabric.h"
#include "fabric/sim/sim_fabric.h"
#include "fabric/testing/namespaces.h"
#include "fabric/testing/node.h"

namespace baton::fabric::conformance {

using testing::Memory;
using testing::Node;
using testing::RemoteNode;
using Kind = FabricEvent::Kind;

inline constexpr std::uint64_t kPoolBytes = 1ULL << 20;
inline constexpr auto kConnect = std::chrono::milliseconds(1000);  // what a dead address costs
inline constexpr auto kPatience =
    std::chrono::seconds(20);  // never waited for unless something is broken

// One process with its name and every event that it was ever told.
struct Peer {
  PeerId id;
  Node* node = nullptr;
  std::vector<FabricEvent> events{};
  bool stopped = false;

  std::vector<FabricEvent> of(Kind kind) const {
    std::vector<FabricEvent> found;
    std::copy_if(events.begin(), events.end(), std::back_inserter(found),
                 [&](const FabricEvent& event) { return event.kind == kind; });
    return found;
  }
  std::size_t count(Kind kind) const { return of(kind).size(); }
};

// The processes of one test, and how time passes for them.
class World {
 public:
  virtual ~World() = default;
  Peer& add(const std::string& name, std::uint64_t bytes = kPoolBytes) {
    peers_.push_back({PeerId{name, ++incarnations_}});
    peers_.back().node = make(peers_.back().id, bytes);
    return peers_.back();
  }
  virtual void kill(Peer& peer) = 0;
  // As SIGSTOP and SIGCONT do; where there are no processes, nothing crosses to it or from it.
  void stop(Peer& peer, bool stopped) {
    peer.stopped = stopped;
    set_stopped(peer, stopped);
  }
  virtual void move() {}

  // Lets everybody work for a moment and gathers what they are told.
  void pump() {
    move();
    for (Peer& peer : peers_) {
      if (peer.stopped) continue;
      for (FabricEvent& event : peer.node->poll(64)) peer.events.push_back(std::move(event));
    }
  }
  [[nodiscard]] bool until(const std::function<bool()>& done) {
    const Time deadline = now() + kPatience;
    while (!done()) {
      if (now() > deadline) return false;
      pump();
    }
    return true;
  }
  // Until nothing has happened anywhere for a while: for tests that expect nothing more.
  void rest() {
    for (int quiet = 0; quiet < 20; ++quiet) {
      std::size_t before = 0;
      std::size_t after = 0;
      for (const Peer& peer : peers_) before += peer.events.size();
      pump();
      for (const Peer& peer : peers_) after += peer.events.size();
      if (after != before) quiet = 0;
    }
  }

 protected:
  virtual Node* make(const PeerId& id, std::uint64_t bytes) = 0;
  virtual void set_stopped(Peer& peer, bool stopped) = 0;
  std::deque<Peer> peers_;

 private:
  std::uint64_t incarnations_ = 0;
};

class SimWorld final : public World {
 public:
  explicit SimWorld(bool delivery_complete)
      : network_(::testing::UnitTest::GetInstance()->random_seed() + 7,
                 options(delivery_complete)) {}
  void kill(Peer& peer) override { network_.crash(peer.id); }
  void move() override {
    for (int i = 0; i < 200 && network_.step(); ++i) {
    }
  }

 protected:
  Node* make(const PeerId& id, std::uint64_t bytes) override {
    nodes_.push_back(testing::make_local_node(network_.make_endpoint(id), Memory::kPrivate, bytes));
    return nodes_.back().get();
  }
  void set_stopped(Peer& peer, bool stopped) override {
    for (const Peer& other : peers_) {
      network_.hold(peer.id, other.id, stopped);
      network_.hold(other.id, peer.id, stopped);
    }
  }

 private:
  static sim::Options options(bool delivery_complete) {
    sim::Options options;
    options.delivery_complete = delivery_complete;
    options.writes_in_flight_max = 128;
    return options;
  }
  sim::Network network_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

// Every peer a process of its own; the fabric is made in there.
class ProcessWorld final : public World {
 public:
  // In the child; `number` counts the processes of the test.
  using Make = std::function<std::unique_ptr<Fabric>(std::size_t number)>;
  ProcessWorld(Make make, Memory memory) : make_(std::move(make)), memory_(memory) {}
  void kill(Peer& peer) override { static_cast<RemoteNode*>(peer.node)->signal(SIGKILL); }

 protected:
  Node* make(const PeerId&, std::uint64_t bytes) override {
    nodes_.push_back(testing::make_remote_node([this, bytes, number = nodes_.size()] {
      return testing::make_local_node(make_(number), memory_, bytes);
    }));
    return nodes_.back().get();
  }
  void set_stopped(Peer& peer, bool stopped) override {
    static_cast<RemoteNode*>(peer.node)->signal(stopped ? SIGSTOP : SIGCONT);
  }

 private:
  Make make_;
  Memory memory_;
  std::vector<std::unique_ptr<RemoteNode>> nodes_;
};

inline std::unique_ptr<World> shm_world(Memory memory) {
  return std::make_unique<ProcessWorld>([](auto) { return shm::make_shm_fabric().value(); },
                                        memory);
}

inline std::unique_ptr<Fabric> make_libfabric(const char* provider,
                                              const std::string& address = "127.0.0.1") {
  libfabric::Options options;
  options.provider = provider;
  options.address = address;
  options.connect_timeout = kConnect;
  return libfabric::make_libfabric_fabric(options).value();
}

inline std::unique_ptr<Fabric> make_auto(const std::string& host_id) {
  Choice choice;
  choice.host_id = host_id;
  choice.libfabric.connect_timeout = kConnect;
  return make_fabric(choice).value();
}

// Fast enough for the suite's long writes, and for short ones never in the way.
inline std::unique_ptr<Fabric> make_paced() {
  static LinkMetrics metrics;  // of the child process
  constexpr paced::Link kLink{.bytes_per_second = 4'000'000'000};
  return paced::PacedFabric::create(shm::make_shm_fabric().value(), kLink, metrics).value();
}

inline std::unique_ptr<World> memfd_world(ProcessWorld::Make make) {
  return std::make_unique<ProcessWorld>(std::move(make), Memory::kSealedMemfd);
}

struct Adapter {
  std::string name;
  std::unique_ptr<World> (*make)();
  // What a fence waits for. Not by death: it is there at once, and nobody tells of a death.
  bool fenced_by_death = true;
  bool may_lack_reads = false;  // depends on a library's version: ask
};

class Conformance : public ::testing::TestWithParam<Adapter> {
 protected:
  void SetUp() override { world_ = GetParam().make(); }
  static constexpr const char* kNotByDeath = "its fence needs no death: libfabric_fabric_test.cc";

  struct Pair {
    InboundId inbound;
    OutboundId outbound;
    Bytes offer;
  };
  // The handshake's part: the receiver offers, the writer connects.
  Pair join(Peer& writer, Peer& receiver, Access access = Access::kWrite) {
    Pair pair;
    auto inbound = receiver.node->open_inbound(writer.id, access);
    EXPECT_TRUE(inbound) << inbound.error().message;
    pair.inbound = inbound->id;
    pair.offer = inbound->offer;
    EXPECT_LE(pair.offer.size(), 4096U);
    pair.outbound = connect(writer, receiver, pair.offer);
    return pair;
  }
  OutboundId connect(Peer& writer, Peer& receiver, const Bytes& offer) {
    const auto outbound = writer.node->connect(receiver.id, offer, receiver.node->regions());
    EXPECT_TRUE(outbound) << outbound.error().message;
    EXPECT_TRUE(world_->until([&] { return told(writer, Kind::kConnected, *outbound); }));
    return *outbound;
  }
  static bool told(const Peer& peer, Kind kind, OutboundId outbound) {
    return std::any_of(peer.events.begin(), peer.events.end(), [&](const FabricEvent& event) {
      return event.kind == kind && event.outbound == outbound;
    });
  }
  static bool fenced(const Peer& peer, InboundId inbound) {
    return std::any_of(peer.events.begin(), peer.events.end(), [&](const FabricEvent& event) {
      return event.kind == Kind::kInboundFenced && event.inbound == inbound;
    });
  }
  // Post all, letting the world move on whenever the fabric is full.
  void post_all(Peer& writer, std::vector<Write> writes) {
    post_all(std::move(writes), [&](const auto& some) { return writer.node->post(some); });
  }
  void post_all(Peer& reader, std::vector<Read> reads) {
    post_all(std::move(reads), [&](const auto& some) { return reader.node->post_reads(some); });
  }
  template <typename Operations, typename Post>
  void post_all(Operations operations, Post post) {
    const Time deadline = now() + kPatience;
    while (!operations.empty()) {
      const Node::Posted posted = post(operations);
      operations.erase(operations.begin(),
                       operations.begin() + static_cast<std::ptrdiff_t>(posted.accepted));
      if (!posted.status) {
        ASSERT_EQ(posted.status.error().code, Errc::kResourceExhausted)
            << posted.status.error().message;
        ASSERT_LT(now(), deadline);
        world_->pump();
      }
    }
  }
  static Write write(OutboundId to, std::uint64_t from, std::uint64_t at, std::uint64_t length,
                     std::optional<std::uint32_t> immediate, std::uint64_t context = 0) {
    Write write;
    write.to = to;
    write.local_offset = from;
    write.remote_offset = at;
    write.length = length;
    write.immediate = immediate;
    write.context = context;
    return write;
  }

  std::unique_ptr<World> world_;
};

inline std::vector<Adapter> adapters() {
  std::vector<Adapter> all{
      {"Sim", [] { return std::unique_ptr<World>(std::make_unique<SimWorld>(false)); }},
      {"SimDelivers", [] { return std::unique_ptr<World>(std::make_unique<SimWorld>(true)); }},
      {"ShmMemfd", [] { return shm_world(Memory::kSealedMemfd); }},
      {"ShmPrivateMemory", [] { return shm_world(Memory::kPrivate); }},
      {"PacedShm", [] { return memfd_world([](auto) { return make_paced(); }); }},
      {"LibfabricTcp", [] { return memfd_world([](auto) { return make_libfabric("tcp"); }); },
       false},
      {"LibfabricTcpRxm",
       [] { return memfd_world([](auto) { return make_libfabric("tcp;ofi_rxm"); }); }, false, true},
      {"AutoOnOneHost", [] { return memfd_world([](auto) { return make_auto({}); }); }},
      {"AutoBetweenHosts",
       [] { return memfd_world([](auto number) { return make_auto(fmt::format("{}", number)); }); },
       false}};
  if (testing::has_namespaces()) {
    all.push_back({"LibfabricTcpBetweenNamespaces",
                   [] {
                     return memfd_world([](std::size_t number) {
                       return make_libfabric("tcp", testing::enter_namespace(number));
                     });
                   },
                   false});
  }
  return all;
}

}  // namespace baton::fabric::conformance
