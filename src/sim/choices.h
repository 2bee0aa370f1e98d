// Every decision of a run comes from one pick(n). Two schedulers stand behind it: a seeded one
// draws, an exhaustive one walks all answers, depth first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/random.h"

namespace baton::sim {

class Choices {
 public:
  virtual ~Choices() = default;
  virtual std::uint64_t pick(std::uint64_t n) = 0;  // one of 0 to n - 1; n > 0
  bool chance(std::uint32_t per_1000) { return per_1000 != 0 && pick(1000) < per_1000; }
};

class SeededChoices final : public Choices {
 public:
  explicit SeededChoices(std::uint64_t seed) : rng_(seed) {}
  std::uint64_t pick(std::uint64_t n) override { return rng_.below(n); }

 private:
  Rng rng_;
};

// Walks a tree of choices without knowing it: each run replays a prefix and answers 0 from there
// on; next() moves to the next prefix. A run must depend on nothing but the answers.
class PathChoices final : public Choices {
 public:
  PathChoices() = default;
  explicit PathChoices(std::vector<std::uint32_t> prefix) : taken_(std::move(prefix)) {
    options_.resize(taken_.size(), 0);
  }

  std::uint64_t pick(std::uint64_t n) override {
    if (at_ == taken_.size()) {
      taken_.push_back(0);
      options_.push_back(0);
    }
    options_[at_] = static_cast<std::uint32_t>(n);
    BATON_CHECK(taken_[at_] < n, "choice {} of {} at step {}", taken_[at_], n, at_);
    return taken_[at_++];
  }

  // False: all paths were walked.
  bool next() {
    taken_.resize(at_);
    options_.resize(at_);
    at_ = 0;
    while (!taken_.empty() && taken_.back() + 1 >= options_.back()) {
      taken_.pop_back();
      options_.pop_back();
    }
    if (taken_.empty()) return false;
    ++taken_.back();
    return true;
  }

  const std::vector<std::uint32_t>& path() const { return taken_; }

 private:
  std::vector<std::uint32_t> taken_;
  std::vector<std::uint32_t> options_;
  std::size_t at_ = 0;
};

}  // namespace baton::sim
