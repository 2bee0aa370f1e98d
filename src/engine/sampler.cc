#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/check.h"
#include "base/random.h"

namespace baton::engine {

namespace {

constexpr double kGreedyBelow = 1e-5;

TokenId argmax(std::span<const float> logits) {
  std::size_t best = 0;
  float value = -INFINITY;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > value) {  // false for NaN, and for a later equal one
      value = logits[i];
      best = i;
    }
  }
  return static_cast<TokenId>(best);
}

// Uniform in [0, 1), from the seed and the position alone.
double draw(std::uint64_t seed, std::uint64_t position) {
  Rng mixed(seed ^ (position * 0xD1342543DE82EF95ULL + 0x2545F4914F6CDD1DULL));
  return mixed.uniform();
}

// The first of `order` at which the running sum of weights passes `target`.
template <typename Order>
TokenId pick(const std::vector<double>& weights, const Order& order, double target) {
  double sum = 0.0;
  TokenId last = 0;
  for (const auto token : order) {
    const double weight = weights[static_cast<std::size_t>(token)];
    if (weight <= 0.0) continue;
    last = static_cast<TokenId>(token);
    sum += weight;
    if (sum > target) return last;
  }
  return last;  // rounding left the target just above the sum
}

struct AllTokens {
  struct Iterator {
    std::size_t at;
    std::size_t operator*() const { return at; }
    Iterator& operator++() {
      ++at;
      return *this;
    }
    bool operator!=(const Iterator& other) const { return at != other.at; }
  };
  std::size_t size;
  Iterator begin() const { return {0}; }
  Iterator end() const { return {size}; }
};

}  // namespace

TokenId Sampler::sample(std::span<const float> logits, const SamplerParams& params,
                        std::uint64_t position) {
  BATON_CHECK(!logits.empty());
  const TokenId best = argmax(logits);
  if (params.temperature < kGreedyBelow) return best;
  const double top = logits[static_cast<std::size_t>(best)];
  if (!std::isfinite(top)) return best;

  weights_.resize(logits.size());
  double total = 0.0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double scaled = (static_cast<double>(logits[i]) - top) / params.temperature;
    weights_[i] = std::isnan(scaled) ? 0.0 : std::exp(scaled);
    total += weights_[i];
  }
  const double u = draw(params.seed, position);
  if (params.top_p >= 1.0) return pick(weights_, AllTokens{weights_.size()}, u * total);

  // Tokens lighter than this hold together less than 1 - top_p, so none of them is in the nucleus.
  const double floor = (1.0 - params.top_p) * total / static_cast<double>(weights_.size());
  candidates_.clear();
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] >= floor) candidates_.push_back(static_cast<TokenId>(i));
  }
  std::sort(candidates_.begin(), candidates_.end(), [this](TokenId a, TokenId b) {
    const double wa = weights_[static_cast<std::size_t>(a)];
    const double wb = weights_[static_cast<std::size_t>(b)];
    return wa != wb ? wa > wb : a < b;
  });
  double nucleus = 0.0;
  std::size_t kept = 0;
  while (kept < candidates_.size() && nucleus < params.top_p * total) {
    nucleus += weights_[static_cast<std::size_t>(candidates_[kept++])];
  }
  candidates_.resize(std::max<std::size_t>(kept, 1));
  return pick(weights_, candidates_, u * nucleus);
}

}  // namespace baton::engine
