// What `baton bench serve` is told: the names are those of `vllm bench serve`, the defaults too
// where nothing else is said.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "baton/result.h"
#include "http/message.h"

namespace baton::bench {

inline constexpr std::uint32_t kTokensMax = 10'000'000;  // of a prompt, and of an answer
inline constexpr double kSecondsMax =
    1e8;  // of a run and of a wait: 64 bits of nanoseconds hold it

enum class Api : std::uint8_t { kCompletions, kChat };

struct BenchOptions {
  std::string backend = "openai";  // openai or openai-chat
  std::string base_url;            // wins over host and port
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;
  std::string endpoint;           // path; empty: the backend's
  std::string model;              // empty: the first that the server names
  std::string served_model_name;  // empty: model
  std::string tokenizer;          // recorded only: prompts are token ids
  std::string tokenizer_mode;     // without effect, likewise

  std::string dataset_name = "random";  // random, mooncake, azure
  std::string dataset_path;             // of a trace
  std::uint32_t random_input_len = 1024;
  std::uint32_t random_output_len = 128;
  std::uint32_t random_prefix_len = 0;  // the same tokens at the head of every prompt
  double random_range_ratio = 0;        // lengths uniform in [len * (1 - r), len * (1 + r)]
  std::uint32_t vocab_size = 0;         // 0: what the server says
  double trace_rate_scale = 1;          // 2: arrivals twice as fast as recorded
  double trace_length_scale = 1;        // 0.5: half the tokens, rounded up

  std::uint32_t num_prompts = 1000;
  std::uint32_t num_warmups = 0;  // before them, one after another; nothing of them counts
  double request_rate = std::numeric_limits<double>::infinity();  // a second; inf: all at once
  double burstiness = 1;  // shape of the gamma gaps; 1: Poisson; inf: constant
  std::optional<std::uint32_t> max_concurrency;
  std::uint64_t seed = 0;
  double temperature = 0;
  std::map<std::string, double> sampling;  // top_p, ...: those that are asked for
  std::string extra_body;                  // a JSON object that goes into every request
  std::vector<std::string> headers;        // "KEY=VALUE"
  std::string request_id_prefix;           // empty: bench- and a number of the run's own
  double request_timeout = 6 * 3600;       // seconds, vLLM's

  bool save_result = false;
  bool save_detailed = false;
  std::string result_dir = ".";
  std::string result_filename;
  std::string percentile_metrics = "ttft,tpot,itl,e2el";
  std::string metric_percentiles = "50,90,99";
  std::vector<std::string> goodput;  // "ttft:200", milliseconds
  std::string label;
  std::vector<std::string> metadata;  // "key=value"
  bool disable_tqdm = false;
  double ready_check_timeout_sec = 600;
  bool json = false;  // the result on standard output instead of the table

  std::string prefill_url;  // whose records are asked after the run; empty: the router says
  std::string decode_url;
  std::string mode;                   // recorded: which mode the servers run
  std::vector<std::string> as_typed;  // recorded; and says which flags were given
};

// What is wrong with the values, naming the flag and the value.
Status check_options(const BenchOptions& options);

Api api_of(const BenchOptions& options);
std::string root_url(const BenchOptions& options);     // "http://127.0.0.1:8000"
std::string request_url(const BenchOptions& options);  // with the endpoint's path
// Those of --header beside what a request has anyway, but for its X-Request-Id; with
// OPENAI_API_KEY of the environment as the bearer, as `vllm bench serve` sends it.
http::Headers given_headers(const BenchOptions& options);

}  // namespace baton::bench
