// The fabric between hosts, over loopback between two processes, beside what it is made of and what
// it replaces: a bare loop of fi_writemsg over the same provider, and a bare loop of writev over
// one TCP connection, all three in turns in one run over the same warmed pools. Prints JSON lines
// {name, value, unit, reference?, note?}.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/random.h"
#include "baton/pool.h"
#include "fabric/libfabric/device.h"
#include "fabric/libfabric/libfabric_fabric.h"

namespace baton::fabric {
namespace {

using libfabric::Device;
using libfabric::Fid;
using Kind = FabricEvent::Kind;

constexpr std::uint64_t kPoolBytes = 64ULL << 20;
constexpr int kPasses = 3;  // over the pool, one measurement
constexpr int kRounds = 7;
constexpr int kPings = 400;
constexpr std::size_t kInFlight = 256;

enum class Way : std::uint8_t { kAdapter, kBare, kTcp, kTcpOnce, kQuit };

struct Command {
  Way way = Way::kQuit;
  std::uint64_t piece = 0;  // kTcp: what comes, in which pieces, how often; kTcpOnce: one piece
  std::uint32_t passes = 0;
};

void say(int fd, const void* data, std::size_t bytes) {
  BATON_CHECK(::send(fd, data, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes));
}
void hear(int fd, void* data, std::size_t bytes) {
  BATON_CHECK(::recv(fd, data, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes));
}

Region region_of(const PoolMemory& pool) {
  Region region;
  region.name = "pool";
  region.base = pool.data();
  region.block_bytes = region.stride_bytes = pool.size();
  region.num_blocks = 1;
  region.memfd = pool.memfd();
  return region;
}

// Where piece i goes; both sides know.
std::vector<std::uint64_t> places(std::uint64_t piece) {
  std::vector<std::uint64_t> order(kPoolBytes / piece);
  std::iota(order.begin(), order.end(), 0);
  Rng rng(piece);
  for (std::size_t i = order.size() - 1; i > 0; --i) {
    std::swap(order[i], order[rng.below(i + 1)]);
  }
  return order;
}

// What a program would write without an adapter: one endpoint, one queue that is polled.
class Bare {
 public:
  explicit Bare(const PoolMemory& pool) : pool_(pool), device_(Device::open({}).value()) {
    fi_av_attr av{};
    fid_av* addresses = nullptr;
    BATON_CHECK(fi_av_open(&device_->domain(), &av, &addresses, nullptr) == 0);
    addresses_.reset(addresses);
    fi_cq_attr cq{};
    cq.size = 4096;
    cq.format = FI_CQ_FORMAT_DATA;
    cq.wait_obj = FI_WAIT_NONE;
    fid_cq* queue = nullptr;
    BATON_CHECK(fi_cq_open(&device_->domain(), &cq, &queue, nullptr) == 0);
    queue_.reset(queue);
    fid_ep* endpoint = nullptr;
    BATON_CHECK(fi_endpoint(&device_->domain(), &device_->info(), &endpoint, nullptr) == 0);
    endpoint_.reset(endpoint);
    BATON_CHECK(fi_ep_bind(endpoint, &addresses->fid, 0) == 0);
    BATON_CHECK(fi_ep_bind(endpoint, &queue->fid, FI_TRANSMIT | FI_RECV) == 0);
    BATON_CHECK(fi_enable(endpoint) == 0);
  }

  struct Contact {
    std::array<std::byte, 64> address{};
    std::uint64_t key = 0;
  };
  Contact contact() {
    key_ = device_
               ->register_memory(device_->domain(), {pool_.data(), pool_.size()},
                                 Device::Use::kWrittenByPeers)
               .value();
    Contact contact;
    contact.key = fi_mr_key(key_.get());
    std::size_t size = contact.address.size();
    BATON_CHECK(fi_getname(&endpoint_->fid, contact.address.data(), &size) == 0);
    return contact;
  }
  void reach(const Contact& contact) {
    remote_key_ = contact.key;
    BATON_CHECK(fi_av_insert(addresses_.get(), contact.address.data(), 1, &remote_, 0, nullptr) ==
                1);
  }

  // False: try again.
  bool write(std::uint64_t from, std::uint64_t at, std::uint64_t bytes, bool tell) {
    iovec local{pool_.data() + from, bytes};
    fi_rma_iov remote{at, bytes, remote_key_};
    fi_msg_rma message{};
    message.msg_iov = &local;
    message.iov_count = 1;
    message.addr = remote_;
    message.rma_iov = &remote;
    message.rma_iov_count = 1;
    message.data = 7;
    const std::uint64_t flags =
        FI_COMPLETION | FI_DELIVERY_COMPLETE | (tell ? FI_REMOTE_CQ_DATA : 0);
    const auto rc = fi_writemsg(endpoint_.get(), &message, flags);
    BATON_CHECK(rc == 0 || rc == -FI_EAGAIN, "fi_writemsg: {}", fi_strerror(static_cast<int>(-rc)));
    return rc == 0;
  }
  // How many completions came; `told` is set where one is a peer's immediate.
  std::size_t look(bool& told) {
    std::array<fi_cq_data_entry, 64> entries;
    const ssize_t n = fi_cq_read(queue_.get(), entries.data(), entries.size());
    BATON_CHECK(n >= 0 || n == -FI_EAGAIN, "fi_cq_read: {}", fi_strerror(static_cast<int>(-n)));
    std::size_t own = 0;
    for (ssize_t i = 0; i < n; ++i) {
      const bool theirs = (entries[static_cast<std::size_t>(i)].flags & FI_REMOTE_CQ_DATA) != 0;
      told = told || theirs;
      own += theirs ? 0 : 1;
    }
    return own;
  }

 private:
  const PoolMemory& pool_;
  std::unique_ptr<Device> device_;
  Fid<fid_av> addresses_;
  Fid<fid_cq> queue_;
  Fid<fid_mr> key_;
  Fid<fid_ep> endpoint_;
  fi_addr_t remote_ = 0;
  std::uint64_t remote_key_ = 0;
};

// The receiver's process: takes one measurement of one way after the other, and tells when it knew.
class Receiver {
 public:
  explicit Receiver(int control)
      : control_(control),
        pool_(PoolMemory::create("bench-d", kPoolBytes).value()),
        fabric_(libfabric::make_libfabric_fabric({}).value()),
        bare_(pool_) {
    BATON_CHECK(fabric_->register_regions(std::vector{region_of(pool_)}));
    const auto inbound = fabric_->open_inbound(PeerId{"p", 1}, Access::kWrite).value();
    const std::size_t size = inbound.offer.size();
    say(control_, &size, sizeof size);
    say(control_, inbound.offer.data(), size);
    const Bare::Contact contact = bare_.contact();
    say(control_, &contact, sizeof contact);
    listen();
  }

  void run() {
    Command command;
    while (true) {
      // Between measurements both are looked at: connecting needs both sides.
      pollfd wait{control_, POLLIN, 0};
      if (::poll(&wait, 1, 1) <= 0) {
        bool told = false;
        bare_.look(told);
        fabric_->poll(events_);
        continue;
      }
      hear(control_, &command, sizeof command);
      if (command.way == Way::kQuit) return;
      const Time ready = now();
      say(control_, &ready, sizeof ready);
      if (command.way == Way::kAdapter) take_adapter();
      if (command.way == Way::kBare) take_bare();
      if (command.way == Way::kTcp) take_tcp(command);
      if (command.way == Way::kTcpOnce) hear(tcp_, pool_.data(), command.piece);
      const Time told = now();
      say(control_, &told, sizeof told);
    }
  }

 private:
  void listen() {
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* any = reinterpret_cast<sockaddr*>(&address);
    BATON_CHECK(::bind(listener, any, size) == 0 && ::listen(listener, 1) == 0 &&
                ::getsockname(listener, any, &size) == 0);
    say(control_, &address, sizeof address);
    tcp_ = ::accept(listener, nullptr, nullptr);
    BATON_CHECK(tcp_ >= 0);
    ::close(listener);
  }
  // Sleeps as an owner thread does.
  void take_adapter() {
    while (true) {
      if (!fabric_->busy()) {
        pollfd wait{fabric_->wait_fd(), POLLIN, 0};
        ::poll(&wait, 1, 10);
      }
      const std::size_t n = fabric_->poll(events_);
      for (std::size_t i = 0; i < n; ++i) {
        if (events_[i].kind == Kind::kImmediate) return;
      }
    }
  }
  void take_bare() {
    bool told = false;
    while (!told) bare_.look(told);
  }
  void take_tcp(const Command& command) {
    const auto order = places(command.piece);
    for (std::uint32_t pass = 0; pass < command.passes; ++pass) {
      for (const std::uint64_t place : order) {
        hear(tcp_, pool_.data() + place * command.piece, command.piece);
      }
    }
  }

  int control_;
  int tcp_ = -1;
  PoolMemory pool_;
  std::unique_ptr<Fabric> fabric_;
  Bare bare_;
  std::vector<FabricEvent> events_ = std::vector<FabricEvent>(64);
};

class Sender {
 public:
  explicit Sender(int control)
      : control_(control),
        pool_(PoolMemory::create("bench-p", kPoolBytes).value()),
        fabric_(libfabric::make_libfabric_fabric({}).value()),
        bare_(pool_) {
    for (std::uint64_t i = 0; i < kPoolBytes; i += 8) std::memcpy(pool_.data() + i, &i, sizeof i);
    BATON_CHECK(fabric_->register_regions(std::vector{region_of(pool_)}));
    std::size_t size = 0;
    hear(control_, &size, sizeof size);
    Bytes offer(size);
    hear(control_, offer.data(), size);
    Bare::Contact contact;
    hear(control_, &contact, sizeof contact);
    bare_.reach(contact);
    sockaddr_in address{};
    hear(control_, &address, sizeof address);
    tcp_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    BATON_CHECK(::connect(tcp_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    const int on = 1;
    ::setsockopt(tcp_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    outbound_ = fabric_->connect(PeerId{"d", 1}, offer, std::vector{region_of(pool_)}).value();
    while (!connected_) look();
  }
  ~Sender() {
    const Command command;
    say(control_, &command, sizeof command);
  }

  // Seconds from the first post until the receiver knew that all had come.
  double push(Way way, std::uint64_t piece, std::uint32_t passes = kPasses) {
    const auto order = places(piece);
    ask({way, piece, passes});
    const Time began = now();
    if (way == Way::kTcp) push_tcp(order.size() * passes, piece);
    if (way == Way::kAdapter) push_adapter(order, piece, passes);
    if (way == Way::kBare) push_bare(order, piece, passes);
    return std::chrono::duration<double>(answer() - began).count();
  }
  // One hand-over as P makes it: the bytes, and after their completion an immediate.
  double hand_over(std::uint64_t bytes) {
    ask({Way::kAdapter, 0, 0});
    const Time began = now();
    post(0, 0, bytes, {});
    while (completed_ < posted_) look();
    post(0, 0, 0, 1);
    while (completed_ < posted_) look();
    return std::chrono::duration<double, std::micro>(answer() - began).count();
  }
  // One bare write with its immediate.
  double one_way(std::uint64_t bytes) {
    ask({Way::kBare, 0, 0});
    const Time began = now();
    while (!bare_.write(0, 0, bytes, true)) look_bare();
    ++bare_flying_;
    while (bare_flying_ > 0) look_bare();
    return std::chrono::duration<double, std::micro>(answer() - began).count();
  }
  // One bare writev, and its receiver woken.
  double tcp_one_way(std::uint64_t bytes) {
    ask({Way::kTcpOnce, bytes, 0});
    const Time began = now();
    iovec part{pool_.data(), bytes};
    write_parts(&part, 1);
    return std::chrono::duration<double, std::micro>(answer() - began).count();
  }

 private:
  // The receiver is in its loop before the clock starts.
  void ask(const Command& command) {
    say(control_, &command, sizeof command);
    answer();
    ::usleep(100);
  }
  Time answer() {
    Time told;
    hear(control_, &told, sizeof told);
    return told;
  }
  bool post(std::uint64_t from, std::uint64_t at, std::uint64_t bytes,
            std::optional<std::uint32_t> immediate) {
    Write write;
    write.to = outbound_;
    write.local_offset = from;
    write.remote_offset = at;
    write.length = bytes;
    write.immediate = immediate;
    if (!fabric_->post(write)) return false;
    ++posted_;
    return true;
  }
  void look() {
    const std::size_t n = fabric_->poll(events_);
    for (std::size_t i = 0; i < n; ++i) {
      BATON_CHECK(events_[i].kind == Kind::kWriteDone || events_[i].kind == Kind::kConnected, "{}",
                  events_[i].error);
      if (events_[i].kind == Kind::kWriteDone) ++completed_;
      if (events_[i].kind == Kind::kConnected) connected_ = true;
    }
  }
  void look_bare() {
    bool told = false;
    bare_flying_ -= bare_.look(told);
  }
  void push_adapter(const std::vector<std::uint64_t>& order, std::uint64_t piece,
                    std::uint32_t passes) {
    for (std::uint32_t pass = 0; pass < passes; ++pass) {
      for (std::size_t i = 0; i < order.size(); ++i) {
        while (!post(i * piece, order[i] * piece, piece, {})) look();
      }
    }
    while (completed_ < posted_) look();
    BATON_CHECK(post(0, 0, 0, 1));
    while (completed_ < posted_) look();
  }
  void push_bare(const std::vector<std::uint64_t>& order, std::uint64_t piece,
                 std::uint32_t passes) {
    const auto put = [&](std::uint64_t from, std::uint64_t at, std::uint64_t bytes, bool tell) {
      while (bare_flying_ >= kInFlight || !bare_.write(from, at, bytes, tell)) look_bare();
      ++bare_flying_;
    };
    for (std::uint32_t pass = 0; pass < passes; ++pass) {
      for (std::size_t i = 0; i < order.size(); ++i) put(i * piece, order[i] * piece, piece, false);
    }
    while (bare_flying_ > 0) look_bare();
    put(0, 0, 0, true);
    while (bare_flying_ > 0) look_bare();
  }
  // 16 pieces a call, as many as a writer would gather.
  void push_tcp(std::size_t pieces, std::uint64_t piece) {
    constexpr std::size_t kGather = 16;
    std::array<iovec, kGather> parts;
    for (std::size_t at = 0; at < pieces;) {
      const std::size_t count = std::min(kGather, pieces - at);
      for (std::size_t i = 0; i < count; ++i) {
        parts[i] = {pool_.data() + (at + i) * piece % kPoolBytes, piece};
      }
      write_parts(parts.data(), count);
      at += count;
    }
  }
  void write_parts(iovec* parts, std::size_t count) {
    while (count > 0) {
      auto sent = static_cast<std::size_t>(::writev(tcp_, parts, static_cast<int>(count)));
      BATON_CHECK(static_cast<ssize_t>(sent) > 0);
      while (count > 0 && sent >= parts->iov_len) {
        sent -= parts->iov_len;
        ++parts;
        --count;
      }
      if (count > 0) {
        parts->iov_base = static_cast<std::byte*>(parts->iov_base) + sent;
        parts->iov_len -= sent;
      }
    }
  }

  int control_;
  int tcp_ = -1;
  PoolMemory pool_;
  std::unique_ptr<Fabric> fabric_;
  Bare bare_;
  std::vector<FabricEvent> events_ = std::vector<FabricEvent>(64);
  OutboundId outbound_;
  bool connected_ = false;
  std::uint64_t posted_ = 0;
  std::uint64_t completed_ = 0;
  std::size_t bare_flying_ = 0;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void bandwidth(Sender& sender, const char* size, std::uint64_t piece) {
  for (const Way way : {Way::kAdapter, Way::kBare, Way::kTcp}) sender.push(way, piece, 1);
  std::vector<double> bare;
  std::vector<double> to_bare;
  std::vector<double> to_tcp;
  for (int round = 0; round < kRounds; ++round) {
    const double adapter = sender.push(Way::kAdapter, piece);
    bare.push_back(sender.push(Way::kBare, piece));
    to_bare.push_back(bare.back() / adapter);
    to_tcp.push_back(sender.push(Way::kTcp, piece) / adapter);
  }
  const double bytes = static_cast<double>(kPoolBytes) * kPasses;
  const double reference = bytes / median(bare) / 1e9;
  const auto [low, high] = std::minmax_element(to_bare.begin(), to_bare.end());
  // Run in turns: the median of the ratios is steadier than the ratio of the medians.
  fmt::print(
      "{{\"name\": \"libfabric_bandwidth_{}\", \"value\": {:.3f}, \"unit\": \"GB/s\", "
      "\"reference\": {:.3f}, \"note\": \"reference: bare fi_writemsg loop; ratio of pairs {:.2f} "
      "to {:.2f}\"}}\n",
      size, reference * median(to_bare), reference, *low, *high);
  const double moved = reference * median(to_bare);
  fmt::print(
      "{{\"name\": \"libfabric_bandwidth_{}_to_tcp\", \"value\": {:.3f}, \"unit\": \"GB/s\", "
      "\"reference\": {:.3f}, \"note\": \"reference: bare TCP writev loop, same run\"}}\n",
      size, moved, moved / median(to_tcp));
}

void latency(Sender& sender) {
  constexpr std::uint64_t kBytes = 16 << 10;
  std::vector<double> hand_overs;
  std::vector<double> one_ways;
  std::vector<double> tcp;
  for (int i = 0; i < kPings; ++i) {
    hand_overs.push_back(sender.hand_over(kBytes));
    one_ways.push_back(sender.one_way(kBytes));
    tcp.push_back(sender.tcp_one_way(kBytes));
  }
  const double limit = 2 * median(one_ways) + 20;
  fmt::print(
      "{{\"name\": \"libfabric_handover_16k_us\", \"value\": {:.1f}, \"unit\": \"us\", "
      "\"reference\": {:.1f}, \"note\": \"write, its completion, immediate, receiver woken; "
      "reference: two bare one-way latencies ({:.1f} us) and 20 us\"}}\n",
      median(hand_overs), limit, median(one_ways));
  fmt::print(
      "{{\"name\": \"libfabric_handover_16k_us_to_tcp\", \"value\": {:.1f}, \"unit\": \"us\", "
      "\"reference\": {:.1f}, \"note\": \"reference: one bare TCP writev, its receiver woken\"}}\n",
      median(hand_overs), median(tcp));
}

// Both poll: on one core they would measure the scheduler's slices.
void stay_on_core(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  ::sched_setaffinity(0, sizeof cores, &cores);
}

int run() {
  int fds[2] = {-1, -1};
  BATON_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  const pid_t child = ::fork();
  BATON_CHECK(child >= 0);
  if (child == 0) {
    ::close(fds[0]);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    stay_on_core(1);
    Receiver(fds[1]).run();
    ::_exit(0);
  }
  ::close(fds[1]);
  stay_on_core(0);
  {
    Sender sender(fds[0]);
    bandwidth(sender, "16k", 16 << 10);
    bandwidth(sender, "64k", 64 << 10);
    bandwidth(sender, "256k", 256 << 10);
    bandwidth(sender, "1m", 1 << 20);
    latency(sender);
  }
  ::waitpid(child, nullptr, 0);
  return 0;
}

}  // namespace
}  // namespace baton::fabric

int main() {
  return baton::fabric::run();
}
