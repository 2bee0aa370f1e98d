// Chooses the next token. A pure function of (logits, parameters, seed, position): the same on P,
// on D, after a preemption and in any batch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "baton/ids.h"

namespace baton::engine {

struct SamplerParams {
  double temperature = 1.0;  // below 1e-5: greedy
  double top_p = 1.0;        // (0, 1]
  std::uint64_t seed = 0;
};

// Scratch memory of sample(), kept between calls. One thread at a time.
class Sampler {
 public:
  // `position`: of the token that is chosen, counted from the start of the prompt. Greedy takes the
  // lowest id of equal logits. A NaN counts as minus infinity. `logits` is not empty.
  TokenId sample(std::span<const float> logits, const SamplerParams& params,
                 std::uint64_t position);

 private:
  std::vector<double> weights_;
  std::vector<TokenId> candidates_;
};

}  // namespace baton::engine
