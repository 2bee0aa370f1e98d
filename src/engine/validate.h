// What a request must satisfy before anything is done for it.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/engine.h"

namespace baton::engine {

struct RequestLimits {
  std::uint32_t vocab_size = 0;
  std::uint32_t max_model_len = 0;
  std::uint32_t block_size = 0;
  std::uint32_t total_blocks = 0;
  std::optional<Role> role;  // unset: no hand-over here
  Mode mode = Mode::kPush;
  bool bidirectional = false;
  std::uint32_t kv_recompute_threshold = 0;  // tokens
};

// kInvalidArgument with the field and both values. Pure; any thread.
Status validate(const Request& request, const RequestLimits& limits);

}  // namespace baton::engine
