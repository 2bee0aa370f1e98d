#include "bench/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/random.h"
#include "bench/arrivals.h"
#include "bench/traces.h"
#include "serving/json.h"

namespace baton::bench {
namespace {

using serving::Json;

// Streams of chance that must not be the same one.
constexpr std::uint64_t kArrivals = 0x61727269;
constexpr std::uint64_t kLengths = 0x6c656e67;
constexpr std::uint64_t kPrefix = 0x70726566;
constexpr std::uint64_t kBlock = 0x626c6f63;

std::uint64_t mix(std::uint64_t seed, std::uint64_t stream, std::uint64_t index = 0) {
  Rng first(seed ^ (stream << 32));
  Rng second(first.next() + index);
  return second.next();
}

std::uint32_t length_around(std::uint32_t length, double ratio, Rng& rng) {
  const auto low = static_cast<std::uint32_t>(std::floor(length * (1 - ratio)));
  const auto high = static_cast<std::uint32_t>(std::ceil(length * (1 + ratio)));
  const std::uint64_t span = std::uint64_t{high} - low + 1;
  return std::max<std::uint32_t>(1, low + static_cast<std::uint32_t>(rng.below(span)));
}

std::vector<PlannedRequest> random_plan(const BenchOptions& o) {
  const std::vector<Duration> times =
      arrival_times(o.num_prompts, {o.request_rate, o.burstiness, mix(o.seed, kArrivals)});
  Rng lengths(mix(o.seed, kLengths));
  std::vector<PlannedRequest> plan;
  plan.reserve(times.size());
  for (std::size_t i = 0; i < times.size(); ++i) {
    PlannedRequest request;
    request.at = times[i];
    request.input_len =
        o.random_prefix_len + length_around(o.random_input_len, o.random_range_ratio, lengths);
    request.output_len = length_around(o.random_output_len, o.random_range_ratio, lengths);
    request.seed = mix(o.seed, i + 1, i);
    plan.push_back(std::move(request));
  }
  return plan;
}

std::uint32_t scaled(std::uint32_t length, double scale) {
  const double wanted = std::ceil(length * scale);
  return static_cast<std::uint32_t>(
      std::clamp(wanted, 1.0, double{std::numeric_limits<std::uint32_t>::max()}));
}

Result<std::vector<PlannedRequest>> trace_plan(const BenchOptions& o) {
  auto rows = o.dataset_name == "azure" ? read_azure_trace(o.dataset_path, o.num_prompts)
                                        : read_mooncake_trace(o.dataset_path, o.num_prompts);
  if (!rows) return tl::unexpected<Error>(rows.error());
  const double seconds = std::chrono::duration<double>(rows->back().at).count();
  if (seconds / o.trace_rate_scale > kSecondsMax) {
    return fail(Errc::kInvalidArgument,
                fmt::format("--trace-rate-scale {} makes a replay of {:g} s; it may last {:g} s",
                            o.trace_rate_scale, seconds / o.trace_rate_scale, kSecondsMax));
  }
  std::vector<PlannedRequest> plan;
  plan.reserve(rows->size());
  for (TraceRow& row : *rows) {
    PlannedRequest request;
    request.at = Duration(std::llround(static_cast<double>(row.at.count()) / o.trace_rate_scale));
    request.input_len = scaled(row.input_len, o.trace_length_scale);
    request.output_len = scaled(row.output_len, o.trace_length_scale);
    if (std::max(request.input_len, request.output_len) > kTokensMax) {
      return fail(Errc::kInvalidArgument,
                  fmt::format("{}: request {} has {} tokens in and {} out, with "
                              "--trace-length-scale {}; at most {} can be asked for",
                              o.dataset_path, plan.size() + 1, request.input_len,
                              request.output_len, o.trace_length_scale, kTokensMax));
    }
    request.seed = mix(o.seed, plan.size() + 1, plan.size());
    request.block_ids = std::move(row.block_ids);
    plan.push_back(std::move(request));
  }
  return plan;
}

void add_tokens(std::uint64_t seed, std::size_t count, std::uint32_t vocab_size,
                std::vector<TokenId>& out) {
  Rng rng(seed);
  for (std::size_t i = 0; i < count; ++i) {
    out.push_back(static_cast<TokenId>(rng.below(vocab_size)));
  }
}

// A whole number without a point: servers take no 20.0 for top_k.
Json json_number(double value) {
  const bool is_whole = std::trunc(value) == value && std::abs(value) < 1e15;
  return is_whole ? Json(static_cast<std::int64_t>(value)) : Json(value);
}

// One word of about one token each in any English vocabulary.
std::string words(const std::vector<TokenId>& tokens) {
  constexpr std::array kWords = {"the", "of",  "and",  "to",   "in", "is",   "that", "for",
                                 "it",  "was", "on",   "are",  "as", "with", "his",  "they",
                                 "at",  "be",  "this", "from", "or", "one",  "had",  "by"};
  std::string out;
  for (const TokenId token : tokens) {
    if (!out.empty()) out += ' ';
    out += kWords[static_cast<std::size_t>(token) % kWords.size()];
  }
  return out;
}

// An answer may end anywhere with a stop of its own, or where the model says.
std::uint32_t asked_len(const Json& body, Api api) {
  const Json* ignore_eos = serving::find(body, "ignore_eos");
  if (ignore_eos == nullptr || *ignore_eos != true) return 0;
  for (const char* stop : {"stop", "stop_token_ids"}) {
    const Json* given = serving::find(body, stop);
    if (given != nullptr && !given->empty()) return 0;
  }
  const std::uint64_t most = serving::uint_or(body, "max_tokens", 0);
  return static_cast<std::uint32_t>(
      api == Api::kChat ? serving::uint_or(body, "max_completion_tokens", most) : most);
}

}  // namespace

Result<std::vector<PlannedRequest>> make_plan(const BenchOptions& options) {
  if (options.dataset_name == "random") return random_plan(options);
  return trace_plan(options);
}

std::vector<TokenId> prompt_tokens(const PlannedRequest& request, const BenchOptions& options,
                                   std::uint32_t vocab_size) {
  std::vector<TokenId> out;
  out.reserve(request.input_len);
  const bool is_random = options.dataset_name == "random";
  const std::size_t prefix =
      is_random ? std::min<std::size_t>(options.random_prefix_len, request.input_len) : 0;
  add_tokens(mix(options.seed, kPrefix), prefix, vocab_size, out);
  const auto block = static_cast<std::size_t>(
      std::ceil(static_cast<double>(kTraceBlock) * options.trace_length_scale));
  for (const std::uint64_t id : request.block_ids) {
    if (out.size() >= request.input_len) break;
    const std::size_t count = std::min<std::size_t>(block, request.input_len - out.size());
    add_tokens(mix(options.seed, kBlock, id), count, vocab_size, out);
  }
  add_tokens(request.seed, request.input_len - out.size(), vocab_size, out);
  return out;
}

RequestBody request_body(const PlannedRequest& request, const BenchOptions& options,
                         const std::string& model, std::uint32_t vocab_size) {
  Json body = {{"model", model}};
  const std::vector<TokenId> tokens = prompt_tokens(request, options, vocab_size);
  if (api_of(options) == Api::kChat) {
    body["messages"] = Json::array({{{"role", "user"}, {"content", words(tokens)}}});
    body["max_completion_tokens"] = request.output_len;
  } else {
    body["prompt"] = tokens;
    body["max_tokens"] = request.output_len;
  }
  body["temperature"] = json_number(options.temperature);
  for (const auto& [name, value] : options.sampling) body[name] = json_number(value);
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  body["ignore_eos"] = true;  // the output length is the plan's, as with `vllm bench serve`
  if (!options.extra_body.empty()) body.update(Json::parse(options.extra_body));
  return {serving::to_text(body), asked_len(body, api_of(options))};
}

}  // namespace baton::bench
