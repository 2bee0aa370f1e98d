#include "model/rotary.h"

#include <cmath>

namespace baton::model {

Rotary::Rotary(const ModelConfig& config, std::span<const float> factors)
    : neighbours_(config.architecture == "llama"), frequencies_(config.head_dim / 2) {
  for (std::size_t i = 0; i < frequencies_.size(); ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim);
    const double factor = factors.empty() ? 1.0 : static_cast<double>(factors[i]);
    frequencies_[i] = std::pow(static_cast<double>(config.rope_base), exponent) / factor;
  }
}

void Rotary::angles(std::size_t position, float* out) const {
  const std::size_t pairs = frequencies_.size();
  for (std::size_t i = 0; i < pairs; ++i) {
    const double angle = static_cast<double>(position) * frequencies_[i];
    out[i] = static_cast<float>(std::cos(angle));
    out[pairs + i] = static_cast<float>(std::sin(angle));
  }
}

void Rotary::rotate(float* head, const float* angles) const {
  const std::size_t pairs = frequencies_.size();
  const std::size_t step = neighbours_ ? 2 : 1;       // from pair to pair
  const std::size_t apart = neighbours_ ? 1 : pairs;  // within a pair
  for (std::size_t i = 0; i < pairs; ++i) {
    float& a = head[i * step];
    float& b = head[i * step + apart];
    const float turned_a = a * angles[i] - b * angles[pairs + i];
    const float turned_b = a * angles[pairs + i] + b * angles[i];
    a = turned_a;
    b = turned_b;
  }
}

}  // namespace baton::model
