#include "handover/testing/world.h"

#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <queue>

#include "handover/testing/node.h"
#include "wire/frame.h"

namespace baton::handover::testing {
namespace {

using std::chrono::milliseconds;

constexpr std::uint32_t kBlockSize = 4;
constexpr std::uint32_t kPoolBlocks = 48;
constexpr auto kFaultPhase = milliseconds(3000);
constexpr auto kPeerTimeout = milliseconds(500);
constexpr auto kLease = milliseconds(1500);
constexpr auto kTransferTimeout = milliseconds(2000);
// Nothing that was accepted before the quiet may take longer than this to end: the longest chain is
// a registration that waits for its deadline, is cancelled, and whose peer must first be found
// silent and dialled again.
constexpr auto kBound = kTransferTimeout + kLease + 4 * kPeerTimeout + milliseconds(3000);

class World final : public Surroundings {
 public:
  World(std::uint64_t seed, const WorldOptions& options, bool trace)
      : options_(options), trace_(trace), rng_(seed), network_(seed ^ 0x5EED, fabric_options()) {}

  WorldReport run();

  // Surroundings.
  LinkId new_link(std::uint32_t dialler, const PeerAddress& to) override;
  void hang_up(std::uint32_t node, LinkId link) override;
  void carry(std::uint32_t node, LinkId link, std::span<const std::byte> frame) override;
  void fault(std::string text) override;
  void note(std::string text) override;
  void count(const std::string& what) override { ++report_.counts[what]; }
  void later(Duration delay, std::function<void()> what) override {
    queue_.push({now_ + delay, next_event_++, std::move(what)});
  }
  std::uint64_t pick(std::uint64_t n) override { return rng_.below(n); }
  Time now() const override { return now_; }

 private:
  struct Scheduled {
    Time at;
    std::uint64_t order;
    std::function<void()> what;
    bool operator<(const Scheduled& other) const {
      return std::tie(at, order) > std::tie(other.at, other.order);
    }
  };
  struct Link {
    std::uint32_t dialler = 0;
    std::uint32_t acceptor = 0;
    bool dialler_open = true;
    bool acceptor_open = false;
  };
  struct Request {
    TransferId id;
    std::uint32_t prompt = 0;
    std::uint16_t prefill_port = 0;
  };

  fabric::sim::Options fabric_options() const;
  Config config_for(std::uint16_t port, bool is_prefill);
  void start_node(std::uint16_t port);
  Node* alive_at(std::uint16_t port);
  Node* with_number(std::uint32_t number);
  void run_until(Time end);
  void turn(Node& node);
  bool quiet() const { return now_ >= Time{} + kFaultPhase; }
  Duration delay();
  void deliver(std::uint32_t to, LinkId link, const std::vector<std::byte>& frame);
  void down(std::uint32_t node, LinkId link, const char* why);
  void cut(LinkId link);

  void schedule_request(std::uint32_t number);
  void schedule_prefill(const Request& request);
  void schedule_decode(const Request& request, std::uint16_t port, baton::Attempt attempt,
                       Duration start);
  void next_piece(std::uint32_t node, TransferId id, std::uint32_t piece);
  void crash(std::uint16_t port);
  void stall(std::uint16_t port);

  WorldOptions options_;
  bool trace_;
  Rng rng_;
  fabric::sim::Network network_;
  Time now_{};
  std::priority_queue<Scheduled> queue_;
  std::uint64_t next_event_ = 0;
  std::vector<std::unique_ptr<Node>> nodes_;  // index: number; the dead stay
  std::map<LinkId, Link> links_;
  LinkId next_link_ = 1;
  WorldReport report_;
};

fabric::sim::Options World::fabric_options() const {
  fabric::sim::Options out;
  out.delivery_complete = options_.delivery_complete;
  out.fence_on_request = options_.fence_on_request;
  out.write_failures_per_1000 = options_.write_failures_per_1000;
  out.writes_in_flight_max = 16;
  out.write_bytes_max = 400;
  out.immediates_max = 256;
  out.landing.max = milliseconds(3);
  out.completion.max = milliseconds(3);
  return out;
}

Config World::config_for(std::uint16_t port, bool is_prefill) {
  Config out;
  out.id = {fmt::format("{}{}", is_prefill ? 'p' : 'd', port), rng_.next() | 1};
  out.role = is_prefill ? Role::kProducer : Role::kConsumer;
  out.verify_blocks = options_.verify;
  out.peer_timeout = kPeerTimeout;
  out.lease = kLease;
  out.lease_renewal = milliseconds(300);
  out.transfer_timeout = kTransferTimeout;
  out.resend_min = milliseconds(20);
  out.resend_max = milliseconds(200);
  out.reconnect_grace = milliseconds(100);
  out.transfers_max = 32;
  out.peers_max = 8;
  out.ends_remembered_max = options_.ends_remembered_max;
  out.quarantine_blocks_max = kPoolBlocks;
  out.fabric = "sim";
  out.delivery_complete = options_.delivery_complete;
  out.writes_in_flight_max = 16;
  out.write_bytes_max = 400;
  out.immediates_max = 256;
  return out;
}

void World::fault(std::string text) {
  if (report_.faults.size() < 20) {
    report_.faults.push_back(
        fmt::format("at {} us: {}", now_.time_since_epoch().count() / 1000, text));
  }
  note("FAULT " + text);
}

void World::note(std::string text) {
  for (const char c : text) {
    report_.trace_hash = (report_.trace_hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  }
  if (trace_) fmt::print("{:>9} us {}\n", now_.time_since_epoch().count() / 1000, text);
}

// ---- processes ----

void World::start_node(std::uint16_t port) {
  const bool is_prefill = port < options_.prefills;
  const Config config = config_for(port, is_prefill);
  const auto number = static_cast<std::uint32_t>(nodes_.size());
  Pool pool(3, kPoolBlocks, kBlockSize, 12,
            is_prefill ? 0 : static_cast<std::uint32_t>(port % 2) * 16,
            is_prefill ? kGarbage : kPoison);
  auto endpoint = network_.make_endpoint(config.id);
  nodes_.push_back(
      std::make_unique<Node>(*this, number, config, std::move(pool), std::move(endpoint)));
  note(fmt::format("start {} as node {}", config.id.to_string(), number));
}

Node* World::alive_at(std::uint16_t port) {
  for (auto& node : nodes_) {
    const bool is_prefill = port < options_.prefills;
    if (node->alive &&
        node->config.id.engine_id == fmt::format("{}{}", is_prefill ? 'p' : 'd', port)) {
      return node.get();
    }
  }
  return nullptr;
}

Node* World::with_number(std::uint32_t number) {
  return nodes_[number]->alive ? nodes_[number].get() : nullptr;
}

void World::crash(std::uint16_t port) {
  Node* node = alive_at(port);
  if (node == nullptr) return;
  note(fmt::format("crash node {}", node->number));
  node->alive = false;
  node->decode.reset();
  node->prefill.reset();
  network_.crash(node->config.id);
  for (auto& [id, link] : links_) {
    const LinkId which = id;
    if (link.dialler == node->number && link.dialler_open) {
      link.dialler_open = false;
      const std::uint32_t other = link.acceptor;
      later(delay(), [this, other, which] { down(other, which, "closed by the peer"); });
    } else if (link.acceptor == node->number && link.acceptor_open) {
      link.acceptor_open = false;
      const std::uint32_t other = link.dialler;
      later(delay(), [this, other, which] { down(other, which, "closed by the peer"); });
    }
  }
  later(milliseconds(pick(200)), [this, port] { start_node(port); });
}

void World::stall(std::uint16_t port) {
  Node* node = alive_at(port);
  if (node == nullptr) return;
  note(fmt::format("stall node {}", node->number));
  node->stalled = true;
  const std::uint32_t number = node->number;
  later(milliseconds(pick(1200)), [this, number] {
    nodes_[number]->stalled = false;
    note(fmt::format("node {} runs again", number));
  });
}

void World::turn(Node& node) {
  if (node.alive && !node.stalled) node.turn();
}

// ---- the control channel ----

Duration World::delay() {
  return std::chrono::microseconds(
      20 +
      pick(static_cast<std::uint64_t>(options_.message_delay_max / std::chrono::microseconds(1))));
}

LinkId World::new_link(std::uint32_t dialler, const PeerAddress& to) {
  const LinkId id = next_link_++;
  Node* node = alive_at(to.port);
  links_[id] = {dialler, node == nullptr ? 0 : node->number, true, false};
  if (node == nullptr) {
    later(delay(), [this, dialler, id] { down(dialler, id, "connection refused"); });
    return id;
  }
  later(delay(), [this, id] {
    Link& link = links_.at(id);
    Node* acceptor = with_number(link.acceptor);
    if (acceptor == nullptr || !link.dialler_open) {
      return down(link.dialler, id, "connection refused");
    }
    link.acceptor_open = true;
    acceptor->prefill->on_link_accepted(id, now_);
    Node* dialling = with_number(link.dialler);
    if (dialling != nullptr) {
      dialling->decode->on_link_up(id, now_);
      turn(*dialling);
    }
  });
  return id;
}

void World::down(std::uint32_t number, LinkId id, const char* why) {
  Link& link = links_.at(id);
  Node* node = with_number(number);
  bool& open = link.dialler == number ? link.dialler_open : link.acceptor_open;
  if (node == nullptr || !open) return;
  if (node->stalled) {
    later(milliseconds(10), [this, number, id, why] { down(number, id, why); });
    return;
  }
  open = false;
  note(fmt::format("link {} down at node {}: {}", id, number, why));
  if (node->decode) node->decode->on_link_down(id, why, now_);
  if (node->prefill) node->prefill->on_link_down(id, why, now_);
  turn(*node);
}

void World::hang_up(std::uint32_t number, LinkId id) {
  Link& link = links_.at(id);
  note(fmt::format("node {} hangs up link {}", number, id));
  const bool is_dialler = link.dialler == number;
  (is_dialler ? link.dialler_open : link.acceptor_open) = false;
  const std::uint32_t other = is_dialler ? link.acceptor : link.dialler;
  later(delay(), [this, other, id] { down(other, id, "closed by the peer"); });
}

void World::cut(LinkId id) {
  const Link link = links_.at(id);
  note(fmt::format("cut link {}", id));
  later(delay(), [this, id, n = link.dialler] { down(n, id, "reset"); });
  later(delay(), [this, id, n = link.acceptor] { down(n, id, "reset"); });
}

void World::carry(std::uint32_t number, LinkId id, std::span<const std::byte> frame) {
  const Link& link = links_.at(id);
  const std::uint32_t to = link.dialler == number ? link.acceptor : link.dialler;
  if (!(link.dialler == number ? link.dialler_open : link.acceptor_open)) return;
  const std::vector<std::byte> copy(frame.begin(), frame.end());
  if (!quiet() && rng_.chance(options_.drop_per_1000, 1000)) {
    note(fmt::format("lost on link {}", id));
    return;
  }
  const int copies = !quiet() && rng_.chance(options_.duplicate_per_1000, 1000) ? 2 : 1;
  for (int i = 0; i < copies; ++i) {
    // A second copy may be very late, after the link or even the attempt is gone.
    const Duration when = i == 0 ? delay() : delay() * 100;
    later(when, [this, to, id, copy] { deliver(to, id, copy); });
  }
}

void World::deliver(std::uint32_t to, LinkId id, const std::vector<std::byte>& bytes) {
  Node* node = with_number(to);
  if (node == nullptr) return;
  if (node->stalled) {
    later(milliseconds(5), [this, to, id, bytes] { deliver(to, id, bytes); });
    return;
  }
  wire::FrameReader reader(wire::kFrameBytesMax);
  std::size_t done = 0;
  while (done < bytes.size()) {
    const std::span<std::byte> room = reader.prepare();
    const std::size_t n = std::min(room.size(), bytes.size() - done);
    std::memcpy(room.data(), bytes.data() + done, n);
    reader.commit(n);
    done += n;
  }
  const auto frame = reader.next();
  if (!frame || !*frame) return fault("a frame did not survive the way");
  note(fmt::format("node {} gets {} on link {}", to, wire::to_string((*frame)->type), id));
  if (node->decode) node->decode->on_frame(id, **frame, now_);
  if (node->prefill) node->prefill->on_frame(id, **frame, now_);
  turn(*node);
}

// ---- requests ----

void World::schedule_request(std::uint32_t number) {
  Request request;
  request.id = {rng_.next() | 1, number + 1};
  request.prompt = static_cast<std::uint32_t>(1 + pick(40));
  request.prefill_port = static_cast<std::uint16_t>(pick(options_.prefills));
  const auto start = milliseconds(pick(2500));
  later(start, [this, request] { schedule_prefill(request); });
  const auto decode_port = static_cast<std::uint16_t>(options_.prefills + pick(options_.decodes));
  schedule_decode(request, decode_port, {0, 1}, start + milliseconds(pick(40)));
  if (rng_.chance(options_.cancels_per_1000, 1000)) {
    // Another attempt, at the same D or, rebound, at another.
    const bool rebind = rng_.chance(1, 2);
    const auto other = static_cast<std::uint16_t>(
        rebind ? options_.prefills + pick(options_.decodes) : decode_port);
    schedule_decode(request, other, rebind ? baton::Attempt{1, 1} : baton::Attempt{0, 2},
                    start + milliseconds(pick(60)));
  }
}

void World::schedule_prefill(const Request& request) {
  Node* node = alive_at(request.prefill_port);
  if (node == nullptr || node->stalled) return;
  if (!node->begin_prefill(request.id, request.prompt)) return;
  note(fmt::format("node {} expects {}", node->number, request.id.to_string()));
  node->prefill->expect(request.id, request.prompt, now_);
  const std::uint32_t number = node->number;
  const auto piece = static_cast<std::uint32_t>(kBlockSize * (1 + pick(10)));
  later(milliseconds(pick(30)),
        [this, number, id = request.id, piece] { next_piece(number, id, piece); });
  if (rng_.chance(options_.cancels_per_1000, 2000)) {
    later(milliseconds(pick(80)), [this, number, id = request.id] {
      Node* p = with_number(number);
      if (p == nullptr || !p->prefill_running(id)) return;
      note(fmt::format("node {} cancels {}", number, id.to_string()));
      p->abandon_prefill(id);
      turn(*p);
    });
  }
  turn(*node);
}

void World::next_piece(std::uint32_t number, TransferId id, std::uint32_t piece) {
  Node* node = with_number(number);
  if (node == nullptr) return;
  if (node->stalled) {
    return later(milliseconds(10), [this, number, id, piece] { next_piece(number, id, piece); });
  }
  if (!node->prefill_computing(id)) return;
  node->compute_piece(id, piece, TokenId{7});
  turn(*node);
  later(milliseconds(pick(10)), [this, number, id, piece] { next_piece(number, id, piece); });
}

void World::schedule_decode(const Request& request, std::uint16_t port, baton::Attempt attempt,
                            Duration start) {
  const bool claims = rng_.chance(1, 2);
  const bool knows = rng_.chance(1, 2);
  const bool nothing_wanted = rng_.chance(1, 20);
  const auto act = [this, request, port](Duration when, auto&& what) {
    later(when, [this, request, port, what] {
      Node* node = alive_at(port);
      Node* prefill = alive_at(request.prefill_port);
      if (node == nullptr || prefill == nullptr || node->stalled) return;
      what(*node, *prefill);
      turn(*node);
    });
  };
  const auto address = [knows, request](const Node& prefill) {
    return PeerAddress{"sim", request.prefill_port, prefill.config.id.engine_id,
                       knows ? prefill.config.id.incarnation : 0};
  };
  const Duration registers = start + milliseconds(pick(20));
  if (claims) {
    act(start, [this, address, request](Node& d, Node& p) {
      d.decode->claim(request.id, address(p), now_);
    });
  }
  act(registers, [this, address, request, attempt, nothing_wanted](Node& d, Node& p) {
    const std::uint32_t blocks = request.prompt / kBlockSize;
    const auto begin = static_cast<std::uint32_t>(kBlockSize * pick(blocks + 1));
    const TokenRange range =
        nothing_wanted ? TokenRange{begin, begin} : TokenRange{begin, request.prompt};
    note(fmt::format("node {} registers {} ({}, {})", d.number, request.id.to_string(),
                     attempt.binding, attempt.attempt));
    if (!d.reserve_and_register(request.id, attempt, address(p), range, request.prompt)) {
      d.decode->cancel(request.id, now_);
    }
  });
  if (rng_.chance(options_.cancels_per_1000, 1000)) {
    const bool withdraws = rng_.chance(1, 3);
    act(start + milliseconds(pick(80)), [this, request, withdraws](Node& d, Node&) {
      note(fmt::format("node {} {} {}", d.number, withdraws ? "withdraws" : "cancels",
                       request.id.to_string()));
      withdraws ? d.decode->withdraw(request.id, now_) : d.decode->cancel(request.id, now_);
    });
  }
  // The request ends at this D some time, whatever came of it: an engine does not keep a claim for
  // ever.
  later(kFaultPhase + milliseconds(pick(100)), [this, request, port] {
    Node* node = alive_at(port);
    if (node != nullptr && node->decode) {
      node->decode->cancel(request.id, now_);
      turn(*node);
    }
  });
}

// ---- the run ----

void World::run_until(Time end) {
  for (;;) {
    Time next = std::min(end, network_.next_due());
    if (!queue_.empty()) next = std::min(next, queue_.top().at);
    for (const auto& node : nodes_) {
      if (node->alive && !node->stalled) next = std::min(next, node->next_deadline());
    }
    now_ = std::max(now_, next);
    if (now_ >= end) return;
    network_.advance_to(now_);
    for (std::size_t i = 0; i < nodes_.size(); ++i) turn(*nodes_[i]);
    while (!queue_.empty() && queue_.top().at <= now_) {
      const auto what = queue_.top().what;
      queue_.pop();
      what();
    }
  }
}

WorldReport World::run() {
  const auto ports = static_cast<std::uint16_t>(options_.prefills + options_.decodes);
  for (std::uint16_t port = 0; port < ports; ++port) start_node(port);
  for (std::uint32_t i = 0; i < options_.requests; ++i) schedule_request(i);
  for (std::uint32_t i = 0; i < options_.cuts; ++i) {
    later(milliseconds(pick(2800)), [this] {
      if (!links_.empty()) cut(1 + pick(next_link_ - 1));
    });
  }
  for (std::uint32_t i = 0; i < options_.crashes; ++i) {
    later(milliseconds(100 + pick(2600)),
          [this, ports] { crash(static_cast<std::uint16_t>(pick(ports))); });
  }
  for (std::uint32_t i = 0; i < options_.stalls; ++i) {
    later(milliseconds(100 + pick(2000)),
          [this, ports] { stall(static_cast<std::uint16_t>(pick(ports))); });
  }
  run_until(Time{} + kFaultPhase);
  run_until(Time{} + kFaultPhase + kBound);
  for (const auto& node : nodes_) {
    if (node->alive) node->check_at_end();
  }
  if (network_.stats().immediates_overrun != 0)
    fault("an immediate was lost: credits were exceeded");
  return report_;
}

}  // namespace

WorldReport run_world(std::uint64_t seed, const WorldOptions& options, bool trace) {
  return World(seed, options, trace).run();
}

}  // namespace baton::handover::testing
