// Requests of /v1/completions and /v1/chat/completions, read and checked. What an OpenAI or vLLM
// client may leave out has its default here; what this engine cannot do is refused rather than
// ignored, because an ignored wish is a wrong answer; unknown fields are ignored, as vLLM does.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "baton/agent.h"
#include "baton/ids.h"
#include "engine/engine.h"
#include "model/chat_template.h"
#include "serving/api_error.h"

namespace baton::serving {

enum class Endpoint : std::uint8_t { kCompletions, kChat };

// Bidirectional pull, at P: what another instance kept of this prompt's beginning, as it said it in
// kv_transfer_params of its answer.
struct KeptBlocks {
  TransferId transfer_id;
  PeerAddress peer;
  SourceBlocks source;
  std::vector<TokenId> tokens;  // remote_token_ids
};

// kv_transfer_params, with vLLM's names where vLLM has one. Set by a router, never by clients.
struct KvTransferParams {
  bool do_remote_decode = false;   // this instance is P
  bool do_remote_prefill = false;  // this instance is D
  std::optional<TransferId> transfer_id;
  std::uint32_t binding = 0;
  PeerAddress peer;  // D: where P's control channel is
  std::uint32_t tp_size = 1;
  engine::FirstToken first_token = engine::FirstToken::kPrefill;
  // D: how long it waits for P's next word; unset: its --transfer-timeout.
  std::optional<std::chrono::milliseconds> transfer_timeout;
  bool debug = false;         // the answer carries the hand-over's record
  std::string transfer_mode;  // "push", "pull", or "" where nothing is said
  // D, pull: what P announced (remote_block_ids, remote_num_tokens, remote_announcement,
  // remote_first_token). Here they are in form; the engine holds them against the prompt, the agent
  // against P's pool.
  std::optional<SourceBlocks> source;
  std::optional<TokenId> announced_token;
  bool keep_blocks = false;        // D: the KV of the answer is kept, and the answer says where
  std::optional<KeptBlocks> kept;  // P
  std::uint32_t unknown_keys = 0;  // that were ignored
};

struct CompletionRequest {
  Endpoint endpoint = Endpoint::kCompletions;
  std::string model;  // "": the only one
  // One of the three, by endpoint.
  std::string prompt_text;
  std::vector<TokenId> prompt_tokens;
  std::vector<model::ChatMessage> messages;

  engine::SamplingParams sampling;
  std::optional<std::uint32_t> max_tokens;  // unset: 16, or for chat what the context leaves
  bool stream = false;
  bool include_usage = false;
  bool return_token_ids = false;
  // vLLM's: KV is shared with requests of the same salt alone. "": with those that have none.
  std::string cache_salt;
  std::int64_t priority = 0;  // vLLM's: lower goes first; a router's, where requests wait for D
  std::optional<KvTransferParams> kv;
};

inline constexpr std::uint32_t kDefaultMaxTokens = 16;  // of /v1/completions
inline constexpr std::size_t kCacheSaltMax = 256;       // bytes

// Whether kv_transfer_params is read. A router drops what a client sent there, unread.
enum class KvParams : std::uint8_t { kRead, kIgnore };

// Every refusal is a 400 that names the field and the value.
ApiResult<CompletionRequest> parse_completion_request(Endpoint endpoint, std::string_view body,
                                                      KvParams kv = KvParams::kRead);

}  // namespace baton::serving
