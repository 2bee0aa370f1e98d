#include <oneapi/dnnl/dnnl.hpp>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "model/linear.h"
#include "model/numbers.h"

// Of libgomp, which Debian's oneDNN brings along; its header would need the compiler's OpenMP
// switched on.
extern "C" void omp_set_num_threads(int threads);

namespace baton::model {
namespace {

constexpr dnnl::memory::dim kTileRows = 16;
constexpr std::size_t kTaskColumns = 192;

using Tag = dnnl::memory::format_tag;
using Type = dnnl::memory::data_type;

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::stream& thread_stream() {
  // Our own threads share the work; a primitive that spread over OpenMP threads of its own would
  // also sum otherwise.
  thread_local dnnl::stream stream = [] {
    omp_set_num_threads(1);
    return dnnl::stream(cpu_engine());
  }();
  return stream;
}

dnnl::matmul::primitive_desc describe(Type type, std::size_t inputs, std::size_t columns) {
  thread_stream();
  const auto in = static_cast<dnnl::memory::dim>(inputs);
  const auto out = static_cast<dnnl::memory::dim>(columns);
  const dnnl::memory::desc x({kTileRows, in}, type, Tag::ab);
  const dnnl::memory::desc w({in, out}, type, Tag::any);
  const dnnl::memory::desc y({kTileRows, out}, Type::f32, Tag::ab);
  // A primitive's own scratchpad would tie it to the thread that made it.
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return {dnnl::matmul::desc(x, w, y), attributes, cpu_engine()};
}

// What one thread works in: the 16-row tile, padded input and whole output, and oneDNN's
// scratchpad.
struct ThreadTile {
  std::vector<std::byte> x;
  std::vector<float> y;
  std::vector<std::byte> scratchpad;
};

ThreadTile& thread_tile(std::size_t x_bytes, std::size_t y_floats, std::size_t scratchpad_bytes) {
  thread_local ThreadTile tile;
  tile.x.resize(std::max(tile.x.size(), x_bytes));
  tile.y.resize(std::max(tile.y.size(), y_floats));
  tile.scratchpad.resize(std::max(tile.scratchpad.size(), scratchpad_bytes));
  return tile;
}

class OneDnnLinear : public Linear {
 public:
  OneDnnLinear(bool bf16, std::size_t inputs, std::size_t outputs, const RowReader& row)
      : Linear(inputs, outputs, kTaskColumns), type_(bf16 ? Type::bf16 : Type::f32) {
    std::vector<float> weights(inputs * kTaskColumns);
    for (std::size_t task = 0; task < tasks(); ++task) {
      const std::size_t columns = task_columns(task);
      for (std::size_t c = 0; c < columns; ++c) {
        row(first_column(task) + c, std::span(weights).subspan(c * inputs, inputs));
      }
      if (task == 0 || columns != kTaskColumns) {
        descriptions_.push_back(describe(type_, inputs, columns));
        products_.emplace_back(descriptions_.back());
      }
      pack(weights, columns);
    }
  }

  void multiply(std::size_t task, const float* x, std::size_t x_stride, std::size_t rows, float* y,
                std::size_t y_stride) const override {
    const std::size_t columns = task_columns(task);
    const std::size_t which = columns == task_columns(0) ? 0 : products_.size() - 1;
    const dnnl::memory::desc scratchpad_desc = descriptions_[which].scratchpad_desc();
    ThreadTile& tile = thread_tile(kTileRows * inputs() * sizeof(float), kTileRows * columns,
                                   scratchpad_desc.get_size());
    dnnl::stream& stream = thread_stream();
    const dnnl::memory in(descriptions_[which].src_desc(), cpu_engine(), tile.x.data());
    const dnnl::memory out(descriptions_[which].dst_desc(), cpu_engine(), tile.y.data());
    const dnnl::memory scratchpad(scratchpad_desc, cpu_engine(), tile.scratchpad.data());
    for (std::size_t r = 0; r < rows; r += kTileRows) {
      const std::size_t some = std::min<std::size_t>(kTileRows, rows - r);
      fill(tile.x.data(), x + r * x_stride, x_stride, some);
      products_[which].execute(stream, {{DNNL_ARG_SRC, in},
                                        {DNNL_ARG_WEIGHTS, weights_[task]},
                                        {DNNL_ARG_DST, out},
                                        {DNNL_ARG_SCRATCHPAD, scratchpad}});
      for (std::size_t i = 0; i < some; ++i) {
        std::copy_n(tile.y.data() + i * columns, columns,
                    y + (r + i) * y_stride + first_column(task));
      }
    }
  }

 private:
  // Weights come as rows of [column][input]; both kinds are first rounded to bfloat16, so that all
  // families have the same weights.
  void pack(std::vector<float>& weights, std::size_t columns) {
    for (float& weight : weights) weight = bf16_to_float(float_to_bf16(weight));
    const auto in = static_cast<dnnl::memory::dim>(inputs());
    const dnnl::memory::desc plain({in, static_cast<dnnl::memory::dim>(columns)}, Type::f32,
                                   Tag::ba);
    dnnl::memory from(plain, cpu_engine(), weights.data());
    weights_.emplace_back(descriptions_.back().weights_desc(), cpu_engine());
    dnnl::reorder(from, weights_.back()).execute(thread_stream(), from, weights_.back());
    thread_stream().wait();
  }

  void fill(std::byte* tile, const float* x, std::size_t x_stride, std::size_t rows) const {
    const std::size_t element = type_ == Type::bf16 ? sizeof(std::uint16_t) : sizeof(float);
    for (std::size_t r = 0; r < rows; ++r) {
      std::byte* to = tile + r * inputs() * element;
      if (type_ == Type::f32) {
        std::memcpy(to, x + r * x_stride, inputs() * sizeof(float));
        continue;
      }
      auto* words = reinterpret_cast<std::uint16_t*>(to);
      for (std::size_t i = 0; i < inputs(); ++i) words[i] = float_to_bf16(x[r * x_stride + i]);
    }
    const std::size_t used = rows * inputs() * element;
    std::memset(tile + used, 0, kTileRows * inputs() * element - used);
  }

  Type type_;
  std::vector<dnnl::matmul::primitive_desc>
      descriptions_;  // of a whole task and, if it differs, of the last one
  std::vector<dnnl::matmul> products_;
  std::vector<dnnl::memory> weights_;  // one a task
};

}  // namespace

std::unique_ptr<Linear> make_onednn_linear(bool bf16, std::size_t inputs, std::size_t outputs,
                                           const RowReader& row) {
  return std::make_unique<OneDnnLinear>(bf16, inputs, outputs, row);
}

bool onednn_has_bf16() {
  try {
    constexpr std::size_t kAny = 64;
    const std::string found = describe(Type::bf16, kAny, kAny).impl_info_str();
    return found.find("ref") == std::string::npos;
  } catch (const dnnl::error&) {
    return false;
  }
}

std::string onednn_instruction_set() {
  const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
  if (isa == dnnl::cpu_isa::avx512_core_amx) return "amx";
  if (isa == dnnl::cpu_isa::avx512_core_bf16) return "avx512_bf16";
  if (isa == dnnl::cpu_isa::avx512_core_vnni || isa == dnnl::cpu_isa::avx512_core) return "avx512";
  if (isa == dnnl::cpu_isa::avx2_vnni || isa == dnnl::cpu_isa::avx2) return "avx2";
  return "other";
}

}  // namespace baton::model
