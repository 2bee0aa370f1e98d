#include "bench/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <tuple>

#include "bench/goodput.h"
#include "bench/summary.h"
#include "http/client.h"
#include "serving/json.h"

namespace baton::bench {
namespace {

constexpr std::uint32_t kPromptsMax = 1'000'000;

tl::unexpected<Error> bad(std::string_view flag, std::string_view wanted, std::string_view value) {
  return fail(Errc::kInvalidArgument,
              fmt::format("{} must be {}, and is '{}'", flag, wanted, value));
}

// Its value may be the usual one all the same.
bool is_typed(const BenchOptions& o, std::string_view flag) {
  return std::ranges::any_of(
      o.as_typed, [flag](std::string_view word) { return word.substr(0, word.find('=')) == flag; });
}

// A flag that would have no effect is a mistake about what is measured.
Status check_belongs(const BenchOptions& o, bool is_trace) {
  const BenchOptions usual;
  // Whether its value is another than the usual, for options that no command line gave.
  const std::pair<const char*, bool> of_random[] = {
      {"--request-rate", !std::isinf(o.request_rate)},
      {"--burstiness", o.burstiness != usual.burstiness},
      {"--random-input-len", o.random_input_len != usual.random_input_len},
      {"--input-len", false},
      {"--random-output-len", o.random_output_len != usual.random_output_len},
      {"--output-len", false},
      {"--random-prefix-len", o.random_prefix_len != usual.random_prefix_len},
      {"--random-range-ratio", o.random_range_ratio != usual.random_range_ratio}};
  const std::pair<const char*, bool> of_traces[] = {
      {"--dataset-path", !o.dataset_path.empty()},
      {"--trace-rate-scale", o.trace_rate_scale != usual.trace_rate_scale},
      {"--trace-length-scale", o.trace_length_scale != usual.trace_length_scale}};
  for (const auto& [flag, is_changed] : of_random) {
    if (!is_trace || !(is_changed || is_typed(o, flag))) continue;
    return fail(Errc::kInvalidArgument,
                fmt::format("{} belongs to --dataset-name random; a trace has its own times and "
                            "lengths: --trace-rate-scale, --trace-length-scale",
                            flag));
  }
  for (const auto& [flag, is_changed] : of_traces) {
    if (is_trace || !(is_changed || is_typed(o, flag))) continue;
    return fail(
        Errc::kInvalidArgument,
        fmt::format("{} belongs to --dataset-name mooncake or azure, and it is random", flag));
  }
  return {};
}

Status check_dataset(const BenchOptions& o) {
  const bool is_trace = o.dataset_name == "mooncake" || o.dataset_name == "azure";
  if (o.dataset_name != "random" && !is_trace) {
    return bad("--dataset-name", "random, mooncake or azure", o.dataset_name);
  }
  if (is_trace && o.dataset_path.empty()) {
    return fail(Errc::kInvalidArgument,
                fmt::format("--dataset-name {} needs --dataset-path", o.dataset_name));
  }
  if (Status checked = check_belongs(o, is_trace); !checked) return checked;
  for (const auto& [flag, value, least] : {std::tuple{"--random-input-len", o.random_input_len, 1U},
                                           {"--random-output-len", o.random_output_len, 1U},
                                           {"--random-prefix-len", o.random_prefix_len, 0U}}) {
    if (value < least || value > kTokensMax) {
      return bad(flag, fmt::format("from {} to {}", least, kTokensMax), std::to_string(value));
    }
  }
  if (!(o.random_range_ratio >= 0 && o.random_range_ratio < 1)) {
    return bad("--random-range-ratio", "at least 0 and below 1",
               fmt::format("{}", o.random_range_ratio));
  }
  for (const auto& [flag, value] : {std::pair{"--trace-rate-scale", o.trace_rate_scale},
                                    {"--trace-length-scale", o.trace_length_scale}}) {
    if (!(value > 0) || std::isinf(value)) {
      return bad(flag, "above 0", fmt::format("{}", value));
    }
  }
  return {};
}

Status check_load(const BenchOptions& o) {
  if (o.num_prompts == 0 || o.num_prompts > kPromptsMax) {
    return bad("--num-prompts", fmt::format("from 1 to {}", kPromptsMax),
               std::to_string(o.num_prompts));
  }
  if (!(o.request_rate > 0)) {
    return bad("--request-rate", "above 0, or inf", fmt::format("{}", o.request_rate));
  }
  if (o.num_prompts / o.request_rate > kSecondsMax) {
    return bad("--request-rate", fmt::format("such that arrivals end within {:g} s", kSecondsMax),
               fmt::format("{}", o.request_rate));
  }
  if (!(o.burstiness > 0)) {
    return bad("--burstiness", "above 0, or inf", fmt::format("{}", o.burstiness));
  }
  if (o.max_concurrency == 0U) return bad("--max-concurrency", "at least 1", "0");
  for (const auto& [flag, value] :
       {std::pair{"--ready-check-timeout-sec", o.ready_check_timeout_sec},
        {"--request-timeout", o.request_timeout}}) {
    if (!(value >= 0 && value <= kSecondsMax)) {
      return bad(flag, "from 0 to 1e8 seconds", fmt::format("{}", value));
    }
  }
  return {};
}

Status check_report(const BenchOptions& o) {
  if (const auto list = parse_percentiles(o.metric_percentiles); !list) {
    return tl::unexpected<Error>(list.error());
  }
  if (const auto list = parse_metric_names(o.percentile_metrics); !list) {
    return tl::unexpected<Error>(list.error());
  }
  if (const auto slo = parse_goodput(o.goodput); !slo) return tl::unexpected<Error>(slo.error());
  for (const std::string& item : o.metadata) {
    const std::size_t at = item.find('=');
    if (at == std::string::npos || at == 0) return bad("--metadata", "KEY=VALUE", item);
  }
  return {};
}

// A token of RFC 9110.
bool is_header_name(std::string_view name) {
  static constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           kMarks.find(c) != kMarks.npos;
  });
}

// Of a header that would be there twice, and each server take the one it likes; else "".
std::string_view why_not_given(std::string_view name) {
  static const http::Headers reasons = {
      {"X-Request-Id", "each request has its own, which begins with --request-id-prefix"},
      {"Host", "it is that of --base-url, or of --host and --port"},
      {"Content-Length", "it is the length of each request's own body"},
      {"Content-Type", "every body is JSON"},
      {"Transfer-Encoding", "every body goes out whole, with its length before it"}};
  return reasons.get(name);
}

Status check_header(const std::string& item) {
  // No more is shown: what follows the name may be a secret, also as in "Authorization: Bearer x=".
  const std::string name = item.substr(0, item.find_first_of(": ="));
  const bool has_value = item.size() > name.size() && item[name.size()] == '=';
  const bool is_one_line = item.find_first_of("\r\n") == item.npos;
  if (!has_value || !is_one_line || !is_header_name(name)) {
    return bad("--header", "KEY=VALUE in one line, a header's name and '=' right after it",
               name + "...");
  }
  const std::string_view why = why_not_given(name);
  if (why.empty()) return {};
  return fail(Errc::kInvalidArgument, fmt::format("--header cannot be {}: {}", name, why));
}

Status check_request(const BenchOptions& o) {
  for (const std::string& item : o.headers) {
    if (Status checked = check_header(item); !checked) return checked;
  }
  if (o.extra_body.empty()) return {};
  const auto body = serving::parse_json(o.extra_body);
  if (!body || !body->is_object()) return bad("--extra-body", "a JSON object", o.extra_body);
  return {};
}

}  // namespace

Status check_options(const BenchOptions& o) {
  if (o.backend != "openai" && o.backend != "openai-chat" && o.backend != "vllm") {
    return bad("--backend", "openai or openai-chat", o.backend);
  }
  if (!o.endpoint.empty() && o.endpoint.front() != '/') {
    return bad("--endpoint", "a path that begins with /", o.endpoint);
  }
  if (const auto url = http::parse_url(root_url(o)); !url) {
    return tl::unexpected<Error>(url.error());
  }
  if (Status checked = check_dataset(o); !checked) return checked;
  if (Status checked = check_load(o); !checked) return checked;
  if (Status checked = check_request(o); !checked) return checked;
  return check_report(o);
}

Api api_of(const BenchOptions& options) {
  return options.backend == "openai-chat" ? Api::kChat : Api::kCompletions;
}

std::string root_url(const BenchOptions& options) {
  std::string url = options.base_url;
  if (url.empty()) {
    const bool is_v6 = options.host.find(':') != std::string::npos;
    url = fmt::format("http://{}{}{}:{}", is_v6 ? "[" : "", options.host, is_v6 ? "]" : "",
                      options.port);
  }
  while (url.ends_with('/')) url.pop_back();
  return url;
}

std::string request_url(const BenchOptions& options) {
  if (!options.endpoint.empty()) return root_url(options) + options.endpoint;
  const bool is_chat = api_of(options) == Api::kChat;
  return root_url(options) + (is_chat ? "/v1/chat/completions" : "/v1/completions");
}

http::Headers given_headers(const BenchOptions& options) {
  http::Headers out = {{"Content-Type", "application/json"}};
  for (const std::string& item : options.headers) {
    const std::size_t at = item.find('=');
    out.add(item.substr(0, at), item.substr(at + 1));
  }
  const char* key = std::getenv("OPENAI_API_KEY");
  if (key != nullptr && *key != '\0' && !out.find("Authorization")) {
    out.add("Authorization", std::string("Bearer ") + key);
  }
  return out;
}

}  // namespace baton::bench
