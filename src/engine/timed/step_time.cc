#include "engine/timed/step_time.h"

#include <algorithm>
#include <cmath>

namespace baton::engine::timed {

namespace {

// What a profile may say in all is more than a clock can hold.
constexpr double kLongestSeconds = 1e6;

}  // namespace

Duration step_time(const Profile& profile, Prefill prefill, std::span<const Part> parts) {
  double prompt_tokens = 0, decoding = 0, context = 0;
  for (const Part& part : parts) {
    if (part.tokens > 1) {
      prompt_tokens += part.tokens;
    } else {
      ++decoding;
      context += part.context;
    }
  }
  double seconds = 0;
  if (prompt_tokens > 0) {
    seconds += prefill == Prefill::kCached ? profile.cached_prefill_step_s
                                           : prompt_tokens / profile.prefill_tokens_per_s;
  }
  if (decoding > 0) {
    seconds += profile.decode_step_s + profile.decode_per_sequence_s * decoding +
               profile.decode_per_context_token_s * context;
  }
  return Duration(std::llround(std::min(seconds, kLongestSeconds) * 1e9));
}

}  // namespace baton::engine::timed
