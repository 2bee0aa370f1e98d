// The compute backend `timed`: a model that computes nothing. A step takes as long as a profile
// says, and leaves behind in the KV blocks what a real one would leave, in number and shape: a
// pattern (pattern.h), with the bytes of each token divided by a stated scale. Everything that such
// an instance says of itself carries the word *emulated*.
//
// Where KV came from another instance, the first step that uses it compares every byte with the
// pattern; a difference is a fault of that chunk. Filling and comparing count into the step's time;
// where they alone take longer than the step, these cores are the limit, and the step counts as
// overrun.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "engine/timed/pattern.h"
#include "engine/timed/profile.h"
#include "engine/timed/step_clock.h"
#include "engine/timed/step_time.h"
#include "model/model.h"

namespace baton::engine::timed {

// Raised by the engine thread, read by anybody. Times in nanoseconds.
struct TimedMetrics {
  Counter steps, step_nanoseconds;  // and how long they should have taken in all
  Counter overrun_steps, overrun_nanoseconds;
  Counter late_nanoseconds;  // by which the system woke the engine later than asked
  Counter filled_bytes, fill_nanoseconds;
  Counter checked_prompts, checked_bytes, check_nanoseconds, faults;
};

struct TimedOptions {
  std::uint32_t kv_bytes_scale = 1;
  Prefill prefill = Prefill::kComputed;
};

class TimedModel final : public model::Model {
 public:
  // Errors: a scale that does not divide the bytes of a token. `metrics` is shared with whoever
  // shows it.
  static Result<std::unique_ptr<TimedModel>> create(Profile profile, TimedOptions options,
                                                    std::shared_ptr<TimedMetrics> metrics,
                                                    std::unique_ptr<StepClock> clock);

  const model::ModelConfig& config() const override { return config_; }
  const std::string& kernel_family() const override { return kernel_family_; }
  // The logits leave no choice: a letter or a space, a function of the tokens so far; never the end
  // of generation.
  void forward(std::span<const model::SequenceChunk> chunks, const model::KvPool& pool,
               std::span<float> logits) override;
  std::optional<model::KvLayout> kv_layout(std::uint32_t block_size) const override;
  std::span<const model::KvFault> faults() const override { return faults_; }

 private:
  TimedModel(Profile profile, TimedOptions options, std::shared_ptr<TimedMetrics> metrics,
             std::unique_ptr<StepClock> clock);
  void check(std::size_t chunk, const model::SequenceChunk& work, const model::KvPool& pool);
  void fill(const model::SequenceChunk& work, const model::KvPool& pool);
  static void choose(const model::SequenceChunk& work, std::span<float> logits);
  void wait(Time begin, Duration length);

  const Profile profile_;
  const TimedOptions options_;
  const std::shared_ptr<TimedMetrics> metrics_;
  const std::unique_ptr<StepClock> clock_;
  const std::uint32_t token_bytes_;  // scaled
  const std::vector<std::string> regions_;
  Pattern pattern_;
  model::ModelConfig config_;
  std::string kernel_family_;
  std::vector<model::KvFault> faults_;
  std::vector<Part> parts_;
};

}  // namespace baton::engine::timed
