#include "serving/completion_answer.h"

#include <fmt/format.h>

#include <chrono>

#include "serving/json.h"

namespace baton::serving {
namespace {

Json head_of(const AnswerHead& head, bool chunk) {
  const bool chat = head.endpoint == Endpoint::kChat;
  Json body = {{"id", head.id},
               {"object", !chat   ? "text_completion"
                          : chunk ? "chat.completion.chunk"
                                  : "chat.completion"},
               {"created", head.created},
               {"model", head.model}};
  if (!head.system_fingerprint.empty()) body["system_fingerprint"] = head.system_fingerprint;
  return body;
}

// Cached are tokens that this instance found in its own prefix cache. What P found in its own is
// told to the router, which puts the larger number here (with_cached_tokens()).
Json usage_of(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

void add_finish(const Choice& choice, Json& out) {
  out["logprobs"] = nullptr;
  out["finish_reason"] = choice.finish_reason.empty() ? Json(nullptr) : Json(choice.finish_reason);
  if (!choice.finish_reason.empty()) {
    out["stop_reason"] = choice.stop_reason ? Json(*choice.stop_reason) : Json(nullptr);
  }
  if (choice.show_token_ids) out["token_ids"] = choice.token_ids;
}

void add_handover(const Event& event, std::uint32_t block_size, Json& out) {
  out["side"] = event.side == Side::kPrefill ? "prefill" : "decode";
  out["transfer_id"] = event.transfer.to_string();
  out["binding"] = event.attempt.binding;
  out["attempt"] = event.attempt.attempt;
  out["outcome"] = to_string(event.outcome);
  out["cause"] = to_string(event.cause);
  out["text"] = event.text;
  out["peer"] = event.peer;
  out["fabric"] = event.fabric;
  out["range"] = {event.range.begin, event.range.end};
  out["bytes"] = event.bytes;
  out["bytes_planned"] = event.bytes_planned;
  out["writes"] = event.writes;
  if (event.runs > 0) out["runs"] = event.runs;
  out["blocks"] = (event.range.size() + block_size - 1) / block_size;
  out["blocks_verified"] = event.blocks_verified;
}

std::string hex(std::uint64_t value) {
  return fmt::format("{:016x}", value);
}

}  // namespace

std::string chunk_body(const AnswerHead& head, const Choice& choice, std::string_view baton,
                       std::string_view kv_transfer_params) {
  Json inner = {{"index", 0}};
  if (head.endpoint == Endpoint::kChat) {
    inner["delta"] = choice.text.empty() ? Json::object() : Json{{"content", choice.text}};
  } else {
    inner["text"] = choice.text;
  }
  add_finish(choice, inner);
  Json body = head_of(head, true);
  body["choices"] = Json::array({std::move(inner)});
  return with_member(with_member(to_text(body), "kv_transfer_params", kv_transfer_params), "baton",
                     baton);
}

std::string role_chunk_body(const AnswerHead& head) {
  Json body = head_of(head, true);
  body["choices"] = Json::array({{{"index", 0},
                                  {"delta", {{"role", "assistant"}, {"content", ""}}},
                                  {"logprobs", nullptr},
                                  {"finish_reason", nullptr}}});
  return to_text(body);
}

std::string usage_chunk_body(const AnswerHead& head, const Usage& usage) {
  Json body = head_of(head, true);
  body["choices"] = Json::array();
  body["usage"] = usage_of(usage);
  return to_text(body);
}

std::string whole_body(const AnswerHead& head, const Choice& choice, const Usage& usage,
                       std::string_view kv_transfer_params, std::string_view baton) {
  Json inner = {{"index", 0}};
  if (head.endpoint == Endpoint::kChat) {
    inner["message"] = {{"role", "assistant"}, {"content", choice.text}};
  } else {
    inner["text"] = choice.text;
  }
  add_finish(choice, inner);
  Json body = head_of(head, false);
  body["choices"] = Json::array({std::move(inner)});
  body["usage"] = usage_of(usage);
  return with_member(with_member(to_text(body), "kv_transfer_params", kv_transfer_params), "baton",
                     baton);
}

std::string side_record(const SideRecord& record) {
  Json body = {{"engine_id", record.engine_id},
               {"request_id", record.request_id},
               {"trace_id", record.trace.trace_id},
               {"span_id", record.trace.span_id},
               {"parent_span_id", record.trace.parent},
               {"registrations", record.registrations},
               {"prompt_tokens", record.prompt_tokens},
               {"completion_tokens", record.completion_tokens},
               {"computed_prompt_tokens", record.computed_prompt_tokens},
               {"cached_prompt_tokens", record.cached_prompt_tokens}};
  if (!record.emulated.empty()) body["emulated"] = record.emulated;
  if (record.handover) add_handover(*record.handover, record.block_size, body);
  const Timeline times = record.handover ? record.handover->times : Timeline{};
  body["times"] = {{"submitted", record.times.submitted},
                   {"started", record.times.started},
                   {"first_step", record.times.first_step},
                   {"pieces_ready", record.times.pieces_ready},
                   {"registered", times.registered},
                   {"ready", times.ready},
                   {"first_write", times.first_write},
                   {"last_write", times.last_write},
                   {"last_byte", times.last_byte},
                   {"final_came", times.final_came},
                   {"told", times.told},
                   {"first_token", record.times.first_token},
                   {"second_token", record.times.second_token},
                   {"last_token", record.times.last_token},
                   {"ended", record.ended}};
  return to_text(body);
}

std::string prefilled_body(const Prefilled& prefilled, std::string_view kv_transfer_params) {
  Json body = {{"object", "baton.prefilled"},
               {"transfer_id", prefilled.transfer_id},
               {"prompt_tokens", prefilled.prompt_tokens},
               {"cached_prompt_tokens", prefilled.cached_prompt_tokens}};
  body["first_token"] = prefilled.first_token
                            ? Json{{"id", *prefilled.first_token}, {"text", prefilled.first_text}}
                            : Json(nullptr);
  return with_member(to_text(body), "kv_transfer_params", kv_transfer_params);
}

std::string handover_body(Outcome outcome, Cause cause, std::string_view text,
                          std::string_view baton) {
  const Json body = {{"object", "baton.handover"},
                     {"outcome", to_string(outcome)},
                     {"cause", to_string(cause)},
                     {"text", text}};
  return with_member(to_text(body), "baton", baton);
}

std::string kv_answer(const TransferId& transfer, const PeerAddress& peer, std::uint32_t tp_size,
                      const std::optional<SourceBlocks>& source,
                      std::span<const TokenId> token_ids) {
  Json out{{"do_remote_prefill", true},
           {"do_remote_decode", false},
           {"transfer_id", transfer.to_string()},
           {"transfer_mode", source ? "pull" : "push"},
           {"remote_engine_id", peer.engine_id},
           {"remote_host", peer.host},
           {"remote_port", peer.port},
           {"remote_incarnation", hex(peer.incarnation)},
           {"remote_block_ids", source ? Json(source->block_ids) : Json::array()},
           {"tp_size", tp_size}};
  if (source) {
    out["remote_num_tokens"] = source->range.end;
    out["remote_announcement"] = hex(source->announcement);
  }
  if (!token_ids.empty()) out["remote_token_ids"] = token_ids;
  return to_text(out);
}

std::string models_body(std::span<const std::string> names, std::int64_t created,
                        std::uint32_t max_model_len, std::uint32_t vocab_size,
                        std::string_view emulated) {
  Json list = Json::array();
  for (const std::string& name : names) {
    Json entry = {{"id", name}, {"object", "model"}, {"created", created}, {"owned_by", "baton"}};
    if (max_model_len > 0) entry["max_model_len"] = max_model_len;
    if (!emulated.empty()) entry["emulated"] = emulated;
    if (vocab_size > 0) entry["vocab_size"] = vocab_size;
    list.push_back(std::move(entry));
  }
  return to_text(Json{{"object", "list"}, {"data", std::move(list)}});
}

std::int64_t unix_seconds() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(since).count();
}

}  // namespace baton::serving
