#include "serving/answers.h"

#include <fmt/format.h>

#include "base/clock.h"
#include "http/sse.h"
#include "serving/http_names.h"

namespace baton::serving {
namespace {

constexpr char kNotAccepted[] = "not_accepted";  // refused before the hand-over began

std::string_view finish_name(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kStop:
      return "stop";
    case engine::FinishReason::kLength:
      return "length";
    case engine::FinishReason::kHandedOver:
      return "length";  // P's share ends with its one token
    case engine::FinishReason::kAborted:
      return "abort";
    case engine::FinishReason::kError:
      return "error";
  }
  return "error";
}

bool is_failure(const engine::Output& output) {
  return output.finish == engine::FinishReason::kError ||
         output.finish == engine::FinishReason::kAborted;
}

// Names the cause, the transfer and both engines where a hand-over was to blame.
ApiError error_of(const engine::Output& output, const AnswerContext& context) {
  ApiError error;
  name_transfer(context, error);
  if (output.finish == engine::FinishReason::kAborted) {
    error.status = 503;
    error.cause = "instance_stopping";
    error.message = "the request was aborted: this instance is stopping";
    return error;
  }
  error.status = http_status(output.error.code);
  error.message = output.error.message;
  if (context.transfer) error.cause = kNotAccepted;
  if (!output.handover) return error;
  error.cause = to_string(output.error.code);
  if (output.handover->outcome == Outcome::kDone) return error;
  const Event& event = *output.handover;
  error.status = http_status(event.cause);
  error.cause = to_string(event.cause);
  if (!event.peer.empty()) {
    (event.side == Side::kPrefill ? error.decode : error.prefill) = event.peer;
  }
  return error;
}

// The hand-over as this side saw it. One that ended before the agent knew of it, or whose request
// was aborted, has an end, too: it is told here.
std::optional<Event> handover_of(const engine::Output& output, const AnswerContext& context) {
  if (output.handover || !context.transfer) return output.handover;
  Event event;
  event.side = context.offer ? Side::kPrefill : Side::kDecode;
  event.transfer = *context.transfer;
  event.peer = context.peer;
  const bool aborted = output.finish == engine::FinishReason::kAborted;
  event.outcome = aborted ? Outcome::kCancelled : Outcome::kFailed;
  event.cause = aborted ? Cause::kCancelledHere : Cause::kRefused;
  event.text = aborted ? "the request was aborted here" : output.error.message;
  return event;
}

std::string record_of(const engine::Output& output, const AnswerContext& context) {
  SideRecord record;
  record.emulated = context.head.system_fingerprint;
  record.engine_id = context.engine_id;
  record.request_id = context.request_id;
  record.trace = context.trace;
  record.block_size = context.block_size;
  record.prompt_tokens = output.prompt_tokens;
  record.completion_tokens = output.completion_tokens;
  record.computed_prompt_tokens = output.computed_prompt_tokens;
  record.cached_prompt_tokens = output.cached_prompt_tokens;
  record.registrations = output.registrations;
  record.times = output.times;
  record.ended = now().time_since_epoch().count();
  record.handover = handover_of(output, context);
  return side_record(record);
}

// Before the answer's last byte, so that whoever has it finds the record.
void note(const engine::Output& output, const AnswerContext& context) {
  if (!output.finish || !context.transfer || context.log == nullptr) return;
  context.log->add(*context.transfer, record_of(output, context));
}

// The names of the hand-over and of this span, for whoever asks after them.
http::Headers transfer_header(const AnswerContext& context) {
  http::Headers headers = {{std::string(kTraceHeader), context.trace.header()}};
  if (context.transfer) headers.add(std::string(kTransferHeader), context.transfer->to_string());
  return headers;
}

http::Headers stream_headers(const AnswerContext& context) {
  http::Headers headers = transfer_header(context);
  headers.add("Cache-Control", "no-cache");
  return headers;
}

std::string kept_params(const engine::Output& output, const AnswerContext& context) {
  if (!output.kept) return "";
  return kv_answer(output.kept->transfer, context.own_address, 1, output.kept->source,
                   output.kept->tokens);
}

Usage usage_of(const engine::Output& output) {
  return {output.prompt_tokens, output.completion_tokens, output.cached_prompt_tokens};
}

// stream: false.
class WholeAnswer : public Answer {
 public:
  WholeAnswer(AnswerContext context, std::shared_ptr<http::ResponseWriter> writer)
      : context_(std::move(context)), writer_(std::move(writer)) {}

  void on_output(engine::Output&& output) override {
    text_ += output.text;
    tokens_.insert(tokens_.end(), output.tokens.begin(), output.tokens.end());
    if (!output.finish) return;
    note(output, context_);
    if (is_failure(output)) return respond_error(*writer_, error_of(output, context_));
    Choice choice;
    choice.text = text_;
    choice.token_ids = tokens_;
    choice.show_token_ids = context_.show_token_ids;
    choice.finish_reason = finish_name(*output.finish);
    choice.stop_reason = output.stop_reason;
    const std::string record = context_.debug ? record_of(output, context_) : "";
    writer_->respond(
        200, kJson,
        whole_body(context_.head, choice, usage_of(output), kept_params(output, context_), record),
        transfer_header(context_));
  }

 private:
  const AnswerContext context_;
  const std::shared_ptr<http::ResponseWriter> writer_;
  std::string text_;
  std::vector<TokenId> tokens_;
};

// stream: true. The head of the answer goes out with the first output, so that a request which
// fails before it has a status that says so.
class StreamAnswer : public Answer {
 public:
  StreamAnswer(AnswerContext context, std::shared_ptr<http::ResponseWriter> writer)
      : context_(std::move(context)), writer_(std::move(writer)) {}

  void on_output(engine::Output&& output) override {
    note(output, context_);
    if (is_failure(output)) return fail_with(error_of(output, context_));
    if (!started_) start();
    const bool has_news = !output.text.empty() || !output.tokens.empty();
    if (has_news || output.finish) write_chunk(output);
    if (!output.finish) return;
    if (context_.include_usage) send(usage_chunk_body(context_.head, usage_of(output)));
    send("[DONE]");
    writer_->finish();
  }

 private:
  void start() {
    started_ = true;
    writer_->start_stream(200, std::string(http::kSseContentType), stream_headers(context_));
    if (context_.head.endpoint == Endpoint::kChat) send(role_chunk_body(context_.head));
  }

  void write_chunk(const engine::Output& output) {
    Choice choice;
    choice.text = output.text;
    choice.token_ids = output.tokens;
    choice.show_token_ids = context_.show_token_ids;
    if (output.finish) choice.finish_reason = finish_name(*output.finish);
    choice.stop_reason = output.stop_reason;
    std::string baton;
    if (output.is_first_token && context_.remote_prefill) baton = kFirstTokenMark;
    if (output.finish && context_.debug) baton = record_of(output, context_);
    send(chunk_body(context_.head, choice, baton, kept_params(output, context_)));
  }

  // After the head is out an error can only be an event; the stream then ends without [DONE].
  void fail_with(const ApiError& error) {
    if (!started_) return respond_error(*writer_, error);
    writer_->write(http::format_sse("error", error_body(error)));
    writer_->finish();
  }

  void send(std::string_view data) { writer_->write(http::format_sse(data)); }

  const AnswerContext context_;
  const std::shared_ptr<http::ResponseWriter> writer_;
  bool started_ = false;
};

// P's leg. Streamed: an event when the prompt is prefilled, then one when the hand-over ended; the
// caller who closes the connection in between cancels the transfer. Plain (vLLM's way): answered as
// soon as the blocks are pinned; from then on the lease alone holds them.
class PrefillAnswer : public Answer {
 public:
  PrefillAnswer(AnswerContext context, std::shared_ptr<http::ResponseWriter> writer)
      : context_(std::move(context)), writer_(std::move(writer)) {}

  void on_output(engine::Output&& output) override {
    if (output.prefilled && !prefilled_) on_prefilled(output);
    note(output, context_);
    if (output.finish) on_finished(output);
  }

 private:
  std::string where(const engine::Output& output) const {
    const RemoteOffer& offer = *context_.offer;
    return kv_answer(offer.transfer, offer.address, offer.tp_size, output.source);
  }

  void on_prefilled(const engine::Output& output) {
    prefilled_ = true;
    if (!context_.stream) {
      Choice choice;
      choice.text = output.text;
      choice.token_ids = output.tokens;
      choice.show_token_ids = context_.show_token_ids;
      choice.finish_reason = finish_name(engine::FinishReason::kHandedOver);
      const Usage usage = {context_.prompt_tokens, static_cast<std::uint32_t>(output.tokens.size()),
                           output.cached_prompt_tokens};
      writer_->respond(200, kJson, whole_body(context_.head, choice, usage, where(output)),
                       transfer_header(context_));
      return;
    }
    Prefilled prefilled;
    prefilled.transfer_id = context_.offer->transfer.to_string();
    prefilled.prompt_tokens = context_.prompt_tokens;
    prefilled.cached_prompt_tokens = output.cached_prompt_tokens;
    if (!output.tokens.empty()) prefilled.first_token = output.tokens.front();
    prefilled.first_text = output.text;
    writer_->start_stream(200, std::string(http::kSseContentType), stream_headers(context_));
    writer_->write(http::format_sse(prefilled_body(prefilled, where(output))));
  }

  void on_finished(const engine::Output& output) {
    if (!prefilled_) return respond_error(*writer_, unfinished(output));
    if (!context_.stream) return;
    Outcome outcome = is_failure(output) ? Outcome::kFailed : Outcome::kDone;
    Cause cause = Cause::kNone;
    std::string text = output.error.message;
    if (output.handover) {
      outcome = output.handover->outcome;
      cause = output.handover->cause;
      text = output.handover->text;
    }
    const std::string record = record_of(output, context_);
    writer_->write(http::format_sse(handover_body(outcome, cause, text, record)));
    writer_->write(http::format_sse("[DONE]"));
    writer_->finish();
  }

  // It ended before the prompt was computed.
  ApiError unfinished(const engine::Output& output) const {
    if (is_failure(output)) return error_of(output, context_);
    ApiError error;
    name_transfer(context_, error);
    error.message = fmt::format("transfer {} ended before its prompt was computed",
                                context_.offer->transfer.to_string());
    return error;
  }

  const AnswerContext context_;
  const std::shared_ptr<http::ResponseWriter> writer_;
  bool prefilled_ = false;
};

}  // namespace

std::unique_ptr<Answer> make_answer(AnswerContext context,
                                    std::shared_ptr<http::ResponseWriter> writer) {
  if (context.offer) return std::make_unique<PrefillAnswer>(std::move(context), std::move(writer));
  if (context.stream) return std::make_unique<StreamAnswer>(std::move(context), std::move(writer));
  return std::make_unique<WholeAnswer>(std::move(context), std::move(writer));
}

void name_transfer(const AnswerContext& context, ApiError& error) {
  if (!context.transfer) return;
  error.transfer_id = context.transfer->to_string();
  error.prefill = context.offer ? context.engine_id : context.peer;
  error.decode = context.offer ? context.peer : context.engine_id;
}

void respond_error(http::ResponseWriter& writer, const ApiError& error, http::Headers extra) {
  if (error.status == 429 || error.status == 503) extra.add("Retry-After", "1");
  if (!error.transfer_id.empty()) extra.add(std::string(kTransferHeader), error.transfer_id);
  writer.respond(error.status, kJson, error_body(error), std::move(extra));
}

}  // namespace baton::serving
