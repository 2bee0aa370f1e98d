// The `baton` command line: flags and wiring only. What the commands do is in serving/.
#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "base/nearest.h"
#include "bench/flags.h"
#include "bench/plot/plot.h"
#include "bench/serve_command.h"
#include "bench/sweep_command.h"
#include "serving/doctor.h"
#include "serving/route.h"
#include "serving/serve.h"
#include "serving/up.h"
#include "serving/version.h"
#include "sim/flags.h"

namespace {

using baton::bench::plot::PlotOptions;
using baton::serving::DoctorOptions;
using baton::serving::Exit;
using baton::serving::RouteOptions;
using baton::serving::ServeOptions;
using baton::serving::UpOptions;

constexpr char kAbout[] =
    "Baton: LLM serving with prefill and decode in separate processes.\n"
    "\n"
    "The prefill instance computes a prompt and pushes its KV cache into the decode instance's\n"
    "memory; a router starts both at once and answers as one OpenAI-compatible server. With\n"
    "BatonPullConnector on both the decode instance, chosen later, reads it instead.\n"
    "\n"
    "  baton up                          all three on this machine; prints a curl line to try\n"
    "\n"
    "  baton serve MODEL --port 8100 --kv-transfer-config \\\n"
    "    '{\"kv_connector\": \"BatonConnector\", \"kv_role\": \"kv_producer\"}'       prefill\n"
    "  baton serve MODEL --port 8200 --kv-transfer-config \\\n"
    "    '{\"kv_connector\": \"BatonConnector\", \"kv_role\": \"kv_consumer\"}'       decode\n"
    "  baton route --prefill http://127.0.0.1:8100 --decode http://127.0.0.1:8200\n"
    "  baton doctor http://127.0.0.1:8100 http://127.0.0.1:8200               do they fit?\n"
    "\n"
    "  baton plot --results-dir DIR      a sweep's figures, and a page that explains every point\n"
    "\n"
    "Without --kv-transfer-config `baton serve` answers requests alone.\n"
    "`baton COMMAND --help` lists a command's flags.";

constexpr char kFooter[] =
    "Exit codes: 0 stopped as asked; 1 other trouble; 2 a flag, value or configuration is wrong;\n"
    "3 the model's weights are missing or unreadable; 4 a port is in use or cannot be listened "
    "on.\n"
    "Environment: BATON_LOG_LEVEL (debug, info, warning, error, off), BATON_SMOLLM2 (its GGUF "
    "file),\n"
    "BATON_MODELS (folder of models), BATON_CHROMIUM and BATON_UPLOT (of `baton plot`), "
    "VLLM_NIXL_SIDE_CHANNEL_HOST and _PORT (hand-over control).";

constexpr char kModelHelp[] =
    "a GGUF file, or smollm2 (found in BATON_SMOLLM2, BATON_MODELS or build/models)";

constexpr char kServeModelHelp[] =
    "a GGUF file, or smollm2 (found in BATON_SMOLLM2, BATON_MODELS or build/models); with "
    "--backend\n"
    "timed the profile, or with --profile a name for the API";

void add_transfer_records(CLI::App& app, std::size_t& records) {
  app.add_option("--transfer-records", records,
                 "hand-overs that GET /debug/transfers has, the latest ones")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 20))
      ->capture_default_str();
}

// 0 would be taken for "not given", and what is beyond 64 bits for the largest number.
const CLI::Validator kAtLeastOne(
    [](std::string& text) -> std::string {
      std::uint64_t value = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      if (error == std::errc::result_out_of_range) return "is beyond 64 bits: " + text;
      const bool is_zero = error == std::errc() && end == text.data() + text.size() && value == 0;
      return is_zero ? "must be at least 1, and is 0" : "";
    },
    "");

// Of an instance that computes nothing.
void add_timed_flags(CLI::App& app, ServeOptions& options) {
  app.add_option("--backend", options.backend,
                 "cpu, or timed: emulated, steps take what a profile says and KV is a pattern")
      ->capture_default_str();
  app.add_option(
      "--profile", options.profile,
      "timed: a file, or the name of one in BATON_PROFILES or profiles/; default: MODEL");
  app.add_option("--kv-bytes-scale", options.kv_bytes_scale,
                 "timed: the bytes of a token's KV are divided by this; default: the profile's");
  app.add_option("--prefill", options.prefill,
                 "timed: computed (default), or cached: prompts are found in a prefix cache");
  app.add_option("--transfer-style", options.transfer_style,
                 "timed: baton (default); published: block by block, each at the profile's price,\n"
                 "and in push the hand-over begins and is seen at engine steps;\n"
                 "published-merged: likewise, neighbouring blocks as one");
  app.add_option("--link-rate", options.link_rate,
                 "timed: bytes a second that this instance sends, after scaling; default: the\n"
                 "profile's, divided by the scale");
  app.add_option("--posting-cost", options.posting_cost,
                 "timed: microseconds a descriptor, paid by the published styles and by\n"
                 "--pull-loop engine; default: the profile's; 0 shows what remains without it");
}

// Flags that `up` hands on to both instances, word for word.
void add_shared_flags(CLI::App& app, ServeOptions& options) {
  app.add_option("--served-model-name", options.served_model_names,
                 "name(s) in the API; default: MODEL as typed");
  app.add_option("--dtype", options.dtype, "KV cache: auto (bfloat16), bfloat16, float32")
      ->capture_default_str();
  app.add_option("--block-size", options.block_size,
                 "tokens a KV block; default: 16, timed: the profile's");
  app.add_option("--max-model-len", options.max_model_len,
                 "context in tokens; default: the model's")
      ->check(kAtLeastOne);
  app.add_option("--max-num-seqs", options.max_num_seqs, "requests that run at once; default: 64")
      ->check(kAtLeastOne);
  app.add_option("--max-num-batched-tokens", options.max_num_batched_tokens,
                 "tokens a step; longer prompts are cut into chunks; default: 512")
      ->check(kAtLeastOne);
  app.add_option("--threads", options.threads, "compute threads; default (0): one a core")
      ->check(CLI::Range(0, 1024));
  app.add_option("--kv-cache-memory-bytes", options.kv_cache_bytes,
                 "at most this much KV cache; default: 1 GiB")
      ->check(kAtLeastOne);
  app.add_flag(
      "--enable-prefix-caching,!--no-enable-prefix-caching", options.prefix_caching,
      "requests that begin alike share the KV of their beginning (default); what a decode\n"
      "instance has already is not handed over again");
  app.add_option(
         "--fabric", options.fabric,
         "what carries KV: auto (shm where the peer is on this host, else libfabric), shm,\n"
         "libfabric")
      ->capture_default_str();
  app.add_option("--fabric-provider", options.fabric_provider,
                 "libfabric's: tcp, tcp;ofi_rxm; efa and verbs;ofi_rxm have never been run")
      ->capture_default_str();
  app.add_option("--fabric-address", options.fabric_address,
                 "address or interface that libfabric uses; default: the control channel's");
  app.add_option("--pull-loop", options.pull_loop,
                 "pull, decode: who prepares and posts the reads: threaded (default; beside the\n"
                 "engine) or engine (its step waits, as vLLM's pull connector does)");
  app.add_option("--kv-psk-file", options.kv_psk_file,
                 "TLS of the hand-over's control channel by a pre-shared key: a file with lines\n"
                 "IDENTITY:HEX (`openssl rand -hex 32`), readable by its owner only");
  app.add_option("--kv-tls-cert", options.kv_tls_cert,
                 "or by certificates on both sides (PEM); they name the engine id");
  app.add_option("--kv-tls-key", options.kv_tls_key, "the certificate's private key");
  app.add_option("--kv-tls-ca", options.kv_tls_ca, "who issues the certificates of this pool");
  app.add_option("--kv-allowed-peers", options.kv_allowed_peers,
                 "where a decode instance may connect to: HOST, HOST:PORT, NETWORK/BITS[:PORT];\n"
                 "default: this host");
  app.add_flag(
      "--insecure", options.insecure,
      "let the control channel leave this host, and other hosts reach the fabric, without keys; "
      "then anywhere by default");
  app.add_option("--peer-timeout", options.peer_timeout,
                 "seconds without a word until a peer counts as silent")
      ->capture_default_str();
  app.add_option("--lease", options.lease, "seconds that finished blocks are held without renewal")
      ->capture_default_str();
  app.add_option("--transfer-timeout", options.transfer_timeout,
                 "seconds that a decode instance waits for a word on its registration")
      ->capture_default_str();
  app.add_flag("--verify-blocks", options.verify_blocks,
               "debug: hash every block on both sides; unlike hashes fail the hand-over");
  app.add_flag("--poison-blocks", options.poison_blocks,
               "debug: fill blocks with a pattern before they are granted");
}

void add_announce(CLI::App& app, int& fd) {
  app.add_option("--announce-fd", fd)->group("");
}

CLI::App* add_serve(CLI::App& app, ServeOptions& options) {
  CLI::App* serve = app.add_subcommand("serve", "one instance: prefill, decode, or both");
  serve->add_option("model", options.model, kServeModelHelp);
  serve->add_option("--host", options.host, "address to listen on")->capture_default_str();
  serve->add_option("--port", options.port, "0: any free one")->capture_default_str();
  add_shared_flags(*serve, options);
  add_timed_flags(*serve, options);
  serve->add_option("--tensor-parallel-size", options.tensor_parallel_size, "1 in this release")
      ->capture_default_str();
  serve
      ->add_option(
          "--kv-transfer-config", options.kv_transfer_config,
          "JSON with vLLM's keys. kv_connector: BatonConnector or NixlPushConnector (push),\n"
          "BatonPullConnector or NixlConnector (pull), the same kind on both sides; kv_role:\n"
          "kv_producer (prefill), kv_consumer (decode), kv_both; engine_id; kv_ip and kv_port of "
          "the\n"
          "control channel (default 127.0.0.1, any free port); kv_load_failure_policy: fail, "
          "recompute")
      ->check([](const std::string& text) {  // a shell's variable that is not set
        return text.empty() ? std::string("is empty; without a hand-over leave the flag out")
                            : std::string();
      });
  serve
      ->add_option("--drain-timeout", options.drain_timeout,
                   "seconds that running requests may take after SIGTERM")
      ->capture_default_str();
  add_transfer_records(*serve, options.transfer_records);
  add_announce(*serve, options.announce_fd);
  return serve;
}

CLI::App* add_route(CLI::App& app, RouteOptions& options) {
  CLI::App* route =
      app.add_subcommand("route", "the router: one API over prefill and decode instances");
  route->add_option("--prefill", options.prefill, "URLs of prefill instances")->required();
  route->add_option("--decode", options.decode, "URLs of decode instances")->required();
  route
      ->add_option("--first-token", options.first_token,
                   "who gives the first token: prefill (at once) or decode (after the hand-over)")
      ->capture_default_str();
  route
      ->add_option("--mode", options.mode,
                   "push (both legs at once), pull (decode is chosen once prefill is done), or "
                   "auto: what\nthe instances say, as long as all say the same")
      ->capture_default_str();
  route->add_option("--decode-slots", options.decode_slots,
                    "pull: requests at one decode instance; more wait here, the lowest `priority` "
                    "first;\ndefault: twice its --max-num-seqs");
  route
      ->add_option("--conversations", options.conversations,
                   "pull with bidirectional_kv_xfer: chats whose kept KV is remembered for their "
                   "next turn; 0: none\nis kept")
      ->capture_default_str();
  route->add_option("--host", options.host, "address to listen on")->capture_default_str();
  route->add_option("--port", options.port, "0: any free one")->capture_default_str();
  route
      ->add_option("--request-timeout", options.request_timeout,
                   "seconds to a stream's first token, or to a whole plain answer")
      ->capture_default_str();
  route->add_option("--idle-timeout", options.idle_timeout, "longest silence of a stream, seconds")
      ->capture_default_str();
  route->add_option("--connect-timeout", options.connect_timeout, "to an instance, seconds")
      ->capture_default_str();
  route
      ->add_option("--peer-timeout", options.peer_timeout,
                   "seconds without an answer until an instance counts as silent")
      ->capture_default_str();
  route->add_option("--transfer-timeout", options.transfer_timeout,
                    "seconds that a decode instance waits for a word of prefill; default: its own "
                    "flag");
  route
      ->add_option("--drain-timeout", options.drain_timeout,
                   "seconds that running requests may take after SIGTERM")
      ->capture_default_str();
  add_transfer_records(*route, options.transfer_records);
  add_announce(*route, options.announce_fd);
  return route;
}

CLI::App* add_doctor(CLI::App& app, DoctorOptions& options) {
  CLI::App* doctor = app.add_subcommand(
      "doctor",
      "checks that a prefill and a decode instance fit together, and says what to change");
  doctor->add_option("prefill", options.prefill, "URL of the prefill instance")->required();
  doctor->add_option("decode", options.decode, "URL of the decode instance")->required();
  doctor->add_option("--router", options.router, "URL of the router, to be checked as well");
  doctor->add_option("--model", options.model,
                     "the name that clients ask for, to be checked as well");
  doctor->add_option("--timeout", options.timeout, "seconds for each step")->capture_default_str();
  doctor->add_flag("--json", options.json,
                   "for scripts; exit code 0: nothing failed, 1: a check "
                   "failed, 2: wrong use");
  const char* as_there = "of the side channel, as `baton serve` has it";
  doctor->add_option("--kv-psk-file", options.security.psk_file, as_there);
  doctor->add_option("--kv-tls-cert", options.security.certificate_file, as_there);
  doctor->add_option("--kv-tls-key", options.security.private_key_file, as_there);
  doctor->add_option("--kv-tls-ca", options.security.ca_file, as_there);
  doctor->add_option("--kv-allowed-peers", options.security.allowed_peers, as_there);
  doctor->add_flag("--insecure", options.security.insecure, as_there);
  return doctor;
}

// Instance flags are parsed for their errors, then handed on as typed.
CLI::App* add_up(CLI::App& app, UpOptions& options, ServeOptions& shared) {
  CLI::App* up =
      app.add_subcommand("up", "prefill, decode and router on this machine, until Ctrl-C");
  up->add_option("model", options.model, kModelHelp)->capture_default_str();
  up->add_option("--host", options.host, "address of the router")->capture_default_str();
  up->add_option("--port", options.port, "of the router; 0: any free one")->capture_default_str();
  up->add_option("--prefill-port", options.prefill_port, "0: any free one")->capture_default_str();
  up->add_option("--decode-port", options.decode_port, "0: any free one")->capture_default_str();
  up->add_option("--first-token", options.first_token, "prefill or decode")
      ->check(CLI::IsMember({"prefill", "decode"}))
      ->capture_default_str();
  up->add_option("--mode", options.mode, "push or pull")
      ->check(CLI::IsMember({"push", "pull"}))
      ->capture_default_str();
  up->add_option("--kv-load-failure-policy", options.kv_load_failure_policy,
                 "after a failed hand-over: fail or recompute")
      ->check(CLI::IsMember({"fail", "recompute"}))
      ->capture_default_str();
  up->add_option("--drain-timeout", options.drain_timeout,
                 "seconds that running requests may take after Ctrl-C")
      ->capture_default_str();
  add_shared_flags(*up, shared);
  return up;
}

CLI::App* add_plot(CLI::App& app, PlotOptions& options) {
  CLI::App* plot = app.add_subcommand(
      "plot", "figures of a sweep's results (SVG, PNG), and a page that explains every point");
  plot->add_option("--results-dir", options.results_dir,
                   "folder of <mode>_qps<q>_in<i>_out<o>_iter<n>.json files")
      ->required();
  plot->add_option("--metric", options.metrics,
                   "ttft, tpot, second-token, goodput, handover; several: a figure each")
      ->delimiter(',')
      ->capture_default_str();
  plot->add_option("--stat", options.stat, "mean, median, p90, p99")->capture_default_str();
  plot->add_option("--modes", options.modes, "only these, as a,b; default: all")->delimiter(',');
  plot->add_option("--compare", options.compare_dir,
                   "a second folder of the same grid, drawn dashed and hollow");
  plot->add_option("--out", options.out_dir,
                   "folder to write to; default: figures in the results'");
  plot->add_option("--y-axis", options.y_axis, "of the figures: linear, log")
      ->capture_default_str();
  plot->add_option("--theme", options.theme, "of the figures: light, dark")->capture_default_str();
  plot->add_option("--requests", options.requests,
                   "time lines of single requests a result that the page carries")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  plot->add_option("--chromium", options.chromium,
                   "program that draws SVG and PNG; default: BATON_CHROMIUM, or the installed one");
  return plot;
}

std::vector<std::string> shared_flags_as_typed(const CLI::App& up) {
  CLI::App probe;
  ServeOptions ignored;
  add_shared_flags(probe, ignored);
  std::vector<std::string> flags;
  for (const CLI::Option* known : probe.get_options()) {
    const CLI::Option* given = up.get_option_no_throw(known->get_name());
    if (known->get_name() == "--help" || given == nullptr || given->count() == 0) continue;
    flags.push_back(given->get_name());
    if (known->get_items_expected_max() == 0) {  // a switch, or its negation
      if (given->results().back() == "false") flags.back() += "=false";
      continue;
    }
    for (const std::string& value : given->results()) flags.push_back(value);
  }
  return flags;
}

// CLI11 would only say that a command is missing.
bool is_unknown_command(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || app.get_option_no_throw(argv[1]) != nullptr) return false;
  std::string known;
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->get_name() == argv[1]) return false;
    known += (known.empty() ? "" : ", ") + command->get_name();
  }
  std::fprintf(stderr, "baton: unknown %s %s; known commands are %s\n",
               argv[1][0] == '-' ? "flag" : "command", argv[1], known.c_str());
  return true;
}

std::string meant_flag(const CLI::App& command, const std::string& typed) {
  std::vector<std::string> known;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  const std::string flag = typed.substr(0, typed.find('='));
  const std::string nearest = flag.starts_with("-") ? baton::nearest_word(flag, known) : "";
  return nearest.empty() ? "" : "; the nearest flag is " + nearest;
}

// Other spellings of `vllm serve`, and flags of its that name something which is not here.
struct Elsewhere {
  std::string_view flag;
  std::string_view instead;
};
constexpr Elsewhere kElsewhere[] = {
    {"-tp", "say --tensor-parallel-size; known is 1"},
    {"-pp", "this engine computes in one process: leave it out"},
    {"--pipeline-parallel-size", "this engine computes in one process: leave it out"},
    {"-dp", "every replica is an instance of its own, which the router is told of"},
    {"--data-parallel-size",
     "every replica is an instance of its own, which the router is told of"},
    {"--model", "MODEL is the word behind `serve`"},
    {"--gpu-memory-utilization",
     "there is no GPU here; --kv-cache-memory-bytes bounds the KV cache"},
    {"--kv-cache-dtype", "--dtype is the KV cache's, and the weights keep the type of their file"},
};

std::string elsewhere(const std::string& typed) {
  const std::string_view flag = std::string_view(typed).substr(0, typed.find('='));
  if (flag.starts_with("--kv-transfer-config.")) {
    return "; --kv-transfer-config takes all its keys as one JSON object";
  }
  for (const Elsewhere& one : kElsewhere) {
    if (one.flag == flag) return "; " + std::string(one.instead);
  }
  return "";
}

// CLI11 names left-over arguments last to first, and does not say what a value should have been.
std::string fault(const CLI::App& command, const CLI::ParseError& error) {
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    const std::vector<std::string> left = command.remaining();
    const bool is_serve =
        command.get_name() == "serve";  // `up` and `route` lack what is named there
    std::string meant = is_serve && !left.empty() ? elsewhere(left.front()) : "";
    if (meant.empty() && !left.empty()) meant = meant_flag(command, left.front());
    return "unknown: " + CLI::detail::join(left, " ") + meant;
  }
  const std::string text = error.what();
  constexpr std::string_view kAgain = ": At Most 1 required but received ";
  if (const auto at = text.find(kAgain); at != std::string::npos) {
    return text.substr(0, at) + " is given " + text.substr(at + kAgain.size()) + " times";
  }
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) {
    return text + ": not a number, or out of range";
  }
  return text;
}

int report(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
  const CLI::App* at = &app;
  std::string who = "baton";
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    who += " " + at->get_name();
  }
  const CLI::App& command = *at;
  std::fprintf(stderr, "%s: %s\n`%s --help` lists %s.\n", who.c_str(),
               fault(command, error).c_str(), who.c_str(),
               command.get_subcommands({}).empty() ? "the flags" : "the commands");
  return static_cast<int>(Exit::kUsage);
}

int run(int argc, char** argv) {
  CLI::App app(kAbout, "baton");
  app.footer(kFooter);
  app.set_version_flag("--version", "baton " + baton::serving::version() + " (build " +
                                        baton::serving::build_identity() + ")");
  app.require_subcommand(1);
  ServeOptions serve_options;
  RouteOptions route_options;
  UpOptions up_options;
  DoctorOptions doctor_options;
  ServeOptions shared;
  const CLI::App* serve = add_serve(app, serve_options);
  const CLI::App* route = add_route(app, route_options);
  const CLI::App* up = add_up(app, up_options, shared);
  const CLI::App* doctor = add_doctor(app, doctor_options);
  baton::sim::SimOptions sim_options;
  PlotOptions plot_options;
  const CLI::App* plot = add_plot(app, plot_options);
  CLI::App* sim = app.add_subcommand("sim", baton::sim::kSimAbout);
  baton::sim::add_flags(*sim, sim_options);
  baton::bench::BenchOptions bench_options;
  const CLI::App* bench = baton::bench::add_bench(app, bench_options);
  baton::bench::SweepOptions sweep_options;
  const CLI::App* sweep = baton::bench::add_sweep(app, sweep_options);
  if (is_unknown_command(app, argc, argv)) return static_cast<int>(Exit::kUsage);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return report(app, error);
  }
  if (sim->parsed()) return baton::sim::run_sim(sim_options);
  if (plot->parsed()) return baton::bench::plot::run_plot(plot_options);
  if (bench->parsed()) {
    bench_options.as_typed.assign(argv + 1, argv + argc);
    return static_cast<int>(baton::bench::run_bench_serve(bench_options));
  }
  if (sweep->parsed()) {
    sweep_options.as_typed.assign(argv + 1, argv + argc);
    return static_cast<int>(baton::bench::run_sweep(sweep_options));
  }
  baton::serving::hold_stop_signals();
  Exit exit = Exit::kOther;
  if (serve->parsed()) exit = baton::serving::run_serve(serve_options);
  if (doctor->parsed()) exit = baton::serving::run_doctor(doctor_options);
  if (route->parsed()) exit = baton::serving::run_route(route_options);
  if (up->parsed()) {
    up_options.serve_flags = shared_flags_as_typed(*up);
    up_options.model_names = shared.served_model_names;
    exit = baton::serving::run_up(up_options);
  }
  return static_cast<int>(exit);
}

}  // namespace

// What nothing else has turned into a sentence, such as memory or threads that cannot be had.
int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fputs("baton: out of memory\n", stderr);
    return static_cast<int>(Exit::kOther);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "baton: %s\n", error.what());
    return static_cast<int>(Exit::kOther);
  }
}
