#include "bench/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

namespace baton::bench {
namespace {

void add_target(CLI::App& app, BenchOptions& o) {
  app.add_option("--backend,--endpoint-type", o.backend,
                 "openai or vllm (/v1/completions, prompts as token ids), openai-chat (text)")
      ->capture_default_str();
  app.add_option("--base-url", o.base_url, "http://HOST:PORT, instead of the next two");
  app.add_option("--host", o.host, "of the server")->capture_default_str();
  app.add_option("--port", o.port, "of the server")->capture_default_str();
  app.add_option("--endpoint", o.endpoint, "path; default: the backend's");
  app.add_option("--model", o.model, "default: the first that the server lists");
  app.add_option("--served-model-name", o.served_model_name, "the name asked for; default: MODEL");
  app.add_option("--tokenizer", o.tokenizer, "recorded only: prompts are token ids");
  app.add_option("--ready-check-timeout-sec", o.ready_check_timeout_sec,
                 "how long the server may take to get ready")
      ->capture_default_str();
  app.add_option("--request-timeout", o.request_timeout, "seconds, for each")
      ->capture_default_str();
  app.add_option("--prefill-url", o.prefill_url,
                 "whose records of the hand-overs are read; default: the router says");
  app.add_option("--decode-url", o.decode_url, "likewise");
}

void add_dataset(CLI::App& app, BenchOptions& o) {
  app.add_option("--dataset-name", o.dataset_name,
                 "random; or a trace: mooncake (JSON lines: timestamp, input_length,\n"
                 "output_length, hash_ids), azure (CSV: TIMESTAMP,ContextTokens,GeneratedTokens)")
      ->capture_default_str();
  app.add_option("--dataset-path", o.dataset_path, "the trace");
  app.add_option("--random-input-len,--input-len", o.random_input_len, "tokens")
      ->capture_default_str();
  app.add_option("--random-output-len,--output-len", o.random_output_len, "tokens")
      ->capture_default_str();
  app.add_option("--random-prefix-len", o.random_prefix_len,
                 "tokens before them, the same for all requests")
      ->capture_default_str();
  app.add_option("--random-range-ratio", o.random_range_ratio,
                 "R: lengths from len * (1 - R) to len * (1 + R)")
      ->capture_default_str();
  app.add_option("--vocab-size", o.vocab_size, "token ids are below it; default: the server says");
  app.add_option("--trace-rate-scale", o.trace_rate_scale, "2: arrivals twice as fast as recorded")
      ->capture_default_str();
  app.add_option("--trace-length-scale", o.trace_length_scale, "0.5: half the tokens")
      ->capture_default_str();
  app.add_option("--num-prompts", o.num_prompts, "requests; of a trace: the first so many")
      ->capture_default_str();
  app.add_option("--num-warmups", o.num_warmups,
                 "requests before the load, one after another, that do not count")
      ->capture_default_str();
  app.add_option("--seed", o.seed, "of tokens, lengths and arrivals")->capture_default_str();
}

void add_load(CLI::App& app, BenchOptions& o) {
  app.add_option("--request-rate", o.request_rate, "requests a second; inf: all at once")
      ->capture_default_str();
  app.add_option("--burstiness", o.burstiness,
                 "shape of the gamma distribution of gaps; 1: Poisson; inf: constant")
      ->capture_default_str();
  app.add_option("--max-concurrency", o.max_concurrency,
                 "arrivals wait while so many are open: the load is then not open-loop");
  app.add_option("--request-id-prefix", o.request_id_prefix,
                 "of X-Request-Id; default: bench- and a number of this run's own");
}

void add_request(CLI::App& app, BenchOptions& o) {
  app.add_flag_callback(
      "--ignore-eos", [] {}, "answers have their full length: always so with these data sets");
  app.add_option("--temperature", o.temperature, "of sampling")->capture_default_str();
  for (const char* name :
       {"top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"}) {
    std::string flag = std::string("--") + name;
    std::replace(flag.begin(), flag.end(), '_', '-');
    app.add_option_function<double>(
        flag, [&o, name](double value) { o.sampling[name] = value; }, "of sampling");
  }
  app.add_option("--extra-body", o.extra_body, "a JSON object: further keys of every request");
  app.add_option("--header", o.headers, "KEY=VALUE, further headers of every request");
}

// What `vllm bench serve` has and this one does not: accepted where it changes nothing here, else
// refused with the reason.
void add_others(CLI::App& app, BenchOptions& o) {
  const char* no_tokenizer = "accepted, without effect: prompts are token ids";
  app.add_flag_callback("--trust-remote-code", [] {}, no_tokenizer)->group("");
  app.add_flag_callback("--skip-tokenizer-init", [] {}, no_tokenizer)->group("");
  app.add_option("--tokenizer-mode", o.tokenizer_mode, no_tokenizer)->group("");
  const std::pair<const char*, const char*> refused[] = {
      {"--append-result", "each result is a file of its own: --result-filename"},
      {"--use-beam-search", "answers are sampled"},
      {"--logprobs", "no answer is read for them"},
      {"--profile",
       "there is no profiler to start; `/debug/transfers` and --save-detailed say "
       "where time went"},
      {"--lora-modules", "no adapters are served"},
      {"--lora-assignment", "no adapters are served"},
      {"--ramp-up-strategy", "the rate is one; run once for each, or `baton sweep`"},
      {"--ramp-up-start-rps", "the rate is one; run once for each, or `baton sweep`"},
      {"--ramp-up-end-rps", "the rate is one; run once for each, or `baton sweep`"},
      {"--probe-request-rate", "only the load itself is sent"},
      {"--self-timed", "a trace is replayed at its own times: --dataset-name mooncake or azure"},
      {"--insecure", "servers are asked by http:// alone"},
      {"--plot-timeline", "`baton plot` draws the time line of every request"},
      {"--plot-dataset-stats", "the lengths are in the result: --save-detailed"}};
  for (const auto& [flag, why] : refused) {
    app.add_option_function<std::vector<std::string>>(flag,
                                                      [flag, why](const std::vector<std::string>&) {
                                                        throw CLI::ValidationError(
                                                            flag, std::string("not here: ") + why);
                                                      })
        ->expected(0, 2)
        ->group("");
  }
}

void add_report(CLI::App& app, BenchOptions& o) {
  app.add_flag("--save-result", o.save_result, "write a result file");
  app.add_flag("--save-detailed", o.save_detailed, "the same, with every request's figures");
  app.add_option("--result-dir", o.result_dir, "where")->capture_default_str();
  app.add_option("--result-filename", o.result_filename,
                 "default: {backend}-{rate}qps-{model}-{date}.json");
  app.add_option("--percentile-metrics", o.percentile_metrics, "of the result")
      ->capture_default_str();
  app.add_option("--metric-percentiles", o.metric_percentiles, "of each")->capture_default_str();
  app.add_option("--goodput", o.goodput, "a service level, ms: ttft:200 tpot:10 e2el:3000");
  app.add_option("--label", o.label, "in the result and its file name");
  app.add_option("--metadata", o.metadata, "KEY=VALUE, further keys of the result");
  app.add_option("--mode", o.mode, "recorded: push, pull, ...; default: what the servers say");
  app.add_flag("--disable-tqdm", o.disable_tqdm, "no progress bar");
  app.add_flag("--json", o.json, "the result on standard output");
}

void add_grid(CLI::App& app, SweepOptions& o) {
  app.add_option("--modes", o.modes,
                 "to compare, in this order; each iteration begins with the next")
      ->capture_default_str();
  app.add_option("--qps-list", o.qps_list, "requests a second")
      ->envname("QPS_LIST")
      ->capture_default_str();
  app.add_option("--input-lens", o.input_lens, "prompts, tokens")
      ->envname("INPUT_LENS")
      ->capture_default_str();
  app.add_option("--output-lens", o.output_lens, "answers, tokens")
      ->envname("OUTPUT_LENS")
      ->capture_default_str();
  app.add_option("--iterations", o.iterations, "of the whole grid")
      ->envname("ITERATIONS")
      ->capture_default_str();
  app.add_option("--point-seconds", o.point_seconds, "the arrivals of a point take so long")
      ->capture_default_str();
  app.add_option("--min-prompts", o.min_prompts, "of a point, whatever its rate")
      ->capture_default_str();
  app.add_option("--num-warmups", o.num_warmups, "requests before each point that do not count")
      ->capture_default_str();
  app.add_option("--seed", o.seed, "every mode gets the same requests")->capture_default_str();
  app.add_option("--goodput", o.goodput, "a service level, ms: ttft:200 tpot:10");
  app.add_option("--request-timeout", o.request_timeout, "seconds, for each")
      ->capture_default_str();
}

void add_servers(CLI::App& app, SweepOptions& o) {
  const auto note = [](bool& given) { return [&given](const std::string&) { given = true; }; };
  app.add_option("--backend", o.backend,
                 "timed (emulated compute) or cpu (a real model); this and the\nnext of running "
                 "servers: what they say")
      ->capture_default_str()
      ->each(note(o.given.backend));
  app.add_option("--profile", o.profile, "of timed")
      ->capture_default_str()
      ->each(note(o.given.profile));
  app.add_option("--model", o.model, "of cpu: a GGUF file or name");
  app.add_option("--served-model-name", o.served_model_name, "in the API")
      ->capture_default_str()
      ->each(note(o.given.served_model_name));
  app.add_option("--prefill", o.prefill, "of timed: computed, or cached (P has every prompt)")
      ->capture_default_str()
      ->each(note(o.given.prefill));
  app.add_option("--first-token", o.first_token, "who gives it: decode (as published) or prefill")
      ->capture_default_str()
      ->each(note(o.given.first_token));
  app.add_option("--max-num-seqs", o.max_num_seqs, "slots of each instance; 0: no limit")
      ->capture_default_str()
      ->each(note(o.given.max_num_seqs));
  app.add_option("--posting-cost", o.posting_cost,
                 "of timed: microseconds a descriptor, in the modes that pay it; default: the\n"
                 "profile's");
  app.add_option("--serve-flag", o.serve_flags,
                 "a word for `baton serve` of every instance; again for the next: \n"
                 "--serve-flag=--threads --serve-flag=1");
  app.add_option("--router-url", o.router_url, "a running router, instead of own servers");
  app.add_option("--prefill-url", o.prefill_url,
                 "running instances; the router is started here\n"
                 "unless it is named as well");
  app.add_option("--decode-url", o.decode_url, "likewise");
}

// The article's names. Nobody needs them here: the servers say what they are.
void add_given(CLI::App& app, SweepOptions& o) {
  const char* compared = "compared with what the running prefill instance says";
  app.add_option("--prefill-tp-size", o.prefill_tp_size, compared)->envname("PREFILL_TP_SIZE");
  app.add_option("--prefill-pp-size", o.prefill_pp_size, compared)->envname("PREFILL_PP_SIZE");
  app.add_option("--prefill-engine-id", o.prefill_engine_id, compared)
      ->envname("PREFILL_ENGINE_ID");
  app.add_option("--prefill-kv-host", o.prefill_kv_host, compared)->envname("PREFILL_KV_HOST");
  app.add_option("--prefill-side-channel-port", o.prefill_side_channel_port, compared)
      ->envname("PREFILL_SIDE_CHANNEL_PORT");
}

}  // namespace

CLI::App* add_sweep(CLI::App& app, SweepOptions& options) {
  CLI::App* sweep = app.add_subcommand(
      "sweep",
      "the published experiment: every mode at every rate and length, one result file each.\n"
      "Starts and stops the servers itself; goes on where it was stopped");
  add_grid(*sweep, options);
  add_servers(*sweep, options);
  add_given(*sweep, options);
  sweep->add_option("--results-dir", options.results_dir, "of the result files")
      ->capture_default_str();
  sweep->add_flag("--force", options.force, "run again what has a result");
  sweep->add_flag("--allow-void", options.allow_void,
                  "exit with 0 although points are void (machines that cannot carry the grid)");
  sweep->add_flag("--allow-other-build", options.allow_other_build,
                  "keep results that another build, or another content of the profile, has made");
  sweep->add_flag("--dry-run", options.dry_run, "say what would run and how long it takes");
  sweep->add_flag("--disable-tqdm", options.disable_tqdm, "no progress bar");
  return sweep;
}

CLI::App* add_bench(CLI::App& app, BenchOptions& options) {
  CLI::App* bench = app.add_subcommand("bench", "load on a running server, and what came of it");
  bench->require_subcommand(1);
  CLI::App* serve = bench->add_subcommand(
      "serve",
      "open-loop load, Poisson, constant or a trace's, with the flags and the result keys of\n"
      "`vllm bench serve`; behind a Baton router also how the time of each hand-over splits");
  add_target(*serve, options);
  add_dataset(*serve, options);
  add_load(*serve, options);
  add_request(*serve, options);
  add_others(*serve, options);
  add_report(*serve, options);
  return serve;
}

}  // namespace baton::bench
