// One request inside the engine. The engine thread owns it and everything in it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "baton/ids.h"
#include "engine/engine.h"
#include "engine/prefix_cache.h"
#include "engine/sampler.h"
#include "engine/text_stream.h"

namespace baton::engine {

enum class Phase : std::uint8_t {
  kWaiting,      // in the queue, no blocks
  kRemoteKv,     // D: blocks registered, P may write into them
  kArrived,      // D: KV is there, waits for a place among the running
  kRunning,      // takes part in steps
  kHandingOver,  // P: all computed, blocks pinned until the agent's end event
};

struct Sequence {
  Sequence(Request r, OutputCallback c, const model::Tokenizer& tokenizer)
      : request(std::move(r)),
        callback(std::move(c)),
        text(tokenizer, request.sampling.stop, request.sampling.include_stop_str_in_output),
        tokens(request.prompt),
        prompt_size(static_cast<std::uint32_t>(request.prompt.size())) {}

  std::uint32_t size() const { return static_cast<std::uint32_t>(tokens.size()); }
  std::uint32_t sampled() const { return size() - prompt_size; }
  std::uint32_t remaining() const { return size() - computed; }  // tokens without KV
  bool is_prefill_only() const { return request.remote_decode.has_value(); }
  // D: still to be filled by P. A failed transfer that is recomputed makes it an ordinary request.
  bool wants_remote_kv() const { return request.remote_prefill.has_value() && !remote_done; }
  bool may_be_preempted() const {
    return phase == Phase::kArrived || (phase == Phase::kRunning && ready_sent == 0);
  }

  Request request;
  OutputCallback callback;
  TextStream text;
  SamplerParams sampler;
  std::uint64_t arrival = 0;  // order of submission
  Phase phase = Phase::kWaiting;

  std::vector<TokenId> tokens;  // the prompt, then what was sampled
  std::uint32_t prompt_size = 0;
  std::uint32_t computed = 0;  // tokens whose KV is in the blocks
  std::vector<BlockId> blocks;
  std::uint32_t computed_prompt_tokens = 0;

  // The prefix cache. The first blocks hold `cached` tokens that earlier requests left behind; they
  // are shared, and nobody writes into them. The first `indexed` blocks are known to the cache.
  std::uint32_t cached = 0;
  std::uint32_t indexed = 0;
  bool lookup_counted = false;                       // in the metrics
  PrefixCache::Node last_node = PrefixCache::kRoot;  // of the block before blocks[indexed]

  // P: how far the agent was told, and the token that goes with the last piece.
  std::uint32_t ready_sent = 0;
  bool ready_done = false;
  std::optional<TokenId> first_token;
  TextStream::Step first_text;
  std::uint64_t announcement = 0;  // pull: what its finished blocks are announced under
  bool aborted = false;            // it ends with its transfer, whose blocks a peer may still read

  // D: the attempt under which the blocks are registered; 0: none.
  std::uint32_t attempt = 0;
  std::uint32_t registrations = 0;
  bool withdrawing = false;  // asked back from the agent, and not ended yet
  bool remote_done = false;
  std::uint32_t received = 0;  // prompt tokens whose KV came from P and that no step has read yet
  // Of the prompt, from its beginning, whose KV is to come from elsewhere.
  std::uint32_t remote_tokens = 0;
  std::optional<Event> handover;

  RequestTimes times;
};

}  // namespace baton::engine
