// The same-host fabric alone, between two processes, beside what this machine can do at all: a
// memcpy of the same cold bytes in the same pieces and order, by the same process, in turns with it
// in the same run. Prints JSON lines {name, value, unit, reference?, note?}.
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/random.h"
#include "baton/pool.h"
#include "fabric/shm/shm_fabric.h"

namespace baton::fabric {
namespace {

using Kind = FabricEvent::Kind;

constexpr std::uint64_t kPieces = 18880;  // of 16 KiB: the hand-over of one published request
constexpr std::uint64_t kPoolBytes = kPieces * 16384;
constexpr int kRounds = 7;
constexpr int kPings = 2000;

Region region_of(const PoolMemory& pool) {
  Region region;
  region.name = "pool";
  region.base = pool.data();
  region.block_bytes = region.stride_bytes = pool.size();
  region.num_blocks = 1;
  region.memfd = pool.memfd();
  return region;
}

void say(int fd, const void* data, std::size_t bytes) {
  BATON_CHECK(::send(fd, data, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes));
}
void hear(int fd, void* data, std::size_t bytes) {
  BATON_CHECK(::recv(fd, data, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes));
}

// D: sleeps on the fabric's descriptor as an idle owner thread does, and tells when it was told. It
// may be read too.
[[noreturn]] void receive(int control) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const PoolMemory pool = PoolMemory::create("bench-d", kPoolBytes).value();
  const auto fabric = shm::make_shm_fabric().value();
  BATON_CHECK(fabric->register_regions(std::vector{region_of(pool)}));
  for (const Access access : {Access::kWrite, Access::kRead}) {
    const auto inbound = fabric->open_inbound(PeerId{"p", 1}, access).value();
    const std::size_t size = inbound.offer.size();
    say(control, &size, sizeof size);
    say(control, inbound.offer.data(), size);
  }
  std::vector<FabricEvent> events(64);
  while (true) {
    if (!fabric->busy()) {
      pollfd waits[2] = {{fabric->wait_fd(), POLLIN, 0}, {control, POLLIN, 0}};
      ::poll(waits, 2, -1);
      if (waits[1].revents != 0) ::_exit(0);
    }
    const std::size_t n = fabric->poll(events);
    const Time told = now();
    for (std::size_t i = 0; i < n; ++i) {
      if (events[i].kind == Kind::kImmediate) say(control, &told, sizeof told);
    }
  }
}

class Sender {
 public:
  explicit Sender(int control)
      : control_(control),
        source_(PoolMemory::create("bench-p", kPoolBytes).value()),
        copy_(PoolMemory::create("bench-copy", kPoolBytes).value()),
        fabric_(shm::make_shm_fabric().value()),
        events_(64) {
    for (std::uint64_t i = 0; i < kPoolBytes; i += 8) std::memcpy(source_.data() + i, &i, sizeof i);
    BATON_CHECK(fabric_->register_regions(std::vector{region_of(source_)}));
    outbound_ = hear_and_connect();
    const Time began = now();
    while (connected_ < 1) poll();
    while (fabric_->busy()) poll();
    warm_ms_ = std::chrono::duration<double, std::milli>(now() - began).count();
    reads_from_ = hear_and_connect();
    while (connected_ < 2 || fabric_->busy()) poll();
  }
  double warm_ms() const { return warm_ms_; }

  // Seconds from the first post to the receiver being told, for all of the pool in pieces.
  double push(const std::vector<std::uint64_t>& from, const std::vector<std::uint64_t>& to,
              std::uint64_t piece) {
    const Time began = now();
    const std::uint64_t target = completed_ + from.size();
    for (std::size_t i = 0; i < from.size();) {
      if (post(from[i] * piece, to[i] * piece, piece, {})) {
        ++i;
      } else {
        poll();
      }
    }
    while (completed_ < target) poll();
    return std::chrono::duration<double>(ping() - began).count();
  }
  // Seconds from the first post to the last completion, for all of the pool in pieces: the same
  // bytes the other way, over our own.
  double pull(const std::vector<std::uint64_t>& from, const std::vector<std::uint64_t>& to,
              std::uint64_t piece) {
    const Time began = now();
    const std::uint64_t target = completed_ + from.size();
    Read read;
    read.from = reads_from_;
    read.length = piece;
    for (std::size_t i = 0; i < from.size();) {
      read.remote_offset = from[i] * piece;
      read.local_offset = to[i] * piece;
      if (fabric_->post_read(read)) {
        ++i;
      } else {
        poll();
      }
    }
    while (completed_ < target) poll();
    return std::chrono::duration<double>(now() - began).count();
  }
  double copy(const std::vector<std::uint64_t>& from, const std::vector<std::uint64_t>& to,
              std::uint64_t piece) {
    const Time began = now();
    for (std::size_t i = 0; i < from.size(); ++i) {
      std::memcpy(copy_.data() + to[i] * piece, source_.data() + from[i] * piece, piece);
    }
    return std::chrono::duration<double>(now() - began).count();
  }
  // Writes `bytes` with an immediate; answers when the receiver was told.
  Time ping(std::uint64_t bytes = 0) {
    BATON_CHECK(post(0, 0, bytes, 1));
    const std::uint64_t target = completed_ + 1;
    while (completed_ < target) poll();
    Time told;
    hear(control_, &told, sizeof told);
    return told;
  }

 private:
  OutboundId hear_and_connect() {
    std::size_t size = 0;
    hear(control_, &size, sizeof size);
    Bytes offer(size);
    hear(control_, offer.data(), size);
    return fabric_->connect(PeerId{"d", 1}, offer, std::vector{region_of(source_)}).value();
  }
  bool post(std::uint64_t from, std::uint64_t to, std::uint64_t bytes,
            std::optional<std::uint32_t> immediate) {
    Write write;
    write.to = outbound_;
    write.local_offset = from;
    write.remote_offset = to;
    write.length = bytes;
    write.immediate = immediate;
    return fabric_->post(write).has_value();
  }
  void poll() {
    const std::size_t n = fabric_->poll(events_);
    for (std::size_t i = 0; i < n; ++i) {
      const bool done = events_[i].kind == Kind::kWriteDone || events_[i].kind == Kind::kReadDone;
      BATON_CHECK(done || events_[i].kind == Kind::kConnected, "{}", events_[i].error);
      ++(done ? completed_ : connected_);
    }
  }

  int control_;
  PoolMemory source_;
  PoolMemory copy_;
  std::unique_ptr<Fabric> fabric_;
  std::vector<FabricEvent> events_;
  OutboundId outbound_;
  OutboundId reads_from_;
  std::uint64_t connected_ = 0;
  std::uint64_t completed_ = 0;
  double warm_ms_ = 0;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

using Way = double (Sender::*)(const std::vector<std::uint64_t>&, const std::vector<std::uint64_t>&,
                               std::uint64_t);

void bandwidth(Sender& sender, const char* name, std::uint64_t piece, bool shuffled,
               Way way = &Sender::push) {
  std::vector<std::uint64_t> from(kPoolBytes / piece);
  std::iota(from.begin(), from.end(), 0);
  std::vector<std::uint64_t> to = from;
  if (shuffled) {
    Rng rng(11);
    for (std::size_t i = to.size() - 1; i > 0; --i) {
      std::swap(from[i], from[rng.below(i + 1)]);
      std::swap(to[i], to[rng.below(i + 1)]);
    }
  }
  sender.copy(from, to, piece);
  (sender.*way)(from, to, piece);
  std::vector<double> copies;
  std::vector<double> moves;
  std::vector<double> ratios;
  for (int round = 0; round < kRounds; ++round) {
    copies.push_back(sender.copy(from, to, piece));
    moves.push_back((sender.*way)(from, to, piece));
    ratios.push_back(copies.back() / moves.back());
  }
  const double bytes = static_cast<double>(from.size() * piece);
  const double reference = bytes / median(copies) / 1e9;
  std::sort(ratios.begin(), ratios.end());
  // The pairs were run in turns: their median ratio is steadier than the ratio of two medians.
  fmt::print(
      "{{\"name\": \"{}\", \"value\": {:.3f}, \"unit\": \"GB/s\", \"reference\": {:.3f}, \"note\": "
      "\"{} pieces of {} bytes; reference: memcpy of the same; ratio of pairs {:.2f} to {:.2f}; "
      "this median alone {:.3f}\"}}\n",
      name, reference * median(ratios), reference, from.size(), piece, ratios.front(),
      ratios.back(), bytes / median(moves) / 1e9);
}

void latency(Sender& sender, const char* name, std::uint64_t bytes) {
  std::vector<double> times;
  for (int i = 0; i < kPings; ++i) {
    const Time began = now();
    times.push_back(std::chrono::duration<double, std::micro>(sender.ping(bytes) - began).count());
  }
  std::sort(times.begin(), times.end());
  fmt::print(
      "{{\"name\": \"{}\", \"value\": {:.2f}, \"unit\": \"us\", \"note\": \"p50; p99 {:.1f}; "
      "posted "
      "until a sleeping receiver is told\"}}\n",
      name, times[times.size() / 2], times[times.size() * 99 / 100]);
}

int run() {
  int fds[2] = {-1, -1};
  BATON_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  const pid_t child = ::fork();
  BATON_CHECK(child >= 0);
  if (child == 0) {
    ::close(fds[0]);
    receive(fds[1]);
  }
  ::close(fds[1]);
  {
    Sender sender(fds[0]);
    bandwidth(sender, "shm_bandwidth", 256 << 10, false);
    bandwidth(sender, "shm_bandwidth_256k_shuffled", 256 << 10, true);
    bandwidth(sender, "shm_bandwidth_16k_shuffled", 16 << 10, true);
    bandwidth(sender, "shm_read_bandwidth", 256 << 10, false, &Sender::pull);
    bandwidth(sender, "shm_read_bandwidth_16k_shuffled", 16 << 10, true, &Sender::pull);
    latency(sender, "shm_immediate_us", 0);
    latency(sender, "shm_write_16k_us", 16 << 10);
    fmt::print(
        "{{\"name\": \"shm_connect_and_warm_ms\", \"value\": {:.2f}, \"unit\": \"ms\", \"note\": "
        "\"of {} MiB\"}}\n",
        sender.warm_ms(), kPoolBytes >> 20);
  }
  ::close(fds[0]);
  ::waitpid(child, nullptr, 0);
  return 0;
}

}  // namespace
}  // namespace baton::fabric

int main() {
  return baton::fabric::run();
}
