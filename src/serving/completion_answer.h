// Answers as JSON text in OpenAI's form, and what P and D say beside it: which chunk is the first
// token, that a prompt is prefilled, how the hand-over went. A "baton" member never reaches a
// client that did not ask for it: the router takes it out.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "baton/event.h"
#include "baton/ids.h"
#include "serving/completion_request.h"
#include "serving/trace_context.h"

namespace baton::serving {

// What every body of one answer begins with.
struct AnswerHead {
  Endpoint endpoint = Endpoint::kCompletions;
  std::string id;                    // "cmpl-..." or "chatcmpl-..."
  std::string model;                 // as served
  std::int64_t created = 0;          // seconds since 1970
  std::string system_fingerprint{};  // said where it is not empty: that the answer is emulated
};

struct Usage {
  std::uint32_t prompt_tokens = 0;
  std::uint32_t completion_tokens = 0;
  std::uint32_t cached_tokens = 0;  // of the prompt, found in this instance's prefix cache
};

struct Choice {
  std::string_view text;
  std::span<const TokenId> token_ids;
  bool show_token_ids = false;
  std::string_view finish_reason;  // "": not finished
  std::optional<std::string> stop_reason;
};

// One piece of a stream: the text of a server-sent event. `baton` and `kv_transfer_params` (the
// last piece's) are JSON objects or "".
std::string chunk_body(const AnswerHead& head, const Choice& choice, std::string_view baton = {},
                       std::string_view kv_transfer_params = {});
// Chat only: the piece that comes before the first text.
std::string role_chunk_body(const AnswerHead& head);
// The last piece where stream_options.include_usage is set.
std::string usage_chunk_body(const AnswerHead& head, const Usage& usage);
// A whole answer; `kv_transfer_params` and `baton` are JSON objects or "".
std::string whole_body(const AnswerHead& head, const Choice& choice, const Usage& usage,
                       std::string_view kv_transfer_params = {}, std::string_view baton = {});

// `baton` of the chunk that holds the request's first token: a router that has already sent P's
// drops it.
inline constexpr std::string_view kFirstTokenMark = R"({"first_token":true})";

// What one side tells of a request: in GET /debug/transfers, and at the end of its answer when
// asked to (kv_transfer_params.debug).
struct SideRecord {
  std::string engine_id;
  std::string request_id;
  TraceContext trace;
  std::uint32_t block_size = 1;
  std::uint32_t prompt_tokens = 0;
  std::uint32_t completion_tokens = 0;
  std::uint32_t computed_prompt_tokens = 0;
  std::uint32_t cached_prompt_tokens = 0;
  std::uint32_t registrations = 0;
  engine::RequestTimes times;
  std::int64_t ended = 0;         // CLOCK_MONOTONIC, ns
  std::optional<Event> handover;  // also of a hand-over that never began: see answers.cc
  std::string emulated{};         // what is emulated; empty where nothing is
};
std::string side_record(const SideRecord& record);

// P's stream. First that the prompt is computed and its blocks are pinned, then how it ended.
struct Prefilled {
  std::string transfer_id;
  std::uint32_t prompt_tokens = 0;
  std::uint32_t cached_prompt_tokens = 0;  // of these, found in P's prefix cache
  std::optional<TokenId> first_token;      // where P samples it
  std::string first_text;  // its text; may be empty (half a character, a stop string)
};
std::string prefilled_body(const Prefilled& prefilled, std::string_view kv_transfer_params);
std::string handover_body(Outcome outcome, Cause cause, std::string_view text,
                          std::string_view baton);

// kv_transfer_params of P's answer: where D finds P, and in pull which blocks it reads there. Of an
// answer of D that was kept: where P finds D, which blocks it reads, and the tokens that they hold.
std::string kv_answer(const TransferId& transfer, const PeerAddress& peer, std::uint32_t tp_size,
                      const std::optional<SourceBlocks>& source = {},
                      std::span<const TokenId> token_ids = {});

std::string models_body(std::span<const std::string> names, std::int64_t created,
                        std::uint32_t max_model_len, std::uint32_t vocab_size,
                        std::string_view emulated = {});

std::int64_t unix_seconds();

}  // namespace baton::serving
