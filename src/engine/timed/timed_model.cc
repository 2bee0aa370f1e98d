#include "engine/timed/timed_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/timed/byte_tokenizer.h"

namespace baton::engine::timed {
namespace {

// Of the sequence to the end of the chunk. The engine keeps a sequence's tokens in one piece.
PromptNumbers numbers_of(const model::SequenceChunk& work) {
  if (work.start == 0) return PromptNumbers(work.tokens);
  BATON_CHECK(work.before.size() == work.start && work.before.end() == work.tokens.begin(),
              "a chunk's tokens do not follow those before it");
  return PromptNumbers({work.before.data(), work.before.size() + work.tokens.size()});
}

std::uint64_t nanoseconds(Duration time) {
  return static_cast<std::uint64_t>(std::max<Duration::rep>(0, time.count()));
}

}  // namespace

Result<std::unique_ptr<TimedModel>> TimedModel::create(Profile profile, TimedOptions options,
                                                       std::shared_ptr<TimedMetrics> metrics,
                                                       std::unique_ptr<StepClock> clock) {
  if (Status fits = check_scale(profile, options.kv_bytes_scale); !fits) {
    return tl::unexpected(fits.error());
  }
  return std::unique_ptr<TimedModel>(
      new TimedModel(std::move(profile), options, std::move(metrics), std::move(clock)));
}

TimedModel::TimedModel(Profile profile, TimedOptions options, std::shared_ptr<TimedMetrics> metrics,
                       std::unique_ptr<StepClock> clock)
    : profile_(std::move(profile)),
      options_(options),
      metrics_(std::move(metrics)),
      clock_(std::move(clock)),
      token_bytes_(token_bytes(profile_) / options.kv_bytes_scale),
      regions_(region_names(profile_.num_layers, profile_.kv_regions_per_layer)),
      pattern_(regions_.size(), token_bytes_) {
  config_.architecture = "timed";
  config_.name = profile_.name;
  // What peers compare: a P and a D of unlike profiles or scales do not fit together.
  config_.fingerprint =
      fmt::format("emulated:{}:kv-bytes-scale-{}", profile_.name, options.kv_bytes_scale);
  config_.num_layers = profile_.num_layers;
  config_.num_heads = config_.num_kv_heads = profile_.num_kv_heads;
  config_.head_dim = profile_.head_dim;
  config_.vocab_size = ByteTokenizer::kVocab;
  config_.context_length = profile_.max_model_len;
  kernel_family_ = fmt::format("timed, emulated: {}, KV bytes / {}, prefill {}", profile_.name,
                               options.kv_bytes_scale,
                               options.prefill == Prefill::kCached ? "cached" : "computed");
}

std::optional<model::KvLayout> TimedModel::kv_layout(std::uint32_t block_size) const {
  return model::KvLayout{regions_, std::size_t{token_bytes_} * block_size};
}

void TimedModel::forward(std::span<const model::SequenceChunk> chunks, const model::KvPool& pool,
                         std::span<float> logits) {
  const Time begin = clock_->now();
  faults_.clear();
  parts_.clear();
  for (const model::SequenceChunk& work : chunks) {
    parts_.push_back({static_cast<std::uint32_t>(work.tokens.size()), work.start});
  }
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i].received > 0) check(i, chunks[i], pool);
  }
  const Time checked = clock_->now();
  std::size_t row = 0;
  for (const model::SequenceChunk& work : chunks) {
    fill(work, pool);
    if (work.want_logits)
      choose(work, logits.subspan(row++ * config_.vocab_size, config_.vocab_size));
  }
  metrics_->check_nanoseconds.add(nanoseconds(checked - begin));
  metrics_->fill_nanoseconds.add(nanoseconds(clock_->now() - checked));
  wait(begin, step_time(profile_, options_.prefill, parts_));
}

void TimedModel::wait(Time begin, Duration length) {
  metrics_->steps.add();
  metrics_->step_nanoseconds.add(nanoseconds(length));
  const Time deadline = begin + length;
  if (const Time done = clock_->now(); done > deadline) {
    metrics_->overrun_steps.add();
    metrics_->overrun_nanoseconds.add(nanoseconds(done - deadline));
    return;
  }
  clock_->sleep_until(deadline);
  metrics_->late_nanoseconds.add(nanoseconds(clock_->now() - deadline));
}

void TimedModel::check(std::size_t chunk, const model::SequenceChunk& work,
                       const model::KvPool& pool) {
  BATON_CHECK(work.before.size() == work.start && work.received <= work.start);
  const PromptNumbers numbers(work.before);
  const auto difference = pattern_.check(pool, work.block_table, 0, work.received, numbers);
  metrics_->checked_prompts.add();
  metrics_->checked_bytes.add(std::uint64_t{work.received} * token_bytes_ * regions_.size());
  if (!difference) return;
  metrics_->faults.add();
  faults_.push_back(
      {chunk,
       fmt::format("KV of block {} is wrong: {}, token {} of the prompt, byte {} of the block "
                   "is {:#04x}, expected {:#04x}",
                   difference->block, regions_[difference->region], difference->position,
                   difference->byte, difference->found, difference->expected)});
}

void TimedModel::fill(const model::SequenceChunk& work, const model::KvPool& pool) {
  const auto end = static_cast<std::uint32_t>(work.start + work.tokens.size());
  pattern_.fill(pool, work.block_table, work.start, end, numbers_of(work));
  metrics_->filled_bytes.add(work.tokens.size() * token_bytes_ * regions_.size());
}

void TimedModel::choose(const model::SequenceChunk& work, std::span<float> logits) {
  constexpr float kNoDoubt = 1000;  // at any temperature that the API takes
  const auto last = static_cast<std::uint32_t>(work.start + work.tokens.size() - 1);
  std::fill(logits.begin(), logits.end(), 0.0F);
  const std::uint64_t number = numbers_of(work).at(last);
  logits[static_cast<std::size_t>(ByteTokenizer::letter(number))] = kNoDoubt;
}

}  // namespace baton::engine::timed
