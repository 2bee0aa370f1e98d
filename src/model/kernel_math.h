// What the kernels of every instruction set share: the constants of exp and the fixed tree of a
// row's sum.
#pragma once

#include <cstddef>

namespace baton::model {

// exp by range reduction to [-ln2/2, ln2/2] and a polynomial (Cephes), relative error below 1e-7.
// Inputs are clamped so that the result is a normal float.
inline constexpr float kExpLow = -87.0F;
inline constexpr float kExpHigh = 88.0F;
inline constexpr float kLog2E = 1.44269504F;
inline constexpr float kMinusLn2High = -0.693359375F;
inline constexpr float kMinusLn2Low = 2.12194440e-4F;
inline constexpr float kExpC0 = 1.9875691500e-4F;
inline constexpr float kExpC1 = 1.3981999507e-3F;
inline constexpr float kExpC2 = 8.3334519073e-3F;
inline constexpr float kExpC3 = 4.1665795894e-2F;
inline constexpr float kExpC4 = 1.6666665459e-1F;
inline constexpr float kExpC5 = 5.0000001201e-1F;

inline constexpr std::size_t kPartials = 8;

inline float tree_sum(const float (&p)[kPartials]) {
  return ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]));
}

// How many rows to compute together next, so that the last group is not much smaller than the
// others.
inline std::size_t balanced_group(std::size_t rows_left, std::size_t most) {
  const std::size_t groups = (rows_left + most - 1) / most;
  return (rows_left + groups - 1) / groups;
}

}  // namespace baton::model
