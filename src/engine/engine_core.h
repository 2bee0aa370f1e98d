// The engine behind Engine: one thread that takes what came in, runs a step, and tells the
// requests.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "engine/block_pool.h"
#include "engine/engine.h"
#include "engine/handover_desk.h"
#include "engine/intake.h"
#include "engine/kv_cache.h"
#include "engine/prefix_cache.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"

namespace baton::engine {

class EngineCore final : public Engine, public HandoverDesk::Listener {
 public:
  // `options` without a 0 that asks for a choice; `agent` may be null.
  EngineCore(std::unique_ptr<model::Model> model, std::shared_ptr<const model::Tokenizer> tokenizer,
             EngineOptions options, KvCache cache, std::unique_ptr<Agent> agent);
  ~EngineCore() override;

  Status submit(Request request, OutputCallback callback) override;
  void abort(const std::string& id) override;
  void drain() override;
  void abandon() override;
  const EngineOptions& options() const override { return options_; }
  const model::ModelConfig& model_config() const override { return model_->config(); }
  const std::string& kernel_family() const override { return model_->kernel_family(); }
  const EngineMetrics& metrics() const override { return metrics_; }
  const Agent* agent() const override { return agent_.get(); }
  Blocks blocks() const override;

 private:
  bool pulls() const { return options_.agent && options_.agent->mode == Mode::kPull; }

  // What one token does to a sequence: the text it releases, and whether it is the last.
  struct Taken {
    std::string text;
    std::optional<FinishReason> end;
    std::optional<std::string> stop_reason;
  };

  // The loop (engine_core.cc).
  void run();
  void take_inbox();
  bool step();
  void give_way();
  void expire_head();
  void give_up_kept();
  void wait();
  void compute();
  void begin_steps(Sequence& sequence);
  void fail_step(Sequence& sequence, std::uint32_t received, std::string text);
  void look_at_events();
  void tell_of_finished_prompts(bool computed);
  void finish_all();
  void update_gauges();

  // What becomes of the requests (engine_requests.cc).
  void accept(std::unique_ptr<Sequence> sequence);
  void abort_one(const std::string& id);
  void leave_steps(Sequence& sequence);
  void start_remote(Sequence& sequence);
  void start_without_reading(Sequence& sequence);
  void wait_posted(const Sequence& sequence);
  void compute_prefix(Sequence& sequence, std::string_view cause, std::string_view text);
  std::optional<Output::Kept> keep_blocks(Sequence& sequence);
  // Of one step, for all that it registers: a peer that does not answer must not stop those that
  // are decoding for longer.
  static constexpr Duration kPostingLongest = std::chrono::seconds(1);
  Duration posting_left_{};
  void after_chunk(Sequence& sequence, std::uint32_t num_tokens, std::span<const float> logits);
  void after_prefill_chunk(Sequence& sequence, std::span<const float> logits);
  void send_ready(Sequence& sequence);
  void index_blocks(Sequence& sequence);
  Taken take_token(Sequence& sequence, TokenId token);
  void deliver(Sequence& sequence, TokenId token);
  void finish(Sequence& sequence, FinishReason reason, Output last);
  void finish_error(Sequence& sequence, Error error);
  void note_start(Sequence& sequence);
  void note_token_time(Sequence& sequence);
  void note_piece(Sequence& sequence, std::int64_t at);
  void note_local_prefill(const Sequence& sequence);
  void note_cached(Sequence& sequence);
  void count_prompt_sources(const Sequence& sequence);
  void observe_parts(const Sequence& sequence);
  void log_failure(log::Level level, const Sequence& sequence, const Error& error) const;
  void count_finish(const Sequence& sequence, FinishReason reason);

  // HandoverDesk::Listener
  void remote_kv_done(Sequence& sequence, Event event) override;
  void remote_kv_failed(Sequence& sequence, Event event) override;
  void remote_kv_withdrawn(Sequence& sequence) override;
  void prefill_ended(Sequence& sequence, Event event) override;
  void transfer_over(TransferId transfer) override;

  const std::unique_ptr<model::Model> model_;
  const std::shared_ptr<const model::Tokenizer> tokenizer_;
  const EngineOptions options_;
  const KvCache cache_;
  const std::unique_ptr<Agent> agent_;  // goes before the memory that it reads and writes
  EngineMetrics metrics_;
  std::unique_ptr<PrefixCache> prefix_cache_;  // null without
  BlockPool pool_;
  Scheduler scheduler_;
  std::unique_ptr<HandoverDesk> desk_;  // null without an agent
  Intake intake_;

  // The engine thread's.
  std::unordered_map<std::string, std::unique_ptr<Sequence>> sequences_;
  std::vector<Sequence*> ready_retries_;  // P: the agent's queue was full
  // TransferStyle::kPublished. P: prompts that ended in the last step, and in the one before; D:
  // whether the last look at events followed a step.
  std::vector<Sequence*> finished_now_, finished_before_;
  bool computed_ = false;
  bool retry_admission_ = false;     // a registration was not accepted, or nothing is to be read
  bool head_expires_ = false;        // D: the queue's head ends at a deadline
  std::int64_t starving_since_ = 0;  // D: see give_way(); 0: not starving
  std::int64_t patience_ns_ = 0;
  Sampler sampler_;
  std::vector<Intake::Item> inbox_;
  std::vector<Sequence*> to_register_;
  std::vector<Work> work_;
  std::vector<model::SequenceChunk> chunks_;
  std::vector<float> logits_;

  std::atomic<bool> stopping_{false};
  std::atomic<bool> draining_{false};  // nothing is kept any more
  std::thread thread_;
};

}  // namespace baton::engine
