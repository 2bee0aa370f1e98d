#include "model/kernel_choice.h"

#include <fmt/format.h>

#include <chrono>

namespace baton::model {
namespace {

using Product = KernelChoice::Product;

// How much faster oneDNN's bfloat16 must be. On AMX it is about ten times; where AVX-512 emulates
// it, it was seen at a tenth: nothing that a noisy measurement could confuse.
constexpr double kClearlyFaster = 1.5;

// Least seconds of some runs of a product of this model family's usual size.
double seconds_of(const Linear& linear) {
  constexpr std::size_t kRows = 16;
  constexpr int kRuns = 5;
  const std::vector<float> x(kRows * linear.inputs(), 1.0F);
  std::vector<float> y(kRows * linear.outputs());
  double least = 1e9;
  for (int run = 0; run < kRuns; ++run) {
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t task = 0; task < linear.tasks(); ++task) {
      linear.multiply(task, x.data(), linear.inputs(), kRows, y.data(), linear.outputs());
    }
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    least = std::min(least, spent.count());
  }
  return least;
}

bool bf16_is_clearly_faster(const KernelTable& kernels) {
  constexpr std::size_t kInputs = 576;
  constexpr std::size_t kOutputs = 1536;
  const RowReader ones = [](std::size_t, std::span<float> row) {
    std::fill(row.begin(), row.end(), 1.0F);
  };
  const double own = seconds_of(*make_packed_linear(kernels, kInputs, kOutputs, ones));
  const double other = seconds_of(*make_onednn_linear(true, kInputs, kOutputs, ones));
  return other * kClearlyFaster < own;
}

KernelChoice packed(const KernelTable& kernels) {
  return {&kernels, Product::kPacked, fmt::format("{}-f32", kernels.name)};
}

KernelChoice onednn(Product product) {
  const char* type = product == Product::kOneDnnBfloat16 ? "bf16" : "f32";
  return {&best_kernels(), product, fmt::format("onednn-{}-{}", onednn_instruction_set(), type)};
}

}  // namespace

Result<KernelChoice> choose_kernels(std::string_view wanted) {
  if (wanted.empty()) {
    const KernelTable& best = best_kernels();
    if (onednn_has_bf16() && bf16_is_clearly_faster(best)) return onednn(Product::kOneDnnBfloat16);
    return packed(best);
  }
  if (wanted == "onednn-f32") return onednn(Product::kOneDnnFloat32);
  if (wanted == "onednn-bf16") {
    if (onednn_has_bf16()) return onednn(Product::kOneDnnBfloat16);
    return fail(Errc::kUnsupported,
                "kernels 'onednn-bf16' need AVX-512 with bf16 or AMX; this processor has neither");
  }
  if (const KernelTable* found = find_kernels(wanted)) return packed(*found);
  if (wanted == "avx2" || wanted == "avx512") {
    return fail(Errc::kUnsupported,
                fmt::format("kernels '{}' do not run on this processor, '{}' do", wanted,
                            best_kernels().name));
  }
  return fail(Errc::kInvalidArgument,
              fmt::format("kernels '{}' are unknown: scalar, avx2, avx512, onednn-f32, onednn-bf16",
                          wanted));
}

}  // namespace baton::model
