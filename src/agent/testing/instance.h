// For tests: one instance with an agent, a pool of KV blocks, an allocator that keeps books, and
// patterned content, so that a wrong byte names the request, layer and block that it should have
// come from. Not thread-safe.
#pragma once

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "agent/make_agent.h"
#include "base/check.h"
#include "baton/agent.h"
#include "baton/pool.h"

namespace baton::testing {

inline constexpr std::byte kPoison{0xDB};

struct Shape {
  std::uint32_t layers = 4;
  std::uint32_t blocks = 64;
  std::uint32_t block_size = 4;
  std::uint32_t head_dim = 16;
  bool sealed_memory = true;  // false: as an engine allocates it, written by process_vm_writev
};

class Instance {
 public:
  using MakeFabric = std::function<std::unique_ptr<fabric::Fabric>(const PeerId&)>;

  // A failure to create is a fault of the test.
  explicit Instance(AgentOptions options, const Shape& shape = {},
                    const MakeFabric& make_fabric = {},
                    const std::function<void(Geometry&)>& change = {})
      : shape_(shape) {
    make_geometry();
    if (change) change(geometry_);
    Result<std::unique_ptr<Agent>> agent;
    if (make_fabric) {
      const PeerId id = make_peer_id(options);
      agent = make_agent(options, geometry_, id, make_fabric(id));
    } else {
      agent = Agent::create(options, geometry_);
    }
    BATON_CHECK(agent, "{}", agent ? "" : agent.error().message);
    agent_ = std::move(*agent);
    for (BlockId block = shape_.blocks; block-- > 0;) free_.push_back(block);
  }

  Agent& agent() { return *agent_; }
  void stop() { agent_.reset(); }
  const Geometry& geometry() const { return geometry_; }
  PeerAddress address() const { return agent_->control_address(); }
  std::size_t free_blocks() const { return free_.size(); }
  std::uint32_t blocks_for(std::uint32_t tokens) const {
    return (tokens + shape_.block_size - 1) / shape_.block_size;
  }

  // --- blocks ---
  std::vector<BlockId> take_blocks(std::uint32_t count) {
    BATON_CHECK(count <= free_.size(), "the test's pool is too small");
    // From both ends by turns, so that lists are neither sorted nor contiguous.
    std::vector<BlockId> blocks;
    for (std::uint32_t i = 0; i < count; ++i) {
      if (i % 3 == 2) {
        blocks.push_back(free_.front());
        free_.erase(free_.begin());
      } else {
        blocks.push_back(free_.back());
        free_.pop_back();
      }
    }
    return blocks;
  }
  void give_back(const std::vector<BlockId>& blocks) {
    free_.insert(free_.end(), blocks.begin(), blocks.end());
  }

  // --- content ---
  static std::byte pattern(std::uint64_t seed, std::uint32_t layer, std::uint32_t block,
                           std::uint64_t byte) {
    std::uint64_t x = seed * 0x9E3779B97F4A7C15ULL + layer * 0xBF58476D1CE4E5B9ULL +
                      block * 0x94D049BB133111EBULL + byte;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9ULL;
    return static_cast<std::byte>(x >> 56);
  }
  // `first`: position in the request of the first of `blocks`.
  void fill(std::uint64_t seed, std::uint32_t first, const std::vector<BlockId>& blocks) {
    for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
      for (std::uint32_t i = 0; i < blocks.size(); ++i) {
        std::byte* at = place(layer, blocks[i]);
        for (std::uint64_t b = 0; b < block_bytes(); ++b)
          at[b] = pattern(seed, layer, first + i, b);
      }
    }
  }
  void poison(const std::vector<BlockId>& blocks) {
    for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
      for (const BlockId block : blocks) {
        std::memset(place(layer, block), std::to_integer<int>(kPoison), block_bytes());
      }
    }
  }
  // Empty, or the first difference in words.
  std::string difference(std::uint64_t seed, std::uint32_t first,
                         const std::vector<BlockId>& blocks) {
    for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
      for (std::uint32_t i = 0; i < blocks.size(); ++i) {
        const std::byte* at = place(layer, blocks[i]);
        for (std::uint64_t b = 0; b < block_bytes(); ++b) {
          if (at[b] == pattern(seed, layer, first + i, b)) continue;
          return fmt::format("seed {} layer {} block {} (pool {}) byte {} is {:#04x}{}", seed,
                             layer, first + i, blocks[i], b, std::to_integer<int>(at[b]),
                             at[b] == kPoison ? ", poison" : "");
        }
      }
    }
    return {};
  }
  bool is_poison(const std::vector<BlockId>& blocks) {
    for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
      for (const BlockId block : blocks) {
        const std::byte* at = place(layer, block);
        if (!std::all_of(at, at + block_bytes(), [](std::byte b) { return b == kPoison; })) {
          return false;
        }
      }
    }
    return true;
  }

  // --- the two sides; blocks are tracked until an event gives them back ---
  // P: all tokens at once.
  Status ready(TransferId transfer, std::uint64_t seed, std::uint32_t tokens) {
    return ready_piece(transfer, seed, {0, tokens}, true);
  }
  Status ready_piece(TransferId transfer, std::uint64_t seed, TokenRange range, bool last) {
    auto blocks = take_blocks(blocks_for(range.end) - range.begin / shape_.block_size);
    fill(seed, range.begin / shape_.block_size, blocks);
    ReadyPiece piece;
    piece.transfer = transfer;
    piece.range = range;
    piece.block_ids = {blocks};
    piece.last = last;
    if (last) piece.first_token = static_cast<TokenId>(seed);
    auto ok = agent_->ready(std::move(piece));
    if (!ok) {
      give_back(blocks);
      return ok;
    }
    auto& held = held_by_prefill_[transfer];
    held.insert(held.end(), blocks.begin(), blocks.end());
    return ok;
  }
  Status register_blocks(TransferId transfer, const PeerAddress& peer, std::uint32_t tokens,
                         std::uint32_t attempt = 1, std::uint32_t begin = 0,
                         std::chrono::milliseconds deadline = {}) {
    auto blocks = take_blocks(blocks_for(tokens) - begin / shape_.block_size);
    poison(blocks);
    Registration registration;
    registration.transfer = transfer;
    registration.attempt = attempt;
    registration.peer = peer;
    registration.range = {begin, tokens};
    registration.block_ids = {blocks};
    registration.prompt_tokens = tokens;
    registration.deadline = deadline;
    return hand_in(std::move(registration));
  }
  // Pull. P: what it tells of finished blocks; D: reads them.
  SourceBlocks announced(TransferId transfer, std::uint32_t tokens) const {
    return {{0, tokens}, {held_by_prefill_.at(transfer)}};
  }
  Status fetch_blocks(TransferId transfer, const PeerAddress& peer, const SourceBlocks& source,
                      std::uint32_t attempt = 1, std::uint32_t begin = 0) {
    auto blocks = take_blocks(blocks_for(source.range.end) - begin / shape_.block_size);
    poison(blocks);
    Registration registration;
    registration.transfer = transfer;
    registration.attempt = attempt;
    registration.peer = peer;
    registration.range = {begin, source.range.end};
    registration.block_ids = {blocks};
    registration.prompt_tokens = source.range.end;
    registration.source = source;
    return hand_in(std::move(registration));
  }
  const std::vector<BlockId>& registered_blocks(TransferId transfer, std::uint32_t attempt = 1) {
    return held_by_decode_[{transfer, attempt}];
  }

  // --- events ---
  // Takes what waits and keeps the books.
  void take_events() {
    std::vector<Event> batch(16);
    while (const std::size_t count = agent_->poll_events(batch)) {
      for (std::size_t i = 0; i < count; ++i) account(std::move(batch[i]));
    }
  }
  // Until `condition` holds or `limit` passed; sleeps on the event descriptor.
  bool wait_until(const std::function<bool()>& condition,
                  std::chrono::milliseconds limit = std::chrono::seconds(20)) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (true) {
      take_events();
      if (condition()) return true;
      if (std::chrono::steady_clock::now() > end) return false;
      pollfd fd{agent_->event_fd(), POLLIN, 0};
      ::poll(&fd, 1, 5);
    }
  }
  std::vector<Event> ends(TransferId transfer, Side side) const {
    std::vector<Event> found;
    for (const Event& event : events_) {
      if (event.kind == Event::Kind::kEnded && event.transfer == transfer && event.side == side) {
        found.push_back(event);
      }
    }
    return found;
  }
  bool wait_end(TransferId transfer, Side side, std::size_t count = 1) {
    return wait_until([&] { return ends(transfer, side).size() >= count; });
  }
  const std::vector<Event>& events() const { return events_; }
  // Those kept by keep_decoded_blocks().
  void release_decoded(TransferId transfer, std::uint32_t attempt = 1) {
    const auto it = held_by_decode_.find({transfer, attempt});
    if (it == held_by_decode_.end()) return;
    give_back(it->second);
    held_by_decode_.erase(it);
  }
  // Blocks come back to the free list by events unless a test wants to look at them first.
  void keep_decoded_blocks(bool keep) { keep_decoded_ = keep; }
  const std::vector<std::string>& faults() const { return faults_; }

 private:
  void make_geometry() {
    geometry_.model = "test-model";
    geometry_.kv_dtype = "float32";
    geometry_.num_layers = shape_.layers;
    geometry_.num_kv_heads = 2;
    geometry_.head_dim = shape_.head_dim;
    geometry_.block_size = shape_.block_size;
    geometry_.kernel_family = "test";
    const std::uint64_t bytes = block_bytes();
    const std::uint64_t total = bytes * shape_.blocks * shape_.layers;
    if (shape_.sealed_memory) {
      auto pool = PoolMemory::create("baton-test", total);
      BATON_CHECK(pool, "{}", pool ? "" : pool.error().message);
      pool_ = std::make_unique<PoolMemory>(std::move(*pool));
      base_ = pool_->data();
    } else {
      private_memory_ = std::make_unique<std::byte[]>(total);
      base_ = private_memory_.get();
    }
    for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
      Region region;
      region.name = fmt::format("layer.{}", layer);
      const std::uint64_t offset = layer * bytes * shape_.blocks;
      region.base = base_ + offset;
      region.stride_bytes = region.block_bytes = bytes;
      region.num_blocks = shape_.blocks;
      if (pool_) {
        region.memfd = pool_->memfd();
        region.memfd_offset = offset;
      }
      geometry_.regions.push_back(region);
    }
  }
  std::uint64_t block_bytes() const {
    return std::uint64_t{2} * 2 * shape_.block_size * shape_.head_dim * sizeof(float);
  }
  std::byte* place(std::uint32_t layer, BlockId block) {
    const Region& region = geometry_.regions[layer];
    return region.base + block * region.stride_bytes;
  }

  Status hand_in(Registration&& registration) {
    const auto blocks = registration.block_ids.front();
    const std::pair key{registration.transfer, registration.attempt};
    auto ok = agent_->register_blocks(std::move(registration));
    if (ok) {
      held_by_decode_[key] = blocks;
    } else {
      give_back(blocks);
    }
    return ok;
  }

  void account(Event&& event) {
    const auto name = event.transfer.to_string();
    if (event.side == Side::kPrefill) {
      if (!event.blocks_released) faults_.push_back("P's blocks not released: " + name);
      const auto it = held_by_prefill_.find(event.transfer);
      if (it != held_by_prefill_.end()) {
        give_back(it->second);
        held_by_prefill_.erase(it);
      }
    } else {
      const auto key = std::make_pair(event.transfer, event.attempt.attempt);
      if (event.kind == Event::Kind::kEnded && !ended_.insert(key).second) {
        faults_.push_back("a second end: " + name);
      }
      const bool gives_back = event.kind == Event::Kind::kReleased || event.blocks_released;
      const auto it = held_by_decode_.find(key);
      if (it == held_by_decode_.end()) {
        faults_.push_back("an event of nothing: " + name);
      } else if (gives_back && !keep_decoded_) {
        give_back(it->second);
        held_by_decode_.erase(it);
      }
    }
    events_.push_back(std::move(event));
  }

  const Shape shape_;
  Geometry geometry_;
  std::unique_ptr<PoolMemory> pool_;
  std::unique_ptr<std::byte[]> private_memory_;
  std::byte* base_ = nullptr;
  std::vector<BlockId> free_;
  std::map<TransferId, std::vector<BlockId>> held_by_prefill_;
  std::map<std::pair<TransferId, std::uint32_t>, std::vector<BlockId>> held_by_decode_;
  std::set<std::pair<TransferId, std::uint32_t>> ended_;
  std::vector<Event> events_;
  std::vector<std::string> faults_;
  bool keep_decoded_ = false;
  std::unique_ptr<Agent> agent_;  // last: it ends before the memory goes
};

inline AgentOptions options_of(const std::string& engine_id, Role role) {
  AgentOptions options;
  options.engine_id = engine_id;
  options.role = role;
  return options;
}

}  // namespace baton::testing
