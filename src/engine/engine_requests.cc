// What becomes of a request: from its acceptance to the one output that finishes it.

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_core.h"
#include "engine/transfer_error.h"

namespace baton::engine {

namespace {

std::int64_t now_ns() {
  return now().time_since_epoch().count();
}

double seconds_between(std::int64_t from, std::int64_t to) {
  return static_cast<double>(to - from) * 1e-9;
}

}  // namespace

void EngineCore::accept(std::unique_ptr<Sequence> owned) {
  Sequence& sequence = *owned;
  metrics_.prompt_tokens.add(sequence.prompt_size);
  const bool inserted = sequences_.emplace(sequence.request.id, std::move(owned)).second;
  BATON_CHECK(inserted, "request '{}' is accepted twice", sequence.request.id);
  if (transfer_of(sequence.request)) desk_->attach(sequence);
  scheduler_.enqueue(sequence);
}

void EngineCore::abort_one(const std::string& id) {
  const auto at = sequences_.find(id);
  if (at != sequences_.end()) finish(*at->second, FinishReason::kAborted, {});
}

// D, in the step that granted its blocks: P may write from here on.
void EngineCore::start_remote(Sequence& sequence) {
  if (options_.poison_blocks) cache_.poison(sequence.blocks);
  const auto answer = desk_->register_blocks(sequence);
  if (!answer) {
    finish_error(sequence, {answer.error().code,
                            fmt::format("transfer {} could not be registered: {}",
                                        sequence.request.remote_prefill->transfer.to_string(),
                                        answer.error().message)});
    return;
  }
  if (*answer == HandoverDesk::Answer::kLater) {
    pool_.free(sequence.blocks);
    sequence.blocks.clear();
    scheduler_.enqueue(sequence);
    retry_admission_ = true;
    return;
  }
  note_start(sequence);
}

void EngineCore::after_chunk(Sequence& sequence, std::uint32_t num_tokens,
                             std::span<const float> logits) {
  const std::uint32_t begin = std::min(sequence.computed, sequence.prompt_size);
  const std::uint32_t end = std::min(sequence.computed + num_tokens, sequence.prompt_size);
  sequence.computed += num_tokens;
  sequence.computed_prompt_tokens += end - begin;
  metrics_.computed_prompt_tokens.add(end - begin);
  if (sequence.is_prefill_only()) {
    after_prefill_chunk(sequence, logits);
  } else if (!logits.empty()) {
    deliver(sequence, sampler_.sample(logits, sequence.sampler, sequence.size()));
  }
}

// P: tells the agent which blocks are done, and leaves the steps at the end of the prompt.
void EngineCore::after_prefill_chunk(Sequence& sequence, std::span<const float> logits) {
  if (sequence.computed == sequence.prompt_size) {
    if (!logits.empty()) {
      sequence.first_token = sampler_.sample(logits, sequence.sampler, sequence.size());
      sequence.first_token_time = now_ns();  // it is told only once the blocks are accepted
    }
    scheduler_.remove(sequence);
    sequence.phase = Phase::kHandingOver;
  }
  send_ready(sequence);
}

void EngineCore::send_ready(Sequence& sequence) {
  const auto answer = desk_->send_ready(sequence, options_.block_size);
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
  if (!sequence.ready_done) return;
  Output output;
  output.prefilled = true;
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
  if (sequence.started_time != 0) return;
  sequence.started_time = now_ns();
  metrics_.request_queue_time_seconds.observe(
      seconds_between(sequence.submitted_time, sequence.started_time));
}

void EngineCore::note_token_time(Sequence& sequence) {
  const bool sampled_before = sequence.sampled() == 1 && sequence.first_token_time != 0;
  const std::int64_t time = sampled_before ? sequence.first_token_time : now_ns();
  if (sequence.sampled() == 1) {
    sequence.first_token_time = time;
    metrics_.time_to_first_token_seconds.observe(seconds_between(sequence.submitted_time, time));
  } else {
    if (sequence.sampled() == 2) sequence.second_token_time = time;
    metrics_.inter_token_latency_seconds.observe(seconds_between(sequence.last_token_time, time));
  }
  sequence.last_token_time = time;
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
  const bool transfer_stays = transfer && desk_->detach(sequence);
  scheduler_.remove(sequence);
  std::erase(ready_retries_, &sequence);
  pool_.free(sequence.blocks);
  sequence.blocks.clear();
  count_finish(sequence, reason);
  update_gauges();

  last.finish = reason;
  last.prompt_tokens = sequence.prompt_size;
  last.completion_tokens = sequence.sampled();
  last.computed_prompt_tokens = sequence.computed_prompt_tokens;
  last.handover = std::move(sequence.handover);
  last.first_token_time = sequence.first_token_time;
  last.second_token_time = sequence.second_token_time;
  const OutputCallback callback = std::move(sequence.callback);
  sequences_.erase(id);
  intake_.forget_request(id);
  if (transfer && !transfer_stays) intake_.forget_transfer(transfer->first, transfer->second);
  callback(std::move(last));
}

void EngineCore::finish_error(Sequence& sequence, Error error) {
  log::error("request '{}' failed: {}", sequence.request.id, error.message);
  Output output;
  output.error = std::move(error);
  finish(sequence, FinishReason::kError, std::move(output));
}

void EngineCore::count_finish(const Sequence& sequence, FinishReason reason) {
  metrics_.e2e_request_latency_seconds.observe(seconds_between(sequence.submitted_time, now_ns()));
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
  scheduler_.arrived(sequence);
  if (take) deliver(sequence, first);
}

void EngineCore::remote_kv_failed(Sequence& sequence, Event event) {
  metrics_.kv_load_failures.add();
  Error error = transfer_error(event, agent_->id().engine_id,
                               sequence.request.remote_prefill->peer.engine_id);
  sequence.handover = std::move(event);
  if (options_.load_failure_policy == LoadFailurePolicy::kFail) {
    finish_error(sequence, std::move(error));
    return;
  }
  log::warning("request '{}' is computed here: {}", sequence.request.id, error.message);
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
  } else {
    finish_error(sequence, std::move(error));
  }
}

void EngineCore::transfer_over(TransferId transfer) {
  intake_.forget_transfer(Side::kPrefill, transfer);
}

}  // namespace baton::engine
