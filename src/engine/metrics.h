// The engine's counters: raised by the engine thread, read by a scrape. Named in serving/ as vLLM
// names them.
#pragma once

#include <array>

#include "base/metrics.h"

namespace baton::engine {

inline constexpr std::array<double, 16> kRequestSeconds{
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 60.0};

inline constexpr std::array<double, 14> kTokenCounts{1,   2,   5,    10,   20,   50,  100,
                                                     200, 500, 1000, 2000, 5000, 1e4, 2e4};

struct EngineMetrics {
  Gauge requests_running, requests_waiting, requests_waiting_for_remote_kv;
  Gauge blocks_free, blocks_used, blocks_quarantined;
  Gauge blocks_kept;  // of those used: answers that wait for the next turn of their conversation
  Counter prompt_tokens, generation_tokens;  // prompt tokens of accepted requests; sampled tokens
  Counter computed_prompt_tokens;            // prompt positions run through the model here
  Counter finished_stop, finished_length, finished_handed_over, finished_aborted, finished_error;
  Counter steps, preemptions, kv_load_failures, kv_load_recomputed;
  Counter registrations_withdrawn;  // D: gave way to others in a full pool
  Counter local_prefills;           // D: requests that came without a hand-over
  // P: tokens of prompts that were read from an instance that kept them; reads that failed, or were
  // not begun.
  Counter prefix_tokens_read, prefix_reads_failed;
  // Prompt tokens of requests whose first token is there, by where their KV came from.
  Counter prompt_tokens_computed, prompt_tokens_cached, prompt_tokens_received;
  Counter prefix_cache_queries, prefix_cache_hits;  // tokens, once a request
  Histogram time_to_first_token_seconds{kRequestSeconds},
      inter_token_latency_seconds{kRequestSeconds}, e2e_request_latency_seconds{kRequestSeconds},
      request_queue_time_seconds{kRequestSeconds}, request_prefill_time_seconds{kRequestSeconds},
      request_decode_time_seconds{kRequestSeconds}, request_inference_time_seconds{kRequestSeconds},
      request_time_per_output_token_seconds{kRequestSeconds};
  // D, pull with the engine's loop: how long a step waited for the reads of one request.
  Histogram pull_posting_seconds{kRequestSeconds};
  Counter pull_posting_timeouts;  // steps that went on before their reads were posted
  Histogram request_prompt_tokens{kTokenCounts}, request_generation_tokens{kTokenCounts},
      iteration_tokens{kTokenCounts};
};

}  // namespace baton::engine
