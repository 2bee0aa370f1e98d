// One inference instance: continuous batching over a paged KV pool, prefill and decode on one step
// loop, and the hand-over of KV blocks to or from another instance through include/baton.
//
// Threads: submit() and abort() from any thread, never waiting; one engine thread runs steps and
// calls the requests' callbacks, which must not block. The engine thread sleeps while there is
// nothing to do: a submission, an abort or an event of the agent wakes it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "baton/agent.h"
#include "baton/ids.h"
#include "baton/result.h"
#include "engine/metrics.h"
#include "model/model.h"
#include "model/tokenizer.h"

namespace baton::engine {

struct SamplingParams {
  double temperature = 1.0;  // 0: greedy
  double top_p = 1.0;
  // A token is a function of (logits, seed, position). Unset: the engine draws a seed.
  std::optional<std::uint64_t> seed;
  std::uint32_t max_tokens = 16;
  std::vector<std::string> stop;
  bool include_stop_str_in_output = false;
  bool ignore_eos = false;
};

// Who samples the first token: P (and hands it over with the last block), or D (which computes the
// last prompt token again).
enum class FirstToken : std::uint8_t { kPrefill, kDecode };

// This instance is P for the request: it prefills, keeps the blocks for D, and ends when they are
// handed over.
struct RemoteDecode {
  TransferId transfer;
  FirstToken first_token = FirstToken::kPrefill;
};

// This instance is D for the request: its KV comes from `peer`.
struct RemotePrefill {
  TransferId transfer;
  std::uint32_t binding = 0;
  PeerAddress peer{};
  FirstToken first_token = FirstToken::kPrefill;
  // Pull: P's finished blocks of the whole prompt, as P announced them; push: none. Beside
  // remote_decode: whole blocks that another instance kept, see kept_tokens.
  std::optional<SourceBlocks> source{};
  // Pull: the first token as P announced it, for where the agent's end does not carry it.
  std::optional<TokenId> announced_token{};
  // Beside remote_decode only: the tokens whose KV `source` holds (Output::Kept). As many whole
  // blocks as hold exactly this prompt's own beginning are read, the rest of the prompt is
  // computed; where that cannot be, all of it is, whatever the failure policy.
  std::vector<TokenId> kept_tokens{};
};

struct Request {
  std::string id;  // for logs; unique among the running ones
  std::vector<TokenId> prompt;
  SamplingParams sampling;
  // Requests share cached blocks with those of the same salt alone; "": with those that have none.
  std::string cache_salt;
  // At most one of the two; both with EngineOptions::bidirectional: the prompt's beginning is read,
  // the rest computed, and the whole handed over.
  std::optional<RemoteDecode> remote_decode;
  std::optional<RemotePrefill> remote_prefill;
  // EngineOptions::bidirectional: when the answer is complete its KV is kept (Output::Kept).
  bool keep_blocks = false;
  std::optional<std::chrono::milliseconds> transfer_timeout;
};

enum class FinishReason : std::uint8_t { kStop, kLength, kHandedOver, kAborted, kError };

// Moments of one request on this instance, CLOCK_MONOTONIC in ns; 0: did not happen here.
struct RequestTimes {
  static constexpr std::size_t kPiecesMax = 64;

  std::int64_t submitted = 0;
  // It left the queue: its blocks were reserved, and at D registered.
  std::int64_t started = 0;
  std::int64_t first_step = 0;  // the first step of the model in which it took part began
  std::int64_t first_token = 0, second_token = 0, last_token = 0;
  std::vector<std::int64_t> pieces_ready;  // P: the agent was told; the first kPiecesMax, the last
};

// What one request has to tell. Zero or more with `finish` unset, then exactly one with it set.
struct Output {
  std::string text;             // newly released text: whole characters, stop strings held back
  std::vector<TokenId> tokens;  // newly sampled
  bool is_first_token =
      false;  // `tokens` starts with the request's first token (always an Output of its own)
  bool prefilled =
      false;  // P: the blocks are pinned under the lease; with kPrefill comes the first token
  std::optional<SourceBlocks> source;  // pull, with `prefilled`: what D is to be told of them
  std::optional<FinishReason> finish;
  std::optional<std::string> stop_reason;  // the stop string that ended it
  Error error;                             // with kError
  // With `prefilled` and with `finish`: prompt positions found in the prefix cache here.
  std::uint32_t cached_prompt_tokens = 0;
  // With `finish`:
  std::uint32_t prompt_tokens = 0;
  std::uint32_t completion_tokens = 0;
  std::uint32_t computed_prompt_tokens = 0;  // prompt positions this instance ran through the model
  std::uint32_t registrations = 0;           // D: attempts at the hand-over
  std::optional<Event> handover;             // this side's end of the hand-over
  // With keep_blocks: the whole blocks of prompt and answer, held under a lease as P's finished
  // blocks are, and given up earlier where the pool is needed. Unset: there was nothing to keep, or
  // no room (kept_blocks_max).
  struct Kept {
    TransferId transfer;
    SourceBlocks source;
    std::vector<TokenId> tokens;  // one for each position of source.range
  };
  std::optional<Kept> kept;
  RequestTimes times;
};
using OutputCallback = std::function<void(Output&&)>;

// What D does when a transfer fails (vLLM's kv_load_failure_policy): prefill the prompt itself, or
// answer an error.
enum class LoadFailurePolicy : std::uint8_t { kFail, kRecompute };

// Pull, D. Where the reads of a registration are prepared and posted: beside the engine, or while
// its step waits for that, as vLLM's pull connector does it (the published figures of pull are of
// an engine that waits).
enum class PullLoop : std::uint8_t { kThreaded, kEngine };

// kPublished emulates, for measurements, when the published push connector of another engine starts
// a transfer and sees its end (docs/performance.md, "Emulated"): P tells of a whole prompt, one
// step after the one that ended it; D sees an end one step after the one in which it came. An
// engine without work takes no steps to wait for.
enum class TransferStyle : std::uint8_t { kBaton, kPublished };

struct EngineOptions {
  std::uint32_t block_size = 16;
  std::uint32_t num_blocks =
      0;  // 0: enough for max_num_seqs sequences of max_model_len, at most kv_cache_bytes
  std::uint64_t kv_cache_bytes = 1ULL << 30;
  std::uint32_t max_model_len = 0;  // 0: the model's context
  std::uint32_t max_num_seqs = 64;
  std::uint32_t max_num_batched_tokens = 512;
  std::uint32_t waiting_max = 4096;  // queued requests; more are refused with kResourceExhausted
  model::KvDtype kv_dtype = model::KvDtype::kBfloat16;
  // Requests that begin alike share full blocks, and a block's contents outlive its request until
  // the pool needs it. At D, what is there already is not handed over again.
  bool enable_prefix_caching = false;
  LoadFailurePolicy load_failure_policy = LoadFailurePolicy::kFail;
  PullLoop pull_loop = PullLoop::kThreaded;
  TransferStyle transfer_style = TransferStyle::kBaton;
  // Bidirectional pull (vLLM's bidirectional_kv_xfer): answers may be kept, and beginnings of
  // prompts read. Needs pull mode and kv_both.
  bool bidirectional = false;
  std::uint32_t kept_blocks_max = 0;  // past it the oldest are given up; 0: half of the pool
  // P: a prompt's beginning of fewer tokens is computed, although somebody kept it (vLLM's name).
  std::uint32_t kv_recompute_threshold = 0;
  bool poison_blocks = false;  // debug: fill blocks with a pattern before they are granted to P
  std::optional<AgentOptions>
      agent;  // unset: no hand-over, every request runs here from end to end
};

class Engine {
 public:
  // Allocates the KV pool (a sealed memfd), warms it, makes the agent and starts the engine thread.
  // Takes the model.
  static Result<std::unique_ptr<Engine>> create(std::unique_ptr<model::Model> model,
                                                std::shared_ptr<const model::Tokenizer> tokenizer,
                                                const EngineOptions& options);
  virtual ~Engine() = default;  // aborts what runs (each callback hears kAborted), then joins

  // Errors, nothing accepted: empty or over-long prompt (names both numbers), token out of
  // vocabulary, prompt plus max_tokens over max_model_len, role that does not fit (remote_decode on
  // a consumer), pull: announced blocks that are missing or are not those of the prompt, queue
  // full, stopping.
  virtual Status submit(Request request, OutputCallback callback) = 0;
  // Ends the request, as kAborted; unknown ids are fine. P's whose blocks the agent knows ends with
  // its hand-over, so that its record is whole: as kHandedOver where everything had crossed.
  virtual void abort(const std::string& id) = 0;

  // Before the process stops: no hand-over begins any more, those under way go on (drain), or end
  // now as failed(kShutdown), each request with its error (abandon). Requests without a hand-over
  // are not touched. Any thread.
  virtual void drain() = 0;
  virtual void abandon() = 0;

  virtual const EngineOptions& options() const = 0;  // with every 0 replaced by what was chosen
  virtual const model::ModelConfig& model_config() const = 0;
  virtual const std::string& kernel_family() const = 0;
  virtual const EngineMetrics& metrics() const = 0;
  virtual const Agent* agent() const = 0;  // null without hand-over
  // free, used and quarantined blocks at this moment; they add up to the pool.
  struct Blocks {
    std::uint32_t free = 0, used = 0, quarantined = 0, total = 0;
  };
  virtual Blocks blocks() const = 0;
};

}  // namespace baton::engine
