#include <vector>

#include "base/check.h"
#include "model/kernels.h"
#include "model/linear.h"
#include "model/numbers.h"

namespace baton::model {
namespace {

constexpr std::size_t kTaskColumns = 64;

class PackedLinear : public Linear {
 public:
  PackedLinear(const KernelTable& kernels, std::size_t inputs, std::size_t outputs,
               const RowReader& row)
      : Linear(inputs, outputs, kTaskColumns), kernels_(&kernels), pairs_(inputs / 2) {
    BATON_CHECK(inputs % 2 == 0 && kTaskColumns % kernels.panel_columns == 0,
                "{} inputs, panels of {}", inputs, kernels.panel_columns);
    const std::size_t width = kernels.panel_columns;
    const std::size_t panels = (outputs + width - 1) / width;
    words_.assign(panels * width * pairs_, 0);
    std::vector<float> weights(inputs);
    for (std::size_t column = 0; column < outputs; ++column) {
      row(column, weights);
      std::uint32_t* panel = words_.data() + column / width * width * pairs_ + column % width;
      for (std::size_t p = 0; p < pairs_; ++p) {
        const std::uint32_t even = float_to_bf16(weights[2 * p]);
        const std::uint32_t odd = float_to_bf16(weights[2 * p + 1]);
        panel[p * width] = even | (odd << 16);
      }
    }
  }

  void multiply(std::size_t task, const float* x, std::size_t x_stride, std::size_t rows, float* y,
                std::size_t y_stride) const override {
    const std::size_t first = first_column(task);
    kernels_->multiply(words_.data() + first * pairs_, pairs_, task_columns(task), x, x_stride,
                       rows, y + first, y_stride);
  }

 private:
  const KernelTable* kernels_;
  std::size_t pairs_;
  std::vector<std::uint32_t> words_;
};

}  // namespace

std::unique_ptr<Linear> make_packed_linear(const KernelTable& kernels, std::size_t inputs,
                                           std::size_t outputs, const RowReader& row) {
  return std::make_unique<PackedLinear>(kernels, inputs, outputs, row);
}

}  // namespace baton::model
