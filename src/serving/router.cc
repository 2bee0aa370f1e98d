#include "serving/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/failure_log.h"
#include "base/random.h"
#include "http/client.h"
#include "http/server.h"
#include "serving/answers.h"
#include "serving/completion_request.h"
#include "serving/http_names.h"
#include "serving/instance_metrics.h"
#include "serving/json.h"
#include "serving/leg_messages.h"
#include "serving/relay.h"
#include "serving/route_bounds.h"
#include "serving/router_metrics.h"
#include "serving/trace_page.h"
#include "serving/upstream_list.h"
#include "serving/version.h"

namespace baton::serving {
namespace {

using Writer = std::shared_ptr<http::ResponseWriter>;

constexpr Duration kTickIdle = std::chrono::seconds(1);
constexpr Duration kStopPause = std::chrono::milliseconds(5);

class RouterImpl : public Router {
 public:
  explicit RouterImpl(RouterOptions options)
      : options_(std::move(options)),
        created_(unix_seconds()),
        conversations_(options_.conversations_max),
        log_(options_.transfer_records),
        client_(http::Client::start()),
        pool_(
            options_.upstreams, *client_,
            [this](std::size_t index, const std::string& reason) {
              for (const auto& relay : relays()) relay->on_silent(index, reason);
            },
            [this] { wake_timer(); }) {}

  ~RouterImpl() override {
    stop(Duration::zero());
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    wake_.notify_all();
    if (timer_.joinable()) timer_.join();
    client_.reset();  // its callbacks use the pool and the relays
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
    timer_ = std::thread([this] { run_timer(); });
    return {};
  }

  std::uint16_t port() const override { return server_->port(); }
  bool ready() const override { return pool_.has_both(); }

  void begin_stop() override { stopping_ = true; }

  std::size_t running() const override {
    return static_cast<std::size_t>(std::max<std::int64_t>(0, metrics_.running.value()));
  }

  void stop(Duration grace) override {
    begin_stop();
    const Time until = now() + grace;
    while (running() > 0 && now() < until) std::this_thread::sleep_for(kStopPause);
    {
      // The places that the cancelled ones leave are not for those that are cancelled next.
      const std::lock_guard lock(placing_);
      cancelling_ = true;
    }
    for (const auto& relay : relays()) relay->cancel();
    constexpr Duration kLastWords = std::chrono::milliseconds(500);
    if (server_) server_->stop(kLastWords);
  }

 private:
  std::vector<std::shared_ptr<Relay>> relays() const {
    const std::lock_guard lock(mutex_);
    return relays_;
  }

  void wake_timer() {
    {
      const std::lock_guard lock(mutex_);
      must_look_ = true;
    }
    wake_.notify_all();
  }

  // A relay is never asked with the lock held: it may be waking this timer with its own.
  void run_timer() {
    while (true) {
      const std::vector<std::shared_ptr<Relay>> running = relays();
      const Time at = now();
      pool_.tick(at);
      place_waiting(running, at);
      std::vector<std::shared_ptr<Relay>> over;
      for (const auto& relay : running) {
        relay->on_time(at);
        if (relay->is_over()) over.push_back(relay);
      }
      const Time next =
          std::min(pool_.next_tick(), at + (running.empty() ? kTickIdle : kRouteTick));
      std::unique_lock lock(mutex_);
      for (const auto& relay : over) std::erase(relays_, relay);
      wake_.wait_until(lock, next, [this] { return closing_ || must_look_; });
      if (closing_) return;
      must_look_ = false;
    }
  }

  // Pull: the free slots of decode instances go to the lowest priority value, then to whoever came
  // first.
  void place_waiting(const std::vector<std::shared_ptr<Relay>>& running, Time at) {
    std::vector<std::pair<Relay::Waiting, Relay*>> waiting;
    for (const auto& relay : running) {
      if (const auto wants = relay->waiting()) waiting.emplace_back(*wants, relay.get());
    }
    std::sort(waiting.begin(), waiting.end(), [](const auto& a, const auto& b) {
      return std::tie(a.first.priority, a.first.arrived) <
             std::tie(b.first.priority, b.first.arrived);
    });
    {
      const std::lock_guard lock(placing_);
      for (const auto& [wants, relay] : waiting) {
        if (!cancelling_) relay->place(at);
      }
    }
    metrics_.waiting_for_decode.set(std::count_if(
        waiting.begin(), waiting.end(), [](const auto& w) { return w.second->waiting(); }));
  }

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
                       path == "/v1/models" || path == "/baton/upstreams" ||
                       path == "/debug/transfers" || path == "/debug/trace";
    if (!known) return not_found(*writer, request);
    if (request.method != "GET") return wrong_method(*writer, request, "GET");
    if (path == "/health") return health(*writer);
    if (path == "/debug/transfers") return writer->respond(200, kJson, log_.page(request.query));
    if (path == "/debug/trace") return trace(request, writer);
    if (path == "/baton/upstreams") {
      return writer->respond(200, kJson, upstreams_body(pool_.snapshot()));
    }
    if (path == "/version") return writer->respond(200, kJson, version_body());
    if (path == "/metrics") {
      return writer->respond(
          200, std::string(kMetricsContentType),
          router_metrics_text(metrics_, pool_.snapshot(), conversations_.size(now())));
    }
    writer->respond(200, kJson,
                    models_body(pool_.models(), created_, 0, vocab_size(), pool_.emulated()));
  }

  // Of the instances, which are alike; 0 while none has said.
  std::uint32_t vocab_size() const {
    for (const UpstreamPool::Snapshot& one : pool_.snapshot()) {
      if (one.up && one.info.vocab_size > 0) return one.info.vocab_size;
    }
    return 0;
  }

  // The records of all three on one time line.
  void trace(const http::Request& request, const Writer& writer) const {
    const std::string_view id = id_in(request.query);
    const std::optional<std::string> record = log_.find(id);
    if (record) return answer_trace(*record, *client_, writer);
    const auto error = refuse(
        404,
        fmt::format("no record of transfer '{}': /debug/trace?id=HEX, see /debug/transfers", id),
        "id");
    respond_error(*writer, error.value());
  }

  void health(http::ResponseWriter& writer) const {
    const std::string missing = stopping_ ? "the router is stopping" : pool_.health_text();
    if (!missing.empty()) return respond_error(writer, refuse(503, missing).value());
    Json body = {{"status", "ok"}};
    if (const std::string emulated = pool_.emulated(); !emulated.empty()) {
      body["emulated"] = emulated;
    }
    writer.respond(200, kJson, to_text(body));
  }

  void complete(Endpoint endpoint, const http::Request& request, Writer writer) {
    metrics_.requests.add();
    if (ApiResult<void> routed = route(endpoint, request, writer); !routed) {
      const ApiError& error = routed.error();
      (error.status < 500 ? metrics_.refused : metrics_.failed).add();
      if (error.status >= 500 && !stopping_) {
        log::failure(log::Level::kWarning, error.cause,
                     {{"request", request_name(request.headers)}, {"text", error.message}});
      }
      respond_error(*writer, error);
    }
  }

  ApiResult<void> route(Endpoint endpoint, const http::Request& request, const Writer& writer) {
    const Time arrived = now();
    if (stopping_) {
      ApiError error = refuse(503, "the router is stopping").value();
      error.cause = "router_stopping";
      return tl::unexpected<ApiError>(std::move(error));
    }
    const ApiResult<CompletionRequest> parsed =
        parse_completion_request(endpoint, request.body, KvParams::kIgnore);
    if (!parsed) return tl::unexpected<ApiError>(parsed.error());
    ApiResult<UpstreamPool::Picked> prefill = pool_.pick(Stage::kPrefill, parsed->model);
    if (!prefill) return tl::unexpected<ApiError>(prefill.error());
    const bool pull = prefill->info.mode == "pull";
    ApiResult<UpstreamPool::Picked> decode = first_choice(pull, parsed->model);
    if (!decode) {
      pool_.release(prefill->index);
      return tl::unexpected<ApiError>(decode.error());
    }
    RelayContext context = context_for(*parsed, request, arrived, *prefill, *decode);
    if (pull) set_pull(*parsed, context);
    if (pull && context.prefill.info.bidirectional) set_conversation(*parsed, request, context);
    Result<LegBodies> bodies = make_leg_bodies(request.body, context.plan);
    BATON_CHECK(bodies.has_value(), "a body that was parsed cannot be parsed again");
    context.bodies = std::move(*bodies);
    run(std::move(context), writer);
    return {};
  }

  // Push: D's place is taken now. Pull: D is chosen once P has its blocks; that there is one to
  // choose is seen before P computes for nothing.
  ApiResult<UpstreamPool::Picked> first_choice(bool pull, const std::string& model) {
    if (!pull) return pool_.pick(Stage::kDecode, model);
    const ApiResult<void> any = pool_.check(Stage::kDecode, model);
    if (!any) return tl::unexpected<ApiError>(any.error());
    return UpstreamPool::Picked{};
  }

  void set_pull(const CompletionRequest& parsed, RelayContext& context) {
    context.pull = true;
    context.model = parsed.model;
    context.priority = parsed.priority;
    constexpr std::uint64_t kDayMs = 24ULL * 3600 * 1000;  // whatever an instance says
    context.place_within =
        place_within(std::chrono::milliseconds(std::min(context.prefill.info.lease_ms, kDayMs)));
    context.wake = [this] { wake_timer(); };
  }

  // Only a chat has turns. What was kept is given where its keeper lives: to find out that it does
  // not costs the prefill instance time.
  void set_conversation(const CompletionRequest& parsed, const http::Request& request,
                        RelayContext& context) {
    if (parsed.endpoint != Endpoint::kChat || options_.conversations_max == 0) return;
    const std::vector<ConversationKey> keys =
        conversations_.keys_of(parsed.model, parsed.cache_salt, parsed.messages);
    context.conversations = &conversations_;
    context.conversation = keys.back();
    // P's server takes a body of so much, and what was kept comes on top of the client's.
    constexpr std::size_t kOwnParams = 64 << 10;
    const std::size_t room = http::ServerOptions().body_limit - KeptConversations::kParamsMax;
    if (request.body.size() + kOwnParams > room) return;
    std::optional<KeptConversation> kept = conversations_.take(keys, context.arrived);
    if (!kept || !pool_.is_up(kept->engine_id, kept->incarnation)) return;
    context.plan.kept = std::move(kept->params);
    metrics_.prefixes_given.add();
  }

  RelayContext context_for(const CompletionRequest& parsed, const http::Request& request, Time at,
                           const UpstreamPool::Picked& prefill,
                           const UpstreamPool::Picked& decode) const {
    RelayContext context;
    context.prefill = prefill;
    context.decode = decode;
    context.plan.transfer = TransferId::random();
    context.plan.first_token = options_.first_token;
    context.plan.seed = random_u64();
    context.plan.debug = request.headers.get(kDebugHeader) == "1";
    context.plan.tp_size = prefill.info.tp_size;
    context.plan.transfer_timeout = options_.transfer_timeout;
    context.plan.prefill = {prefill.handover_host, prefill.info.handover_port,
                            prefill.info.engine_id, prefill.info.incarnation};
    const bool named = request.headers.find(kRequestIdHeader).has_value();
    const std::string name =
        named ? request_name(request.headers) : context.plan.transfer.to_string();
    context.head.endpoint = parsed.endpoint;
    context.head.id = answer_id(parsed.endpoint, name);
    const std::vector<std::string>& models =
        decode.url.empty() ? prefill.info.models : decode.info.models;
    context.head.model = !parsed.model.empty() || models.empty() ? parsed.model : models.front();
    context.head.created = unix_seconds();
    context.stream = parsed.stream;
    context.show_token_ids = parsed.return_token_ids;
    context.path = request.path;
    context.headers.add("Content-Type", kJson);
    context.headers.add(std::string(kRequestIdHeader), name);
    context.request_id = context.head.id;
    context.trace = take_trace(request.headers);
    context.arrived = at;
    context.connect_timeout = options_.upstreams.connect_timeout;
    context.request_timeout = options_.request_timeout;
    context.idle_timeout = options_.idle_timeout;
    return context;
  }

  void run(RelayContext context, const Writer& writer) {
    const std::shared_ptr<Relay> relay =
        Relay::make(std::move(context), writer, *client_, pool_, metrics_, log_);
    {
      const std::lock_guard lock(mutex_);
      relays_.push_back(relay);
      must_look_ = true;
    }
    wake_.notify_all();
    relay->start();
  }

  const RouterOptions options_;
  const std::int64_t created_;
  KeptConversations conversations_;
  RouterMetrics metrics_;
  TransferLog log_;
  std::atomic<bool> stopping_{false};
  std::mutex placing_;
  bool cancelling_ = false;  // under placing_
  std::unique_ptr<http::Client> client_;
  UpstreamPool pool_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::shared_ptr<Relay>> relays_;
  bool must_look_ = false;
  bool closing_ = false;
  std::thread timer_;
  std::unique_ptr<http::Server> server_;
};

}  // namespace

Result<std::unique_ptr<Router>> Router::start(RouterOptions options) {
  auto made = std::make_unique<RouterImpl>(std::move(options));
  if (Status listening = made->listen(); !listening) {
    return tl::unexpected<Error>(listening.error());
  }
  return made;
}

}  // namespace baton::serving
