// Rotary position embedding: pairs of a head's elements turned by an angle that grows with the
// position.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "model/model.h"

namespace baton::model {

class Rotary {
 public:
  // Llama files hold pairs as neighbours (2i, 2i + 1), Qwen3 files as halves (i, i + head_dim / 2).
  // `factors`: empty, or what divides the frequency of each pair.
  Rotary(const ModelConfig& config, std::span<const float> factors);

  // Cosines then sines of the position's head_dim / 2 angles.
  void angles(std::size_t position, float* out) const;
  // Turns one head in place.
  void rotate(float* head, const float* angles) const;

 private:
  bool neighbours_;
  std::vector<double> frequencies_;
};

}  // namespace baton::model
