#include "engine/intake.h"

#include <fmt/format.h>

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "base/random.h"

namespace baton::engine {

std::optional<std::pair<Side, TransferId>> transfer_of(const Request& request) {
  if (request.remote_decode) return std::pair(Side::kPrefill, request.remote_decode->transfer);
  if (request.remote_prefill) return std::pair(Side::kDecode, request.remote_prefill->transfer);
  return std::nullopt;
}

std::optional<TransferId> prefix_of(const Request& request) {
  if (!request.remote_decode || !request.remote_prefill) return std::nullopt;
  return request.remote_prefill->transfer;
}

namespace {

// Of a kept conversation that did not go on as it was kept, only the beginning is of use [I2], and
// of few tokens computing is quicker than reading: of none the keeper is told that nobody reads.
// What this instance has in its own prefix cache is not known here, and counts as if to be read.
std::uint32_t tokens_to_read(const Request& request, const RequestLimits& limits) {
  if (!request.remote_prefill) return 0;
  const auto prompt = static_cast<std::uint32_t>(request.prompt.size());
  if (!request.remote_decode) return prompt;
  // Of the last token the logits are wanted: it is computed.
  const std::vector<TokenId>& kept = request.remote_prefill->kept_tokens;
  const auto readable = std::span(request.prompt).first(prompt - 1);
  const auto differs = std::mismatch(readable.begin(), readable.end(), kept.begin(), kept.end());
  const auto same = static_cast<std::uint32_t>(differs.first - readable.begin());
  const std::uint32_t tokens = same / limits.block_size * limits.block_size;
  return tokens >= limits.kv_recompute_threshold ? tokens : 0;
}

}  // namespace

Intake::Intake(RequestLimits limits, std::uint32_t waiting_max,
               std::shared_ptr<const model::Tokenizer> tokenizer, Announce announce)
    : limits_(limits),
      waiting_max_(waiting_max),
      tokenizer_(std::move(tokenizer)),
      announce_(std::move(announce)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  BATON_CHECK(wake_.get() >= 0);
}

Status Intake::submit(Request request, OutputCallback callback) {
  if (Status status = validate(request, limits_); !status) return status;
  const std::uint32_t to_read = tokens_to_read(request, limits_);
  auto sequence = std::make_unique<Sequence>(std::move(request), std::move(callback), *tokenizer_);
  sequence->remote_tokens = to_read;
  const SamplingParams& sampling = sequence->request.sampling;
  sequence->sampler = {.temperature = sampling.temperature,
                       .top_p = sampling.top_p,
                       .seed = sampling.seed ? *sampling.seed : random_u64()};
  sequence->times.submitted = now().time_since_epoch().count();
  const std::lock_guard lock(mutex_);
  if (Status status = check_in(*sequence); !status) return status;
  sequence->arrival = ++arrivals_;
  items_.push_back({std::move(sequence), {}});
  ++submissions_;
  wake();
  return {};
}

Status Intake::check_in(Sequence& sequence) {
  Request& request = sequence.request;
  if (closed_) return fail(Errc::kUnavailable, "the engine is stopping");
  if (submissions_ + waiting_ >= waiting_max_) {
    return fail(Errc::kResourceExhausted,
                fmt::format("{} requests are waiting, and the queue holds {}",
                            submissions_ + waiting_, waiting_max_));
  }
  const auto transfer = transfer_of(request);
  if (ids_.contains(request.id)) {
    return fail(Errc::kAlreadyExists, fmt::format("request id '{}' is in use", request.id));
  }
  if (transfer && transfers_.contains(*transfer)) {
    return fail(Errc::kAlreadyExists,
                fmt::format("transfer {} is in use", transfer->second.to_string()));
  }
  // Another request reads the same kept blocks already: this one computes its prompt.
  if (prefix_of(request) && transfers_.contains({Side::kDecode, *prefix_of(request)})) {
    request.remote_prefill.reset();
    sequence.remote_tokens = 0;
  }
  if (transfer) {
    if (Status status = announce_(request); !status) return status;
    transfers_.insert(*transfer);
    if (const auto prefix = prefix_of(request)) transfers_.insert({Side::kDecode, *prefix});
  }
  ids_.insert(request.id);
  return {};
}

void Intake::abort(const std::string& id) {
  const std::lock_guard lock(mutex_);
  if (!ids_.contains(id)) return;
  items_.push_back({nullptr, id});
  wake();
}

void Intake::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  wake();
}

void Intake::wake() const {
  const std::uint64_t one = 1;
  // Cannot fail but by a full counter, and then it is readable anyway.
  (void)!::write(wake_.get(), &one, sizeof one);
}

void Intake::take(std::vector<Item>& items) {
  items.clear();
  const std::lock_guard lock(mutex_);
  if (items_.empty() && !closed_) return;
  std::uint64_t count = 0;
  (void)!::read(wake_.get(), &count, sizeof count);  // nonblocking
  items.swap(items_);
  waiting_ += submissions_;
  submissions_ = 0;
}

void Intake::set_waiting(std::size_t waiting) {
  const std::lock_guard lock(mutex_);
  waiting_ = waiting;
}

void Intake::forget_request(const std::string& id) {
  const std::lock_guard lock(mutex_);
  ids_.erase(id);
}

void Intake::forget_transfer(Side side, TransferId transfer) {
  const std::lock_guard lock(mutex_);
  transfers_.erase({side, transfer});
}

}  // namespace baton::engine
