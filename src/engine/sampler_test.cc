#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "base/random.h"

namespace baton::engine {
namespace {

constexpr SamplerParams kGreedy{.temperature = 0.0};

TEST(Sampler, GreedyTakesTheLowestIdOfEqualLogits) {
  Sampler sampler;
  const std::vector<float> logits{1.0F, 3.0F, 3.0F, -1.0F};
  EXPECT_EQ(sampler.sample(logits, kGreedy, 0), 1);
}

TEST(Sampler, NanIsNeverChosen) {
  Sampler sampler;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> logits{nan, 0.5F, nan, 0.25F};
  EXPECT_EQ(sampler.sample(logits, kGreedy, 0), 1);
  for (std::uint64_t position = 0; position < 100; ++position) {
    const TokenId token = sampler.sample(logits, {.temperature = 2.0, .seed = 7}, position);
    EXPECT_TRUE(token == 1 || token == 3);
  }
  EXPECT_EQ(sampler.sample(std::vector<float>{nan, nan}, {.temperature = 1.0}, 3), 0);
}

TEST(Sampler, IsAFunctionOfSeedAndPosition) {
  Rng rng(1);
  std::vector<float> logits(300);
  for (float& logit : logits) logit = static_cast<float>(rng.uniform() * 4);
  Sampler one;
  Sampler other;
  std::set<TokenId> seen;
  for (std::uint64_t position = 0; position < 50; ++position) {
    const SamplerParams params{.temperature = 0.8, .top_p = 0.9, .seed = 11};
    const TokenId token = one.sample(logits, params, position);
    (void)other.sample(logits, {.temperature = 0.3, .seed = 5},
                       position * 3);  // its scratch differs
    EXPECT_EQ(token, other.sample(logits, params, position));
    seen.insert(token);
  }
  EXPECT_GT(seen.size(), 10U);
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesIt) {
  // Probabilities 0.5, 0.3, 0.15, 0.05, in no order.
  const std::vector<float> logits{std::log(0.15F), std::log(0.5F), std::log(0.05F), std::log(0.3F)};
  Sampler sampler;
  const auto seen = [&](double top_p) {
    std::set<TokenId> tokens;
    for (std::uint64_t position = 0; position < 2000; ++position) {
      tokens.insert(
          sampler.sample(logits, {.temperature = 1.0, .top_p = top_p, .seed = 3}, position));
    }
    return tokens;
  };
  EXPECT_EQ(seen(0.4), (std::set<TokenId>{1}));
  EXPECT_EQ(seen(0.7), (std::set<TokenId>{1, 3}));
  EXPECT_EQ(seen(0.9), (std::set<TokenId>{0, 1, 3}));
  EXPECT_EQ(seen(1.0), (std::set<TokenId>{0, 1, 2, 3}));
}

TEST(Sampler, FollowsTheProbabilities) {
  const std::vector<float> logits{std::log(0.6F), std::log(0.3F), std::log(0.1F)};
  Sampler sampler;
  std::map<TokenId, int> counts;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    ++counts[sampler.sample(logits, {.temperature = 1.0, .seed = 9},
                            static_cast<std::uint64_t>(i))];
  }
  EXPECT_NEAR(counts[0], 0.6 * kDraws, 0.02 * kDraws);
  EXPECT_NEAR(counts[1], 0.3 * kDraws, 0.02 * kDraws);
  EXPECT_NEAR(counts[2], 0.1 * kDraws, 0.02 * kDraws);
}

}  // namespace
}  // namespace baton::engine
