#include "serving/instance_server.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "base/boot_id.h"
#include "base/check.h"
#include "base/log.h"
#include "http/server.h"
#include "serving/answers.h"
#include "serving/completion_request.h"
#include "serving/host_info.h"
#include "serving/http_names.h"
#include "serving/instance_info.h"
#include "serving/instance_metrics.h"
#include "serving/process_limits.h"
#include "serving/version.h"
#include "wire/frame.h"

namespace baton::serving {
namespace {

using Writer = std::shared_ptr<http::ResponseWriter>;

std::string_view role_name(Role role) {
  switch (role) {
    case Role::kProducer:
      return "kv_producer";
    case Role::kConsumer:
      return "kv_consumer";
    case Role::kBoth:
      return "kv_both";
  }
  return "kv_both";
}

std::string_view mode_name(Mode mode) {
  return mode == Mode::kPush ? "push" : "pull";
}

std::string_view security_name(const Security& security) {
  if (!security.certificate_file.empty()) return "tls";
  return security.psk_file.empty() ? "none" : "psk";
}

std::size_t longest_piece(const model::Tokenizer& tokenizer) {
  std::size_t longest = 1;
  for (std::size_t i = 0; i < tokenizer.vocab_size(); ++i) {
    longest = std::max(longest, tokenizer.piece(static_cast<TokenId>(i), true).size());
  }
  return longest;
}

class InstanceServerImpl : public InstanceServer {
 public:
  explicit InstanceServerImpl(InstanceServerOptions options)
      : options_(std::move(options)), created_(unix_seconds()), log_(options_.transfer_records) {}

  ~InstanceServerImpl() override {
    if (server_) stop(Duration::zero());
  }

  Status listen() {
    http::ServerOptions server;
    server.host = options_.host;
    server.port = options_.port;
    auto started = http::Server::start(std::move(server), [this](http::Request request, Writer w) {
      handle(request, std::move(w));
    });
    if (!started) return tl::unexpected<Error>(started.error());
    server_ = std::move(*started);
    return {};
  }

  void attach(const Served& served) override {
    BATON_CHECK(!ready_);
    served_ = served;
    longest_piece_ = longest_piece(*served.tokenizer);
    ready_.store(true, std::memory_order_release);
  }

  std::uint16_t port() const override { return server_->port(); }

  void begin_stop() override {
    stopping_ = true;
    end_watches();
    if (is_loaded() && !drains_.exchange(true)) engine().drain();
  }

  std::size_t running() const override {
    const std::lock_guard lock(running_->mutex);
    return running_->ids.size();
  }

  void stop(Duration grace) override {
    begin_stop();
    wait_for_rest(grace);
    if (running() > 0) engine().abandon();
    wait_for_rest(kLastWords);
    for (const std::string& id : running_->list()) engine().abort(id);
    wait_for_rest(kLastWords);
    server_->stop(kLastWords);
  }

 private:
  // For aborted requests to be told, and for answers to leave.
  static constexpr Duration kLastWords = std::chrono::milliseconds(500);

  // The ids of requests that the engine has not ended. Shared with its callbacks, which may outlive
  // the server.
  struct Running {
    mutable std::mutex mutex;
    std::condition_variable changed;
    std::set<std::string> ids;

    void add(const std::string& id) {
      const std::lock_guard lock(mutex);
      ids.insert(id);
    }
    void remove(const std::string& id) {
      const std::lock_guard lock(mutex);
      ids.erase(id);
      changed.notify_all();
    }
    std::vector<std::string> list() const {
      const std::lock_guard lock(mutex);
      return {ids.begin(), ids.end()};
    }
  };

  void wait_for_rest(Duration longest) {
    std::unique_lock lock(running_->mutex);
    running_->changed.wait_for(lock, longest, [this] { return running_->ids.empty(); });
  }

  bool is_loaded() const { return ready_.load(std::memory_order_acquire); }
  bool can_serve() const { return is_loaded() && !stopping_; }
  engine::Engine& engine() const { return *served_.engine; }

  // Runs on the server's thread.
  void handle(const http::Request& request, Writer writer) {
    const std::string_view path = request.path;
    const bool completions = path == "/v1/completions";
    if (completions || path == "/v1/chat/completions") {
      if (request.method != "POST") return wrong_method(*writer, request, "POST");
      complete(completions ? Endpoint::kCompletions : Endpoint::kChat, request, std::move(writer));
      return;
    }
    const bool known = path == "/health" || path == "/metrics" || path == "/version" ||
                       path == "/baton/instance" || path == "/v1/models" ||
                       path == "/baton/watch" || path == "/debug/transfers";
    if (!known) return not_found(*writer, request);
    if (request.method != "GET") return wrong_method(*writer, request, "GET");
    if (path == "/health") return health(*writer);
    if (path == "/metrics") return metrics(*writer);
    if (path == "/version") return writer->respond(200, kJson, version_body());
    if (path == "/baton/instance") return writer->respond(200, kJson, to_json(describe()));
    if (path == "/baton/watch") return watch(std::move(writer));
    if (path == "/debug/transfers") return writer->respond(200, kJson, log_.page(request.query));
    models(*writer);
  }

  ApiError unavailable() const {
    ApiError error;
    error.status = 503;
    error.cause = stopping_ ? "instance_stopping" : "instance_loading";
    error.message = stopping_ ? "this instance is stopping" : "the model is still being loaded";
    if (const std::string id = engine_id(); !id.empty()) error.message += fmt::format(": {}", id);
    return error;
  }

  void health(http::ResponseWriter& writer) const {
    if (!can_serve()) return respond_error(writer, unavailable());
    if (served_.emulation == nullptr) return writer.respond(200, kJson, R"({"status":"ok"})");
    writer.respond(200, kJson,
                   fmt::format(R"({{"status":"ok","emulated":{}}})", served_.emulation->json()));
  }

  // An answer that ends with this process, or when it begins to stop: a router knows at once.
  void watch(Writer writer) {
    if (!can_serve()) return respond_error(*writer, unavailable());
    writer->start_stream(200, "text/plain");
    {
      const std::lock_guard lock(watches_mutex_);
      if (stopping_) return writer->finish();
      watches_.push_back(writer);
    }
    const http::ResponseWriter* const key = writer.get();
    writer->on_closed([this, key] {
      const std::lock_guard lock(watches_mutex_);
      std::erase_if(watches_, [key](const Writer& watch) { return watch.get() == key; });
    });
  }

  void end_watches() {
    const std::lock_guard lock(watches_mutex_);
    for (const Writer& watch : watches_) watch->finish();
    watches_.clear();
  }

  void models(http::ResponseWriter& writer) const {
    const std::uint32_t length = is_loaded() ? engine().options().max_model_len : 0;
    const std::uint32_t vocab = is_loaded() ? engine().model_config().vocab_size : 0;
    writer.respond(
        200, kJson,
        models_body(options_.model_names, created_, length, vocab, is_loaded() ? emulated() : ""));
  }

  void metrics(http::ResponseWriter& writer) const {
    if (!is_loaded()) return respond_error(writer, unavailable());
    MetricsSource source;
    source.model_name = options_.model_names.front();
    source.engine_id = engine_id().empty() ? "0" : engine_id();
    source.engine = &engine().metrics();
    source.agent = engine().agent() == nullptr ? nullptr : &engine().agent()->metrics();
    source.blocks = engine().blocks();
    source.block_size = engine().options().block_size;
    source.prefix_caching = engine().options().enable_prefix_caching;
    source.link = engine().agent() == nullptr ? nullptr : engine().agent()->link();
    source.emulation = served_.emulation;
    source.unknown_kv_keys = unknown_kv_keys_.value();
    writer.respond(200, std::string(kMetricsContentType), metrics_text(source));
  }

  // What is emulated, as one line; empty where nothing is.
  std::string emulated() const {
    return served_.emulation == nullptr ? "" : served_.emulation->text();
  }

  std::string engine_id() const {
    if (!is_loaded()) return "";
    return engine().agent() == nullptr ? "" : engine().agent()->id().engine_id;
  }

  InstanceInfo describe() const {
    InstanceInfo info;
    info.version = version();
    info.build = build_identity();
    info.host = host_;
    info.libfabric_version = libfabric_version();
    info.models = options_.model_names;
    info.ready = can_serve();
    if (!is_loaded()) return info;
    const engine::EngineOptions& options = engine().options();
    if (const Agent* agent = engine().agent(); agent != nullptr && options.agent) {
      info.engine_id = agent->id().engine_id;
      info.incarnation = agent->id().incarnation;
      info.role = role_name(options.agent->role);
      info.mode = mode_name(options.agent->mode);
      info.handover_host = agent->control_address().host;
      info.handover_port = agent->control_address().port;
      info.fabric = options.agent->fabric;
      info.fabric_provider = options.agent->fabric_provider;
      info.security = security_name(options.agent->security);
      info.allowed_peers = options.agent->security.allowed_peers;
      info.insecure = options.agent->security.insecure;
      info.bidirectional = options.bidirectional;
      info.lease_ms = static_cast<std::uint64_t>(options.agent->lease.count());
      info.protocol.oldest = wire::kVersionMin;
      info.protocol.newest =
          options.agent->protocol_max == 0 ? wire::kVersion : options.agent->protocol_max;
    }
    const model::ModelConfig& config = engine().model_config();
    info.kv.dtype = options.kv_dtype == model::KvDtype::kBfloat16 ? "bfloat16" : "float32";
    info.kv.num_layers = config.num_layers;
    info.kv.num_kv_heads = config.num_kv_heads;
    info.kv.head_dim = config.head_dim;
    info.limits = process_limits();
    info.boot_id = boot_id();
    info.weights = engine().model_config().fingerprint;
    info.kernel_family = engine().kernel_family();
    info.emulated = emulated();
    const bool recompute = options.load_failure_policy == engine::LoadFailurePolicy::kRecompute;
    info.kv_load_failure_policy = recompute ? "recompute" : "fail";
    info.block_size = options.block_size;
    info.max_model_len = options.max_model_len;
    info.max_num_seqs = options.max_num_seqs;
    info.vocab_size = config.vocab_size;
    describe_experiment(info);
    describe_load(info);
    return info;
  }

  void describe_experiment(InstanceInfo& info) const {
    const engine::EngineOptions& options = engine().options();
    info.prefix_caching = options.enable_prefix_caching;
    if (options.agent && options.agent->mode == Mode::kPull) {
      info.pull_loop = options.pull_loop == engine::PullLoop::kEngine ? "engine" : "threaded";
    }
    if (served_.threads > 0) info.threads = served_.threads;
    info.transfer_style = "baton";
    if (served_.emulation == nullptr) return;
    const Emulation& e = *served_.emulation;
    info.transfer_style = e.transfer_style;
    info.emulation = {e.profile,         e.prefill,     e.kv_bytes_scale, e.link_bytes_per_second,
                      e.posting_cost_us, e.profile_hash};
    info.kv.regions_per_layer = e.kv_regions_per_layer;
    info.kv.region_token_bytes = e.kv_region_token_bytes;
  }

  void describe_load(InstanceInfo& info) const {
    const engine::Engine::Blocks blocks = engine().blocks();
    info.blocks_free = blocks.free;
    info.blocks_used = blocks.used;
    info.blocks_quarantined = blocks.quarantined;
    info.blocks_total = blocks.total;
    const auto count = [](const Gauge& g) {
      return static_cast<std::uint64_t>(std::max<std::int64_t>(0, g.value()));
    };
    info.requests_running = count(engine().metrics().requests_running);
    info.requests_waiting = count(engine().metrics().requests_waiting);
  }

  void complete(Endpoint endpoint, const http::Request& request, Writer writer) {
    if (!can_serve()) return respond_error(*writer, unavailable());
    ApiResult<CompletionRequest> parsed = parse_completion_request(endpoint, request.body);
    if (!parsed) return respond_error(*writer, parsed.error());
    if (parsed->kv) unknown_kv_keys_.add(parsed->kv->unknown_keys);
    if (request.headers.get(kDebugHeader) == "1") {
      if (!parsed->kv) parsed->kv.emplace();
      parsed->kv->debug = true;
    }
    if (ApiResult<void> run = submit(*parsed, request, writer); !run) {
      respond_error(*writer, run.error());
    }
  }

  ApiResult<void> check_model(const CompletionRequest& request) const {
    const auto& names = options_.model_names;
    if (request.model.empty()) return {};
    if (std::find(names.begin(), names.end(), request.model) != names.end()) return {};
    return refuse(404,
                  fmt::format("The model `{}` does not exist. Served: {}", request.model,
                              fmt::join(names, ", ")),
                  "model");
  }

  static std::string too_long(std::uint32_t limit, std::string_view tokens) {
    return fmt::format(
        "This model's maximum context length is {} tokens. However, the prompt has {} tokens. "
        "Please shorten it.",
        limit, tokens);
  }

  ApiResult<std::vector<TokenId>> encode(CompletionRequest& request) const {
    const model::Tokenizer& tokenizer = *served_.tokenizer;
    if (!request.prompt_tokens.empty()) return std::move(request.prompt_tokens);
    const bool chat = request.endpoint == Endpoint::kChat;
    std::string text = std::move(request.prompt_text);
    if (chat) {
      Result<std::string> rendered = served_.chat_template->render(request.messages);
      if (!rendered) return refuse(400, rendered.error().message, "messages");
      text = std::move(*rendered);
    }
    // A text that cannot fit is not worth the time of being cut into tokens.
    const std::uint32_t limit = engine().options().max_model_len;
    const std::size_t least = text.size() / longest_piece_;
    if (least > limit) {
      return refuse(400, too_long(limit, fmt::format("at least {}", least)),
                    chat ? "messages" : "prompt");
    }
    std::vector<TokenId> tokens = tokenizer.encode(text, true);
    if (!chat && tokenizer.add_bos() && tokenizer.bos()) {
      tokens.insert(tokens.begin(), *tokenizer.bos());
    }
    return tokens;
  }

  // The prompt, and what it may grow to, against the context.
  ApiResult<std::uint32_t> token_limit(const CompletionRequest& request, std::size_t prompt) const {
    const bool chat = request.endpoint == Endpoint::kChat;
    const std::uint32_t limit = engine().options().max_model_len;
    if (prompt >= limit) {
      return refuse(400, too_long(limit, fmt::format("{}", prompt)), chat ? "messages" : "prompt");
    }
    const auto left = limit - static_cast<std::uint32_t>(prompt);
    const std::uint32_t wanted =
        request.max_tokens.value_or(chat ? left : std::min(left, kDefaultMaxTokens));
    if (wanted <= left) return wanted;
    return refuse(400,
                  fmt::format("This model's maximum context length is {} tokens. However, you "
                              "requested {} tokens ({} in the prompt, {} in the completion). "
                              "Please reduce the length of either one.",
                              limit, prompt + wanted, prompt, wanted),
                  "max_tokens");
  }

  // Whoever made the request may have been told by an instance of the other kind.
  ApiResult<void> check_mode(const KvTransferParams& kv) const {
    const std::string_view own = mode_name(engine().options().agent->mode);
    if (kv.transfer_mode.empty() || kv.transfer_mode == own) return {};
    return refuse(400,
                  fmt::format("kv_transfer_params.transfer_mode is {}, and the mode of this "
                              "instance is {}: push goes with push and pull with pull, by the same "
                              "kind of kv_connector on both",
                              kv.transfer_mode, own),
                  "kv_transfer_params.transfer_mode");
  }

  static engine::RemotePrefill prefix_in(const KeptBlocks& kept) {
    engine::RemotePrefill prefix{.transfer = kept.transfer_id, .peer = kept.peer};
    prefix.source = kept.source;
    prefix.kept_tokens = kept.tokens;
    return prefix;
  }

  ApiResult<void> set_transfer(const CompletionRequest& request, engine::Request& run,
                               AnswerContext& context) {
    if (!request.kv) return {};
    const KvTransferParams& kv = *request.kv;
    context.debug = kv.debug;
    if (!kv.do_remote_decode && !kv.do_remote_prefill) return {};
    const Agent* agent = engine().agent();
    if (agent == nullptr) {
      return refuse(
          400,
          "kv_transfer_params asks for a hand-over, and this instance was started without "
          "--kv-transfer-config",
          "kv_transfer_params");
    }
    if (ApiResult<void> fits = check_mode(kv); !fits) return fits;
    context.log = &log_;
    context.own_address = agent->control_address();
    context.own_address.engine_id = agent->id().engine_id;
    context.own_address.incarnation = agent->id().incarnation;
    run.keep_blocks = kv.keep_blocks;
    if (kv.do_remote_decode) {
      const TransferId transfer = kv.transfer_id.value_or(TransferId::random());
      context.transfer = transfer;
      run.remote_decode = engine::RemoteDecode{transfer, kv.first_token};
      context.offer = RemoteOffer{transfer, context.own_address, 1};
      if (kv.kept) run.remote_prefill = prefix_in(*kv.kept);
    } else {
      context.transfer = *kv.transfer_id;
      context.peer = kv.peer.engine_id;
      run.remote_prefill = engine::RemotePrefill{*kv.transfer_id, kv.binding, kv.peer,
                                                 kv.first_token,  kv.source,  kv.announced_token};
      run.transfer_timeout = kv.transfer_timeout;
      context.remote_prefill = true;
    }
    return {};
  }

  AnswerContext context_for(const CompletionRequest& request, const http::Request& http) const {
    AnswerContext context;
    context.head.endpoint = request.endpoint;
    context.head.id = answer_id(request.endpoint, request_name(http.headers));
    context.head.model = request.model.empty() ? options_.model_names.front() : request.model;
    context.head.created = unix_seconds();
    context.head.system_fingerprint = emulated();
    context.stream = request.stream;
    context.include_usage = request.include_usage;
    context.show_token_ids = request.return_token_ids;
    context.trace = take_trace(http.headers);
    context.engine_id = engine_id();
    context.block_size = engine().options().block_size;
    return context;
  }

  ApiResult<void> submit(CompletionRequest& request, const http::Request& http,
                         const Writer& writer) {
    if (ApiResult<void> known = check_model(request); !known) return known;
    AnswerContext context = context_for(request, http);
    engine::Request run;
    if (ApiResult<void> set = set_transfer(request, run, context); !set) return set;
    ApiResult<std::vector<TokenId>> prompt = encode(request);
    if (!prompt) return tl::unexpected<ApiError>(prompt.error());
    const ApiResult<std::uint32_t> limit = token_limit(request, prompt->size());
    if (!limit) return tl::unexpected<ApiError>(limit.error());
    context.prompt_tokens = static_cast<std::uint32_t>(prompt->size());
    run.id = fmt::format("{}-{}", context.head.id, next_request_++);
    context.request_id = run.id;
    run.prompt = std::move(*prompt);
    run.sampling = std::move(request.sampling);
    run.sampling.max_tokens = *limit;
    run.cache_salt = std::move(request.cache_salt);
    const std::string id = run.id;
    ApiError refusal;
    name_transfer(context, refusal);
    // std::function wants to be copied.
    const std::shared_ptr<Answer> answer = make_answer(std::move(context), writer);
    running_->add(id);
    const Status accepted =
        engine().submit(std::move(run), [answer, id, running = running_](engine::Output&& output) {
          const bool last = output.finish.has_value();
          answer->on_output(std::move(output));
          if (last) running->remove(id);
        });
    if (!accepted) {
      running_->remove(id);
      refusal.status = http_status(accepted.error().code);
      refusal.cause = to_string(accepted.error().code);
      refusal.message = accepted.error().message;
      return tl::unexpected<ApiError>(std::move(refusal));
    }
    // Only now: a client that is gone already must find its request there to be aborted.
    writer->on_closed([this, id] { engine().abort(id); });
    return {};
  }

  const InstanceServerOptions options_;
  const InstanceInfo::Host host_ = host_info();
  const std::int64_t created_;
  TransferLog log_;
  Served served_;
  std::size_t longest_piece_ = 1;
  std::atomic<bool> ready_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> drains_{false};
  std::uint64_t next_request_ = 0;  // server's thread
  const std::shared_ptr<Running> running_ = std::make_shared<Running>();
  Counter unknown_kv_keys_;
  std::mutex watches_mutex_;
  std::vector<Writer> watches_;
  std::unique_ptr<http::Server> server_;
};

}  // namespace

Result<std::unique_ptr<InstanceServer>> InstanceServer::start(InstanceServerOptions options) {
  BATON_CHECK(!options.model_names.empty());
  auto made = std::make_unique<InstanceServerImpl>(std::move(options));
  if (Status listening = made->listen(); !listening) {
    return tl::unexpected<Error>(listening.error());
  }
  return made;
}

}  // namespace baton::serving
