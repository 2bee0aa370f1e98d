#include "serving/completion_request.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/log.h"
#include "serving/json.h"

namespace baton::serving {
namespace {

using Refused = tl::unexpected<ApiError>;
using Checked = ApiResult<void>;

Refused wrong_type(std::string_view field, std::string_view wanted, const Json& value) {
  return refuse(400, fmt::format("{} must be {}, and is {}", field, wanted, shown(value)),
                std::string(field));
}

Refused out_of_range(std::string_view field, std::string_view wanted, const Json& value) {
  return refuse(400, fmt::format("{} must be {}, got {}", field, wanted, shown(value)),
                std::string(field));
}

// Whole numbers, also when written as 5.0, as Python clients may.
std::optional<std::int64_t> whole_number(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return {};
    return static_cast<std::int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    constexpr double kExact = 9007199254740992.0;  // 2^53
    if (std::abs(number) <= kExact && std::floor(number) == number) {
      return static_cast<std::int64_t>(number);
    }
  }
  return {};
}

Checked read_bool(const Json& object, std::string_view field, bool& out) {
  const Json* value = find(object, field);
  if (value == nullptr) return {};
  if (!value->is_boolean()) return wrong_type(field, "true or false", *value);
  out = value->get<bool>();
  return {};
}

Checked read_uint32(const Json& object, std::string_view field, std::uint32_t least,
                    std::optional<std::uint32_t>& out) {
  const Json* value = find(object, field);
  if (value == nullptr) return {};
  if (!value->is_number()) return wrong_type(field, "an integer", *value);
  const std::optional<std::int64_t> number = whole_number(*value);
  if (!number || *number < least || *number > std::numeric_limits<std::uint32_t>::max()) {
    return out_of_range(field, fmt::format("an integer of at least {}", least), *value);
  }
  out = static_cast<std::uint32_t>(*number);
  return {};
}

Checked read_number(const Json& object, std::string_view field, double low, bool low_included,
                    double high, double& out) {
  const Json* value = find(object, field);
  if (value == nullptr) return {};
  if (!value->is_number()) return wrong_type(field, "a number", *value);
  const double number = value->get<double>();
  const bool low_ok = low_included ? number >= low : number > low;
  if (!std::isfinite(number) || !low_ok || number > high) {
    const std::string wanted =
        std::isinf(high) ? fmt::format("at least {}", low)
                         : fmt::format("{} {} and at most {}",
                                       low_included ? "at least" : "greater than", low, high);
    return out_of_range(field, wanted, *value);
  }
  out = number;
  return {};
}

Checked read_seed(const Json& object, std::optional<std::uint64_t>& out) {
  const Json* value = find(object, "seed");
  if (value == nullptr) return {};
  if (value->is_number_unsigned()) {
    out = value->get<std::uint64_t>();
    return {};
  }
  const std::optional<std::int64_t> number =
      value->is_number() ? whole_number(*value) : std::optional<std::int64_t>();
  if (!number) return wrong_type("seed", "an integer of 64 bits", *value);
  out = static_cast<std::uint64_t>(*number);
  return {};
}

Checked read_stop(const Json& object, std::vector<std::string>& out) {
  const Json* value = find(object, "stop");
  if (value == nullptr) return {};
  if (value->is_string()) {
    out.push_back(value->get<std::string>());
  } else if (value->is_array()) {
    for (const Json& item : *value) {
      if (!item.is_string()) return wrong_type("stop", "a text or a list of texts", *value);
      out.push_back(item.get<std::string>());
    }
  } else {
    return wrong_type("stop", "a text or a list of texts", *value);
  }
  std::erase_if(out, [](const std::string& text) { return text.empty(); });
  constexpr std::size_t kStopMax = 64;
  if (out.size() > kStopMax) {
    return refuse(400,
                  fmt::format("stop has {} texts, at most {} are allowed", out.size(), kStopMax),
                  "stop");
  }
  return {};
}

// A wish that this engine does not fulfil may be stated as long as it asks for nothing.
struct Neutral {
  std::string_view field;
  std::string_view allowed;  // JSON texts, separated by spaces; null is always allowed
};
constexpr std::array kNeutral = {
    Neutral{"best_of", "1"},
    Neutral{"logprobs", "false"},
    Neutral{"top_logprobs", "0"},
    Neutral{"prompt_logprobs", ""},
    Neutral{"echo", "false"},
    Neutral{"suffix", "\"\""},
    Neutral{"presence_penalty", "0 0.0"},
    Neutral{"frequency_penalty", "0 0.0"},
    Neutral{"repetition_penalty", "1 1.0"},
    Neutral{"length_penalty", "1 1.0"},
    Neutral{"top_k", "0 -1"},
    Neutral{"min_p", "0 0.0"},
    Neutral{"min_tokens", "0"},
    Neutral{"use_beam_search", "false"},
    Neutral{"logit_bias", "{}"},
    Neutral{"stop_token_ids", "[]"},
    Neutral{"bad_words", "[]"},
    Neutral{"allowed_token_ids", ""},
    Neutral{"skip_special_tokens", "true"},
    Neutral{"tools", "[]"},
    Neutral{"tool_choice", "\"none\" \"auto\""},
    Neutral{"functions", "[]"},
    Neutral{"continue_final_message", "false"},
    Neutral{"add_generation_prompt", "true"},
    Neutral{"guided_json", ""},
    Neutral{"guided_regex", ""},
    Neutral{"structured_outputs", ""},
    Neutral{"prompt_embeds", ""},
};

bool allows(std::string_view allowed, std::string_view text) {
  while (!allowed.empty()) {
    const std::size_t end = allowed.find(' ');
    if (allowed.substr(0, end) == text) return true;
    if (end == std::string_view::npos) return false;
    allowed.remove_prefix(end + 1);
  }
  return false;
}

Checked check_unsupported(const Json& object) {
  for (const Neutral& neutral : kNeutral) {
    const Json* value = find(object, neutral.field);
    if (value == nullptr || allows(neutral.allowed, to_text(*value))) continue;
    return refuse(
        400, fmt::format("{} is not offered by this engine, got {}", neutral.field, shown(*value)),
        std::string(neutral.field));
  }
  if (const Json* format = find(object, "response_format"); format != nullptr) {
    if (text_or(*format, "type", "") != "text") {
      return refuse(
          400, fmt::format("response_format of type text only is offered, got {}", shown(*format)),
          "response_format");
    }
  }
  std::optional<std::uint32_t> n;
  if (Checked read = read_uint32(object, "n", 1, n); !read) return read;
  if (n.value_or(1) > 1) {
    return refuse(400, fmt::format("n must be 1: one answer a request is offered, got {}", *n),
                  "n");
  }
  return {};
}

Checked read_token_ids(const Json& list, std::string_view field, std::vector<TokenId>& out) {
  out.reserve(list.size());
  for (const Json& item : list) {
    const bool fits = item.is_number_unsigned() &&
                      item.get<std::uint64_t>() <=
                          static_cast<std::uint64_t>(std::numeric_limits<TokenId>::max());
    if (!fits) return wrong_type(field, "a list of token ids", item);
    out.push_back(item.get<TokenId>());
  }
  return {};
}

Checked read_prompt(const Json& object, CompletionRequest& out) {
  const Json* value = find(object, "prompt");
  if (value == nullptr) return refuse(400, "prompt is missing", "prompt");
  constexpr std::string_view kWanted = "a text or a list of token ids";
  // A list of one prompt is that prompt.
  if (value->is_array() && value->size() == 1 && !value->front().is_number()) {
    value = &value->front();
  }
  if (value->is_string()) {
    out.prompt_text = value->get<std::string>();
    if (out.prompt_text.empty()) return refuse(400, "prompt is empty", "prompt");
    return {};
  }
  if (!value->is_array()) return wrong_type("prompt", kWanted, *value);
  if (value->empty()) return refuse(400, "prompt is empty", "prompt");
  if (!value->front().is_number()) {
    return refuse(
        400, fmt::format("prompt holds {} prompts: one prompt a request is offered", value->size()),
        "prompt");
  }
  return read_token_ids(*value, "prompt", out.prompt_tokens);
}

// Content is a text or a list of parts of which only text parts are offered.
Checked read_content(const Json& message, const std::string& field, std::string& out) {
  const Json* content = find(message, "content");
  if (content == nullptr) return refuse(400, field + ".content is missing", field + ".content");
  if (content->is_string()) {
    out = content->get<std::string>();
    return {};
  }
  if (!content->is_array()) {
    return wrong_type(field + ".content", "a text or a list of parts", *content);
  }
  for (const Json& part : *content) {
    const Json* text = find(part, "text");
    if (text_or(part, "type", "") != "text" || text == nullptr || !text->is_string()) {
      return refuse(
          400,
          fmt::format("{}.content may hold parts of type text only, got {}", field, shown(part)),
          field + ".content");
    }
    if (!out.empty()) out += '\n';
    out += text->get<std::string>();
  }
  return {};
}

Checked read_messages(const Json& object, CompletionRequest& out) {
  const Json* list = find(object, "messages");
  if (list == nullptr) return refuse(400, "messages is missing", "messages");
  if (!list->is_array()) return wrong_type("messages", "a list", *list);
  if (list->empty()) return refuse(400, "messages is empty", "messages");
  for (std::size_t i = 0; i < list->size(); ++i) {
    const Json& item = (*list)[i];
    const std::string field = fmt::format("messages[{}]", i);
    if (!item.is_object()) return wrong_type(field, "an object", item);
    const std::string role = text_or(item, "role", "");
    if (role != "system" && role != "user" && role != "assistant") {
      const Json* given = find(item, "role");
      return refuse(400,
                    fmt::format("{}.role must be system, user or assistant, and is {}", field,
                                given == nullptr ? "missing" : shown(*given)),
                    field + ".role");
    }
    model::ChatMessage message;
    message.role = role;
    if (Checked read = read_content(item, field, message.content); !read) return read;
    out.messages.push_back(std::move(message));
  }
  return {};
}

Checked read_stream(const Json& object, CompletionRequest& out) {
  if (Checked read = read_bool(object, "stream", out.stream); !read) return read;
  const Json* options = find(object, "stream_options");
  if (options == nullptr) return {};
  if (!options->is_object()) return wrong_type("stream_options", "an object", *options);
  if (!out.stream) {
    return refuse(400, "stream_options is allowed only with stream true", "stream_options");
  }
  const Json* usage = find(*options, "include_usage");
  if (usage == nullptr) return {};
  if (!usage->is_boolean()) {
    return wrong_type("stream_options.include_usage", "true or false", *usage);
  }
  out.include_usage = usage->get<bool>();
  return {};
}

Checked read_sampling(const Json& object, CompletionRequest& out) {
  engine::SamplingParams& sampling = out.sampling;
  constexpr double kUnbounded = std::numeric_limits<double>::infinity();
  if (Checked r = read_number(object, "temperature", 0, true, kUnbounded, sampling.temperature);
      !r) {
    return r;
  }
  if (Checked r = read_number(object, "top_p", 0, false, 1, sampling.top_p); !r) return r;
  if (Checked r = read_seed(object, sampling.seed); !r) return r;
  if (Checked r = read_stop(object, sampling.stop); !r) return r;
  if (Checked r =
          read_bool(object, "include_stop_str_in_output", sampling.include_stop_str_in_output);
      !r) {
    return r;
  }
  if (Checked r = read_bool(object, "ignore_eos", sampling.ignore_eos); !r) return r;
  std::optional<std::uint32_t> completion;
  if (Checked r = read_uint32(object, "max_tokens", 1, out.max_tokens); !r) return r;
  if (out.endpoint == Endpoint::kChat) {
    if (Checked r = read_uint32(object, "max_completion_tokens", 1, completion); !r) return r;
    if (completion) out.max_tokens = completion;  // the newer name stands
  }
  return {};
}

Refused bad_kv(std::string_view field, std::string_view wanted, const Json* value) {
  const std::string name = fmt::format("kv_transfer_params.{}", field);
  return refuse(400,
                fmt::format("{} must be {}, and is {}", name, wanted,
                            value == nullptr ? "missing" : shown(*value)),
                name);
}

Checked read_kv_flag(const Json& object, std::string_view field, bool& out) {
  const Json* value = find(object, field);
  if (value == nullptr) return {};
  if (!value->is_boolean()) return bad_kv(field, "true or false", value);
  out = value->get<bool>();
  return {};
}

Checked read_kv_number(const Json& object, std::string_view field, std::uint64_t least,
                       std::uint64_t most, std::optional<std::uint64_t>& out) {
  const Json* value = find(object, field);
  if (value == nullptr) return {};
  const bool fits = value->is_number_unsigned() && value->get<std::uint64_t>() >= least &&
                    value->get<std::uint64_t>() <= most;
  if (!fits) return bad_kv(field, fmt::format("an integer from {} to {}", least, most), value);
  out = value->get<std::uint64_t>();
  return {};
}

// 16 hex digits: JSON's numbers do not carry 64 bits everywhere.
Checked read_hex(const Json& object, const char* field, std::uint64_t& out) {
  const Json* value = find(object, field);
  if (value == nullptr) return {};
  if (value->is_string()) {
    const auto& text = value->get_ref<const std::string&>();
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, out, 16);
    if (error == std::errc() && stop == end) return {};
  }
  return bad_kv(field, "a text of hex digits", value);
}

Checked read_peer(const Json& object, KvTransferParams& out) {
  for (const auto& [field, target] :
       {std::pair{"remote_engine_id", &out.peer.engine_id}, {"remote_host", &out.peer.host}}) {
    const Json* value = find(object, field);
    if (value == nullptr || !value->is_string() || value->get_ref<const std::string&>().empty()) {
      return bad_kv(field, "a text", value);
    }
    *target = value->get<std::string>();
  }
  std::optional<std::uint64_t> port;
  if (Checked r = read_kv_number(object, "remote_port", 1, 65535, port); !r) return r;
  if (!port) return bad_kv("remote_port", "an integer from 1 to 65535", nullptr);
  out.peer.port = static_cast<std::uint16_t>(*port);
  std::optional<std::uint64_t> tp_size;
  if (Checked r = read_kv_number(object, "tp_size", 1, 65535, tp_size); !r) return r;
  if (tp_size.value_or(1) != 1) {
    return bad_kv("tp_size", "1 (this instance takes KV from one rank)", find(object, "tp_size"));
  }
  return read_hex(object, "remote_incarnation", out.peer.incarnation);
}

Checked read_transfer(const Json& object, KvTransferParams& out) {
  if (const Json* id = find(object, "transfer_id"); id != nullptr) {
    if (id->is_string()) out.transfer_id = TransferId::parse(id->get_ref<const std::string&>());
    if (!out.transfer_id || out.transfer_id->is_null()) {
      return bad_kv("transfer_id", "32 lower-case hex digits, not all zero", id);
    }
  }
  std::optional<std::uint64_t> binding;
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  if (Checked r = read_kv_number(object, "binding", 0, kMost, binding); !r) return r;
  out.binding = static_cast<std::uint32_t>(binding.value_or(0));
  std::optional<std::uint64_t> timeout;
  constexpr std::uint64_t kDayMs = 24ULL * 3600 * 1000;
  if (Checked r = read_kv_number(object, "transfer_timeout_ms", 1, kDayMs, timeout); !r) return r;
  if (timeout) out.transfer_timeout = std::chrono::milliseconds(*timeout);
  if (const Json* who = find(object, "first_token"); who != nullptr) {
    const std::string text = text_or(object, "first_token", "");
    if (text != "prefill" && text != "decode") {
      return bad_kv("first_token", "\"prefill\" or \"decode\"", who);
    }
    out.first_token =
        text == "prefill" ? engine::FirstToken::kPrefill : engine::FirstToken::kDecode;
  }
  return {};
}

Checked read_block_ids(const Json& list, std::vector<std::vector<BlockId>>& out) {
  constexpr char kField[] = "remote_block_ids";
  constexpr char kWanted[] = "a list of one list of block ids for each cache group";
  if (!list.is_array()) return bad_kv(kField, kWanted, &list);
  for (const Json& group : list) {
    if (!group.is_array()) return bad_kv(kField, kWanted, &list);
    std::vector<BlockId>& ids = out.emplace_back();
    ids.reserve(group.size());
    for (const Json& id : group) {
      const bool fits =
          id.is_number_unsigned() && id.get<std::uint64_t>() <= std::numeric_limits<BlockId>::max();
      if (!fits) return bad_kv(kField, kWanted, &id);
      ids.push_back(id.get<BlockId>());
    }
  }
  return {};
}

// Pull: P's announcement. An empty list of blocks is push's way to announce none.
Checked read_announcement(const Json& object, KvTransferParams& out) {
  if (const Json* mode = find(object, "transfer_mode"); mode != nullptr) {
    out.transfer_mode = text_or(object, "transfer_mode", "");
    if (out.transfer_mode != "push" && out.transfer_mode != "pull") {
      return bad_kv("transfer_mode", "\"push\" or \"pull\"", mode);
    }
  }
  constexpr std::uint64_t kTokensMost = std::numeric_limits<std::uint32_t>::max();
  std::optional<std::uint64_t> tokens, first;
  if (Checked r = read_kv_number(object, "remote_num_tokens", 1, kTokensMost, tokens); !r) return r;
  constexpr std::uint64_t kTokenMost = std::numeric_limits<TokenId>::max();
  if (Checked r = read_kv_number(object, "remote_first_token", 0, kTokenMost, first); !r) return r;
  if (first) out.announced_token = static_cast<TokenId>(*first);
  const Json* ids = find(object, "remote_block_ids");
  if (ids == nullptr || (ids->is_array() && ids->empty())) return {};
  SourceBlocks source;
  if (Checked r = read_block_ids(*ids, source.block_ids); !r) return r;
  if (!tokens) return bad_kv("remote_num_tokens", "how many tokens remote_block_ids hold", nullptr);
  source.range.end = static_cast<std::uint32_t>(*tokens);
  if (Checked r = read_hex(object, "remote_announcement", source.announcement); !r) return r;
  out.source = std::move(source);
  return {};
}

// vLLM's values are any integers.
Checked read_priority(const Json& object, std::int64_t& out) {
  const Json* value = find(object, "priority");
  if (value == nullptr) return {};
  const std::optional<std::int64_t> number =
      value->is_number() ? whole_number(*value) : std::optional<std::int64_t>();
  if (!number) return wrong_type("priority", "an integer", *value);
  out = *number;
  return {};
}

Checked read_cache_salt(const Json& object, std::string& out) {
  const Json* value = find(object, "cache_salt");
  if (value == nullptr) return {};
  const std::string wanted = fmt::format("a text of 1 to {} bytes", kCacheSaltMax);
  if (!value->is_string()) return wrong_type("cache_salt", wanted, *value);
  const auto& salt = value->get_ref<const std::string&>();
  if (salt.empty() || salt.size() > kCacheSaltMax)
    return out_of_range("cache_salt", wanted, *value);
  out = salt;
  return {};
}

// What D's answer said of the blocks that it kept.
Checked read_kept(const Json& object, KeptBlocks& out) {
  if (!object.is_object()) return bad_kv("kept", "an object", &object);
  KvTransferParams params;
  if (Checked r = read_transfer(object, params); !r) return r;
  if (!params.transfer_id) return bad_kv("transfer_id", "32 lower-case hex digits", nullptr);
  if (Checked r = read_peer(object, params); !r) return r;
  if (Checked r = read_announcement(object, params); !r) return r;
  if (!params.source) return bad_kv("remote_block_ids", "those of the kept blocks", nullptr);
  const Json* tokens = find(object, "remote_token_ids");
  if (tokens == nullptr || !tokens->is_array()) {
    return bad_kv("remote_token_ids", "a list of token ids", tokens);
  }
  out.transfer_id = *params.transfer_id;
  out.peer = std::move(params.peer);
  out.source = std::move(*params.source);
  return read_token_ids(*tokens, "kv_transfer_params.remote_token_ids", out.tokens);
}

// Of kv_transfer_params and of `kept` in it. A router of another version, or a slip of the pen.
std::uint32_t count_unknown(const Json& params) {
  static constexpr std::array kKnown = {"do_remote_decode",
                                        "do_remote_prefill",
                                        "debug",
                                        "transfer_id",
                                        "binding",
                                        "transfer_timeout_ms",
                                        "first_token",
                                        "transfer_mode",
                                        "remote_engine_id",
                                        "remote_host",
                                        "remote_port",
                                        "remote_incarnation",
                                        "tp_size",
                                        "remote_block_ids",
                                        "remote_num_tokens",
                                        "remote_announcement",
                                        "remote_first_token",
                                        "remote_token_ids",
                                        "keep_blocks",
                                        "kept"};
  std::uint32_t count = 0;
  for (const auto& [key, value] : params.items()) {
    const auto is_key = [&key](std::string_view name) { return name == key; };
    if (std::any_of(kKnown.begin(), kKnown.end(), is_key)) continue;
    ++count;
    log::debug("kv_transfer_params.{} is unknown and ignored", shown(Json(key)));
  }
  return count;
}

Checked read_kv(const Json& object, CompletionRequest& request) {
  const Json* params = find(object, "kv_transfer_params");
  if (params == nullptr) return {};
  if (!params->is_object()) return wrong_type("kv_transfer_params", "an object", *params);
  KvTransferParams out;
  if (Checked r = read_kv_flag(*params, "do_remote_decode", out.do_remote_decode); !r) return r;
  if (Checked r = read_kv_flag(*params, "do_remote_prefill", out.do_remote_prefill); !r) return r;
  if (Checked r = read_kv_flag(*params, "debug", out.debug); !r) return r;
  if (Checked r = read_transfer(*params, out); !r) return r;
  if (out.do_remote_decode && out.do_remote_prefill) {
    return refuse(400,
                  "kv_transfer_params asks for do_remote_decode and do_remote_prefill at once: a "
                  "request has one role on an instance",
                  "kv_transfer_params");
  }
  if (out.do_remote_prefill) {
    if (!out.transfer_id) return bad_kv("transfer_id", "32 lower-case hex digits", nullptr);
    if (Checked r = read_peer(*params, out); !r) return r;
    if (Checked r = read_announcement(*params, out); !r) return r;
  }
  if (Checked r = read_kv_flag(*params, "keep_blocks", out.keep_blocks); !r) return r;
  if (const Json* kept = find(*params, "kept"); kept != nullptr && out.do_remote_decode) {
    if (Checked r = read_kept(*kept, out.kept.emplace()); !r) return r;
    out.unknown_keys += count_unknown(*kept);
  }
  out.unknown_keys += count_unknown(*params);
  request.kv = std::move(out);
  return {};
}

void log_unknown_fields(const Json& object) {
  static constexpr std::array kKnown = {"model",
                                        "prompt",
                                        "messages",
                                        "stream",
                                        "seed",
                                        "stop",
                                        "n",
                                        "include_stop_str_in_output",
                                        "user",
                                        "top_p",
                                        "max_tokens",
                                        "max_completion_tokens",
                                        "ignore_eos",
                                        "temperature",
                                        "metadata",
                                        "return_token_ids",
                                        "store",
                                        "request_id",
                                        "priority",
                                        "cache_salt",
                                        "stream_options",
                                        "kv_transfer_params",
                                        "response_format"};
  if (!log::enabled(log::Level::kDebug)) return;
  for (const auto& [key, value] : object.items()) {
    const auto is_key = [&key](std::string_view name) { return name == key; };
    const bool neutral = std::any_of(kNeutral.begin(), kNeutral.end(),
                                     [&](const Neutral& n) { return is_key(n.field); });
    if (!neutral && std::none_of(kKnown.begin(), kKnown.end(), is_key)) {
      log::debug("request field {} is unknown and ignored", shown(Json(key)));
    }
  }
}

Checked read_all(const Json& object, KvParams kv, CompletionRequest& out) {
  if (const Json* model = find(object, "model"); model != nullptr) {
    if (!model->is_string()) return wrong_type("model", "a text", *model);
    out.model = model->get<std::string>();
  }
  const bool chat = out.endpoint == Endpoint::kChat;
  if (Checked r = chat ? read_messages(object, out) : read_prompt(object, out); !r) return r;
  if (Checked r = check_unsupported(object); !r) return r;
  if (Checked r = read_stream(object, out); !r) return r;
  if (Checked r = read_sampling(object, out); !r) return r;
  if (Checked r = read_bool(object, "return_token_ids", out.return_token_ids); !r) return r;
  if (Checked r = read_priority(object, out.priority); !r) return r;
  if (Checked r = read_cache_salt(object, out.cache_salt); !r) return r;
  return kv == KvParams::kRead ? read_kv(object, out) : Checked();
}

}  // namespace

ApiResult<CompletionRequest> parse_completion_request(Endpoint endpoint, std::string_view body,
                                                      KvParams kv) {
  const Result<Json> parsed = parse_json(body);
  if (!parsed) return refuse(400, parsed.error().message);
  if (!parsed->is_object()) {
    return refuse(400, fmt::format("the body must be a JSON object, and is {}", shown(*parsed)));
  }
  CompletionRequest request;
  request.endpoint = endpoint;
  if (Checked read = read_all(*parsed, kv, request); !read) {
    return tl::unexpected<ApiError>(std::move(read.error()));
  }
  log_unknown_fields(*parsed);
  return request;
}

}  // namespace baton::serving
