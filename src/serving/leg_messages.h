// What the router says to the two legs of a request, and what it reads in their answers. Pure text.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "baton/agent.h"
#include "baton/ids.h"
#include "baton/result.h"
#include "serving/api_error.h"
#include "serving/completion_answer.h"
#include "serving/completion_request.h"

namespace baton::serving {

struct LegPlan {
  TransferId transfer;
  std::uint32_t binding = 0;
  engine::FirstToken first_token = engine::FirstToken::kPrefill;
  PeerAddress prefill;        // where D finds P
  std::uint32_t tp_size = 1;  // of P
  std::uint64_t seed = 0;     // for both legs where the client left it out and samples
  std::optional<std::chrono::milliseconds> transfer_timeout;  // of D; unset: its own
  bool debug = false;
  std::string
      kept{};  // for P: what an instance kept of this chat (kept_conversations.h); "": nothing
};

struct LegBodies {
  std::string prefill;  // always streamed: closing its connection cancels the transfer
  std::string decode;   // streamed as the client asked; decode_body() completes it
};

// The client's body without the kv_transfer_params that it sent, and P's in their place. Every
// other field, known or not, goes to both. `client_body` passed parse_completion_request().
Result<LegBodies> make_leg_bodies(std::string_view client_body, const LegPlan& plan);

// Pull: what P announced of its finished blocks, for D. Its server checks it.
struct Announcement {
  std::string block_ids;  // JSON, by cache group
  std::uint64_t tokens = 0;
  std::string name;  // remote_announcement
  std::optional<TokenId> first_token;
};

// D's body with its kv_transfer_params; `announced` in pull. `keep`: it is to keep the answer's KV.
std::string decode_body(std::string body, const LegPlan& plan,
                        const std::optional<Announcement>& announced, bool keep = false);

// One event of P's stream.
struct PrefillEvent {
  enum class Kind : std::uint8_t { kPrefilled, kHandover, kDone, kError, kOther };
  Kind kind = Kind::kOther;
  std::optional<TokenId> first_token;  // kPrefilled
  std::string first_text;
  std::uint64_t cached_tokens = 0;        // kPrefilled: of the prompt, found in P's prefix cache
  std::optional<Announcement> announced;  // kPrefilled of a P that is pulled from
  std::string outcome, cause, text;       // kHandover
  std::string record;                     // kHandover: JSON object or ""
  ApiError error;                         // kError
};
PrefillEvent read_prefill_event(std::string_view data);

// One event of D's stream.
struct DecodeEvent {
  enum class Kind : std::uint8_t { kChunk, kRole, kDone, kError };
  Kind kind = Kind::kChunk;
  bool is_first_token = false;
  std::string record;  // D's JSON object, with the last chunk in debug mode
  std::string kept;    // D's kv_transfer_params of what it kept, with the last chunk; "": nothing
  std::string data;    // what a client may see: without these
  ApiError error;
};
// `is_after_first`: the first token has been seen, so that most chunks need not be parsed.
DecodeEvent read_decode_event(std::string_view data, bool is_after_first);

// A plain answer of D without `baton` and kv_transfer_params, which become `record` and `kept` (""
// where there is none).
std::string take_record(std::string_view body, std::string& record, std::string& kept);

// A chunk or a plain answer of D whose usage counts as cached what either side found in its prefix
// cache: `at_prefill` where that is more than D says. As it was where it holds no usage.
std::string with_cached_tokens(std::string body, std::uint64_t at_prefill);

// `kept` with the host where P finds D, which knows its own only as it listens.
std::string with_host(std::string_view kept, std::string_view host);

// `baton` of a routed answer in debug mode.
std::string routed_record(const TransferId& transfer, std::string_view prefill_record,
                          std::string_view decode_record);
// A chunk that carries it alone.
std::string record_chunk_body(const AnswerHead& head, std::string_view baton);
// A plain body with it.
std::string with_record(std::string body, std::string_view baton);

}  // namespace baton::serving
