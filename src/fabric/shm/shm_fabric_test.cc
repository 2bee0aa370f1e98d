// What is particular to shm: hostile peers on the unix socket, stopped processes, seals, slices,
// descriptors.
#include "fabric/shm/shm_fabric.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "baton/pool.h"
#include "fabric/shm/inbound.h"
#include "fabric/shm/messages.h"
#include "fabric/testing/node.h"

namespace baton::fabric::shm {
namespace {

using fabric::testing::Memory;
using fabric::testing::Node;
using fabric::testing::pattern;
using fabric::testing::RemoteNode;
using ::testing::HasSubstr;
using Kind = FabricEvent::Kind;

constexpr std::uint64_t kPoolBytes = 1ULL << 20;
constexpr auto kPatience = std::chrono::seconds(20);

std::unique_ptr<Node> local_node(Memory memory = Memory::kSealedMemfd) {
  return fabric::testing::make_local_node(make_shm_fabric().value(), memory, kPoolBytes);
}
std::unique_ptr<RemoteNode> remote_node(Memory memory = Memory::kSealedMemfd) {
  return fabric::testing::make_remote_node([memory] { return local_node(memory); });
}

// A node and everything that it was told.
struct Peer {
  explicit Peer(Node& n) : node(n) {}
  void pump(std::size_t max = 64) {
    for (FabricEvent& event : node.poll(max)) events.push_back(std::move(event));
  }
  std::size_t count(Kind kind) const {
    return static_cast<std::size_t>(
        std::count_if(events.begin(), events.end(),
                      [&](const FabricEvent& event) { return event.kind == kind; }));
  }
  Node& node;
  std::vector<FabricEvent> events;
};

bool until(const std::vector<Peer*>& peers, const std::function<bool()>& done) {
  const Time deadline = now() + kPatience;
  while (!done()) {
    if (now() > deadline) return false;
    for (Peer* peer : peers) peer->pump();
  }
  return true;
}

Write write(OutboundId to, std::uint64_t length, std::optional<std::uint32_t> immediate) {
  Write write;
  write.to = to;
  write.length = length;
  write.immediate = immediate;
  return write;
}

struct Joined {
  InboundId inbound;
  OutboundId outbound;
  Bytes offer;
};
Joined join(Peer& writer, Peer& receiver, Access access = Access::kWrite) {
  auto inbound = receiver.node.open_inbound(PeerId{"p", 1}, access).value();
  const std::size_t before = writer.count(Kind::kConnected);
  const OutboundId outbound =
      writer.node.connect(PeerId{"d", 1}, inbound.offer, receiver.node.regions()).value();
  EXPECT_TRUE(until({&writer, &receiver}, [&] { return writer.count(Kind::kConnected) > before; }));
  return {inbound.id, outbound, inbound.offer};
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

int mappings_of(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find(name) != std::string::npos;
  return count;
}

UniqueFd raw_socket() {
  return UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}
sockaddr_un address_of(const SocketName& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return address;
}
constexpr socklen_t kAddressSize = offsetof(sockaddr_un, sun_path) + 1 + sizeof(SocketName);

// A writer that speaks as it pleases.
UniqueFd raw_connect(const Bytes& offer) {
  UniqueFd socket = raw_socket();
  const sockaddr_un address = address_of(decode_offer(offer).value().socket);
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), kAddressSize), 0);
  return socket;
}
bool say(const UniqueFd& socket, const Bytes& bytes) {
  return ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}
bool hung_up(const UniqueFd& socket) {
  pollfd state{socket.get(), POLLRDHUP, 0};
  return ::poll(&state, 1, 0) == 1;
}

// A receiver that answers as it pleases.
class FakeReceiver {
 public:
  FakeReceiver() : listener_(raw_socket()) {
    offer_.socket.fill('e');
    const sockaddr_un address = address_of(offer_.socket);
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), kAddressSize),
              0);
    EXPECT_EQ(::listen(listener_.get(), 8), 0);
  }
  Bytes offer(Access access = Access::kWrite) const {
    Offer offer = offer_;
    offer.access = access;
    return encode(offer);
  }
  void accept() { connection_.reset(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)); }
  void answer(const Bytes& bytes, const std::vector<int>& fds = {}) {
    Bytes copy = bytes;
    iovec part{copy.data(), copy.size()};
    std::vector<std::byte> control(CMSG_SPACE(fds.size() * sizeof(int)));
    msghdr head{};
    head.msg_iov = &part;
    head.msg_iovlen = 1;
    if (!fds.empty()) {
      head.msg_control = control.data();
      head.msg_controllen = control.size();
      cmsghdr* rights = CMSG_FIRSTHDR(&head);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
      std::memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
    }
    EXPECT_GE(::sendmsg(connection_.get(), &head, MSG_NOSIGNAL), 0);
  }
  void hang_up() { connection_.reset(); }

 private:
  Offer offer_;
  UniqueFd listener_;
  UniqueFd connection_;
};

UniqueFd memfd(std::uint64_t bytes, int seals) {
  UniqueFd fd(::memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}
constexpr int kSealed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Region one_region(std::uint64_t bytes) {
  Region region;
  region.name = "layer.0";
  region.stride_bytes = region.block_bytes = bytes;
  region.num_blocks = 1;
  return region;
}

// Registration.

TEST(ShmRegister, RefusesMemfdsThatAPeerCouldTearAway) {
  const auto fabric = make_shm_fabric().value();
  const UniqueFd unsealed = memfd(kPoolBytes, 0);
  const UniqueFd small = memfd(kPoolBytes - 1, kSealed);
  const UniqueFd other(::open("/dev/zero", O_RDWR | O_CLOEXEC));
  std::vector<std::byte> memory(kPoolBytes);
  const auto refusal = [&](int fd, std::uint64_t offset) {
    Region region = one_region(kPoolBytes);
    region.base = memory.data();
    region.memfd = fd;
    region.memfd_offset = offset;
    const Status ok = fabric->register_regions(std::vector{region});
    return ok ? std::string() : ok.error().message;
  };
  EXPECT_THAT(refusal(unsealed.get(), 0), HasSubstr("region 0 (layer.0): the memfd is not sealed"));
  EXPECT_THAT(refusal(small.get(), 0), HasSubstr("holds 1048575 bytes, 1048576 are needed"));
  EXPECT_THAT(refusal(other.get(), 0), HasSubstr("not a memfd"));
  const UniqueFd good = memfd(kPoolBytes, kSealed);
  EXPECT_THAT(refusal(good.get(), 1), HasSubstr("1048577 are needed"));
  EXPECT_THAT(refusal(good.get(), ~0ULL), HasSubstr("memfd_offset"));
  EXPECT_EQ(refusal(good.get(), 0), "");
}

// Hostile receivers.

TEST(ShmHostileReceiver, WhateverItAnswersTheWriterSaysWhyAndLivesOn) {
  const auto node = local_node();
  Peer writer(*node);
  const UniqueFd unsealed = memfd(kPoolBytes, 0);
  const UniqueFd grow_only = memfd(kPoolBytes, F_SEAL_GROW);
  const UniqueFd small = memfd(kPoolBytes / 2, kSealed);
  const UniqueFd good = memfd(kPoolBytes, kSealed);
  const UniqueFd read_only = memfd(kPoolBytes, kSealed | F_SEAL_WRITE);
  const UniqueFd other(::open("/dev/zero", O_RDWR | O_CLOEXEC));
  const auto place = [](std::uint64_t length, std::uint64_t at, std::uint32_t fd) {
    return encode(Welcome{{RegionPlace{length, at, fd, 0}}});
  };
  const Bytes plain = place(kPoolBytes, 0, 0);
  struct Case {
    Bytes answer;
    std::vector<int> fds;
    std::string why;
  };
  const std::vector<Case> cases{
      {plain, {unsealed.get()}, "not sealed"},
      {plain, {grow_only.get()}, "not sealed"},
      {plain, {small.get()}, "holds 524288 bytes, 1048576 are needed"},
      {plain, {other.get()}, "not a memfd"},
      {plain, {read_only.get()}, "mmap"},
      {plain, {}, "memfd number 0, 0 descriptors came"},
      {place(kPoolBytes, 0, 3), {good.get()}, "memfd number 3, 1 descriptors came"},
      {place(kPoolBytes, 4096, 0), {good.get()}, "1052672 are needed"},
      {place(kPoolBytes, ~0ULL - 4095, 0), {good.get()}, "beyond any address or file"},
      {place(kPoolBytes, ~0ULL, kNoMemfd), {}, "beyond any address or file"},
      {place(kPoolBytes * 2, 0, 0), {good.get()}, "told 1048576 bytes, the peer has 2097152"},
      {encode(Welcome{}), {good.get()}, "told 1, the peer has 0"},
      {Bytes(10, std::byte{1}), {good.get(), good.get()}, "welcome"},
      {Bytes(4000, std::byte{1}), std::vector<int>(200, good.get()), "longer than 1 regions need"},
      {encode_refusal("no"), {}, "the peer refused: no"},
  };
  const std::size_t descriptors = open_descriptors();
  const int mapped = mappings_of("memfd:hostile");
  for (const Case& c : cases) {
    FakeReceiver receiver;
    const auto outbound = node->connect(PeerId{"d", 1}, receiver.offer(), {one_region(kPoolBytes)});
    ASSERT_TRUE(outbound);
    receiver.accept();
    writer.pump();
    receiver.answer(c.answer, c.fds);
    writer.events.clear();
    ASSERT_TRUE(until({&writer}, [&] { return !writer.events.empty(); })) << c.why;
    EXPECT_EQ(writer.events[0].kind, Kind::kConnectFailed) << c.why;
    EXPECT_THAT(writer.events[0].error, HasSubstr(c.why));
    while (node->busy()) writer.pump();
  }
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_EQ(mappings_of("memfd:hostile"), mapped);
}

TEST(ShmHostileReceiver, SilenceThenAHangUpFailsTheConnection) {
  const auto node = local_node();
  Peer writer(*node);
  FakeReceiver receiver;
  ASSERT_TRUE(node->connect(PeerId{"d", 1}, receiver.offer(), {one_region(kPoolBytes)}));
  receiver.accept();
  for (int i = 0; i < 50; ++i) writer.pump();
  EXPECT_TRUE(writer.events.empty());
  EXPECT_FALSE(node->busy());
  receiver.hang_up();
  ASSERT_TRUE(until({&writer}, [&] { return writer.count(Kind::kConnectFailed) == 1; }));
}

TEST(ShmHostileReceiver, WordsAfterTheWelcomeEndTheOutbound) {
  const auto node = local_node();
  Peer writer(*node);
  FakeReceiver receiver;
  const UniqueFd good = memfd(kPoolBytes, kSealed);
  ASSERT_TRUE(node->connect(PeerId{"d", 1}, receiver.offer(), {one_region(kPoolBytes)}));
  receiver.accept();
  receiver.answer(encode(Welcome{{RegionPlace{kPoolBytes, 0, 0, 0}}}), {good.get()});
  ASSERT_TRUE(until({&writer}, [&] { return writer.count(Kind::kConnected) == 1; }));
  receiver.answer(Bytes(4), {good.get(), good.get()});
  ASSERT_TRUE(until({&writer}, [&] { return writer.count(Kind::kOutboundClosed) == 1; }));
  EXPECT_THAT(writer.events.back().error, HasSubstr("broke the protocol"));
}

TEST(ShmHostileReceiver, AnAddressWhereNothingIsMappedFailsTheWrite) {
  const auto node = local_node();
  Peer writer(*node);
  FakeReceiver receiver;
  const OutboundId outbound =
      node->connect(PeerId{"d", 1}, receiver.offer(), {one_region(kPoolBytes)}).value();
  receiver.accept();
  receiver.answer(encode(Welcome{{RegionPlace{kPoolBytes, 4096, kNoMemfd, 0}}}));
  ASSERT_TRUE(until({&writer}, [&] { return writer.count(Kind::kConnected) == 1; }));
  ASSERT_TRUE(node->post({write(outbound, 100, 1)}).status);
  ASSERT_TRUE(until({&writer}, [&] { return writer.count(Kind::kOutboundClosed) == 1; }));
  EXPECT_EQ(writer.count(Kind::kWriteFailed), 1U);
  EXPECT_THAT(writer.events.back().error, HasSubstr("process_vm_writev"));
}

// Hostile writers.

TEST(ShmHostileWriter, GarbageWrongTokensAndFloodsDelayNobody) {
  const auto receiver_node = local_node();
  const auto writer_node = local_node();
  Peer receiver(*receiver_node);
  Peer writer(*writer_node);
  const Bytes offer = receiver_node->open_inbound(PeerId{"q", 1}, Access::kWrite).value().offer;
  std::vector<UniqueFd> crowd;
  for (int i = 0; i < 300; ++i) {
    crowd.push_back(raw_connect(offer));
    if (i % 3 == 1) say(crowd.back(), Bytes(1 + static_cast<std::size_t>(i), std::byte{7}));
    if (i % 3 == 2) say(crowd.back(), encode(Hello{}));
  }
  const Joined joined = join(writer, receiver);
  ASSERT_TRUE(writer_node->post({write(joined.outbound, 64, 9)}).status);
  ASSERT_TRUE(until({&writer, &receiver}, [&] { return receiver.count(Kind::kImmediate) == 1; }));
  EXPECT_EQ(receiver.events.size(), 1U);
  // The talkers were turned away; of the silent ones only so many are kept.
  const auto gone = std::count_if(crowd.begin(), crowd.end(), hung_up);
  EXPECT_GE(gone, 300 - 64);
}

TEST(ShmHostileWriter, ImmediatesOfNoShapeEndItsConnectionAlone) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{6}, kImmediatesMax * 4 + 4}) {
    const auto receiver_node = local_node();
    const auto writer_node = local_node();
    Peer receiver(*receiver_node);
    Peer writer(*writer_node);
    const auto inbound = receiver_node->open_inbound(PeerId{"q", 1}, Access::kWrite).value();
    const Joined joined = join(writer, receiver);
    const UniqueFd rogue = raw_connect(inbound.offer);
    ASSERT_TRUE(
        say(rogue, encode(Hello{Access::kWrite, decode_offer(inbound.offer).value().token})));
    for (int i = 0; i < 5; ++i) receiver.pump();
    ASSERT_TRUE(say(rogue, Bytes(8)));
    ASSERT_TRUE(until({&receiver}, [&] { return receiver.count(Kind::kImmediate) == 2; }));
    ASSERT_TRUE(say(rogue, Bytes(bytes)));
    ASSERT_TRUE(until({&receiver}, [&] { return hung_up(rogue); }));
    // It holds the memory still: this is no fence.
    EXPECT_EQ(receiver.count(Kind::kInboundFenced), 0U);
    ASSERT_TRUE(writer_node->post({write(joined.outbound, 64, 9)}).status);
    ASSERT_TRUE(until({&writer, &receiver}, [&] { return receiver.count(Kind::kImmediate) == 3; }));
  }
}

TEST(ShmHostileWriter, AFloodOfImmediatesIsHeldBackAndOthersAreHeard) {
  const auto receiver_node = local_node();
  const auto writer_node = local_node();
  Peer receiver(*receiver_node);
  Peer writer(*writer_node);
  const auto inbound = receiver_node->open_inbound(PeerId{"q", 1}, Access::kWrite).value();
  const Joined joined = join(writer, receiver);
  const UniqueFd rogue = raw_connect(inbound.offer);
  ASSERT_TRUE(say(rogue, encode(Hello{Access::kWrite, decode_offer(inbound.offer).value().token})));
  for (int i = 0; i < 5; ++i) receiver.pump(0);
  // Nobody takes events: the flooder's socket must fill, whatever poll() is called.
  std::size_t sent = 0;
  for (int i = 0; i < 100000 && say(rogue, Bytes(kImmediatesMax * 4)); ++i) {
    ++sent;
    receiver.pump(0);
  }
  EXPECT_LT(sent, 5000U);
  EXPECT_LE(receiver_node->poll(100000).size(), Inbound::kQueuedMax + kImmediatesMax);
  ASSERT_TRUE(writer_node->post({write(joined.outbound, 64, 9)}).status);
  // Heard after what was queued before it, not after the whole flood goes on.
  ASSERT_TRUE(until({&writer, &receiver}, [&] {
    (void)say(rogue, Bytes(kImmediatesMax * 4));
    return std::any_of(receiver.events.begin(), receiver.events.end(),
                       [&](const FabricEvent& event) {
                         return event.inbound == joined.inbound && event.immediate == 9;
                       });
  }));
}

TEST(ShmHostileWriter, AnotherProcessCannotUseAnOfferInUse) {
  const auto receiver_node = local_node();
  const auto writer_node = remote_node();
  Peer receiver(*receiver_node);
  Peer writer(*writer_node);
  const Joined joined = join(writer, receiver);
  const auto thief_node = remote_node();
  Peer thief(*thief_node);
  ASSERT_TRUE(thief_node->connect(PeerId{"d", 1}, joined.offer, receiver_node->regions()));
  ASSERT_TRUE(until({&thief, &receiver}, [&] { return thief.count(Kind::kConnectFailed) == 1; }));
  EXPECT_THAT(thief.events[0].error, HasSubstr("uses the offer already"));
  ASSERT_TRUE(writer_node->post({write(joined.outbound, 8, 1)}).status);
  ASSERT_TRUE(until({&writer, &receiver}, [&] { return receiver.count(Kind::kImmediate) == 1; }));
}

TEST(ShmListener, RunningOutOfDescriptorsRefusesConnectionsAndRecovers) {
  const auto receiver_node = local_node();
  const auto writer_node = local_node();
  Peer receiver(*receiver_node);
  Peer writer(*writer_node);
  const Bytes offer = receiver_node->open_inbound(PeerId{"q", 1}, Access::kWrite).value().offer;
  const UniqueFd visitor = raw_connect(offer);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  std::vector<UniqueFd> hoard;
  rlimit low = limit;
  low.rlim_cur = open_descriptors() + 8;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  while (true) {
    UniqueFd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!fd) break;
    hoard.push_back(std::move(fd));
  }
  for (int i = 0; i < 3; ++i) receiver.pump();
  // Turned away rather than left waiting: its socket would keep the owner thread awake for ever.
  EXPECT_TRUE(hung_up(visitor));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  hoard.clear();
  const Joined joined = join(writer, receiver);
  ASSERT_TRUE(writer_node->post({write(joined.outbound, 8, 1)}).status);
  ASSERT_TRUE(until({&writer, &receiver}, [&] { return receiver.count(Kind::kImmediate) == 1; }));
}

// Stopped and dying processes.

TEST(ShmStopped, AStoppedWriterIsNotFencedUntilItDies) {
  const auto receiver_node = local_node();
  const auto writer_node = remote_node();
  Peer receiver(*receiver_node);
  Peer writer(*writer_node);
  const Joined joined = join(writer, receiver);
  writer_node->signal(SIGSTOP);
  receiver_node->fence_inbound(joined.inbound);
  for (int i = 0; i < 100; ++i) receiver.pump();
  EXPECT_TRUE(receiver.events.empty());
  writer_node->signal(SIGKILL);
  ASSERT_TRUE(until({&receiver}, [&] { return receiver.count(Kind::kInboundFenced) == 1; }));
  EXPECT_EQ(receiver.events.back().inbound, joined.inbound);
}

TEST(ShmStopped, AWriterThatWakesSaysFarewellAndNothingLandsAfterIt) {
  const auto receiver_node = local_node();
  const auto writer_node = remote_node();
  Peer receiver(*receiver_node);
  Peer writer(*writer_node);
  const Joined joined = join(writer, receiver);
  writer_node->fill(0, kPoolBytes, 3);
  ASSERT_TRUE(writer_node->post({write(joined.outbound, kPoolBytes, 1)}).status);
  writer_node->signal(SIGSTOP);
  receiver_node->fence_inbound(joined.inbound);
  for (int i = 0; i < 100; ++i) receiver.pump();
  EXPECT_EQ(receiver.count(Kind::kInboundFenced), 0U);
  writer_node->signal(SIGCONT);
  ASSERT_TRUE(
      until({&receiver, &writer}, [&] { return receiver.count(Kind::kInboundFenced) == 1; }));
  receiver_node->fill(0, kPoolBytes, 4);
  for (int i = 0; i < 100; ++i) {
    writer.pump();
    receiver.pump();
  }
  EXPECT_TRUE(receiver_node->read(0, kPoolBytes) == pattern(0, kPoolBytes, 4));
}

TEST(ShmStopped, AStoppedReceiverHoldsBackItsOwnWritesOnly) {
  const auto stopped_node = remote_node();
  const auto other_node = remote_node();
  const auto writer_node = local_node();
  Peer stopped(*stopped_node);
  Peer other(*other_node);
  Peer writer(*writer_node);
  const Joined to_stopped = join(writer, stopped);
  const Joined to_other = join(writer, other);
  stopped_node->signal(SIGSTOP);
  // Fill its socket with immediates until the fabric takes no more.
  const Time deadline = now() + kPatience;
  std::size_t posted = 0;
  for (int refusals = 0; refusals < 100 && now() < deadline;) {
    const bool ok = writer_node->post({write(to_stopped.outbound, 0, 7)}).accepted == 1;
    posted += ok ? 1U : 0U;
    refusals = ok ? 0 : refusals + 1;
    writer.pump();
  }
  EXPECT_LT(writer.count(Kind::kWriteDone), posted);
  EXPECT_FALSE(writer_node->busy());  // nothing to do but wait: no spinning
  ASSERT_TRUE(writer_node->post({write(to_other.outbound, 5000, 8)}).status);
  ASSERT_TRUE(until({&writer, &other}, [&] { return other.count(Kind::kImmediate) == 1; }));
  stopped_node->signal(SIGCONT);
  ASSERT_TRUE(until({&writer, &stopped}, [&] {
    return stopped.count(Kind::kImmediate) == posted &&
           writer.count(Kind::kWriteDone) == posted + 1;
  }));
}

TEST(ShmStopped, ClosingTowardsAStoppedReceiverEnds) {
  const auto stopped_node = remote_node();
  const auto writer_node = local_node();
  Peer stopped(*stopped_node);
  Peer writer(*writer_node);
  const Joined joined = join(writer, stopped);
  stopped_node->signal(SIGSTOP);
  std::size_t posted = 0;
  for (int i = 0; i < 2000; ++i) {
    posted += writer_node->post({write(joined.outbound, 100, 7)}).accepted;
    writer.pump();
  }
  writer_node->close_outbound(joined.outbound);
  ASSERT_TRUE(until({&writer}, [&] { return writer.count(Kind::kOutboundClosed) == 1; }));
  EXPECT_EQ(writer.count(Kind::kWriteDone) + writer.count(Kind::kWriteFailed), posted);
}

TEST(ShmDeath, WhatADeadWriterToldIsDeliveredBeforeItsFence) {
  const auto receiver_node = local_node();
  const auto writer_node = remote_node();
  Peer receiver(*receiver_node);
  Peer writer(*writer_node);
  const Joined joined = join(writer, receiver);
  // One datagram each: more than the receiver takes from a socket in one poll.
  for (std::size_t i = 1; i <= 100; ++i) {
    ASSERT_TRUE(writer_node->post({write(joined.outbound, 16, 7)}).status);
    ASSERT_TRUE(until({&writer}, [&] { return writer.count(Kind::kWriteDone) == i; }));
  }
  writer_node->signal(SIGKILL);
  ASSERT_TRUE(until({&receiver}, [&] { return receiver.count(Kind::kInboundFenced) == 1; }));
  EXPECT_EQ(receiver.count(Kind::kImmediate), 100U);
  EXPECT_EQ(receiver.events.back().kind, Kind::kInboundFenced);
}

TEST(ShmDeath, AReceiversDeathIsSeenThoughItsChildHoldsTheSocket) {
  const auto receiver_node = fabric::testing::make_remote_node([] {
    ::setpgid(0, 0);
    // Shares the descriptors of its parent, also those made later, and outlives it.
    if (::syscall(SYS_clone, CLONE_FILES | SIGCHLD, nullptr, nullptr, nullptr, nullptr) == 0) {
      ::alarm(60);
      while (true) ::pause();
    }
    return local_node();
  });
  const auto writer_node = local_node();
  Peer receiver(*receiver_node);
  Peer writer(*writer_node);
  join(writer, receiver);
  receiver_node->signal(SIGKILL);
  EXPECT_TRUE(until({&writer}, [&] { return writer.count(Kind::kOutboundClosed) == 1; }));
  EXPECT_EQ(::kill(-receiver_node->pid(), SIGKILL), 0) << "the child was not there";
}

TEST(ShmDeath, PrivateMemoryOfADeadReceiverIsNotWritten) {
  const auto receiver_node = remote_node(Memory::kPrivate);
  const auto writer_node = local_node();
  Peer receiver(*receiver_node);
  Peer writer(*writer_node);
  const Joined joined = join(writer, receiver);
  ASSERT_TRUE(writer_node->post({write(joined.outbound, kPoolBytes, 7)}).status);
  writer.pump();
  receiver_node->signal(SIGKILL);
  ASSERT_TRUE(until({&writer}, [&] { return writer.count(Kind::kOutboundClosed) == 1; }));
  EXPECT_EQ(writer.count(Kind::kWriteFailed), 1U);
}

// The owner thread's time, and what is left behind.

TEST(ShmPoll, MovesAtMostOneSliceAndGoesOnWithIt) {
  const auto receiver_node = local_node();
  const auto writer_node = local_node();
  Peer receiver(*receiver_node);
  Peer writer(*writer_node);
  const Joined joined = join(writer, receiver);
  writer_node->fill(0, kPoolBytes, 1);
  while (writer_node->busy()) writer.pump();
  ASSERT_TRUE(writer_node->post({write(joined.outbound, kPoolBytes, 7)}).status);
  constexpr std::uint64_t kSlice = 256 << 10;
  for (std::uint64_t polls = 1; polls <= kPoolBytes / kSlice; ++polls) {
    EXPECT_TRUE(writer_node->busy());
    writer.pump();
    EXPECT_EQ(receiver_node->read(0, polls * kSlice), pattern(0, polls * kSlice, 1));
    EXPECT_EQ(receiver_node->read(polls * kSlice, kPoolBytes - polls * kSlice),
              Bytes(kPoolBytes - polls * kSlice));
  }
  ASSERT_TRUE(until({&writer, &receiver}, [&] { return receiver.count(Kind::kImmediate) == 1; }));
  EXPECT_FALSE(writer_node->busy());
}

TEST(ShmPoll, ALongQueueToOnePeerDoesNotDelayAnother) {
  const auto a_node = local_node();
  const auto b_node = local_node();
  const auto writer_node = local_node();
  Peer a(*a_node);
  Peer b(*b_node);
  Peer writer(*writer_node);
  const Joined to_a = join(writer, a);
  const Joined to_b = join(writer, b);
  ASSERT_EQ(
      writer_node->post(std::vector<Write>(100, write(to_a.outbound, kPoolBytes, {}))).accepted,
      100U);
  ASSERT_TRUE(writer_node->post({write(to_b.outbound, 64, 7)}).status);
  ASSERT_TRUE(until({&writer, &b}, [&] { return b.count(Kind::kImmediate) == 1; }));
  EXPECT_LT(writer.count(Kind::kWriteDone), 3U);
}

TEST(ShmPoll, ItsDescriptorWakesForImmediatesAndForDeaths) {
  const auto writer_node = remote_node();
  Peer writer(*writer_node);
  const auto fabric = make_shm_fabric().value();
  const PoolMemory pool = PoolMemory::create("fabric-test", kPoolBytes).value();
  Region region = one_region(kPoolBytes);
  region.base = pool.data();
  region.memfd = pool.memfd();
  ASSERT_TRUE(fabric->register_regions(std::vector{region}));
  std::vector<FabricEvent> events(16);
  // As an owner thread does: sleeps unless busy, then polls.
  const auto next = [&]() -> std::size_t {
    pollfd state{fabric->wait_fd(), POLLIN, 0};
    if (!fabric->busy() && ::poll(&state, 1, 20000) != 1) return 0;
    return fabric->poll(events);
  };
  const auto inbound = fabric->open_inbound(PeerId{"p", 1}, Access::kWrite).value();
  const OutboundId outbound =
      writer_node->connect(PeerId{"d", 1}, inbound.offer, {one_region(kPoolBytes)}).value();
  EXPECT_EQ(next(), 0U);
  ASSERT_TRUE(until({&writer}, [&] { return writer.count(Kind::kConnected) == 1; }));
  ASSERT_TRUE(writer_node->post({write(outbound, 8, 5)}).status);
  writer.pump();
  ASSERT_EQ(next(), 1U);
  EXPECT_EQ(events[0].immediate, 5U);
  EXPECT_FALSE(fabric->busy());
  writer_node->signal(SIGKILL);
  std::size_t n = 0;
  for (int wakes = 0; wakes < 5 && n == 0; ++wakes) n = next();
  ASSERT_EQ(n, 1U);
  EXPECT_EQ(events[0].kind, Kind::kInboundFenced);
}

TEST(ShmMapping, ForkedChildrenOfAWriterCannotWrite) {
  const auto receiver_node = remote_node();
  const auto writer_node = local_node();
  Peer receiver(*receiver_node);
  Peer writer(*writer_node);
  join(writer, receiver);
  ASSERT_GE(mappings_of("memfd:fabric-test"), 2);  // its own pool and the receiver's
  const pid_t child = ::fork();
  if (child == 0) ::_exit(mappings_of("memfd:fabric-test"));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(ShmLife, ConnectionsLeaveNoDescriptorAndNoMappingBehind) {
  const auto receiver_node = local_node();
  const auto writer_node = local_node();
  Peer receiver(*receiver_node);
  Peer writer(*writer_node);
  const Joined first = join(writer, receiver);
  const std::size_t descriptors = open_descriptors();
  const int mapped = mappings_of("memfd:fabric-test");
  OutboundId outbound = first.outbound;
  for (std::size_t i = 0; i < 50; ++i) {
    writer_node->close_outbound(outbound);
    ASSERT_TRUE(
        until({&writer, &receiver}, [&] { return writer.count(Kind::kOutboundClosed) == i + 1; }));
    outbound = writer_node->connect(PeerId{"d", 1}, first.offer, receiver_node->regions()).value();
    ASSERT_TRUE(
        until({&writer, &receiver}, [&] { return writer.count(Kind::kConnected) == i + 2; }));
    const auto unused = receiver_node->open_inbound(PeerId{"q", 1}, Access::kWrite).value();
    receiver_node->fence_inbound(unused.id);
  }
  while (writer_node->busy() || receiver_node->busy()) {
    writer.pump();
    receiver.pump();
  }
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_EQ(mappings_of("memfd:fabric-test"), mapped);
}

// Of one that was forgotten nothing may be read: the sanitizer looks on.
TEST(ShmLife, WhatIsPostedToAnOutboundThatIsEndingIsRefusedThenAndAfterItsEnd) {
  const auto writer_node = local_node();
  const auto receiver_node = local_node();
  Peer writer(*writer_node);
  Peer receiver(*receiver_node);
  const OutboundId ending = join(writer, receiver).outbound;
  const OutboundId other = join(writer, receiver).outbound;
  const auto refusal = [&](OutboundId to) {
    const auto posted = writer_node->post({write(to, 100, 7)});
    return posted.status ? std::string() : posted.status.error().message;
  };
  writer_node->close_outbound(ending);
  EXPECT_EQ(refusal(ending), fmt::format("outbound {} is not open", ending.value));
  ASSERT_TRUE(
      until({&writer, &receiver}, [&] { return writer.count(Kind::kOutboundClosed) == 1; }));
  EXPECT_EQ(refusal(ending), fmt::format("outbound {} is not open", ending.value));
  EXPECT_EQ(refusal(other), "");
}

// A pair that loses and finds each other for days: nothing is kept of a session that is over.
TEST(ShmLife, SessionsThatAWriterLeftAreForgottenWhetherOrNotItWasAsked) {
  const auto receiver_node = local_node();
  const auto writer_node = local_node();
  Peer receiver(*receiver_node);
  Peer writer(*writer_node);
  const std::size_t descriptors = open_descriptors();
  for (std::size_t i = 0; i < 50; ++i) {
    const Joined joined = join(writer, receiver);
    if (i % 2 == 0) {
      writer_node->close_outbound(joined.outbound);
      ASSERT_TRUE(until({&writer}, [&] { return writer.count(Kind::kOutboundClosed) == i + 1; }));
    }
    receiver_node->fence_inbound(joined.inbound);
    ASSERT_TRUE(until({&writer, &receiver}, [&] {
      return receiver.count(Kind::kInboundFenced) == i + 1 &&
             writer.count(Kind::kOutboundClosed) == i + 1;
    }));
  }
  EXPECT_EQ(open_descriptors(), descriptors);
}

// A writer that is fenced, lives and does not answer holds its place until it dies: at the cap the
// next is refused in words, and a place that is given back is given out again.
TEST(ShmLife, PastTheMostInboundsTheNextIsRefusedAndServedOnceThereIsRoom) {
  const auto node = local_node();
  std::vector<InboundId> open;
  const auto next = [&] {
    return node->open_inbound(PeerId{fmt::format("p{}", open.size() / 200), open.size() + 1},
                              Access::kWrite);
  };
  for (auto one = next(); one; one = next()) {
    open.push_back(one->id);
    ASSERT_LE(open.size(), 4096U);
  }
  EXPECT_EQ(open.size(), 4096U);
  const auto refused = node->open_inbound(PeerId{"p", 9999}, Access::kWrite);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kResourceExhausted);
  EXPECT_EQ(refused.error().message, "4096 inbounds are open, the most allowed");
  node->fence_inbound(open.front());
  EXPECT_TRUE(node->open_inbound(PeerId{"p", 9999}, Access::kWrite));
}

// A peer that begins session after session and never says farewell fills its own share: by its
// name, and where it takes another name each time, by its process.
TEST(ShmLife, OnePeerLeavesInboundsToTheOthers) {
  constexpr std::size_t kOfPeerMax = 256;
  const auto receiver_node = local_node();
  std::vector<InboundId> open;
  for (std::size_t i = 0; i < kOfPeerMax; ++i) {
    const auto one = receiver_node->open_inbound(PeerId{"hostile", i + 1}, Access::kWrite);
    ASSERT_TRUE(one) << one.error().message;
    open.push_back(one->id);
  }
  const auto refused = receiver_node->open_inbound(PeerId{"hostile", 9999}, Access::kWrite);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message,
            "256 offers to peer hostile are not taken up, at most 256 are allowed");
  EXPECT_TRUE(receiver_node->open_inbound(PeerId{"honest", 1}, Access::kWrite));
  receiver_node->fence_inbound(open.front());
  EXPECT_TRUE(receiver_node->open_inbound(PeerId{"hostile", 9999}, Access::kWrite));
}

TEST(ShmLife, OneProcessLeavesInboundsToTheOthersWhateverItCallsItself) {
  constexpr std::size_t kOfProcessMax = 256;
  const auto receiver_node = local_node();
  Peer receiver(*receiver_node);
  // Says its token, and is told what it asked for or why not; then it is gone without a farewell.
  const auto visit = [&](std::size_t i) {
    const auto offer =
        receiver_node->open_inbound(PeerId{fmt::format("p{}", i), i + 1}, Access::kWrite).value();
    const UniqueFd socket = raw_connect(offer.offer);
    const Token token = decode_offer(offer.offer).value().token;
    EXPECT_TRUE(say(socket, encode(Hello{Access::kWrite, token})));
    std::array<char, 4096> answer{};
    ssize_t length = -1;
    EXPECT_TRUE(until({&receiver}, [&] {
      length = ::recv(socket.get(), answer.data(), answer.size(), MSG_DONTWAIT);
      return length >= 0;
    }));
    return std::string(answer.data(), static_cast<std::size_t>(std::max<ssize_t>(0, length)));
  };
  for (std::size_t i = 0; i < kOfProcessMax; ++i) {
    ASSERT_THAT(visit(i), ::testing::Not(HasSubstr("at most"))) << i;
  }
  EXPECT_THAT(visit(kOfProcessMax),
              HasSubstr(fmt::format("process {} holds 256 inbounds here, at most 256 are allowed",
                                    ::getpid())));
}

// The name is only said: what its sayer holds may not keep out the one whose name it is.
TEST(ShmLife, AProcessThatSaysAnothersNameDoesNotLockThatOneOut) {
  constexpr std::size_t kOfProcessMax = 256;
  const auto receiver_node = local_node();
  const auto hostile_node = remote_node();
  const auto honest_node = local_node();
  Peer receiver(*receiver_node);
  Peer hostile(*hostile_node);
  Peer honest(*honest_node);
  for (std::size_t i = 0; i < kOfProcessMax; ++i) join(hostile, receiver);
  ASSERT_EQ(hostile.count(Kind::kConnected), kOfProcessMax);
  join(honest, receiver);
  EXPECT_EQ(honest.count(Kind::kConnected), 1U);
  const auto one_more = receiver_node->open_inbound(PeerId{"p", 1}, Access::kWrite).value();
  const auto outbound =
      hostile_node->connect(PeerId{"d", 1}, one_more.offer, receiver_node->regions());
  ASSERT_TRUE(outbound);
  ASSERT_TRUE(
      until({&hostile, &receiver}, [&] { return hostile.count(Kind::kConnectFailed) == 1; }));
  EXPECT_THAT(hostile.events.back().error, HasSubstr("at most 256 are allowed"));
}

// Reads.

Read read(OutboundId from, std::uint64_t length) {
  Read read;
  read.from = from;
  read.length = length;
  return read;
}

TEST(ShmReads, MoveAtMostOneSliceAPoll) {
  const auto source_node = local_node();
  const auto reader_node = local_node();
  Peer source(*source_node);
  Peer reader(*reader_node);
  const Joined joined = join(reader, source, Access::kRead);
  source_node->fill(0, kPoolBytes, 1);
  while (reader_node->busy()) reader.pump();
  ASSERT_TRUE(reader_node->post_reads({read(joined.outbound, kPoolBytes)}).status);
  constexpr std::uint64_t kSlice = 256 << 10;
  for (std::uint64_t polls = 1; polls <= kPoolBytes / kSlice; ++polls) {
    EXPECT_TRUE(reader_node->busy());
    reader.pump();
    EXPECT_TRUE(reader_node->read(0, polls * kSlice) == pattern(0, polls * kSlice, 1));
    EXPECT_TRUE(reader_node->read(polls * kSlice, kPoolBytes - polls * kSlice) ==
                Bytes(kPoolBytes - polls * kSlice));
  }
  ASSERT_TRUE(until({&reader}, [&] { return reader.count(Kind::kReadDone) == 1; }));
  EXPECT_FALSE(reader_node->busy());
}

TEST(ShmReads, NeedNothingOfASourceThatIsStopped) {
  for (const Memory memory : {Memory::kSealedMemfd, Memory::kPrivate}) {
    const auto source_node = remote_node(memory);
    const auto reader_node = local_node();
    Peer source(*source_node);
    Peer reader(*reader_node);
    const Joined joined = join(reader, source, Access::kRead);
    source_node->fill(0, kPoolBytes, 4);
    source_node->signal(SIGSTOP);
    ASSERT_TRUE(reader_node->post_reads({read(joined.outbound, kPoolBytes)}).status);
    ASSERT_TRUE(until({&reader}, [&] { return reader.count(Kind::kReadDone) == 1; }));
    EXPECT_TRUE(reader_node->read(0, kPoolBytes) == pattern(0, kPoolBytes, 4));
  }
}

TEST(ShmReads, AReaderHoldsTheMemoryReadOnly) {
  const auto source_node = remote_node();
  const auto reader_node = local_node();
  Peer source(*source_node);
  Peer reader(*reader_node);
  join(reader, source, Access::kRead);
  std::ifstream maps("/proc/self/maps");
  int mapped = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:fabric-test") == std::string::npos) continue;
    mapped += line.find(" r--s ") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(mapped, 1);
}

// What a source gives away: descriptors of which no writable mapping can be made.
TEST(ShmReads, TheDescriptorsOfAReaderDoNotWrite) {
  for (const Access access : {Access::kWrite, Access::kRead}) {
    const auto source_node = local_node();
    Peer source(*source_node);
    const Bytes offer = source_node->open_inbound(PeerId{"q", 1}, access).value().offer;
    const UniqueFd rogue = raw_connect(offer);
    ASSERT_TRUE(say(rogue, encode(Hello{access, decode_offer(offer).value().token})));
    for (int i = 0; i < 5; ++i) source.pump();
    Bytes bytes(4096);
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
    iovec part{bytes.data(), bytes.size()};
    msghdr head{};
    head.msg_iov = &part;
    head.msg_iovlen = 1;
    head.msg_control = control.data();
    head.msg_controllen = control.size();
    ASSERT_GT(::recvmsg(rogue.get(), &head, 0), 0);
    ASSERT_NE(CMSG_FIRSTHDR(&head), nullptr);
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&head)), sizeof fd);
    const UniqueFd owned(fd);
    const auto maps = [&](int rights) {
      void* data = ::mmap(nullptr, 4096, rights, MAP_SHARED, fd, 0);
      if (data == MAP_FAILED) return false;
      ::munmap(data, 4096);
      return true;
    };
    EXPECT_TRUE(maps(PROT_READ));
    EXPECT_EQ(maps(PROT_READ | PROT_WRITE), access == Access::kWrite);
  }
}

TEST(ShmReads, AnOfferBentToTheOtherAccessIsRefusedByName) {
  for (const Access access : {Access::kWrite, Access::kRead}) {
    const auto source_node = local_node();
    const auto reader_node = local_node();
    Peer source(*source_node);
    Peer reader(*reader_node);
    Offer bent =
        decode_offer(source_node->open_inbound(PeerId{"p", 1}, access).value().offer).value();
    bent.access = access == Access::kWrite ? Access::kRead : Access::kWrite;
    ASSERT_TRUE(reader_node->connect(PeerId{"d", 1}, encode(bent), source_node->regions()));
    ASSERT_TRUE(until({&reader, &source}, [&] { return reader.count(Kind::kConnectFailed) == 1; }));
    EXPECT_THAT(
        reader.events[0].error,
        HasSubstr(access == Access::kWrite ? "the offer grants writes, it was used for reads"
                                           : "the offer grants reads, it was used for writes"));
  }
}

TEST(ShmReads, AReaderThatSendsImmediatesLosesItsConnectionAndIsNotHeard) {
  const auto source_node = local_node();
  Peer source(*source_node);
  const Bytes offer = source_node->open_inbound(PeerId{"q", 1}, Access::kRead).value().offer;
  const UniqueFd rogue = raw_connect(offer);
  ASSERT_TRUE(say(rogue, encode(Hello{Access::kRead, decode_offer(offer).value().token})));
  for (int i = 0; i < 5; ++i) source.pump();
  EXPECT_FALSE(hung_up(rogue));
  ASSERT_TRUE(say(rogue, Bytes(4)));
  ASSERT_TRUE(until({&source}, [&] { return hung_up(rogue); }));
  EXPECT_TRUE(source.events.empty());
}

TEST(ShmReads, AnAddressWhereNothingIsMappedFailsTheRead) {
  const auto node = local_node();
  Peer reader(*node);
  FakeReceiver source;
  const OutboundId outbound =
      node->connect(PeerId{"p", 1}, source.offer(Access::kRead), {one_region(kPoolBytes)}).value();
  source.accept();
  source.answer(encode(Welcome{{RegionPlace{kPoolBytes, 4096, kNoMemfd, 0}}}));
  ASSERT_TRUE(until({&reader}, [&] { return reader.count(Kind::kConnected) == 1; }));
  ASSERT_TRUE(node->post_reads({read(outbound, 100)}).status);
  ASSERT_TRUE(until({&reader}, [&] { return reader.count(Kind::kOutboundClosed) == 1; }));
  ASSERT_EQ(reader.count(Kind::kReadFailed), 1U);
  EXPECT_THAT(reader.events[1].error, HasSubstr("process_vm_readv moved"));
  EXPECT_TRUE(reader.events[1].over);
}

TEST(ShmReads, PrivateMemoryOfADeadSourceIsNotRead) {
  const auto source_node = remote_node(Memory::kPrivate);
  const auto reader_node = local_node();
  Peer source(*source_node);
  Peer reader(*reader_node);
  const Joined joined = join(reader, source, Access::kRead);
  ASSERT_TRUE(reader_node->post_reads({read(joined.outbound, kPoolBytes)}).status);
  reader.pump();
  source_node->signal(SIGKILL);
  ASSERT_TRUE(until({&reader}, [&] { return reader.count(Kind::kOutboundClosed) == 1; }));
  EXPECT_EQ(reader.count(Kind::kReadFailed), 1U);
}

}  // namespace
}  // namespace baton::fabric::shm
