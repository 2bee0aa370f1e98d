#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "engine/engine_core.h"
#include "engine/factory.h"

namespace baton::engine {

namespace {

Status invalid(std::string message) {
  return fail(Errc::kInvalidArgument, std::move(message));
}

Status check_options(const EngineOptions& options, const model::ModelConfig& config) {
  if (options.block_size == 0 || options.block_size > 1024) {
    return invalid(fmt::format("block_size is {}: 1 to 1024 is possible", options.block_size));
  }
  if (options.max_num_seqs == 0) return invalid("max_num_seqs is 0: at least 1 is needed");
  if (options.waiting_max == 0) return invalid("waiting_max is 0: at least 1 is needed");
  if (options.max_num_batched_tokens < options.max_num_seqs) {
    return invalid(
        fmt::format("max_num_batched_tokens {} is smaller than max_num_seqs {}: each running "
                    "sequence needs one "
                    "token a step",
                    options.max_num_batched_tokens, options.max_num_seqs));
  }
  if (options.max_model_len > config.context_length) {
    return invalid(fmt::format("max_model_len {} is over the model's context of {}",
                               options.max_model_len, config.context_length));
  }
  const bool fits =
      options.agent && options.agent->mode == Mode::kPull && options.agent->role == Role::kBoth;
  if (options.bidirectional && !fits) {
    return invalid("bidirectional is set, which needs an agent of mode pull and role kv_both");
  }
  return {};
}

KvCacheShape shape_of(const EngineOptions& options, const model::Model& model) {
  return {.block_size = options.block_size,
          .num_blocks = options.num_blocks,
          .dtype = options.kv_dtype,
          .layout = model.kv_layout(options.block_size)};
}

// Replaces every 0 by what is chosen. The pool holds max_num_seqs sequences of full length, where
// kv_cache_bytes allow it.
Status choose(EngineOptions& options, const model::Model& model) {
  const model::ModelConfig& config = model.config();
  if (options.max_model_len == 0) options.max_model_len = config.context_length;
  if (options.num_blocks != 0) return {};
  const model::KvLayout layout = kv_layout_of(config, shape_of(options, model));
  const std::uint64_t bytes = std::uint64_t{layout.block_bytes} * layout.regions.size();
  BATON_CHECK(bytes > 0);
  const std::uint64_t blocks_each =
      (options.max_model_len + options.block_size - 1) / options.block_size;
  const std::uint64_t affordable = options.kv_cache_bytes / bytes;
  if (affordable == 0) {
    return invalid(fmt::format("kv_cache_bytes {} does not hold one block of {} bytes",
                               options.kv_cache_bytes, bytes));
  }
  options.num_blocks = static_cast<std::uint32_t>(std::min<std::uint64_t>(
      {affordable, blocks_each * options.max_num_seqs, std::uint64_t{1} << 30}));
  return {};
}

}  // namespace

Result<std::unique_ptr<Engine>> make_engine(std::unique_ptr<model::Model> model,
                                            std::shared_ptr<const model::Tokenizer> tokenizer,
                                            const EngineOptions& options,
                                            const AgentFactory& make_agent) {
  BATON_CHECK(model != nullptr && tokenizer != nullptr);
  EngineOptions chosen = options;
  if (Status status = check_options(options, model->config()); !status) {
    return tl::unexpected(status.error());
  }
  if (Status status = choose(chosen, *model); !status) {
    return tl::unexpected(status.error());
  }
  if (chosen.kept_blocks_max == 0) chosen.kept_blocks_max = chosen.num_blocks / 2;
  auto cache = KvCache::create(model->config(), model->kernel_family(), shape_of(chosen, *model));
  if (!cache) return tl::unexpected(cache.error());
  std::unique_ptr<Agent> agent;
  if (chosen.agent) {
    auto made = make_agent(*chosen.agent, cache->geometry());
    if (!made) return tl::unexpected(made.error());
    agent = std::move(*made);
  }
  return std::make_unique<EngineCore>(std::move(model), std::move(tokenizer), std::move(chosen),
                                      std::move(*cache), std::move(agent));
}

}  // namespace baton::engine
