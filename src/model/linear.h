// y = x * W^T for one weight matrix, cut into tasks of neighbouring columns. A row's result does
// not depend on how many rows are multiplied together, nor on where it stands among them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace baton::model {

struct KernelTable;

class Linear {
 public:
  virtual ~Linear() = default;

  std::size_t inputs() const { return inputs_; }
  std::size_t outputs() const { return outputs_; }
  std::size_t tasks() const { return (outputs_ + columns_ - 1) / columns_; }
  // A task's columns begin at first_column(task) and are task_columns(task).
  std::size_t first_column(std::size_t task) const { return task * columns_; }
  std::size_t task_columns(std::size_t task) const {
    return std::min(columns_, outputs_ - first_column(task));
  }

  // Writes the task's columns of `rows` rows: y[r * y_stride + column]. Any number of threads at
  // once.
  virtual void multiply(std::size_t task, const float* x, std::size_t x_stride, std::size_t rows,
                        float* y, std::size_t y_stride) const = 0;

 protected:
  Linear(std::size_t inputs, std::size_t outputs, std::size_t columns)
      : inputs_(inputs), outputs_(outputs), columns_(columns) {}

 private:
  std::size_t inputs_;
  std::size_t outputs_;
  std::size_t columns_;  // of a task
};

// Fills one row of the weights: the `inputs` weights of output `row`.
using RowReader = std::function<void(std::size_t row, std::span<float> out)>;

// Weights rounded to bfloat16 and packed for our own kernels; products and sums in float32.
std::unique_ptr<Linear> make_packed_linear(const KernelTable& kernels, std::size_t inputs,
                                           std::size_t outputs, const RowReader& row);

// oneDNN, each primitive on the calling thread, always on a tile of 16 rows, padded: with fewer
// rows it might choose another kernel with another order of sums. `bf16`: x is rounded to bfloat16
// too, products are summed in float32 (needs AVX-512 with bf16 or AMX); else float32 throughout.
std::unique_ptr<Linear> make_onednn_linear(bool bf16, std::size_t inputs, std::size_t outputs,
                                           const RowReader& row);

// Whether oneDNN has a bfloat16 product on this machine.
bool onednn_has_bf16();
// The instruction set that oneDNN chose for this machine, e.g. "avx2" or "amx".
std::string onednn_instruction_set();

}  // namespace baton::model
