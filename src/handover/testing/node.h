// One process of the world: the machines, their port over the fake fabric and the world's channel,
// and a small engine that keeps books of its blocks.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fabric/sim/sim_fabric.h"
#include "handover/decode_side.h"
#include "handover/port.h"
#include "handover/prefill_side.h"
#include "handover/testing/pattern.h"
#include "layout/block_hash.h"

namespace baton::handover::testing {

// What a node needs of the world around it.
class Surroundings {
 public:
  virtual ~Surroundings() = default;
  virtual LinkId new_link(std::uint32_t dialler, const PeerAddress& to) = 0;
  virtual void hang_up(std::uint32_t node, LinkId link) = 0;
  virtual void carry(std::uint32_t node, LinkId link, std::span<const std::byte> frame) = 0;
  virtual void fault(std::string text) = 0;
  virtual void note(std::string text) = 0;
  virtual void count(const std::string& what) = 0;
  virtual void later(Duration delay, std::function<void()> what) = 0;
  virtual std::uint64_t pick(std::uint64_t n) = 0;
  virtual Time now() const = 0;
};

class Node final : public Port {
 public:
  Node(Surroundings& around, std::uint32_t number, const Config& config, Pool pool,
       std::unique_ptr<fabric::Fabric> fabric);
  ~Node() override;

  const std::uint32_t number;
  Config config;
  Pool pool;
  AgentMetrics metrics;
  std::unique_ptr<fabric::Fabric> fabric;
  std::optional<DecodeSide> decode;
  std::optional<PrefillSide> prefill;
  bool alive = true;
  bool stalled = false;

  // Polls the fabric, lets the machines work, hands events to the engine.
  void turn();
  Time next_deadline() const;

  // The engine. D: false if the pool has no room.
  bool reserve_and_register(TransferId transfer, baton::Attempt number, const PeerAddress& peer,
                            TokenRange range, std::uint32_t prompt);
  // P: takes blocks for the whole prompt, then computes and hands in piece by piece.
  bool begin_prefill(TransferId transfer, std::uint32_t prompt);
  void compute_piece(TransferId transfer, std::uint32_t tokens, std::optional<TokenId> first_token);
  void abandon_prefill(
      TransferId transfer);  // cancels; blocks come back with the event, or at once
  bool prefill_running(TransferId transfer) const;    // its blocks are not free yet
  bool prefill_computing(TransferId transfer) const;  // pieces are missing
  void check_at_end();

  // Port.
  LinkId dial(const PeerAddress& peer) override;
  void hang_up(LinkId link) override;
  void send(LinkId link, std::span<const std::byte> frame) override;
  void trust(LinkId) override {}
  Result<InboundOffer> open_inbound(const PeerId& writer) override;
  void fence_inbound(Inbound inbound) override;
  Result<Outbound> connect(const PeerId& receiver, std::span<const std::byte> offer,
                           std::span<const Region> regions) override;
  void close_outbound(Outbound outbound) override;
  Status post(const WriteOp& write) override;
  std::uint64_t hash_block(std::uint16_t group, BlockId block) override;
  void deliver(Event&& event) override;

 private:
  struct Held {  // D: blocks of one attempt
    TokenRange range;
    std::vector<BlockId> blocks;
    int ends = 0;
    bool gone = false;  // given back
  };
  struct Prompt {  // P: blocks of one request
    std::uint32_t tokens = 0;
    std::uint32_t computed = 0;
    std::vector<BlockId> blocks;
    bool handed_in = false;
    bool over = false;
  };
  using AttemptKey = std::pair<TransferId, baton::Attempt>;

  void handle(const fabric::FabricEvent& event);
  void on_decode_event(const Event& event);
  void on_prefill_event(const Event& event);
  void check_received(TransferId transfer, const Held& held, std::string_view when);
  void give_back(Held& held);

  Surroundings& around_;
  layout::BlockHasher hasher_;
  std::deque<Event> events_;
  std::map<AttemptKey, Held> held_;
  std::map<TransferId, Prompt> prompts_;
};

}  // namespace baton::handover::testing
