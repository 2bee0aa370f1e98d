#include "engine/engine_core.h"

#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace baton::engine {

namespace {

constexpr int kRetryMilliseconds = 1;  // while the agent's queue is full
// How long D stands still before a registration gives way, at first and while that does not help.
constexpr std::int64_t kPatienceNs = 1'000'000'000;
constexpr std::int64_t kPatienceAgainNs = 100'000'000;
constexpr int kGiveWayMilliseconds = 50;
constexpr int kExpiryMilliseconds = 500;  // between two looks at who waits for blocks

RequestLimits limits_of(const model::Model& model, const EngineOptions& options) {
  RequestLimits limits;
  limits.vocab_size = model.config().vocab_size;
  limits.max_model_len = options.max_model_len;
  limits.block_size = options.block_size;
  limits.total_blocks = options.num_blocks;
  if (options.agent) {
    limits.role = options.agent->role;
    limits.mode = options.agent->mode;
    limits.bidirectional = options.bidirectional;
    limits.kv_recompute_threshold = options.kv_recompute_threshold;
  }
  return limits;
}

}  // namespace

EngineCore::EngineCore(std::unique_ptr<model::Model> model,
                       std::shared_ptr<const model::Tokenizer> tokenizer, EngineOptions options,
                       KvCache cache, std::unique_ptr<Agent> agent)
    : model_(std::move(model)),
      tokenizer_(std::move(tokenizer)),
      options_(std::move(options)),
      cache_(std::move(cache)),
      agent_(std::move(agent)),
      prefix_cache_(options_.enable_prefix_caching
                        ? std::make_unique<PrefixCache>(options_.block_size, options_.num_blocks)
                        : nullptr),
      pool_(options_.num_blocks, [this](BlockId block) { prefix_cache_->forget(block); }),
      scheduler_(pool_,
                 {.block_size = options_.block_size,
                  .max_num_seqs = options_.max_num_seqs,
                  .max_num_batched_tokens = options_.max_num_batched_tokens},
                 prefix_cache_.get()),
      desk_(agent_ ? std::make_unique<HandoverDesk>(*agent_, pool_, options_.block_size, *this)
                   : nullptr),
      intake_(limits_of(*model_, options_), options_.waiting_max, tokenizer_,
              [this](const Request& request) { return desk_->announce(request); }) {
  update_gauges();
  thread_ = std::thread([this] {
    ::pthread_setname_np(::pthread_self(), "engine");
    run();
  });
}

EngineCore::~EngineCore() {
  stopping_.store(true);
  intake_.close();
  thread_.join();
}

Status EngineCore::submit(Request request, OutputCallback callback) {
  return intake_.submit(std::move(request), std::move(callback));
}

void EngineCore::abort(const std::string& id) {
  intake_.abort(id);
}

// A full queue is no reason to go on: the agent's end says the same to everybody a little later.
void EngineCore::drain() {
  draining_.store(true);
  if (agent_) (void)agent_->drain();
}

void EngineCore::abandon() {
  draining_.store(true);
  if (agent_) (void)agent_->abandon();
}

Engine::Blocks EngineCore::blocks() const {
  const BlockPool::Counts counts = pool_.counts();
  return {counts.free, counts.used, counts.quarantined, counts.total};
}

void EngineCore::run() {
  while (!stopping_.load()) {
    take_inbox();
    if (desk_) look_at_events();
    for (Sequence* sequence : std::exchange(ready_retries_, {})) send_ready(*sequence);
    computed_ = step();
    tell_of_finished_prompts(computed_);
    give_way();
    expire_head();
    update_gauges();
    if (!computed_ && !(desk_ && desk_->has_collected())) wait();
  }
  take_inbox();
  finish_all();
}

void EngineCore::look_at_events() {
  if (options_.transfer_style == TransferStyle::kBaton) return desk_->poll();
  desk_->deal();
  desk_->collect();
  if (!computed_) desk_->deal();
}

// TransferStyle::kPublished: with two steps under way at once, what a step finished goes out behind
// the step that follows it, if one does.
void EngineCore::tell_of_finished_prompts(bool computed) {
  std::vector<Sequence*> due = std::exchange(finished_before_, {});
  if (computed) {
    finished_before_ = std::exchange(finished_now_, {});
  } else {
    due.insert(due.end(), finished_now_.begin(), finished_now_.end());
    finished_now_.clear();
  }
  for (Sequence* sequence : due) send_ready(*sequence);
}

void EngineCore::take_inbox() {
  intake_.take(inbox_);
  for (Intake::Item& item : inbox_) {
    if (item.sequence) {
      accept(std::move(item.sequence));
    } else {
      abort_one(item.id);
    }
  }
}

// False: there was nothing that could be computed.
bool EngineCore::step() {
  to_register_.clear();
  retry_admission_ = false;
  const std::uint64_t preemptions = scheduler_.preemptions();
  scheduler_.admit(to_register_);
  give_up_kept();
  posting_left_ = kPostingLongest;
  for (Sequence* sequence : to_register_) start_remote(*sequence);
  scheduler_.plan(work_);
  metrics_.preemptions.add(scheduler_.preemptions() - preemptions);
  intake_.set_waiting(scheduler_.waiting());
  if (work_.empty()) return false;
  compute();
  return true;
}

void EngineCore::compute() {
  const std::size_t vocab = model_->config().vocab_size;
  chunks_.clear();
  std::size_t rows = 0, tokens = 0;
  for (const Work& work : work_) {
    Sequence& sequence = *work.sequence;
    BATON_CHECK(sequence.phase == Phase::kRunning && !sequence.blocks.empty());
    note_start(sequence);
    if (sequence.times.first_step == 0) begin_steps(sequence);
    const bool reaches_end = sequence.computed + work.num_tokens == sequence.size();
    const bool samples = !sequence.is_prefill_only() ||
                         sequence.request.remote_decode->first_token == FirstToken::kPrefill;
    chunks_.push_back(
        {.tokens = std::span(sequence.tokens).subspan(sequence.computed, work.num_tokens),
         .start = sequence.computed,
         .block_table = sequence.blocks,
         .want_logits = reaches_end && samples,
         .before = std::span(sequence.tokens).first(sequence.computed),
         .received = std::min(std::exchange(sequence.received, 0U), sequence.computed)});
    if (chunks_.back().want_logits) ++rows;
    tokens += work.num_tokens;
  }
  logits_.resize(std::max(logits_.size(), rows * vocab));
  model_->forward(chunks_, cache_.pool(), std::span(logits_).first(rows * vocab));
  metrics_.steps.add();
  metrics_.iteration_tokens.observe(static_cast<double>(tokens));
  auto fault = model_->faults().begin();
  std::size_t row = 0;
  for (std::size_t i = 0; i < work_.size(); ++i) {
    std::span<const float> logits;
    if (chunks_[i].want_logits) logits = std::span(logits_).subspan(vocab * row++, vocab);
    if (fault != model_->faults().end() && fault->chunk == i) {
      fail_step(*work_[i].sequence, chunks_[i].received, (fault++)->text);
    } else {
      after_chunk(*work_[i].sequence, work_[i].num_tokens, logits);
    }
  }
}

// P and D may take requests in different orders. Then P's pool can be full of finished prompts that
// wait here for blocks, and this pool full of registrations that wait at P for theirs: a circle
// that no deadline breaks, because both sides are alive and say so [I4]. So where nothing runs and
// the head of the queue gets no blocks, the youngest registration goes to the end of the queue, and
// the next one, until one of them is served. Not in pull: what is registered there is being read,
// so that no registration waits for P's pool, and one taken back would have to be read again.
void EngineCore::give_way() {
  const bool starving = desk_ && !pulls() && desk_->waiting_for_kv() > 0 &&
                        scheduler_.waiting() > 0 && scheduler_.running() == 0;
  if (!starving) {
    starving_since_ = 0;
    return;
  }
  const std::int64_t time = now_ns();
  if (starving_since_ == 0) {
    starving_since_ = time;
    patience_ns_ = kPatienceNs;
  }
  if (time - starving_since_ < patience_ns_ || desk_->withdrawing() > 0) return;
  Sequence* youngest = nullptr;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence->attempt != 0 && (!youngest || sequence->attempt > youngest->attempt)) {
      youngest = sequence.get();
    }
  }
  if (youngest != nullptr) desk_->withdraw(*youngest);
  starving_since_ = time;
  patience_ns_ = kPatienceAgainNs;
}

// Who waits here for blocks keeps P's under a claim, and P's pool may be what those who hold the
// blocks wait for: two instances that are each other's P and D, or a P that nobody frees. No
// message ends that; this does [I4].
void EngineCore::expire_head() {
  Sequence* head = scheduler_.head();
  // Not P's that would read its beginning: it claims little, and computes where it cannot read.
  head_expires_ = head != nullptr && head->wants_remote_kv() && !head->is_prefill_only();
  if (!head_expires_) return;
  const auto limit = std::chrono::nanoseconds(options_.agent->transfer_total).count();
  if (now_ns() - head->times.submitted < limit) return;
  finish_error(*head, {Errc::kDeadlineExceeded,
                       fmt::format("transfer {}: no blocks for its {} prompt tokens within {} ms "
                                   "(transfer_total); {} of {} blocks are free",
                                   head->request.remote_prefill->transfer.to_string(),
                                   head->prompt_size, options_.agent->transfer_total.count(),
                                   pool_.counts().free, pool_.counts().total)});
}

// What was kept for the next turn of a conversation is the first to go when blocks are wanted. They
// come back with an event, so that what the next step may take is asked for one step ahead.
void EngineCore::give_up_kept() {
  if (!desk_) return;
  const auto ahead = 2 * static_cast<std::uint32_t>(scheduler_.running());
  const std::uint32_t wanted = std::max(scheduler_.wanted_blocks(), ahead);
  const std::uint32_t free = pool_.counts().free;
  if (free < wanted) desk_->give_up_kept(wanted - free);
}

void EngineCore::wait() {
  // The wake-up of the end may have been taken together with the last submissions.
  if (stopping_.load()) return;
  std::array<pollfd, 2> fds{};
  fds[0] = {.fd = intake_.wake_fd(), .events = POLLIN, .revents = 0};
  nfds_t count = 1;
  bool retry = retry_admission_ || !ready_retries_.empty();
  if (desk_) {
    fds[count++] = {.fd = desk_->event_fd(), .events = POLLIN, .revents = 0};
    retry = retry || desk_->must_retry();
  }
  int longest = head_expires_ ? kExpiryMilliseconds : -1;
  if (starving_since_ != 0) longest = kGiveWayMilliseconds;
  (void)::poll(fds.data(), count, retry ? kRetryMilliseconds : longest);
}

void EngineCore::finish_all() {
  std::vector<Sequence*> left;
  left.reserve(sequences_.size());
  for (const auto& [id, sequence] : sequences_) left.push_back(sequence.get());
  std::sort(left.begin(), left.end(),
            [](const Sequence* a, const Sequence* b) { return a->arrival < b->arrival; });
  for (Sequence* sequence : left) finish(*sequence, FinishReason::kAborted, {});
  update_gauges();
}

void EngineCore::update_gauges() {
  const BlockPool::Counts counts = pool_.counts();
  metrics_.blocks_free.set(counts.free);
  metrics_.blocks_used.set(counts.used);
  metrics_.blocks_quarantined.set(counts.quarantined);
  metrics_.blocks_kept.set(desk_ ? desk_->kept_blocks() : 0);
  metrics_.requests_running.set(static_cast<std::int64_t>(scheduler_.running()));
  metrics_.requests_waiting.set(static_cast<std::int64_t>(scheduler_.waiting()));
  metrics_.requests_waiting_for_remote_kv.set(
      desk_ ? static_cast<std::int64_t>(desk_->waiting_for_kv()) : 0);
}

}  // namespace baton::engine
