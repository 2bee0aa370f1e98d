#include "engine/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace baton::engine {

namespace {

Status refuse(std::string message) {
  return fail(Errc::kInvalidArgument, std::move(message));
}

Status validate_prompt(const Request& request, const RequestLimits& limits) {
  const std::uint64_t prompt = request.prompt.size();
  if (prompt == 0) return refuse("the prompt is empty: at least one token is needed");
  if (prompt >= limits.max_model_len) {
    return refuse(fmt::format(
        "the prompt has {} tokens, and with one token to generate max_model_len {} is exceeded",
        prompt, limits.max_model_len));
  }
  for (std::size_t i = 0; i < request.prompt.size(); ++i) {
    const TokenId token = request.prompt[i];
    if (token < 0 || static_cast<std::uint32_t>(token) >= limits.vocab_size) {
      return refuse(fmt::format("prompt token {} at position {} is not in the vocabulary of {}",
                                token, i, limits.vocab_size));
    }
  }
  const std::uint64_t total = prompt + request.sampling.max_tokens;
  if (total > limits.max_model_len) {
    return refuse(
        fmt::format("the prompt's {} tokens and max_tokens {} make {}, over max_model_len "
                    "{}",
                    prompt, request.sampling.max_tokens, total, limits.max_model_len));
  }
  const std::uint64_t needed = (total + limits.block_size - 1) / limits.block_size;
  if (needed > limits.total_blocks) {
    return refuse(fmt::format(
        "the prompt's {} tokens and max_tokens {} need {} blocks of {} tokens, "
        "and the pool has {}",
        prompt, request.sampling.max_tokens, needed, limits.block_size, limits.total_blocks));
  }
  return {};
}

Status validate_sampling(const SamplingParams& sampling) {
  if (sampling.max_tokens == 0) return refuse("max_tokens is 0: at least 1 is needed");
  if (!std::isfinite(sampling.temperature) || sampling.temperature < 0.0) {
    return refuse(fmt::format("temperature is {}: 0 or more is needed", sampling.temperature));
  }
  if (!(sampling.top_p > 0.0 && sampling.top_p <= 1.0)) {
    return refuse(fmt::format("top_p is {}: more than 0 and at most 1 is needed", sampling.top_p));
  }
  const auto is_empty = [](const std::string& stop) { return stop.empty(); };
  if (std::any_of(sampling.stop.begin(), sampling.stop.end(), is_empty)) {
    return refuse("a stop string is empty");
  }
  return {};
}

Status validate_roles(const Request& request, const RequestLimits& limits) {
  if (!request.remote_decode && !request.remote_prefill) return {};
  const bool both = request.remote_decode && request.remote_prefill;
  if (both && request.remote_prefill->kept_tokens.empty()) {
    return refuse("remote_decode and remote_prefill are both set: an instance is one of the two");
  }
  const char* field = request.remote_decode ? "remote_decode" : "remote_prefill";
  if (!limits.role) {
    return refuse(fmt::format("{} is set, and this instance has no hand-over configured", field));
  }
  if (both && !limits.bidirectional) {
    return refuse(
        "the beginning of the prompt is to be read (kept), and bidirectional_kv_xfer is off on "
        "this instance");
  }
  const Role unfit = request.remote_decode ? Role::kConsumer : Role::kProducer;
  if (*limits.role == unfit) {
    return refuse(fmt::format("{} is set, and the role of this instance is {}", field,
                              unfit == Role::kConsumer ? "kv_consumer" : "kv_producer"));
  }
  if (request.remote_decode && request.remote_decode->transfer.is_null()) {
    return refuse("remote_decode: the transfer id is null");
  }
  if (request.remote_prefill && request.remote_prefill->transfer.is_null()) {
    return refuse("remote_prefill: the transfer id is null");
  }
  if (both && request.remote_decode->transfer == request.remote_prefill->transfer) {
    return refuse(fmt::format("remote_decode and the kept blocks have the same transfer id {}",
                              request.remote_decode->transfer.to_string()));
  }
  return {};
}

// An announcement of blocks comes from outside and names another machine's memory: here it
// must be whole and in shape; the agent checks it against P's pool before it forms an address [I7].
Status validate_source_blocks(const SourceBlocks& source, std::uint64_t tokens,
                              std::uint32_t block_size) {
  constexpr std::size_t kGroups = 1;  // of this engine's models
  if (source.block_ids.size() != kGroups) {
    return refuse(
        fmt::format("the announced blocks (remote_block_ids) are of {} cache groups, and "
                    "this model has {}",
                    source.block_ids.size(), kGroups));
  }
  std::vector<BlockId> ids = source.block_ids.front();
  const std::uint64_t needed = (tokens + block_size - 1) / block_size;
  if (ids.size() != needed) {
    return refuse(fmt::format(
        "the announced blocks (remote_block_ids) are {}, and {} tokens in blocks of {} need {}",
        ids.size(), tokens, block_size, needed));
  }
  std::sort(ids.begin(), ids.end());
  if (const auto twice = std::adjacent_find(ids.begin(), ids.end()); twice != ids.end()) {
    return refuse(
        fmt::format("the announced blocks (remote_block_ids) name block {} twice", *twice));
  }
  return {};
}

// The beginning of some conversation, which this prompt may go on: intake.cc finds out how far.
Status validate_kept(const RemotePrefill& remote, std::uint32_t block_size) {
  const TokenRange range = remote.source->range;
  if (range.begin != 0 || range.end == 0 || range.end % block_size != 0) {
    return refuse(
        fmt::format("the announced blocks (remote_block_ids) hold tokens [{}, {}), and whole "
                    "blocks of {} from the first token on can be taken",
                    range.begin, range.end, block_size));
  }
  if (remote.kept_tokens.size() != range.end) {
    return refuse(fmt::format("the kept tokens (remote_token_ids) are {}, and their blocks hold {}",
                              remote.kept_tokens.size(), range.end));
  }
  return validate_source_blocks(*remote.source, range.end, block_size);
}

Status validate_keep(const Request& request, const RequestLimits& limits) {
  if (!request.keep_blocks || limits.bidirectional) return {};
  return refuse(
      "the KV of the answer is to be kept (keep_blocks), and bidirectional_kv_xfer is off on this "
      "instance");
}

Status validate_source(const Request& request, const RequestLimits& limits) {
  if (!request.remote_prefill) return {};
  const RemotePrefill& remote = *request.remote_prefill;
  if (limits.mode == Mode::kPush) {
    if (!remote.source) return {};
    return refuse(
        "blocks are announced to be read (remote_block_ids), and the mode of this instance is "
        "push: the prefill instance writes");
  }
  if (!remote.source) {
    return refuse(
        "no blocks are announced (remote_block_ids), and the mode of this instance is pull: it "
        "reads what the prefill instance announced");
  }
  if (remote.announced_token &&
      (*remote.announced_token < 0 ||
       static_cast<std::uint32_t>(*remote.announced_token) >= limits.vocab_size)) {
    return refuse(
        fmt::format("the announced first token (remote_first_token) {} is not in the "
                    "vocabulary of {}",
                    *remote.announced_token, limits.vocab_size));
  }
  if (request.remote_decode) return validate_kept(remote, limits.block_size);
  const SourceBlocks& source = *remote.source;
  if (source.range.begin != 0 || source.range.end != request.prompt.size()) {
    return refuse(
        fmt::format("the announced blocks (remote_block_ids) hold tokens [{}, {}), and the prompt "
                    "has {}",
                    source.range.begin, source.range.end, request.prompt.size()));
  }
  return validate_source_blocks(source, request.prompt.size(), limits.block_size);
}

}  // namespace

Status validate(const Request& request, const RequestLimits& limits) {
  if (request.id.empty()) return refuse("the request id is empty");
  if (Status status = validate_sampling(request.sampling); !status) return status;
  if (Status status = validate_prompt(request, limits); !status) return status;
  if (Status status = validate_roles(request, limits); !status) return status;
  if (Status status = validate_keep(request, limits); !status) return status;
  return validate_source(request, limits);
}

}  // namespace baton::engine
