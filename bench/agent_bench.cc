// What a hand-over costs, through the public API over the same-host fabric, and for planning and
// posting alone on a fabric that does nothing. Prints JSON lines {name, value, unit, reference?,
// note?}; each figure that is a ratio has its ceiling measured beside it, in turns with it, in the
// same run.
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/random.h"
#include "baton/agent.h"
#include "baton/pool.h"
#include "count_allocations.h"
#include "handover/prefill_side.h"
#include "wire/messages.h"

namespace baton {
namespace {

using namespace std::chrono_literals;

double seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}
std::int64_t nanoseconds(Time time) {
  return time.time_since_epoch().count();
}

double percentile(std::vector<double> values, double p) {
  BATON_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<std::size_t>(p * last)];
}

void print(const std::string& name, double value, const std::string& unit, double reference = 0,
           const std::string& note = {}) {
  std::string line =
      fmt::format(R"({{"name": "{}", "value": {:.6g}, "unit": "{}")", name, value, unit);
  if (reference != 0) line += fmt::format(R"(, "reference": {:.6g})", reference);
  if (!note.empty()) line += fmt::format(R"(, "note": "{}")", note);
  std::puts((line + "}").c_str());
  std::fflush(stdout);
}

// --- instances ---

struct Shape {
  std::uint32_t layers = 2;
  std::uint32_t blocks = 1024;
  std::uint32_t block_bytes = 16384;
  std::uint32_t block_size = 16;
};

Geometry make_geometry(const Shape& shape, std::byte* base, int memfd) {
  Geometry geometry;
  geometry.model = "bench";
  geometry.kv_dtype = "bfloat16";
  geometry.num_layers = shape.layers;
  geometry.num_kv_heads = 1;
  geometry.head_dim = shape.block_bytes / (2 * shape.block_size * 2);
  geometry.block_size = shape.block_size;
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    Region region;
    region.name = fmt::format("layer.{:03}", layer);
    region.memfd = memfd;
    region.memfd_offset = std::uint64_t{layer} * shape.blocks * shape.block_bytes;
    region.base = base + region.memfd_offset;
    region.stride_bytes = region.block_bytes = shape.block_bytes;
    region.num_blocks = shape.blocks;
    geometry.regions.push_back(region);
  }
  return geometry;
}

struct Instance {
  Instance(const std::string& name, Role role, const Shape& shape)
      : pool(std::move(*PoolMemory::create(
            name, std::uint64_t{shape.layers} * shape.blocks * shape.block_bytes))) {
    AgentOptions options;
    options.engine_id = name;
    options.role = role;
    options.transfer_timeout = 60s;
    auto made = Agent::create(options, make_geometry(shape, pool.data(), pool.memfd()));
    BATON_CHECK(made, "{}", made ? "" : made.error().message);
    agent = std::move(*made);
  }
  // Sleeps on the event descriptor, as an engine does.
  Event next_event() {
    std::array<Event, 1> one;
    while (agent->poll_events(one) == 0) {
      pollfd fd{agent->event_fd(), POLLIN, 0};
      ::poll(&fd, 1, 1000);
    }
    return std::move(one[0]);
  }

  PoolMemory pool;
  std::unique_ptr<Agent> agent;
};

std::vector<BlockId> some_blocks(std::uint32_t count, bool shuffled, std::uint32_t pool,
                                 std::uint64_t seed = 1) {
  std::vector<BlockId> blocks(pool);
  std::iota(blocks.begin(), blocks.end(), 0U);
  Rng rng(seed);
  for (std::size_t i = blocks.size(); shuffled && i > 1; --i) {
    std::swap(blocks[i - 1], blocks[rng.below(i)]);
  }
  blocks.resize(count);
  return blocks;
}

struct Pair {
  explicit Pair(const Shape& s)
      : shape(s), p("bench-prefill", Role::kProducer, s), d("bench-decode", Role::kConsumer, s) {}

  Registration registration(TransferId transfer, const std::vector<BlockId>& blocks) const {
    Registration out;
    out.transfer = transfer;
    out.attempt = 1;
    out.peer = p.agent->control_address();
    out.prompt_tokens = static_cast<std::uint32_t>(blocks.size()) * shape.block_size;
    out.range = {0, out.prompt_tokens};
    out.block_ids = {blocks};
    return out;
  }
  ReadyPiece piece(TransferId transfer, const std::vector<BlockId>& blocks) const {
    ReadyPiece out;
    out.transfer = transfer;
    out.range = {0, static_cast<std::uint32_t>(blocks.size()) * shape.block_size};
    out.block_ids = {blocks};
    return out;
  }

  const Shape shape;
  Instance p, d;
};

void must(const Status& status) {
  BATON_CHECK(status, "{}", status ? "" : status.error().message);
}

// --- what submitting costs the caller ---

double submit_us(Pair& pair, std::uint32_t blocks) {
  const auto ids = some_blocks(blocks, true, pair.shape.blocks);
  std::vector<double> costs;
  for (int i = 0; i < 200; ++i) {
    auto registration = pair.registration(TransferId::random(), ids);
    const TransferId transfer = registration.transfer;
    const Time begin = now();
    const Status accepted = pair.d.agent->register_blocks(registration);  // the copy is part of it
    costs.push_back(seconds(now() - begin) * 1e6);
    must(accepted);
    must(pair.d.agent->cancel(transfer));
    for (bool released = false; !released;) released = pair.d.next_event().blocks_released;
  }
  return percentile(costs, 0.5);
}

void measure_submit() {
  Shape shape;
  shape.layers = 1;
  shape.blocks = 16384;
  shape.block_bytes = 1024;
  Pair pair(shape);
  print("submit_us_1", submit_us(pair, 1), "us", 0, "register_blocks, median");
  print("submit_us_10000", submit_us(pair, 10000), "us", 0, "register_blocks, median");
}

// --- latency ---

// How late a plain thread wakes on this machine now: from a write to an event descriptor to the
// sleeper's next instruction.
class GapProbe {
 public:
  GapProbe() : fd_(::eventfd(0, 0)), thread_([this] { sleep_and_note(); }) {}
  ~GapProbe() {
    stop_ = true;
    wake();
    thread_.join();
    ::close(fd_);
  }
  void wake() {
    written_ = nanoseconds(now());
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto done = ::write(fd_, &one, sizeof(one));
  }
  // After the thread was joined or is idle.
  const std::vector<double>& gaps_us() const { return gaps_; }

 private:
  void sleep_and_note() {
    while (!stop_) {
      std::uint64_t count = 0;
      [[maybe_unused]] const auto got = ::read(fd_, &count, sizeof(count));
      gaps_.push_back(static_cast<double>(nanoseconds(now()) - written_) / 1e3);
    }
  }
  const int fd_;
  std::atomic<std::int64_t> written_{0};
  std::atomic<bool> stop_{false};
  std::vector<double> gaps_;
  std::thread thread_;
};

// Compute that goes on beside the hand-over, one thread for each of P and D.
class BusyEngines {
 public:
  explicit BusyEngines(int threads) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this] {
        volatile double x = 1;
        while (!stop_.load(std::memory_order_relaxed)) x = x * 1.0000001 + 1e-9;
      });
    }
  }
  ~BusyEngines() {
    stop_ = true;
    for (auto& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

struct Latencies {
  std::vector<double> ready_to_first_write, landed_to_told, gap;
};

Latencies measure_latencies(Pair& pair, int rounds) {
  Latencies out;
  GapProbe probe;
  const auto p_blocks = some_blocks(4, true, pair.shape.blocks, 1);
  const auto d_blocks = some_blocks(4, true, pair.shape.blocks, 2);
  for (int i = 0; i < rounds; ++i) {
    const auto transfer = TransferId::random();
    must(pair.p.agent->expect(transfer, 4 * pair.shape.block_size));
    must(pair.d.agent->register_blocks(pair.registration(transfer, d_blocks)));
    std::this_thread::sleep_for(2ms);  // the registration is there and everybody sleeps
    const Time begin = now();
    must(pair.p.agent->ready(pair.piece(transfer, p_blocks)));
    const Event d_end = pair.d.next_event();
    const auto told = nanoseconds(now());
    const Event p_end = pair.p.next_event();
    BATON_CHECK(d_end.outcome == Outcome::kDone && p_end.outcome == Outcome::kDone, "{}{}",
                d_end.text, p_end.text);
    const auto landed = std::min(p_end.times.last_byte, d_end.times.last_byte);
    out.ready_to_first_write.push_back(
        static_cast<double>(p_end.times.first_write - nanoseconds(begin)) / 1e3);
    out.landed_to_told.push_back(static_cast<double>(told - landed) / 1e3);
    probe.wake();
  }
  std::this_thread::sleep_for(20ms);
  out.gap = probe.gaps_us();
  return out;
}

void print_latencies(const Latencies& seen, const std::string& suffix, const std::string& note) {
  for (const auto& [name, p] : {std::pair{"p50", 0.5}, std::pair{"p99", 0.99}}) {
    const double gap = percentile(seen.gap, p);
    print(fmt::format("ready_to_first_write_us{}_{}", suffix, name),
          percentile(seen.ready_to_first_write, p), "us", gap, note);
    print(fmt::format("landed_to_told_us{}_{}", suffix, name), percentile(seen.landed_to_told, p),
          "us", gap, note);
  }
}

void measure_latency() {
  Pair pair(Shape{});
  measure_latencies(pair, 20);  // connects, maps, warms
  print_latencies(measure_latencies(pair, 300), "_idle",
                  "no compute beside it; reference: a plain thread's wake-up");
  const BusyEngines engines(2);
  print_latencies(measure_latencies(pair, 300), "",
                  "two compute threads beside it; reference: a plain thread's wake-up");
}

// --- bandwidth ---

void copy_blocks(const Pair& pair, const std::vector<BlockId>& from,
                 const std::vector<BlockId>& to) {
  for (std::uint32_t layer = 0; layer < pair.shape.layers; ++layer) {
    const std::uint64_t offset = std::uint64_t{layer} * pair.shape.blocks * pair.shape.block_bytes;
    for (std::size_t i = 0; i < from.size(); ++i) {
      std::memcpy(pair.d.pool.data() + offset + std::uint64_t{to[i]} * pair.shape.block_bytes,
                  pair.p.pool.data() + offset + std::uint64_t{from[i]} * pair.shape.block_bytes,
                  pair.shape.block_bytes);
    }
  }
}

void measure_bandwidth(const std::string& name, bool shuffled) {
  Shape shape;  // 18,880 pieces of 16 KiB: 295 MiB, several times a last-level cache
  shape.layers = 20;
  shape.blocks = 944;
  Pair pair(shape);
  const auto from = some_blocks(shape.blocks, shuffled, shape.blocks, 3);
  const auto to = some_blocks(shape.blocks, shuffled, shape.blocks, shuffled ? 4 : 3);
  const double bytes = double(shape.layers) * shape.blocks * shape.block_bytes;
  std::vector<double> ours;
  std::vector<double> plain;
  for (int round = 0; round < 8; ++round) {
    const auto transfer = TransferId::random();
    must(pair.p.agent->ready(pair.piece(transfer, from)));
    std::this_thread::sleep_for(5ms);
    Time begin = now();
    must(pair.d.agent->register_blocks(pair.registration(transfer, to)));
    const Event end = pair.d.next_event();
    const double took = seconds(now() - begin);
    const Event p_end = pair.p.next_event();
    BATON_CHECK(end.outcome == Outcome::kDone, "{}", end.text);
    BATON_CHECK(end.bytes == static_cast<std::uint64_t>(bytes) && p_end.bytes == end.bytes);
    begin = now();
    copy_blocks(pair, from, to);
    const double copied = seconds(now() - begin);
    if (round < 2) continue;  // maps and pages
    ours.push_back(bytes / took / 1e9);
    plain.push_back(bytes / copied / 1e9);
  }
  print(name, percentile(ours, 0.5), "GB/s", percentile(plain, 0.5),
        "submit to D told, against a memcpy loop over the same pieces in turns");
}

// --- planning and posting ---

// The world of a prefill side whose fabric takes every write and does nothing.
class NullWorld final : public handover::Port {
 public:
  handover::LinkId dial(const PeerAddress&) override { return handover::kNoLink; }
  void hang_up(handover::LinkId) override {}
  void send(handover::LinkId, std::span<const std::byte>) override {}
  void trust(handover::LinkId) override {}
  Result<InboundOffer> open_inbound(const PeerId&) override { return InboundOffer{}; }
  Result<InboundOffer> open_source(const PeerId&) override { return InboundOffer{}; }
  void fence_inbound(handover::Inbound) override {}
  Result<handover::Outbound> connect(const PeerId&, std::span<const std::byte>,
                                     std::span<const Region>) override {
    return handover::Outbound{1};
  }
  void close_outbound(handover::Outbound) override {}
  Status post(const handover::WriteOp& write) override {
    if (contexts.size() == contexts.capacity()) {
      return fail(Errc::kResourceExhausted, "");
    }
    contexts.push_back(write.context);
    ++writes;
    bytes += write.length;
    return {};
  }
  Status post_read(const handover::ReadOp&) override { return fail(Errc::kUnsupported, ""); }
  void posted(TransferId) override {}
  std::uint64_t hash_block(std::uint16_t, BlockId) override { return 0; }
  void deliver(Event&& event) override { ended |= event.outcome == Outcome::kDone; }

  std::vector<std::uint64_t> contexts;
  std::uint64_t writes = 0;
  std::uint64_t bytes = 0;
  bool ended = false;
};

wire::Frame as_frame(std::span<const std::byte> bytes, wire::MessageType type) {
  return {type, bytes.subspan(wire::kHeaderBytes)};
}

double thread_cpu_us() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

// A prefill side with one connected decode peer, run by hand.
class Planner {
 public:
  struct Cost {
    double cpu_us = 0;
    std::uint64_t allocations = 0;
    std::uint64_t pieces = 0;
    std::uint64_t writes = 0;
  };

  Planner() : geometry_(make_geometry(shape(), reinterpret_cast<std::byte*>(1U << 30), -1)) {
    config_.id = {"bench-prefill", 1};
    config_.geometry = geometry_;
    config_.write_bytes_max = 1ULL << 40;
    config_.writes_in_flight_max = 1024;
    world_.contexts.reserve(config_.writes_in_flight_max);
    side_ = std::make_unique<handover::PrefillSide>(config_, world_, metrics_);
    wire::Hello hello;
    hello.from = {"bench-decode", 2};
    hello.expected = config_.id;
    hello.fabric = config_.fabric;
    hello.peer_timeout = 5s;
    hello.lease = 30s;
    hello.geometry = geometry_;
    side_->on_link_accepted(kLink, now());
    side_->on_frame(kLink, as_frame(encoder_.encode(hello), wire::MessageType::kHello), now());
    const std::array<std::byte, 8> offer{};
    side_->on_frame(kLink, as_frame(encoder_.encode(wire::Offer{offer}), wire::MessageType::kOffer),
                    now());
    side_->on_connected(handover::Outbound{1}, now());
  }

  static Shape shape() {
    Shape shape;
    shape.layers = 32;
    return shape;
  }

  // From the moment both sides are known to the end: planning, posting, completing.
  Cost hand_over(const std::vector<BlockId>& local, const std::vector<BlockId>& remote) {
    ReadyPiece piece;
    piece.transfer = TransferId::random();
    piece.range = {0, static_cast<std::uint32_t>(local.size()) * geometry_.block_size};
    piece.block_ids = {local};
    wire::Register message;
    message.transfer = piece.transfer;
    message.attempt = {0, 1};
    message.range = piece.range;
    message.prompt_tokens = piece.range.end;
    message.num_groups = 1;
    message.block_ids[0] = remote;
    message.num_grants = 1;
    message.grant.epoch = ++epoch_;
    message.grant.slot = {static_cast<std::uint32_t>(epoch_), 1};
    message.grant.credits = 1;
    message.deadline = 60s;
    world_.ended = false;
    world_.bytes = 0;
    world_.writes = 0;
    side_->ready(std::move(piece), now());
    side_->on_frame(kLink, as_frame(encoder_.encode(message), wire::MessageType::kRegister), now());

    Cost cost;
    cost.pieces = local.size() * geometry_.num_layers;
    const std::uint64_t allocations_before = bench::allocations();
    const double cpu_before = thread_cpu_us();
    while (!world_.ended) {
      const Time time = now();
      side_->work(time);
      for (const std::uint64_t context : world_.contexts) side_->on_write_done(context, time);
      world_.contexts.clear();
    }
    cost.cpu_us = thread_cpu_us() - cpu_before;
    cost.allocations = bench::allocations() - allocations_before;
    cost.writes = world_.writes;
    BATON_CHECK(world_.bytes == cost.pieces * geometry_.regions[0].block_bytes);
    return cost;
  }

 private:
  static constexpr handover::LinkId kLink = 1;
  const Geometry geometry_;
  handover::Config config_;
  NullWorld world_;
  AgentMetrics metrics_;
  wire::Encoder encoder_;
  std::unique_ptr<handover::PrefillSide> side_;
  Epoch epoch_ = 0;
};

// Answers allocations for each block more, so that what a transfer allocates once does not count.
double measure_planning_of(const std::string& name, bool shuffled) {
  Planner planner;
  const std::uint32_t pool = Planner::shape().blocks;
  const auto from = [&](std::uint32_t count) { return some_blocks(count, shuffled, pool, 1); };
  const auto to = [&](std::uint32_t count) {
    return some_blocks(count, shuffled, pool, shuffled ? 2 : 1);
  };
  planner.hand_over(from(pool), to(pool));
  std::vector<double> times;
  Planner::Cost large;
  for (int round = 0; round < 25; ++round) {
    large = planner.hand_over(from(pool), to(pool));
    times.push_back(large.cpu_us / static_cast<double>(large.pieces));
  }
  const Planner::Cost small = planner.hand_over(from(pool / 8), to(pool / 8));
  print(name, percentile(times, 0.5), "us", 0,
        fmt::format(
            "CPU time per block and region, {:.1f} of them a write; {} allocations a transfer",
            static_cast<double>(large.pieces) / static_cast<double>(large.writes),
            small.allocations));
  return (static_cast<double>(large.allocations) - static_cast<double>(small.allocations)) /
         static_cast<double>(large.pieces - small.pieces);
}

void measure_planning() {
  const double contiguous = measure_planning_of("per_block_us_contiguous", false);
  const double fragmented = measure_planning_of("per_block_us_fragmented", true);
  print("allocations_per_block", std::max(contiguous, fragmented), "count");
}

}  // namespace
}  // namespace baton

int main() {
  baton::measure_planning();
  baton::measure_submit();
  baton::measure_latency();
  baton::measure_bandwidth("handover_bandwidth", false);
  baton::measure_bandwidth("handover_bandwidth_16k_shuffled", true);
  return 0;
}
