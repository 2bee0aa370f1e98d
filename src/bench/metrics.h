// The figures of a run, as `vllm bench serve` defines them. Milliseconds.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "bench/goodput.h"
#include "bench/request_result.h"
#include "bench/summary.h"

namespace baton::bench {

// TTFT: sent to first token. E2EL: sent to last token. TPOT: (E2EL - TTFT) / (tokens - 1), of
// answers with more than one. ITL: every gap between events of every stream. Failed requests count
// in `failed` alone.
struct Metrics {
  std::size_t completed = 0, failed = 0;
  std::uint64_t total_input_tokens = 0, total_output_tokens = 0;
  std::size_t good = 0;  // kept the service level
  Samples ttft, tpot, itl, e2el, second_token;
  Samples lateness;                             // of arrivals: sent - due
  std::map<std::string, std::size_t> failures;  // by cause
};

// Both of answered requests alone, in the fullest second, seconds counted from the first one's
// sending: events of the streams; and requests that were between sending and last token at any
// moment of it, whether or not together (LoadRun::most_open is the exact peak).
double most_tokens_a_second(std::span<const RequestResult> results);
std::size_t most_answered_at_once(std::span<const RequestResult> results);

Metrics measure(std::span<const RequestResult> results, const Slo& slo);

}  // namespace baton::bench
