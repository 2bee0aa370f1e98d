#include "serving/leg_messages.h"

#include <fmt/format.h>

#include <charconv>

#include "serving/json.h"

namespace baton::serving {
namespace {

constexpr char kBaton[] = "baton";
constexpr char kParams[] = "kv_transfer_params";

Json common_params(const LegPlan& plan) {
  const bool prefill = plan.first_token == engine::FirstToken::kPrefill;
  return {{"transfer_id", plan.transfer.to_string()},
          {"first_token", prefill ? "prefill" : "decode"},
          {"debug", plan.debug}};
}

Json decode_params(const LegPlan& plan) {
  Json params = common_params(plan);
  params["do_remote_prefill"] = true;
  params["do_remote_decode"] = false;
  params["binding"] = plan.binding;
  params["remote_engine_id"] = plan.prefill.engine_id;
  params["remote_host"] = plan.prefill.host;
  params["remote_port"] = plan.prefill.port;
  params["remote_incarnation"] = fmt::format("{:016x}", plan.prefill.incarnation);
  params["tp_size"] = plan.tp_size;
  if (plan.transfer_timeout) params["transfer_timeout_ms"] = plan.transfer_timeout->count();
  return params;
}

bool is_greedy(const Json& body) {
  const Json* temperature = find(body, "temperature");
  return temperature != nullptr && temperature->is_number() && temperature->get<double>() == 0;
}

ApiError error_in(const Json& event, std::string_view data) {
  const Json* error = find(event, "error");
  const Json* code = error == nullptr ? nullptr : find(*error, "code");
  const bool known = code != nullptr && code->is_number_integer() && code->get<int>() >= 400 &&
                     code->get<int>() <= 599;
  return parse_error_body(known ? code->get<int>() : 502, data);
}

bool is_role_chunk(const Json& event) {
  const Json* choices = find(event, "choices");
  if (choices == nullptr || !choices->is_array() || choices->empty()) return false;
  const Json* delta = find(choices->front(), "delta");
  return delta != nullptr && find(*delta, "role") != nullptr &&
         text_or(*delta, "content", "").empty() &&
         find(choices->front(), "finish_reason") == nullptr;
}

// Of P's kv_transfer_params. Nothing where it announces no blocks.
std::optional<Announcement> announcement_in(const Json& event,
                                            const std::optional<TokenId>& first_token) {
  const Json* params = find(event, kParams);
  const Json* ids = params == nullptr ? nullptr : find(*params, "remote_block_ids");
  if (ids == nullptr || !ids->is_array() || ids->empty()) return {};
  Announcement out;
  out.block_ids = to_text(*ids);
  out.tokens = uint_or(*params, "remote_num_tokens", 0);
  out.name = text_or(*params, "remote_announcement", "");
  out.first_token = first_token;
  return out;
}

// Takes the member out of the object; "" if it is not there.
std::string take_member(Json& object, const char* name) {
  const auto it = object.find(name);
  if (it == object.end()) return "";
  std::string text = to_text(*it);
  object.erase(it);
  return text;
}

// A quotation mark inside a JSON text is escaped, so these can only be members.
bool has_own_members(std::string_view json) {
  return json.find("\"baton\":") != std::string_view::npos ||
         json.find("\"kv_transfer_params\":") != std::string_view::npos;
}

}  // namespace

// By text: the rest of the body, which may be long, is D's and stays as it is.
std::string with_cached_tokens(std::string body, std::uint64_t at_prefill) {
  constexpr std::string_view kMember = "\"prompt_tokens_details\":{\"cached_tokens\":";
  if (at_prefill == 0) return body;
  const std::size_t found = body.rfind(kMember);
  if (found == std::string::npos) return body;
  const std::size_t begin = found + kMember.size();
  std::uint64_t at_decode = 0;
  const char* const first = body.data() + begin;
  const auto [end, error] = std::from_chars(first, body.data() + body.size(), at_decode);
  if (error != std::errc() || at_decode >= at_prefill) return body;
  body.replace(begin, static_cast<std::size_t>(end - first), std::to_string(at_prefill));
  return body;
}

Result<LegBodies> make_leg_bodies(std::string_view client_body, const LegPlan& plan) {
  Result<Json> parsed = parse_json(client_body);
  if (!parsed) return tl::unexpected<Error>(parsed.error());
  Json& body = *parsed;
  if (find(body, "seed") == nullptr && !is_greedy(body)) {
    body["seed"] = plan.seed >> 1;  // 63 bits: every reader of JSON integers takes them
  }
  LegBodies bodies;
  body.erase(kParams);
  bodies.decode = to_text(body);
  Json prefill_params = common_params(plan);
  prefill_params["do_remote_decode"] = true;
  prefill_params["do_remote_prefill"] = false;
  body["stream"] = true;
  body.erase("stream_options");
  // What was kept is long, and text already.
  const std::string params = with_member(to_text(prefill_params), "kept", plan.kept);
  bodies.prefill = with_member(to_text(body), kParams, params);
  return bodies;
}

std::string decode_body(std::string body, const LegPlan& plan,
                        const std::optional<Announcement>& announced, bool keep) {
  Json params = decode_params(plan);
  if (keep) params["keep_blocks"] = true;
  if (!announced) return with_member(std::move(body), kParams, to_text(params));
  params["transfer_mode"] = "pull";
  params["remote_num_tokens"] = announced->tokens;
  if (!announced->name.empty()) params["remote_announcement"] = announced->name;
  if (announced->first_token) params["remote_first_token"] = *announced->first_token;
  // The list is long, and text already.
  std::string text = with_member(to_text(params), "remote_block_ids", announced->block_ids);
  return with_member(std::move(body), kParams, text);
}

PrefillEvent read_prefill_event(std::string_view data) {
  PrefillEvent out;
  if (data == "[DONE]") {
    out.kind = PrefillEvent::Kind::kDone;
    return out;
  }
  Result<Json> parsed = parse_json(data);
  if (!parsed || !parsed->is_object()) return out;
  const std::string object = text_or(*parsed, "object", "");
  if (find(*parsed, "error") != nullptr) {
    out.kind = PrefillEvent::Kind::kError;
    out.error = error_in(*parsed, data);
  } else if (object == "baton.prefilled") {
    out.kind = PrefillEvent::Kind::kPrefilled;
    const Json* token = find(*parsed, "first_token");
    const Json* id = token == nullptr ? nullptr : find(*token, "id");
    if (id != nullptr && id->is_number_integer()) {
      out.first_token = id->get<TokenId>();
      out.first_text = text_or(*token, "text", "");
    }
    out.cached_tokens = uint_or(*parsed, "cached_prompt_tokens", 0);
    out.announced = announcement_in(*parsed, out.first_token);
  } else if (object == "baton.handover") {
    out.kind = PrefillEvent::Kind::kHandover;
    out.outcome = text_or(*parsed, "outcome", "");
    out.cause = text_or(*parsed, "cause", "");
    out.text = text_or(*parsed, "text", "");
    out.record = take_member(*parsed, kBaton);
  }
  return out;
}

DecodeEvent read_decode_event(std::string_view data, bool is_after_first) {
  DecodeEvent out;
  if (data == "[DONE]") {
    out.kind = DecodeEvent::Kind::kDone;
    return out;
  }
  const bool has_own = has_own_members(data);
  const bool has_error = data.find("\"error\":") != std::string_view::npos;
  out.data = data;
  if (is_after_first && !has_own && !has_error) return out;
  Result<Json> parsed = parse_json(data);
  if (!parsed || !parsed->is_object()) {
    out.kind = DecodeEvent::Kind::kError;
    out.error.status = 502;
    out.error.message = "an event that is no JSON object";
    return out;
  }
  if (find(*parsed, "error") != nullptr) {
    out.kind = DecodeEvent::Kind::kError;
    out.error = error_in(*parsed, data);
    return out;
  }
  if (is_role_chunk(*parsed)) out.kind = DecodeEvent::Kind::kRole;
  if (!has_own) return out;
  const std::string baton = take_member(*parsed, kBaton);
  out.kept = take_member(*parsed, kParams);
  out.data = to_text(*parsed);
  if (baton == kFirstTokenMark) {
    out.is_first_token = true;
  } else {
    out.record = baton;
  }
  return out;
}

std::string take_record(std::string_view body, std::string& record, std::string& kept) {
  record.clear();
  kept.clear();
  if (!has_own_members(body)) return std::string(body);
  Result<Json> parsed = parse_json(body);
  if (!parsed || !parsed->is_object()) return std::string(body);
  record = take_member(*parsed, kBaton);
  kept = take_member(*parsed, kParams);
  return to_text(*parsed);
}

std::string with_host(std::string_view kept, std::string_view host) {
  Result<Json> parsed = parse_json(kept);
  if (!parsed || !parsed->is_object()) return std::string(kept);
  (*parsed)["remote_host"] = host;
  return to_text(*parsed);
}

std::string routed_record(const TransferId& transfer, std::string_view prefill_record,
                          std::string_view decode_record) {
  const auto or_null = [](std::string_view text) { return text.empty() ? "null" : text; };
  return fmt::format(R"({{"transfer_id":"{}","prefill":{},"decode":{}}})", transfer.to_string(),
                     or_null(prefill_record), or_null(decode_record));
}

std::string record_chunk_body(const AnswerHead& head, std::string_view baton) {
  std::string text = usage_chunk_body(head, {});
  Result<Json> parsed = parse_json(text);
  parsed->erase("usage");
  return with_record(to_text(*parsed), baton);
}

std::string with_record(std::string body, std::string_view baton) {
  return with_member(std::move(body), "baton", baton);
}

}  // namespace baton::serving
