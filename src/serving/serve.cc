#include "serving/serve.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cstdlib>
#include <thread>

#include "base/log.h"
#include "engine/timed/byte_tokenizer.h"
#include "model/chat_template.h"
#include "model/gguf.h"
#include "model/model.h"
#include "model/tokenizer.h"
#include "serving/instance_server.h"
#include "serving/kv_transfer_config.h"
#include "serving/model_files.h"
#include "serving/process_limits.h"
#include "serving/timed_backend.h"

namespace baton::serving {
namespace {

using Problems = std::vector<std::string>;

std::chrono::milliseconds to_milliseconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(from_seconds(seconds));
}

void check_seconds(std::string_view flag, double value, Problems& problems) {
  const std::string problem = seconds_problem(flag, value);
  if (!problem.empty()) problems.push_back(problem);
}

void check_dtype(const std::string& dtype, engine::EngineOptions& out, Problems& problems) {
  if (dtype == "auto" || dtype == "bfloat16") {
    out.kv_dtype = model::KvDtype::kBfloat16;
  } else if (dtype == "float32" || dtype == "float") {
    out.kv_dtype = model::KvDtype::kFloat32;
  } else {
    problems.push_back(
        fmt::format("--dtype {} is not offered; known are auto, bfloat16, float32 (of the KV "
                    "cache; the weights "
                    "keep the type that they have in the file)",
                    dtype));
  }
}

void check_sizes(const ServeOptions& options, engine::EngineOptions& out, Problems& problems) {
  constexpr std::uint32_t kBlockMost = 1024;
  constexpr std::uint32_t kBlockDefault = 16;
  out.block_size = options.block_size.value_or(kBlockDefault);
  if (out.block_size == 0 || out.block_size > kBlockMost) {
    problems.push_back(fmt::format("--block-size must be from 1 to {} tokens, and is {}",
                                   kBlockMost, out.block_size));
  }
  out.max_model_len = options.max_model_len;
  if (options.max_num_seqs > 0) out.max_num_seqs = options.max_num_seqs;
  if (options.max_num_batched_tokens > 0) {
    out.max_num_batched_tokens = options.max_num_batched_tokens;
  }
  if (options.kv_cache_bytes > 0) out.kv_cache_bytes = options.kv_cache_bytes;
  if (options.tensor_parallel_size != 1) {
    problems.push_back(
        fmt::format("--tensor-parallel-size {} is not offered: this engine computes in one process "
                    "on the CPU{}; known is 1: leave the flag out",
                    options.tensor_parallel_size,
                    options.backend == "timed" ? ", and a profile is one rank of its model" : ""));
  }
}

void read_side_channel(AgentOptions& agent, Problems& problems) {
  if (const char* host = std::getenv("VLLM_NIXL_SIDE_CHANNEL_HOST"); host != nullptr) {
    agent.host = host;
  }
  const char* text = std::getenv("VLLM_NIXL_SIDE_CHANNEL_PORT");
  if (text == nullptr) return;
  const std::string_view port = text;
  const auto [stop, error] = std::from_chars(port.data(), port.data() + port.size(), agent.port);
  if (error != std::errc() || stop != port.data() + port.size()) {
    problems.push_back(
        fmt::format("VLLM_NIXL_SIDE_CHANNEL_PORT must be a port from 0 to 65535, and is {}", port));
  }
}

// A flag stands before the key of the same name in the configuration.
Security security_of(const ServeOptions& options, Security security) {
  const auto take = [](std::string& field, const std::string& flag) {
    if (!flag.empty()) field = flag;
  };
  take(security.certificate_file, options.kv_tls_cert);
  take(security.private_key_file, options.kv_tls_key);
  take(security.ca_file, options.kv_tls_ca);
  take(security.psk_file, options.kv_psk_file);
  if (!options.kv_allowed_peers.empty()) security.allowed_peers = options.kv_allowed_peers;
  security.insecure = security.insecure || options.insecure;
  return security;
}

// Flags of the hand-over, without one: they would do nothing.
void check_no_handover(const ServeOptions& options, Problems& problems) {
  const ServeOptions untold;
  refuse_given({{"--fabric", options.fabric != untold.fabric},
                {"--fabric-provider", options.fabric_provider != untold.fabric_provider},
                {"--fabric-address", !options.fabric_address.empty()},
                {"--kv-tls-cert", !options.kv_tls_cert.empty()},
                {"--kv-tls-key", !options.kv_tls_key.empty()},
                {"--kv-tls-ca", !options.kv_tls_ca.empty()},
                {"--kv-psk-file", !options.kv_psk_file.empty()},
                {"--kv-allowed-peers", !options.kv_allowed_peers.empty()},
                {"--insecure", options.insecure}},
               "is about the hand-over, which needs --kv-transfer-config", problems);
}

AgentOptions agent_options(const ServeOptions& options, const KvTransferConfig& config,
                           Problems& problems) {
  AgentOptions agent;
  read_side_channel(agent, problems);
  agent.engine_id = config.engine_id.empty()
                        ? "baton-" + TransferId::random().to_string().substr(0, 12)
                        : config.engine_id;
  agent.role = config.role;
  agent.mode = config.mode;
  if (config.host) agent.host = *config.host;
  if (config.port) agent.port = *config.port;
  agent.fabric =
      options.fabric == "auto" && !config.fabric.empty() ? config.fabric : options.fabric;
  agent.fabric_provider = options.fabric_provider;
  agent.fabric_address = options.fabric_address;
  agent.security = security_of(options, config.security);
  agent.peer_timeout = to_milliseconds(options.peer_timeout);
  agent.lease = config.lease.value_or(to_milliseconds(options.lease));
  // A lease survives the loss of several renewals.
  constexpr int kRenewals = 6;
  agent.lease_renewal = std::max(std::chrono::milliseconds(1), agent.lease / kRenewals);
  agent.transfer_timeout = to_milliseconds(options.transfer_timeout);
  agent.verify_blocks = options.verify_blocks;
  return agent;
}

// Of pull mode alone: elsewhere it would do nothing.
void check_pull_loop(const ServeOptions& options, engine::EngineOptions& out, Problems& problems) {
  if (options.pull_loop.empty()) return;
  if (options.pull_loop != "engine" && options.pull_loop != "threaded") {
    problems.push_back(
        fmt::format("--pull-loop must be engine or threaded, and is {}", options.pull_loop));
  } else if (!out.agent || out.agent->mode != Mode::kPull) {
    problems.push_back(
        fmt::format("--pull-loop {} is about pull, which needs kv_connector BatonPullConnector or "
                    "NixlConnector",
                    options.pull_loop));
  }
  out.pull_loop =
      options.pull_loop == "engine" ? engine::PullLoop::kEngine : engine::PullLoop::kThreaded;
}

int thread_count(const ServeOptions& options) {
  if (options.threads > 0) return static_cast<int>(options.threads);
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

void add_lines(std::string_view prefix, std::string_view lines, Problems& problems) {
  while (true) {
    const std::size_t end = lines.find('\n');
    problems.push_back(fmt::format("{}{}", prefix, lines.substr(0, end)));
    if (end == std::string_view::npos) return;
    lines.remove_prefix(end + 1);
  }
}

struct Loaded {
  std::unique_ptr<model::Model> model;
  std::shared_ptr<const model::Tokenizer> tokenizer;
  std::unique_ptr<model::ChatTemplate> chat_template;
};

Result<Loaded> load_timed(const TimedBackend& backend) {
  auto model = make_timed_model(backend);
  if (!model) return tl::unexpected<Error>(model.error());
  return Loaded{std::move(*model), std::make_shared<engine::timed::ByteTokenizer>(),
                std::make_unique<engine::timed::PlainChat>()};
}

Result<Loaded> load_file(const std::string& path, const model::ModelOptions& options) {
  auto file = model::GgufFile::open(path);
  if (!file) return tl::unexpected<Error>(file.error());
  Loaded loaded;
  auto tokenizer = model::Tokenizer::load(**file);
  if (!tokenizer) return tl::unexpected<Error>(tokenizer.error());
  loaded.tokenizer = std::move(*tokenizer);
  auto model = model::Model::load(**file, options);
  if (!model) return tl::unexpected<Error>(model.error());
  loaded.model = std::move(*model);
  loaded.chat_template = model::ChatTemplate::from(**file);
  return loaded;
}

// What an instance runs on: the engine's options, and the backend that goes with them.
struct Plan {
  engine::EngineOptions engine;
  std::optional<TimedBackend> timed;
  std::string path;  // of the weights; not for the timed backend
};

Result<Loaded> load(const Plan& plan, const ServeOptions& options) {
  if (plan.timed) return load_timed(*plan.timed);
  model::ModelOptions model_options;
  model_options.threads = thread_count(options);
  model_options.kv_dtype = plan.engine.kv_dtype;
  return load_file(plan.path, model_options);
}

void log_serving(const engine::Engine& engine, const std::string& url, const std::string& name) {
  const engine::EngineOptions& options = engine.options();
  log::info("serving {} at {}: context {}, {} KV blocks of {} tokens, {}", name, url,
            options.max_model_len, engine.blocks().total, options.block_size,
            engine.kernel_family());
  if (const Agent* agent = engine.agent(); agent != nullptr) {
    const PeerAddress control = agent->control_address();
    log::info("hand-over: {} on {}:{}", agent->id().to_string(), control.host, control.port);
  }
}

Exit exit_of(Errc code) {
  if (code == Errc::kInvalidArgument || code == Errc::kUnsupported) return Exit::kUsage;
  return code == Errc::kAlreadyExists ? Exit::kListen : Exit::kOther;  // its control port
}

// P's finished blocks count as running until D has taken them, or until nobody renews them.
void stop_serving(const ServeOptions& options, InstanceServer& server) {
  server.begin_stop();
  const DrainEnd end =
      drain(from_seconds(options.drain_timeout), [&server] { return server.running() == 0; });
  if (end == DrainEnd::kSecondSignal) end_within(kHurry);
  if (end != DrainEnd::kIdle) {
    log::warning("{}: {} requests are aborted",
                 end == DrainEnd::kTimeUp ? "the time to drain is up" : "a second signal",
                 server.running());
  }
  server.stop(Duration::zero());
}

// From a listening server to the stop signal.
Exit serve_model(const ServeOptions& options, const Plan& plan, const std::string& name,
                 InstanceServer& server) {
  Result<Loaded> loaded = load(plan, options);
  if (!loaded) {
    complain("baton serve", loaded.error().message);
    return Exit::kModel;
  }
  auto engine = engine::Engine::create(std::move(loaded->model), loaded->tokenizer, plan.engine);
  if (!engine) {
    complain("baton serve", engine.error().message);
    return exit_of(engine.error().code);
  }
  std::optional<Emulation> emulation;
  if (plan.timed) {
    emulation = plan.timed->emulation(plan.engine);
    log::warning("{}", emulation->text());
  }
  server.attach({engine->get(), loaded->tokenizer.get(), loaded->chat_template.get(),
                 emulation ? &*emulation : nullptr,
                 plan.timed ? 0 : static_cast<std::uint32_t>(thread_count(options))});
  log_serving(**engine, base_url(options.host, server.port()), name);
  const int signal = wait_for_stop();
  log::info("signal {}: no new requests, running ones may take {} s", signal,
            options.drain_timeout);
  stop_serving(options, server);
  return Exit::kOk;
}

Result<Plan> make_plan(const ServeOptions& options) {
  Plan plan;
  engine::EngineOptions& out = plan.engine;
  Problems problems;
  plan.timed = timed_backend(options, problems);
  check_dtype(options.dtype, out, problems);
  check_sizes(options, out, problems);
  check_seconds("--peer-timeout", options.peer_timeout, problems);
  check_seconds("--lease", options.lease, problems);
  check_seconds("--transfer-timeout", options.transfer_timeout, problems);
  check_seconds("--drain-timeout", options.drain_timeout, problems);
  out.poison_blocks = options.poison_blocks;
  out.enable_prefix_caching = options.prefix_caching;
  if (options.kv_transfer_config.empty()) {
    check_no_handover(options, problems);
  } else {
    const auto config = parse_kv_transfer_config(options.kv_transfer_config);
    if (!config) {
      add_lines("--kv-transfer-config: ", config.error().message, problems);
    } else {
      out.load_failure_policy = config->load_failure_policy;
      out.bidirectional = config->bidirectional;
      out.kept_blocks_max = config->kept_blocks_max;
      out.kv_recompute_threshold = config->kv_recompute_threshold;
      out.agent = agent_options(options, *config, problems);
    }
  }
  check_pull_loop(options, out, problems);
  if (plan.timed) apply(*plan.timed, options, out);
  if (problems.empty()) return plan;
  return fail(Errc::kInvalidArgument, fmt::format("{}", fmt::join(problems, "\n")));
}

}  // namespace

Result<engine::EngineOptions> engine_options(const ServeOptions& options) {
  auto plan = make_plan(options);
  if (!plan) return tl::unexpected<Error>(plan.error());
  return std::move(plan->engine);
}

Exit run_serve(const ServeOptions& options) {
  raise_open_files();
  auto plan = make_plan(options);
  if (!plan) {
    complain("baton serve", plan.error().message);
    // With the rest: a command line that was written for another server has both kinds of fault.
    const bool needs_file = options.backend == "cpu" && !options.model.empty();
    const auto path = needs_file ? find_model(options.model) : Result<std::string>("");
    if (!path) complain("baton serve", path.error().message);
    return Exit::kUsage;
  }
  if (!plan->timed && options.model.empty()) {
    complain("baton serve", "MODEL is missing: a GGUF file, or the name smollm2");
    return Exit::kUsage;
  }
  if (!plan->timed) {
    Result<std::string> path = find_model(options.model);
    if (!path) {
      complain("baton serve", path.error().message);
      return Exit::kModel;
    }
    plan->path = std::move(*path);
  }
  if (plan->engine.agent) log::set_name(plan->engine.agent->engine_id);
  warn_if_exposed(options.host, "the HTTP server");
  InstanceServerOptions server_options;
  server_options.host = options.host;
  server_options.port = options.port;
  server_options.transfer_records = options.transfer_records;
  server_options.model_names = options.served_model_names;
  if (server_options.model_names.empty()) {
    server_options.model_names = {options.model.empty() && plan->timed ? plan->timed->profile.name
                                                                       : options.model};
  }
  const std::string name = server_options.model_names.front();
  auto server = InstanceServer::start(std::move(server_options));
  if (!server) {
    complain("baton serve", server.error().message);
    return Exit::kListen;
  }
  announce_port(options.announce_fd, (*server)->port());
  return serve_model(options, *plan, name, **server);
}

}  // namespace baton::serving
