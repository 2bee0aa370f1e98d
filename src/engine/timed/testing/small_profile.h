// A profile small enough for tests, and a clock that a test sets.
#pragma once

#include <fmt/format.h>

#include <string>

#include "engine/timed/profile.h"
#include "engine/timed/step_clock.h"

namespace baton::engine::timed {

// 2 layers, K and V apart, 16 bytes a token in each region at scale 1; blocks of 4 tokens.
inline Profile small_profile() {
  Profile profile;
  profile.name = "small";
  profile.description = "for tests";
  profile.model = "none";
  profile.num_layers = 2;
  profile.num_kv_heads = 2;
  profile.head_dim = 8;
  profile.tensor_parallel_size = 2;
  profile.kv_element_bytes = 2;
  profile.kv_regions_per_layer = 2;
  profile.block_size = 4;
  profile.kv_cache_tokens = 1024;
  profile.kv_bytes_scale = 1;
  profile.max_model_len = 256;
  profile.max_num_seqs = 4;
  profile.max_num_batched_tokens = 32;
  profile.prefill_tokens_per_s = 10'000;
  profile.cached_prefill_step_s = 0.002;
  profile.decode_step_s = 0.003;
  profile.decode_per_sequence_s = 0.0005;
  profile.decode_per_context_token_s = 0.00001;
  profile.link_bytes_per_s = 1e9;
  profile.published_post_s = 1e-6;
  return profile;
}

// Time passes in sleeps, and by `work` at each look.
class FakeClock final : public StepClock {
 public:
  Time now() override { return time_ += work; }
  void sleep_until(Time deadline) override {
    slept += deadline - time_;
    time_ = deadline;
  }
  Duration work{0};
  Duration slept{0};

 private:
  Time time_{std::chrono::hours(1)};
};

}  // namespace baton::engine::timed
