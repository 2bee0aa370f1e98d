// The requests of a run, each with its time, lengths and what its tokens are made of; decided
// before the run from the seed or a trace alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "baton/ids.h"
#include "baton/result.h"
#include "bench/options.h"

namespace baton::bench {

struct PlannedRequest {
  Duration at = Duration::zero();  // since the start of the run
  std::uint32_t input_len = 0;     // tokens
  std::uint32_t output_len = 0;
  std::uint64_t seed = 0;  // of its tokens
  // A trace's: one id for each 512 tokens; equal ids are equal tokens.
  std::vector<std::uint64_t> block_ids = {};
};

// `options` passed check_options(). A trace that cannot be read is an error that names file, line
// and what stands there.
Result<std::vector<PlannedRequest>> make_plan(const BenchOptions& options);

// The prompt: ids below `vocab_size`, the same for the same plan and options on every machine.
std::vector<TokenId> prompt_tokens(const PlannedRequest& request, const BenchOptions& options,
                                   std::uint32_t vocab_size);

struct RequestBody {
  std::string text;
  std::uint32_t asked_len = 0;  // tokens of the answer; 0: it may end before its longest
};

// /v1/completions takes token ids; /v1/chat/completions takes text, one short
// word for each token asked for: how many tokens that makes is then the server's to say.
// --extra-body goes last, and may ask for another length than the plan's.
RequestBody request_body(const PlannedRequest& request, const BenchOptions& options,
                         const std::string& model, std::uint32_t vocab_size);

}  // namespace baton::bench
