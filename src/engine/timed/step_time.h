// How long a step takes on what a profile describes. Pure.
#pragma once

#include <cstdint>
#include <span>

#include "base/clock.h"
#include "engine/timed/profile.h"

namespace baton::engine::timed {

// kCached: prompts are found in P's prefix cache, and a step that has prompt tokens takes
// cached_prefill_step_s however many they are.
enum class Prefill : std::uint8_t { kComputed, kCached };

// What one sequence has in a step. One token is a decode (also the last prompt token that D
// computes again), more are prefill.
struct Part {
  std::uint32_t tokens = 0;
  std::uint32_t context = 0;  // tokens before these
};

// prefill tokens / prefill_tokens_per_s, and, if any sequence decodes, decode_step_s +
// decode_per_sequence_s each + decode_per_context_token_s of all their contexts.
Duration step_time(const Profile& profile, Prefill prefill, std::span<const Part> parts);

}  // namespace baton::engine::timed
