// What becomes of a request: from its acceptance to the one output that finishes it.

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/failure_log.h"
#include "base/log.h"
#include "base/random.h"
#include "engine/engine_core.h"
#include "engine/transfer_error.h"

namespace baton::engine {

namespace {

double seconds_between(std::int64_t from, std::int64_t to) {
  return static_cast<double>(to - from) * 1e-9;
}

}  // namespace

void EngineCore::accept(std::unique_ptr<Sequence> owned) {
  Sequence& sequence = *owned;
  metrics_.prompt_tokens.add(sequence.prompt_size);
  note_local_prefill(sequence);
  const bool inserted = sequences_.try_emplace(sequence.request.id, std::move(owned)).second;
  BATON_CHECK(inserted, "request '{}' is accepted twice", sequence.request.id);
  if (transfer_of(sequence.request)) desk_->attach(sequence);
  // None of what was kept is worth a read: the keeper is told, and a plain prompt is left.
  if (prefix_of(sequence.request) && sequence.remote_tokens == 0) {
    desk_->leave_prefix(sequence);
    sequence.remote_done = true;
  }
  scheduler_.enqueue(sequence);
}

// A decode instance that is asked for a whole answer computes the prompt itself: somebody lost the
// hand-over's parameters on the way, and all looks well but for the time.
void EngineCore::note_local_prefill(const Sequence& sequence) {
  const bool is_decode = options_.agent && options_.agent->role == Role::kConsumer;
  if (!is_decode || sequence.request.remote_prefill) return;
  metrics_.local_prefills.add();
  log::failure(log::Level::kWarning, "local_prefill",
               {{"request", sequence.request.id},
                {"decode", agent_->id().engine_id},
                {"text",
                 "this is a decode instance, and the request came without kv_transfer_params: its "
                 "prompt is computed here"}});
}

void EngineCore::abort_one(const std::string& id) {
  const auto at = sequences_.find(id);
  if (at == sequences_.end() || at->second->aborted) return;
  Sequence& sequence = *at->second;
  if (!desk_ || !desk_->give_up(sequence)) return finish(sequence, FinishReason::kAborted, {});
  sequence.aborted = true;
  leave_steps(sequence);
  sequence.phase = Phase::kHandingOver;
}

void EngineCore::leave_steps(Sequence& sequence) {
  scheduler_.remove(sequence);
  for (auto* list : {&ready_retries_, &finished_now_, &finished_before_}) {
    std::erase(*list, &sequence);
  }
}

// D, in the step that granted its blocks: P may write from here on, or they are read into (pull).
void EngineCore::start_remote(Sequence& sequence) {
  if (sequence.cached >= sequence.remote_tokens) return start_without_reading(sequence);
  const std::span<const BlockId> blocks = sequence.blocks;
  if (options_.poison_blocks) {
    cache_.poison(blocks.subspan(sequence.cached / options_.block_size));
  }
  const auto answer = desk_->register_blocks(sequence);
  const bool accepted = answer && *answer == HandoverDesk::Answer::kAccepted;
  // Its blocks come back behind this step's admissions, and no event tells of it.
  if (!accepted) retry_admission_ = true;
  if (!answer && sequence.is_prefill_only()) {
    return compute_prefix(sequence, to_string(answer.error().code), answer.error().message);
  }
  if (!answer) {
    finish_error(sequence, {answer.error().code,
                            fmt::format("transfer {} could not be registered: {}",
                                        sequence.request.remote_prefill->transfer.to_string(),
                                        answer.error().message)});
    return;
  }
  if (!accepted) {
    pool_.free(sequence.blocks);
    sequence.blocks.clear();
    scheduler_.enqueue(sequence);
    return;
  }
  note_start(sequence);
  note_cached(sequence);
  if (pulls() && options_.pull_loop == PullLoop::kEngine) wait_posted(sequence);
}

// P has by itself what was kept for it. The keeper is told, and nobody waits for its answer.
void EngineCore::start_without_reading(Sequence& sequence) {
  desk_->leave_prefix(sequence);
  sequence.remote_done = true;
  scheduler_.arrived(sequence);
  retry_admission_ = true;  // it runs from the next step on
}

// Reading the beginning of a prompt saves time and is worth no error.
void EngineCore::compute_prefix(Sequence& sequence, std::string_view cause, std::string_view text) {
  const RemotePrefill& remote = *sequence.request.remote_prefill;
  log::failure(
      log::Level::kWarning, cause,
      {{"transfer", remote.transfer.to_string()},
       {"request", sequence.request.id},
       {"prefill", agent_->id().engine_id},
       {"decode", remote.peer.engine_id},
       {"then", "computed_here"},
       {"text", fmt::format("the blocks kept of this conversation were not read: {}", text)}});
  metrics_.prefix_reads_failed.add();
  desk_->leave_prefix(sequence);
  sequence.remote_done = true;
  pool_.free(sequence.blocks);
  sequence.blocks.clear();
  scheduler_.enqueue(sequence);
}

// D, engine loop: this step goes on once the reads are posted, whoever else waits for it.
void EngineCore::wait_posted(const Sequence& sequence) {
  const std::int64_t begin = now_ns();
  const auto at_most = std::chrono::ceil<std::chrono::milliseconds>(posting_left_);
  if (!desk_->wait_posted(sequence, at_most) && posting_left_ > Duration::zero()) {
    metrics_.pull_posting_timeouts.add();  // once a step
  }
  const std::int64_t end = now_ns();
  posting_left_ = std::max(Duration::zero(), posting_left_ - Duration(end - begin));
  metrics_.pull_posting_seconds.observe(seconds_between(begin, end));
}

void EngineCore::after_chunk(Sequence& sequence, std::uint32_t num_tokens,
                             std::span<const float> logits) {
  const std::uint32_t begin = std::min(sequence.computed, sequence.prompt_size);
  const std::uint32_t end = std::min(sequence.computed + num_tokens, sequence.prompt_size);
  sequence.computed += num_tokens;
  sequence.computed_prompt_tokens += end - begin;
  metrics_.computed_prompt_tokens.add(end - begin);
  index_blocks(sequence);
  if (sequence.is_prefill_only()) {
    after_prefill_chunk(sequence, logits);
  } else if (!logits.empty()) {
    deliver(sequence, sampler_.sample(logits, sequence.sampler, sequence.size()));
  }
}

// Before its first step. P: what the cache had is done, and D can have it while the rest is
// computed. What the agent has against it, it says again of the next piece.
void EngineCore::begin_steps(Sequence& sequence) {
  sequence.times.first_step = now_ns();
  note_cached(sequence);
  if (!sequence.is_prefill_only() || sequence.cached == 0) return;
  if (options_.transfer_style != TransferStyle::kBaton) return;
  (void)desk_->send_ready(sequence);
  if (sequence.ready_sent > 0) note_piece(sequence, sequence.times.first_step);
}

// What came from elsewhere is not what it must be.
void EngineCore::fail_step(Sequence& sequence, std::uint32_t received, std::string text) {
  if (!sequence.is_prefill_only() || received == 0) {
    return finish_error(sequence, {Errc::kCorrupt, std::move(text)});
  }
  leave_steps(sequence);
  compute_prefix(sequence, to_string(Errc::kCorrupt), text);
}

// Full blocks whose KV has been through a step without a fault are there for others.
void EngineCore::index_blocks(Sequence& sequence) {
  if (!prefix_cache_) return;
  const std::uint32_t size = options_.block_size;
  const std::span<const TokenId> tokens = sequence.tokens;
  while ((sequence.indexed + 1) * size <= sequence.computed) {
    const BlockId block = sequence.blocks[sequence.indexed];
    const auto [node, indexed] =
        prefix_cache_->insert(sequence.last_node, tokens.subspan(sequence.indexed * size, size),
                              block, sequence.request.cache_salt);
    if (indexed) pool_.mark_cached(block);
    sequence.last_node = node;
    ++sequence.indexed;
  }
}

// P: tells the agent which blocks are done, and leaves the steps at the end of the prompt.
void EngineCore::after_prefill_chunk(Sequence& sequence, std::span<const float> logits) {
  if (sequence.computed == sequence.prompt_size) {
    if (!logits.empty()) {
      sequence.first_token = sampler_.sample(logits, sequence.sampler, sequence.size());
      sequence.times.first_token = now_ns();  // it is told only once the blocks are accepted
    }
    scheduler_.remove(sequence);
    sequence.phase = Phase::kHandingOver;
  }
  if (options_.transfer_style == TransferStyle::kBaton) return send_ready(sequence);
  if (sequence.phase == Phase::kHandingOver) finished_now_.push_back(&sequence);
}

void EngineCore::send_ready(Sequence& sequence) {
  const std::uint32_t told_before = sequence.ready_sent;
  if (pulls() && sequence.announcement == 0) sequence.announcement = random_u64();
  const std::int64_t told_at = now_ns();  // before: the owner thread may have written it all after
  const auto answer = desk_->send_ready(sequence);
  if (!answer) {
    finish_error(sequence, {answer.error().code,
                            fmt::format("transfer {}: finished blocks were not accepted: {}",
                                        sequence.request.remote_decode->transfer.to_string(),
                                        answer.error().message)});
    return;
  }
  if (*answer == HandoverDesk::Answer::kLater) {
    // A piece in the middle goes along with the next one.
    if (sequence.phase == Phase::kHandingOver) ready_retries_.push_back(&sequence);
    return;
  }
  if (sequence.ready_sent > told_before) note_piece(sequence, told_at);
  if (!sequence.ready_done) return;
  if (!sequence.first_token) count_prompt_sources(sequence);
  Output output;
  output.prefilled = true;
  output.cached_prompt_tokens = std::min(sequence.cached, sequence.prompt_size);
  if (pulls()) {
    output.source =
        SourceBlocks{{0, sequence.prompt_size}, {sequence.blocks}, sequence.announcement};
  }
  if (sequence.first_token) {
    output.is_first_token = true;
    output.tokens = {*sequence.first_token};
    output.text = take_token(sequence, *sequence.first_token).text;
  }
  sequence.callback(std::move(output));
}

// As one process would: the end-of-generation token first, then stop strings, then the length. The
// token counts as generated whichever it is.
EngineCore::Taken EngineCore::take_token(Sequence& sequence, TokenId token) {
  sequence.tokens.push_back(token);
  metrics_.generation_tokens.add();
  note_token_time(sequence);
  const SamplingParams& sampling = sequence.request.sampling;
  Taken taken;
  const auto absorb = [&taken](TextStream::Step step) {
    taken.text += step.text;
    if (!step.stop) return false;
    taken.end = FinishReason::kStop;
    taken.stop_reason = std::move(step.stop);
    return true;
  };
  if (!sampling.ignore_eos && tokenizer_->is_end_of_generation(token)) {
    absorb(sequence.text.finish());
    taken.end = FinishReason::kStop;
    return taken;
  }
  if (absorb(sequence.text.push(token))) return taken;
  if (sequence.sampled() >= sampling.max_tokens || sequence.size() >= options_.max_model_len) {
    if (!absorb(sequence.text.finish())) taken.end = FinishReason::kLength;
  }
  return taken;
}

void EngineCore::note_start(Sequence& sequence) {
  RequestTimes& times = sequence.times;
  if (times.started != 0) return;
  times.started = now_ns();
  metrics_.request_queue_time_seconds.observe(seconds_between(times.submitted, times.started));
}

void EngineCore::note_piece(Sequence& sequence, std::int64_t at) {
  std::vector<std::int64_t>& pieces = sequence.times.pieces_ready;
  if (pieces.size() == RequestTimes::kPiecesMax) pieces.pop_back();
  pieces.push_back(at);
}

// Once a request: what it looked up in the cache, and found.
void EngineCore::note_cached(Sequence& sequence) {
  if (!prefix_cache_ || std::exchange(sequence.lookup_counted, true)) return;
  metrics_.prefix_cache_queries.add(sequence.prompt_size);
  metrics_.prefix_cache_hits.add(std::min(sequence.cached, sequence.prompt_size));
}

// Where the KV of a whole prompt came from: said once a request, when its first token is there, so
// that the sources add up to the prompts.
void EngineCore::count_prompt_sources(const Sequence& sequence) {
  const std::uint32_t computed = std::min(sequence.computed_prompt_tokens, sequence.prompt_size);
  const std::uint32_t cached = std::min(sequence.cached, sequence.prompt_size - computed);
  metrics_.prompt_tokens_computed.add(computed);
  metrics_.prompt_tokens_cached.add(cached);
  metrics_.prompt_tokens_received.add(sequence.prompt_size - computed - cached);
}

void EngineCore::note_token_time(Sequence& sequence) {
  RequestTimes& times = sequence.times;
  const bool sampled_before = sequence.sampled() == 1 && times.first_token != 0;
  const std::int64_t time = sampled_before ? times.first_token : now_ns();
  if (sequence.sampled() == 1) {
    times.first_token = time;
    metrics_.time_to_first_token_seconds.observe(seconds_between(times.submitted, time));
    count_prompt_sources(sequence);
  } else {
    if (sequence.sampled() == 2) times.second_token = time;
    metrics_.inter_token_latency_seconds.observe(seconds_between(times.last_token, time));
  }
  times.last_token = time;
}

void EngineCore::deliver(Sequence& sequence, TokenId token) {
  Taken taken = take_token(sequence, token);
  Output output;
  output.text = std::move(taken.text);
  output.tokens = {token};
  if (sequence.sampled() == 1) {
    output.is_first_token = true;
    sequence.callback(std::exchange(output, {}));
  } else if (!taken.end) {
    sequence.callback(std::exchange(output, {}));
  }
  if (!taken.end) return;
  output.stop_reason = std::move(taken.stop_reason);
  finish(sequence, *taken.end, std::move(output));
}

void EngineCore::finish(Sequence& sequence, FinishReason reason, Output last) {
  const std::string id = sequence.request.id;
  const auto transfer = transfer_of(sequence.request);
  const auto prefix = prefix_of(sequence.request);
  const bool answered = reason == FinishReason::kStop || reason == FinishReason::kLength;
  const bool keeps = answered && sequence.request.keep_blocks && !draining_.load();
  if (keeps) last.kept = keep_blocks(sequence);
  const bool transfer_stays = transfer && desk_->detach(sequence);
  leave_steps(sequence);
  pool_.free(sequence.blocks);
  sequence.blocks.clear();
  count_finish(sequence, reason);
  update_gauges();

  last.finish = reason;
  last.prompt_tokens = sequence.prompt_size;
  last.completion_tokens = sequence.sampled();
  last.computed_prompt_tokens = sequence.computed_prompt_tokens;
  last.cached_prompt_tokens = std::min(sequence.cached, sequence.prompt_size);
  last.handover = std::move(sequence.handover);
  last.registrations = sequence.registrations;
  last.times = std::move(sequence.times);
  const OutputCallback callback = std::move(sequence.callback);
  sequences_.erase(id);
  intake_.forget_request(id);
  if (transfer && !transfer_stays) intake_.forget_transfer(transfer->first, transfer->second);
  if (prefix) intake_.forget_transfer(Side::kDecode, *prefix);
  callback(std::move(last));
}

// The whole blocks of what has KV; the rest is freed with the sequence.
std::optional<Output::Kept> EngineCore::keep_blocks(Sequence& sequence) {
  const std::uint32_t blocks = sequence.computed / options_.block_size;
  if (blocks == 0) return std::nullopt;
  const auto end = sequence.blocks.begin() + blocks;
  std::vector<BlockId> ids(sequence.blocks.begin(), end);
  Output::Kept kept;
  kept.transfer = TransferId::random();
  const std::uint32_t tokens = blocks * options_.block_size;
  kept.source = {{0, tokens}, {ids}, random_u64()};
  if (!desk_->keep(kept.transfer, kept.source.announcement, tokens, std::move(ids),
                   {options_.kept_blocks_max, options_.agent->transfers_max / 2})) {
    return std::nullopt;
  }
  sequence.blocks.erase(sequence.blocks.begin(), end);
  kept.tokens.assign(sequence.tokens.begin(), sequence.tokens.begin() + tokens);
  return kept;
}

// Called before the sequence ends. `then`: what becomes of the request.
void EngineCore::log_failure(log::Level level, const Sequence& sequence, const Error& error) const {
  const std::string_view then = level == log::Level::kWarning ? "computed_here" : "failed";
  const auto transfer = transfer_of(sequence.request);
  if (!transfer) {
    log::failure(level, "request_failed",
                 {{"request", sequence.request.id}, {"then", then}, {"text", error.message}});
    return;
  }
  const bool is_prefill = transfer->first == Side::kPrefill;
  const auto& event = sequence.handover;
  std::string peer = event ? event->peer : "";
  if (peer.empty() && !is_prefill) peer = sequence.request.remote_prefill->peer.engine_id;
  const std::string& own = agent_->id().engine_id;
  // What failed behind a hand-over that went well is known by the error alone.
  const bool done = event && event->outcome == Outcome::kDone;
  log::failure(level,
               done    ? to_string(error.code)
               : event ? to_string(event->cause)
                       : "not_accepted",
               {{"transfer", transfer->second.to_string()},
                {"request", sequence.request.id},
                {"prefill", is_prefill ? own : peer},
                {"decode", is_prefill ? peer : own},
                {"side", is_prefill ? "prefill" : "decode"},
                {"attempt",
                 event ? fmt::format("{}.{}", event->attempt.binding, event->attempt.attempt) : ""},
                {"then", then},
                {"text", event && !event->text.empty() ? event->text : error.message}});
}

void EngineCore::finish_error(Sequence& sequence, Error error) {
  log_failure(log::Level::kError, sequence, error);
  Output output;
  output.error = std::move(error);
  finish(sequence, FinishReason::kError, std::move(output));
}

// vLLM's parts of a request: of those only that were answered.
void EngineCore::observe_parts(const Sequence& sequence) {
  const RequestTimes& times = sequence.times;
  metrics_.request_prompt_tokens.observe(sequence.prompt_size);
  metrics_.request_generation_tokens.observe(sequence.sampled());
  if (times.first_step == 0) return;
  if (times.first_token > times.first_step) {
    metrics_.request_prefill_time_seconds.observe(
        seconds_between(times.first_step, times.first_token));
  }
  if (sequence.is_prefill_only() || times.first_token == 0) return;
  metrics_.request_decode_time_seconds.observe(
      seconds_between(times.first_token, times.last_token));
  metrics_.request_inference_time_seconds.observe(
      seconds_between(std::min(times.first_step, times.first_token), times.last_token));
  if (sequence.sampled() > 1) {
    metrics_.request_time_per_output_token_seconds.observe(
        seconds_between(times.first_token, times.last_token) / (sequence.sampled() - 1));
  }
}

void EngineCore::count_finish(const Sequence& sequence, FinishReason reason) {
  if (reason != FinishReason::kAborted && reason != FinishReason::kError) observe_parts(sequence);
  metrics_.e2e_request_latency_seconds.observe(seconds_between(sequence.times.submitted, now_ns()));
  switch (reason) {
    case FinishReason::kStop:
      metrics_.finished_stop.add();
      break;
    case FinishReason::kLength:
      metrics_.finished_length.add();
      break;
    case FinishReason::kHandedOver:
      metrics_.finished_handed_over.add();
      break;
    case FinishReason::kAborted:
      metrics_.finished_aborted.add();
      break;
    case FinishReason::kError:
      metrics_.finished_error.add();
      break;
  }
}

// D: every byte has landed [I2]. With P's first token the sequence goes on behind it; otherwise the
// last prompt token is computed again for its logits.
void EngineCore::remote_kv_done(Sequence& sequence, Event event) {
  if (sequence.is_prefill_only()) {
    sequence.computed = sequence.received = sequence.remote_tokens;
    metrics_.prefix_tokens_read.add(sequence.computed - sequence.cached);
    return scheduler_.arrived(sequence);
  }
  if (!event.first_token) event.first_token = sequence.request.remote_prefill->announced_token;
  const TokenId first = event.first_token.value_or(-1);
  const bool known = first >= 0 && static_cast<std::uint32_t>(first) < model_config().vocab_size;
  if (event.first_token && !known) {
    log::warning(
        "transfer {}: first token {} is not in the vocabulary of {}, computed here instead",
        event.transfer.to_string(), first, model_config().vocab_size);
  }
  starving_since_ = 0;
  const bool take = known && sequence.request.remote_prefill->first_token == FirstToken::kPrefill;
  sequence.handover = std::move(event);
  sequence.computed = take ? sequence.prompt_size : sequence.prompt_size - 1;
  sequence.received = sequence.computed;
  scheduler_.arrived(sequence);
  if (take) deliver(sequence, first);
}

void EngineCore::remote_kv_failed(Sequence& sequence, Event event) {
  if (sequence.is_prefill_only()) {
    return compute_prefix(sequence, to_string(event.cause), event.text);
  }
  metrics_.kv_load_failures.add();
  Error error = transfer_error(event, agent_->id().engine_id,
                               sequence.request.remote_prefill->peer.engine_id);
  sequence.handover = std::move(event);
  if (options_.load_failure_policy == LoadFailurePolicy::kFail) {
    finish_error(sequence, std::move(error));
    return;
  }
  log_failure(log::Level::kWarning, sequence, error);
  metrics_.kv_load_recomputed.add();
  scheduler_.enqueue(sequence);
}

void EngineCore::remote_kv_withdrawn(Sequence& sequence) {
  metrics_.registrations_withdrawn.add();
  scheduler_.enqueue_last(sequence);
}

void EngineCore::prefill_ended(Sequence& sequence, Event event) {
  Error error = transfer_error(event, agent_->id().engine_id, event.peer);
  const bool done = event.outcome == Outcome::kDone;
  sequence.handover = std::move(event);
  if (done) {
    finish(sequence, FinishReason::kHandedOver, {});
  } else if (sequence.aborted) {
    finish(sequence, FinishReason::kAborted, {});
  } else {
    finish_error(sequence, std::move(error));
  }
}

void EngineCore::transfer_over(TransferId transfer) {
  intake_.forget_transfer(Side::kPrefill, transfer);
}

}  // namespace baton::engine
