#include "serving/relay.h"

#include <fmt/format.h>

#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/failure_log.h"
#include "handover/legs.h"
#include "http/sse.h"
#include "serving/answers.h"
#include "serving/http_names.h"
#include "serving/route_bounds.h"
#include "serving/route_record.h"

namespace baton::serving {
namespace {

using handover::Leg;
using handover::LegAction;

// How long P's leg may go on after D's: it ends by itself with its last completion.
constexpr Duration kPrefillLinger = std::chrono::seconds(5);
constexpr std::size_t kBodyMax = 64 << 20;
constexpr std::uint64_t kDayMs = 24ULL * 3600 * 1000;  // whatever an instance says

// In the words of hand-over causes where they fit.
std::string_view cause_of(http::CallFailure failure) {
  switch (failure) {
    case http::CallFailure::kBadUrl:
    case http::CallFailure::kRefused:
    case http::CallFailure::kUnreachable:
      return "instance_unreachable";
    case http::CallFailure::kTimedOut:
      return "instance_silent";
    case http::CallFailure::kReset:
    case http::CallFailure::kClosedEarly:
      return "instance_died";
    case http::CallFailure::kMalformed:
      return "instance_error";
    case http::CallFailure::kCancelled:
      return "cancelled";
  }
  return "instance_error";
}

std::int64_t ticks(Time time) {
  return time.time_since_epoch().count();
}

// How a leg was lost, where its server did not say so itself.
struct Loss {
  int status = 502;
  std::string_view cause = "instance_error";
  std::string reason;
};

// A leg's HTTP call.
struct Call {
  std::shared_ptr<http::CallHandle> handle;
  http::SseParser events;
  int status = 0;
  std::string body;       // of a plain answer or of an error
  bool complete = false;  // its stream said [DONE], or its plain answer is whole
  bool failed = false;    // reported to Legs
  bool over = false;      // its callbacks have ended
};

class RelayImpl : public Relay, public std::enable_shared_from_this<RelayImpl> {
 public:
  RelayImpl(RelayContext context, std::shared_ptr<http::ResponseWriter> writer,
            http::Client& client, UpstreamPool& pool, RouterMetrics& metrics, TransferLog& log)
      : context_(std::move(context)),
        writer_(std::move(writer)),
        client_(client),
        pool_(pool),
        metrics_(metrics),
        log_(log),
        started_at_(context_.arrived),
        legs_(legs_options(context_, started_at_), started_at_) {
    note_plan();
  }

  void start() override {
    metrics_.running.add(1);
    {
      const std::lock_guard lock(mutex_);
      // An instance may have fallen silent since it was picked: then the request is over already.
      if (legs_.finished()) return give_back_places();
      // D first: its registration may then wait at P, and never P's blocks for it.
      if (!context_.pull) start_decode();
      send(Leg::kPrefill);
    }
    const std::weak_ptr<RelayImpl> self = weak_from_this();
    writer_->on_closed([self] {
      if (const auto relay = self.lock()) relay->on_client_gone();
    });
  }

  void on_time(Time at) override {
    step([&](Actions& actions) {
      if (hold_until_ != kNever && at >= hold_until_) decode_complete(actions);
      if (linger_until_ != kNever && at >= linger_until_) cancel_call(prefill_);
      if (verdict_until_ != kNever && at >= verdict_until_) {
        verdict_until_ = kNever;
        if (!after_first_) return fail(Leg::kPrefill, prefill_loss_, actions);
        legs_.on_ended(Leg::kPrefill, at, actions);
      }
      if (at < legs_.next_deadline()) return;
      leg_error_ = {};
      leg_error_.cause = "deadline";
      legs_.on_time(at, actions);
    });
  }

  void on_silent(std::size_t index, const std::string& reason) override {
    step([&](Actions& actions) {
      const Loss loss = {504, "instance_silent", reason};
      if (decode_chosen() && index == context_.decode.index) {
        fail(Leg::kDecode, loss, actions);
        cancel_call(decode_);
      }
      if (index == context_.prefill.index) {
        prefill_lost(loss, actions);
        cancel_call(prefill_);
      }
    });
  }

  void cancel() override {
    step([&](Actions& actions) {
      fail(Leg::kDecode, Loss{503, "router_stopping", "the router is stopping"}, actions);
      cancel_call(decode_);
      cancel_call(prefill_);
    });
  }

  bool is_over() const override {
    const std::lock_guard lock(mutex_);
    return finished_ && prefill_.over && (decode_.over || !decode_started_);
  }

  std::optional<Waiting> waiting() const override {
    const std::lock_guard lock(mutex_);
    if (!waiting_ || legs_.finished()) return {};
    return Waiting{context_.priority, started_at_};
  }

  void place(Time at) override {
    step([&](Actions& actions) {
      if (!waiting_ || legs_.finished()) return;
      ApiResult<std::optional<UpstreamPool::Picked>> picked = pick_decode(at);
      if (!picked) {
        waiting_ = false;
        return fail(Leg::kDecode, told(picked.error()), actions);
      }
      if (!*picked) return;
      waiting_ = false;
      context_.decode = std::move(**picked);
      note_leg(Leg::kDecode);
      legs_.on_decode_started();
      start_decode();
    });
  }

 private:
  using Actions = handover::Legs::Actions;

  static handover::Legs::Options legs_options(const RelayContext& context, Time at) {
    handover::Legs::Options options;
    options.first_token_from_prefill =
        context.stream && context.plan.first_token == engine::FirstToken::kPrefill;
    options.decode_after_prefill = context.pull;
    options.deadline = at + context.request_timeout;
    options.idle_timeout = context.idle_timeout;
    return options;
  }

  // One event from outside: what it does to the state machine, then what that asks for. Handles are
  // cancelled after the lock is gone.
  template <typename Event>
  void step(Event&& event) {
    std::vector<std::shared_ptr<http::CallHandle>> cancelled;
    {
      const std::lock_guard lock(mutex_);
      Actions actions;
      event(actions);
      perform(actions);
      cancelled.swap(to_cancel_);
    }
    for (const auto& handle : cancelled) handle->cancel();
  }

  void note_plan() {
    record_.transfer = context_.plan.transfer;
    record_.request_id = context_.request_id;
    record_.trace = context_.trace;
    record_.path = context_.path;
    record_.stream = context_.stream;
    record_.binding = context_.plan.binding;
    record_.arrived = ticks(started_at_);
    note_leg(Leg::kPrefill);
    if (!context_.pull) note_leg(Leg::kDecode);
  }

  void note_leg(Leg leg) {
    record_of(leg).engine_id = picked(leg).info.engine_id;
    record_of(leg).url = picked(leg).url;
  }

  ApiResult<std::optional<UpstreamPool::Picked>> pick_decode(Time at) {
    if (at < place_by_) return pool_.pick_free_decode(context_.model);
    ApiResult<UpstreamPool::Picked> any = pool_.pick(Stage::kDecode, context_.model);
    if (!any) return tl::unexpected<ApiError>(std::move(any.error()));
    return std::optional<UpstreamPool::Picked>(std::move(*any));
  }

  void start_decode() {
    decode_started_ = true;
    const bool keep = context_.conversations != nullptr && context_.decode.info.bidirectional;
    context_.bodies.decode =
        decode_body(std::move(context_.bodies.decode), context_.plan, announced_, keep);
    announced_.reset();
    send(Leg::kDecode);
  }

  bool decode_chosen() const { return !context_.pull || decode_started_; }

  // Nothing was sent.
  void give_back_places() {
    prefill_.over = decode_.over = true;
    pool_.release(context_.prefill.index);
    if (!context_.pull) pool_.release(context_.decode.index);
  }

  // The leg's place is free for another request.
  void release(Leg leg) {
    pool_.release(picked(leg).index);
    if (context_.pull && leg == Leg::kDecode) context_.wake();
  }

  void send(Leg leg) {
    const bool prefill = leg == Leg::kPrefill;
    const TraceContext trace = child_of(context_.trace);
    record_of(leg).span_id = trace.span_id;
    record_of(leg).dispatched = ticks(now());
    http::Call request;
    request.method = "POST";
    request.url = (prefill ? context_.prefill : context_.decode).url + context_.path;
    request.headers = context_.headers;
    add_trace(trace, request.headers);
    request.body = std::move(prefill ? context_.bodies.prefill : context_.bodies.decode);
    request.connect_timeout = context_.connect_timeout;
    const auto self = shared_from_this();
    http::CallCallbacks callbacks;
    callbacks.on_headers = [self, leg](int status, const http::Headers&) {
      self->step([&](Actions&) {
        self->call(leg).status = status;
        self->record_of(leg).status = status;
        self->record_of(leg).answered = ticks(now());
      });
    };
    callbacks.on_data = [self, leg](std::string_view bytes) {
      self->step([&](Actions& actions) { self->on_data(leg, bytes, actions); });
    };
    callbacks.on_end = [self, leg] {
      self->step([&](Actions& actions) { self->on_call_end(leg, actions); });
      self->release(leg);
    };
    callbacks.on_error = [self, leg](const http::CallError& error) {
      self->step([&](Actions& actions) { self->on_call_error(leg, error, actions); });
      self->release(leg);
    };
    call(leg).handle = client_.send(std::move(request), std::move(callbacks));
  }

  Call& call(Leg leg) { return leg == Leg::kPrefill ? prefill_ : decode_; }
  RouteRecord::Leg& record_of(Leg leg) {
    return leg == Leg::kPrefill ? record_.prefill : record_.decode;
  }
  void note_leg_end(Leg leg) {
    if (record_of(leg).ended == 0) record_of(leg).ended = ticks(now());
  }
  const UpstreamPool::Picked& picked(Leg leg) const {
    return leg == Leg::kPrefill ? context_.prefill : context_.decode;
  }

  void on_client_gone() {
    step([&](Actions& actions) {
      if (finished_) return;
      client_gone_ = true;
      legs_.on_client_gone(now(), actions);
    });
  }

  void on_data(Leg leg, std::string_view bytes, Actions& actions) {
    Call& from = call(leg);
    if (from.failed) return;
    const bool streamed = from.status == 200 && (leg == Leg::kPrefill || context_.stream);
    if (!streamed) {
      if (from.body.size() + bytes.size() > kBodyMax) {
        return give_up(leg, {502, "instance_error", "its answer is too long"}, actions);
      }
      from.body += bytes;
      return;
    }
    Result<std::vector<http::SseEvent>> events = from.events.push(bytes);
    if (!events) return give_up(leg, {502, "instance_error", events.error().message}, actions);
    for (const http::SseEvent& event : *events) {
      if (from.failed || from.complete) return;
      if (leg == Leg::kPrefill) {
        on_prefill_event(read_prefill_event(event.data), actions);
      } else {
        on_decode_event(read_decode_event(event.data, after_first_), actions);
      }
    }
  }

  void on_prefill_event(PrefillEvent event, Actions& actions) {
    switch (event.kind) {
      case PrefillEvent::Kind::kPrefilled:
        return on_prefilled(event, actions);
      case PrefillEvent::Kind::kHandover:
        prefill_record_ = std::move(event.record);
        handover_outcome_ = event.outcome;
        if (event.outcome != "done" && !decode_chosen()) return ended_alone(event, actions);
        if (event.outcome != "done") {
          log_failure(log::Level::kWarning, event.cause, event.text, "decode_decides");
        }
        return;
      case PrefillEvent::Kind::kDone:
        prefill_.complete = true;
        note_leg_end(Leg::kPrefill);
        legs_.on_ended(Leg::kPrefill, now(), actions);
        if (hold_until_ != kNever) decode_complete(actions);
        return;
      case PrefillEvent::Kind::kError:
        return prefill_lost(told(event.error), actions);
      case PrefillEvent::Kind::kOther:
        return;
    }
  }

  // Pull: P's blocks are gone before anybody was chosen to read them.
  void ended_alone(const PrefillEvent& event, Actions& actions) {
    const bool late = event.cause == "lease_expired" || event.cause == "deadline";
    const std::string cause = event.cause.empty() ? "instance_error" : event.cause;
    fail(Leg::kPrefill, {late ? 504 : 502, cause, event.text.empty() ? cause : event.text},
         actions);
  }

  void on_prefilled(const PrefillEvent& event, Actions& actions) {
    if (std::exchange(prefilled_, true)) return;
    cached_at_prefill_ = event.cached_tokens;
    record_.prefill.first_token = ticks(now());
    forward_first_token(event, actions);
    if (!context_.pull) return;
    if (!event.announced) {
      return give_up(Leg::kPrefill,
                     {502, "instance_error", "its announcement names no blocks (remote_block_ids)"},
                     actions);
    }
    announced_ = event.announced;
    legs_.on_prefilled(now(), actions);
  }

  void forward_first_token(const PrefillEvent& event, Actions& actions) {
    if (!context_.stream || !event.first_token) return;
    Choice choice;
    choice.text = event.first_text;
    const std::vector<TokenId> ids = {*event.first_token};
    choice.token_ids = ids;
    choice.show_token_ids = context_.show_token_ids;
    chunk_ = chunk_body(context_.head, choice);
    legs_.on_chunk(Leg::kPrefill, 0, 1, now(), actions);
    perform(actions);
  }

  // Before the client has the whole answer, which may ask on at once.
  void remember(const std::string& kept) {
    if (kept.empty() || context_.conversations == nullptr) return;
    const UpstreamPool::Picked& by = context_.decode;
    context_.conversations->put(
        context_.conversation,
        {with_host(kept, by.handover_host), by.info.engine_id, by.info.incarnation},
        now() + std::chrono::milliseconds(std::min(by.info.lease_ms, kDayMs)));
  }

  void on_decode_event(DecodeEvent event, Actions& actions) {
    if (!event.record.empty()) decode_record_ = std::move(event.record);
    remember(event.kept);
    switch (event.kind) {
      case DecodeEvent::Kind::kRole:
        return;  // the answer's head has it
      case DecodeEvent::Kind::kError:
        return fail(Leg::kDecode, told(event.error), actions);
      case DecodeEvent::Kind::kDone:
        decode_.complete = true;
        note_leg_end(Leg::kDecode);
        return decode_ended(actions);
      case DecodeEvent::Kind::kChunk:
        break;
    }
    chunk_ = with_cached_tokens(std::move(event.data), cached_at_prefill_);
    if (event.is_first_token) {
      after_first_ = true;
      record_.decode.first_token = ticks(now());
      legs_.on_chunk(Leg::kDecode, 0, 1, now(), actions);
    } else {
      legs_.on_chunk(Leg::kDecode, legs_.tokens_forwarded(), after_first_ ? 1 : 0, now(), actions);
    }
    perform(actions);
  }

  // In debug mode the end waits for P's record.
  void decode_ended(Actions& actions) {
    if (context_.plan.debug && !prefill_.over && !prefill_.complete && !prefill_.failed) {
      hold_until_ = now() + kPrefillGrace;
      return;
    }
    decode_complete(actions);
  }

  void decode_complete(Actions& actions) {
    hold_until_ = kNever;
    legs_.on_ended(Leg::kDecode, now(), actions);
  }

  // The call's last callback.
  void on_call_end(Leg leg, Actions& actions) {
    Call& from = call(leg);
    from.over = true;
    note_leg_end(leg);
    if (from.failed || from.complete) return;
    if (from.status != 200) {
      return lose(leg, told(parse_error_body(from.status, from.body)), actions);
    }
    if (leg == Leg::kDecode && !context_.stream) {
      from.complete = true;
      std::string kept;
      plain_ = with_cached_tokens(take_record(from.body, decode_record_, kept), cached_at_prefill_);
      remember(kept);
      return decode_ended(actions);
    }
    lose(leg, {502, "instance_died", "its stream broke off"}, actions);
  }

  void on_call_error(Leg leg, const http::CallError& error, Actions& actions) {
    call(leg).over = true;
    note_leg_end(leg);
    if (call(leg).failed || call(leg).complete) return;
    if (error.failure == http::CallFailure::kCancelled && legs_.finished()) return;
    const bool timed_out = error.failure == http::CallFailure::kTimedOut;
    if (!timed_out) pool_.suspect(picked(leg).index, error.message);
    lose(leg,
         {timed_out ? 504 : 502, cause_of(error.failure),
          fmt::format("{}: {}", to_string(error.failure), error.message)},
         actions);
  }

  // The leg's server said itself what was wrong: its words are kept for the client.
  Loss told(const ApiError& error) {
    leg_error_ = error;
    return {error.status, "", error.message};
  }

  // What it says is of no use, and it may go on.
  void give_up(Leg leg, const Loss& loss, Actions& actions) {
    lose(leg, loss, actions);
    cancel_call(call(leg));
  }

  void lose(Leg leg, const Loss& loss, Actions& actions) {
    if (leg == Leg::kDecode) return fail(leg, loss, actions);
    prefill_lost(loss, actions);
  }

  // P's leg broke. A refusal by P, or an end before its prompt was computed, ends the request,
  // unless D is set to compute what it did not get. Once P had pinned its blocks the outcome is D's
  // to tell: it may hold everything already, and it learns of P's end by itself. A D that still
  // queues, and so says nothing, is not waited for long. Before D is chosen (pull) it is the end.
  void prefill_lost(const Loss& loss, Actions& actions) {
    if (prefill_.failed || prefill_.complete || verdict_until_ != kNever) return;
    const bool recompute = context_.decode.info.kv_load_failure_policy == "recompute";
    const bool refused = prefill_.status != 0 && prefill_.status != 200;
    if (refused || !decode_chosen() || !(prefilled_ || recompute))
      return fail(Leg::kPrefill, loss, actions);
    log_failure(log::Level::kWarning, loss.cause.empty() ? leg_error_.cause : loss.cause,
                "the prefill leg ended early: " + loss.reason, "decode_decides");
    if (!recompute && !after_first_ && handover_outcome_ != "done") {
      prefill_loss_ = loss;
      verdict_until_ = now() + kVerdictGrace;
      return;
    }
    prefill_.failed = true;
    legs_.on_ended(Leg::kPrefill, now(), actions);
    if (hold_until_ != kNever) decode_complete(actions);
  }

  void fail(Leg leg, const Loss& loss, Actions& actions) {
    Call& from = call(leg);
    if (from.failed || from.complete) return;
    from.failed = true;
    if (!loss.cause.empty()) {
      leg_error_ = {};
      leg_error_.cause = loss.cause;
    }
    legs_.on_failed(leg, loss.status, loss.reason, now(), actions);
  }

  void cancel_call(Call& which) {
    if (which.over || !which.handle) return;
    linger_until_ = &which == &prefill_ ? kNever : linger_until_;
    to_cancel_.push_back(which.handle);
  }

  void perform(Actions& actions) {
    // Performing may not add actions, so that one pass is all.
    for (const LegAction& action : actions) perform(action);
    actions.clear();
  }

  void perform(const LegAction& action) {
    switch (action.kind) {
      case LegAction::Kind::kForward:
        return forward(action.leg);
      case LegAction::Kind::kDrop:
        return;
      case LegAction::Kind::kCancelLeg:
        return cancel_leg(action.leg);
      case LegAction::Kind::kPlaceDecode:
        waiting_ = true;
        place_by_ = now() + context_.place_within;
        return context_.wake();
      case LegAction::Kind::kErrorResponse:
        return answer_error(action);
      case LegAction::Kind::kErrorEvent:
        return stream_error(action);
      case LegAction::Kind::kFinish:
        return finish();
    }
  }

  void forward(Leg leg) {
    if (!first_forwarded_ && legs_.tokens_forwarded() > 0) {
      first_forwarded_ = true;
      (leg == Leg::kPrefill ? metrics_.first_from_prefill : metrics_.first_from_decode).add();
      metrics_.time_to_first_token_seconds.observe(seconds_since_start());
    }
    open_stream();
    if (record_.first_byte == 0) record_.first_byte = ticks(now());
    writer_->write(http::format_sse(chunk_));
  }

  void open_stream() {
    if (stream_open_) return;
    stream_open_ = true;
    writer_->start_stream(200, std::string(http::kSseContentType), answer_headers(true));
    if (context_.head.endpoint == Endpoint::kChat) {
      writer_->write(http::format_sse(role_chunk_body(context_.head)));
    }
  }

  http::Headers answer_headers(bool streamed) const {
    http::Headers headers = {{std::string(kTransferHeader), context_.plan.transfer.to_string()},
                             {std::string(kTraceHeader), context_.trace.header()}};
    if (streamed) headers.add("Cache-Control", "no-cache");
    return headers;
  }

  void cancel_leg(Leg leg) {
    Call& which = call(leg);
    if (which.over) return;
    // D is through. Unless it computed the prompt itself, P has handed over, whether its word has
    // come or not, and is about to end: its leg is cut only if it does not.
    const bool recompute = context_.decode.info.kv_load_failure_policy == "recompute";
    if (leg == Leg::kPrefill && decode_.complete && (prefilled_ || !recompute)) {
      linger_until_ = now() + kPrefillLinger;
      return;
    }
    metrics_.legs_cancelled.add();
    cancel_call(which);
  }

  // A leg's own refusal of the request goes to the client word for word; other trouble names the
  // transfer and both engines.
  ApiError error_of(const LegAction& action) const {
    ApiError error = leg_error_;
    const bool refusal = action.status >= 400 && action.status < 500;
    error.status = action.status == 0 ? 502 : action.status;
    error.transfer_id = context_.plan.transfer.to_string();
    error.prefill = context_.prefill.info.engine_id;
    error.decode = context_.decode.info.engine_id;
    if (error.cause.empty()) error.cause = refusal ? "refused" : "instance_error";
    if (refusal && !error.message.empty()) return error;
    error.param.clear();
    const std::string decode =
        decode_chosen() ? fmt::format("decode {} at {}", error.decode, context_.decode.url)
                        : "no decode instance chosen yet";
    error.message = fmt::format("{} (transfer {}, prefill {} at {}, {})", action.reason,
                                error.transfer_id, error.prefill, context_.prefill.url, decode);
    return error;
  }

  void count_error(const ApiError& error, const std::string& reason) {
    errored_ = true;
    record_.end = error.status < 500 ? "refused" : "failed";
    record_.cause = error.cause;
    record_.text = error.message;
    if (client_gone_) return;
    (error.status < 500 ? metrics_.refused : metrics_.failed).add();
    if (error.status >= 500) {
      log_failure(log::Level::kWarning, error.cause, reason, std::to_string(error.status));
    }
  }

  void log_failure(log::Level level, std::string_view cause, std::string_view text,
                   std::string_view then) const {
    log::failure(level, cause.empty() ? "instance_error" : cause,
                 {{"transfer", context_.plan.transfer.to_string()},
                  {"request", context_.request_id},
                  {"trace", context_.trace.trace_id},
                  {"prefill", context_.prefill.info.engine_id},
                  {"decode", context_.decode.info.engine_id},
                  {"then", then},
                  {"text", text}});
  }

  void answer_error(const LegAction& action) {
    const ApiError error = error_of(action);
    count_error(error, action.reason);
    note_end();
    respond_error(*writer_, error, {{std::string(kTraceHeader), context_.trace.header()}});
  }

  void stream_error(const LegAction& action) {
    const ApiError error = error_of(action);
    count_error(error, action.reason);
    open_stream();
    writer_->write(http::format_sse("error", error_body(error)));
    note_end();
    writer_->finish();
  }

  void finish() {
    finished_ = true;
    metrics_.running.add(-1);
    metrics_.e2e_request_latency_seconds.observe(seconds_since_start());
    if (client_gone_) {
      record_.end = "client_gone";
      metrics_.clients_gone.add();
      return note_end();
    }
    if (errored_) return;
    metrics_.answered.add();
    record_.end = "answered";
    if (!context_.stream && record_.first_byte == 0) record_.first_byte = ticks(now());
    note_end();
    const bool debug = context_.plan.debug;
    const std::string record =
        debug ? routed_record(context_.plan.transfer, prefill_record_, decode_record_) : "";
    if (!context_.stream) {
      return writer_->respond(200, kJson,
                              debug ? with_record(std::move(plain_), record) : std::move(plain_),
                              answer_headers(false));
    }
    open_stream();
    if (debug) writer_->write(http::format_sse(record_chunk_body(context_.head, record)));
    writer_->write(http::format_sse("[DONE]"));
    writer_->finish();
  }

  // Before the answer's last byte, so that whoever has it finds the record; once.
  void note_end() {
    if (record_.ended != 0) return;
    record_.ended = ticks(now());
    log_.add(record_.transfer, route_record(record_));
  }

  double seconds_since_start() const {
    return std::chrono::duration<double>(now() - started_at_).count();
  }

  RelayContext context_;
  const std::shared_ptr<http::ResponseWriter> writer_;
  http::Client& client_;
  UpstreamPool& pool_;
  RouterMetrics& metrics_;
  TransferLog& log_;
  const Time started_at_;

  mutable std::mutex mutex_;
  handover::Legs legs_;
  Call prefill_;
  Call decode_;
  std::vector<std::shared_ptr<http::CallHandle>> to_cancel_;
  std::string chunk_;             // the one announced to legs_
  std::string plain_;             // D's plain answer
  std::string handover_outcome_;  // as P told it
  std::string prefill_record_;
  std::string decode_record_;
  ApiError leg_error_;  // of the leg that failed last
  RouteRecord record_;
  std::optional<Announcement> announced_;  // pull, until D's leg starts
  bool prefilled_ = false;                 // P has pinned its blocks
  std::uint64_t cached_at_prefill_ = 0;    // tokens of the prompt that P found in its cache
  bool decode_started_ = false;
  bool waiting_ = false;  // for a decode instance
  Time place_by_ = kNever;
  bool after_first_ = false;  // D's first token came
  bool first_forwarded_ = false;
  bool stream_open_ = false;
  bool client_gone_ = false;
  bool errored_ = false;
  bool finished_ = false;
  Time hold_until_ = kNever;     // D is through, P's record is awaited
  Time linger_until_ = kNever;   // P's leg is cut then
  Time verdict_until_ = kNever;  // P's leg broke, D is to say what became of the request
  Loss prefill_loss_;
};

}  // namespace

std::shared_ptr<Relay> Relay::make(RelayContext context,
                                   std::shared_ptr<http::ResponseWriter> writer,
                                   http::Client& client, UpstreamPool& pool, RouterMetrics& metrics,
                                   TransferLog& log) {
  return std::make_shared<RelayImpl>(std::move(context), std::move(writer), client, pool, metrics,
                                     log);
}

}  // namespace baton::serving
