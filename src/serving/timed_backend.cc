#include "serving/timed_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "serving/json.h"
#include "serving/serve.h"

namespace baton::serving {
namespace {

using engine::timed::Prefill;
using engine::timed::Profile;

using Problems = std::vector<std::string>;

constexpr char kBaton[] = "baton";
constexpr char kPublished[] = "published";
constexpr char kPublishedMerged[] = "published-merged";

// Flags that would do nothing.
void check_unused(const ServeOptions& options, Problems& problems) {
  refuse_given({{"--profile", !options.profile.empty()},
                {"--kv-bytes-scale", options.kv_bytes_scale.has_value()},
                {"--prefill", !options.prefill.empty()},
                {"--transfer-style", !options.transfer_style.empty()},
                {"--link-rate", options.link_rate.has_value()},
                {"--posting-cost", options.posting_cost.has_value()}},
               "is a flag of --backend timed", problems);
}

void check_prefill(const ServeOptions& options, TimedBackend& out, Problems& problems) {
  if (options.prefill == "cached") {
    out.options.prefill = Prefill::kCached;
  } else if (!options.prefill.empty() && options.prefill != "computed") {
    problems.push_back(
        fmt::format("--prefill {} is unknown; known are computed, cached", options.prefill));
  }
}

void check_style(const ServeOptions& options, TimedBackend& out, Problems& problems) {
  out.transfer_style = options.transfer_style.empty() ? kBaton : options.transfer_style;
  for (const char* known : {kBaton, kPublished, kPublishedMerged}) {
    if (out.transfer_style == known) return;
  }
  problems.push_back(fmt::format("--transfer-style {} is unknown; known are {}, {}, {}",
                                 options.transfer_style, kBaton, kPublished, kPublishedMerged));
}

void check_posting_cost(const ServeOptions& options, TimedBackend& out, Problems& problems) {
  constexpr double kCostMost = 1000;
  constexpr double kMicro = 1e6;
  out.posting_cost_us = options.posting_cost.value_or(out.profile.published_post_s * kMicro);
  if (out.posting_cost_us >= 0 && out.posting_cost_us <= kCostMost) return;
  problems.push_back(fmt::format("--posting-cost must be from 0 to {} microseconds, and is {}",
                                 kCostMost, out.posting_cost_us));
}

void check_numbers(const ServeOptions& options, TimedBackend& out, Problems& problems) {
  out.options.kv_bytes_scale = options.kv_bytes_scale.value_or(out.profile.kv_bytes_scale);
  if (const Status fits = check_scale(out.profile, out.options.kv_bytes_scale); !fits) {
    problems.push_back(fmt::format("--kv-bytes-scale: {}", fits.error().message));
  }
  constexpr double kRateMost = 1e15;
  if (const double told = options.link_rate.value_or(1); !(told >= 1 && told <= kRateMost)) {
    problems.push_back(
        fmt::format("--link-rate must be from 1 to {} bytes a second, and is {}", kRateMost, told));
    return;
  }
  const double rate = options.link_rate.value_or(out.profile.link_bytes_per_s /
                                                 std::max(1U, out.options.kv_bytes_scale));
  out.link_bytes_per_second = static_cast<std::uint64_t>(std::max(1.0, std::round(rate)));
}

}  // namespace

std::string Emulation::text() const {
  return fmt::format(
      "emulated: profile {} ({}), KV bytes / {}, prefill {}, transfer style {}, posting cost {:g} "
      "us{}, link {} bytes/s",
      profile, model, kv_bytes_scale, prefill, transfer_style, posting_cost_us,
      posting_cost_us > 0 && !pays_posting ? " (not paid here)" : "", link_bytes_per_second);
}

std::string Emulation::json() const {
  return to_text(Json{{"profile", profile},
                      {"model", model},
                      {"kv_bytes_scale", kv_bytes_scale},
                      {"prefill", prefill},
                      {"transfer_style", transfer_style},
                      {"posting_cost_us", posting_cost_us},
                      {"pays_posting", pays_posting},
                      {"link_bytes_per_second", link_bytes_per_second}});
}

namespace {

// P writes in push, D reads in pull: the other one has no descriptor to pay for.
bool pays_posting(const AgentOptions& agent) {
  const Role idle = agent.mode == Mode::kPush ? Role::kConsumer : Role::kProducer;
  return agent.post_cost.count() > 0 && agent.role != idle;
}

}  // namespace

Emulation TimedBackend::emulation(const engine::EngineOptions& engine) const {
  return {.profile = profile.name,
          .model = profile.model,
          .prefill = options.prefill == Prefill::kCached ? "cached" : "computed",
          .transfer_style = transfer_style,
          .kv_bytes_scale = options.kv_bytes_scale,
          .kv_regions_per_layer = profile.kv_regions_per_layer,
          .kv_region_token_bytes = engine::timed::token_bytes(profile) / options.kv_bytes_scale,
          .link_bytes_per_second = link_bytes_per_second,
          .posting_cost_us = posting_cost_us,
          .pays_posting = engine.agent && serving::pays_posting(*engine.agent),
          .profile_hash = engine::timed::hash_of(profile),
          .metrics = metrics};
}

Result<std::string> profile_hash(const std::string& profile) {
  const auto found = engine::timed::find_profile(profile);
  if (!found) return tl::unexpected<Error>(found.error());
  return engine::timed::hash_of(*found);
}

std::optional<TimedBackend> timed_backend(const ServeOptions& options, Problems& problems) {
  if (options.backend != "timed") {
    if (options.backend != "cpu") {
      problems.push_back(
          fmt::format("--backend {} is unknown; known are cpu, timed", options.backend));
    }
    check_unused(options, problems);
    return std::nullopt;
  }
  TimedBackend out;
  check_prefill(options, out, problems);
  check_style(options, out, problems);
  if (options.dtype != "auto" && options.dtype != "bfloat16") {
    problems.push_back(fmt::format(
        "--dtype {} is not for --backend timed, whose profile says the bytes", options.dtype));
  }
  auto profile =
      engine::timed::find_profile(options.profile.empty() ? options.model : options.profile);
  if (!profile) {
    problems.push_back(fmt::format("--profile: {}", profile.error().message));
    return std::nullopt;
  }
  out.profile = std::move(*profile);
  check_numbers(options, out, problems);
  check_posting_cost(options, out, problems);
  out.metrics = std::make_shared<engine::timed::TimedMetrics>();
  return out;
}

void apply(const TimedBackend& backend, const ServeOptions& options, engine::EngineOptions& out) {
  const Profile& profile = backend.profile;
  if (!options.block_size) out.block_size = profile.block_size;
  if (options.max_model_len == 0) out.max_model_len = profile.max_model_len;
  if (options.max_num_seqs == 0) out.max_num_seqs = profile.max_num_seqs;
  if (options.max_num_batched_tokens == 0) {
    // What a prefix cache holds is not scheduled in chunks.
    out.max_num_batched_tokens = backend.options.prefill == Prefill::kCached
                                     ? std::max(out.max_model_len, profile.max_num_batched_tokens)
                                     : profile.max_num_batched_tokens;
  }
  if (options.kv_cache_bytes == 0 && out.block_size > 0) {
    out.num_blocks = profile.kv_cache_tokens / out.block_size;
  }
  const bool published = backend.transfer_style != kBaton;
  if (!out.agent) return;
  // Steps are those of the published push. In pull, D's engine waits where it posts (--pull-loop).
  if (published && out.agent->mode == Mode::kPush) {
    out.transfer_style = engine::TransferStyle::kPublished;
  }
  out.agent->link_bytes_per_second = backend.link_bytes_per_second;
  // The published pull connector posts a descriptor a block and region from the engine's step.
  const bool engine_loop = out.pull_loop == engine::PullLoop::kEngine;
  if (!published && !engine_loop) return;
  out.agent->merge_runs = backend.transfer_style == kPublishedMerged;
  out.agent->post_cost = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double, std::micro>(backend.posting_cost_us));
}

Result<std::unique_ptr<model::Model>> make_timed_model(const TimedBackend& backend) {
  auto model = engine::timed::TimedModel::create(backend.profile, backend.options, backend.metrics,
                                                 std::make_unique<engine::timed::MonotonicClock>());
  if (!model) return tl::unexpected<Error>(model.error());
  return std::move(*model);
}

}  // namespace baton::serving
