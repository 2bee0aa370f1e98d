// --kv-transfer-config: vLLM's JSON that makes an instance P, D or both.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "baton/agent.h"
#include "engine/engine.h"

namespace baton::serving {

struct KvTransferConfig {
  Role role = Role::kBoth;
  Mode mode = Mode::kPush;
  std::string engine_id;  // "": to be made up
  engine::LoadFailurePolicy load_failure_policy = engine::LoadFailurePolicy::kFail;
  std::optional<std::string> host;    // of the control channel (vLLM: side channel)
  std::optional<std::uint16_t> port;  // 0: any free one
  std::optional<std::chrono::milliseconds> lease;
  Security security;
  bool bidirectional = false;         // pull and kv_both only
  std::uint32_t kept_blocks_max = 0;  // 0: not given
  // Tokens; read where bidirectional. vLLM's default.
  std::uint32_t kv_recompute_threshold = 64;
  std::string fabric;  // from "backends"; "": the flag's
};

// Every fault at once, one a line, each naming the key, its value and what is known. Unknown keys
// are faults; what this release cannot do (CUDA buffers) is one with its reason.
Result<KvTransferConfig> parse_kv_transfer_config(std::string_view json);

}  // namespace baton::serving
