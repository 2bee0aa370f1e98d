#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "model/kernel_choice.h"
#include "model/model.h"
#include "model/numbers.h"
#include "model/rotary.h"
#include "model/weights.h"
#include "model/worker_pool.h"

namespace baton::model {
namespace {

// Rows (tokens) that go through all layers together. More are cut into several such batches, in
// order, so that what lies between two matrix products stays in the caches.
constexpr std::size_t kBatchRows = 256;
// Rows of one task of a matrix product; a multiple of every kernel's row group.
constexpr std::size_t kTaskRows = 96;
// Rows of one task of what is done row by row.
constexpr std::size_t kRowStep = 16;

std::size_t element_bytes(KvDtype dtype) {
  return dtype == KvDtype::kBfloat16 ? 2 : 4;
}

// Neighbouring tokens of one sequence within a batch.
struct Segment {
  const SequenceChunk* chunk = nullptr;
  std::size_t first = 0;  // token of the chunk
  std::size_t rows = 0;
  std::size_t row = 0;  // of the batch
};

struct AttentionTask {
  const Segment* segment = nullptr;
  std::size_t first = 0;  // row of the segment
  std::size_t rows = 0;
};

class CpuModel : public Model {
 public:
  CpuModel(ModelConfig config, const ModelOptions& options, KernelChoice choice, Weights weights)
      : config_(std::move(config)),
        options_(options),
        choice_(std::move(choice)),
        weights_(std::move(weights)),
        rotary_(config_, weights_.rope_factors),
        workers_(options.threads),
        q_width_(std::size_t{config_.num_heads} * config_.head_dim),
        kv_width_(std::size_t{config_.num_kv_heads} * config_.head_dim),
        attention_scratch_(static_cast<std::size_t>(options.threads)) {
    reserve_rows();
  }

  const ModelConfig& config() const override { return config_; }
  const std::string& kernel_family() const override { return choice_.family; }
  void forward(std::span<const SequenceChunk> chunks, const KvPool& pool,
               std::span<float> logits) override;

 private:
  struct Product {
    const Linear* linear = nullptr;
    const float* x = nullptr;
    float* y = nullptr;
  };

  void reserve_rows();
  void check(std::span<const SequenceChunk> chunks, const KvPool& pool,
             std::span<const float> logits) const;
  float* run_batch(std::span<const Segment> segments, std::size_t rows, const KvPool& pool,
                   float* logits);
  void embed(std::span<const Segment> segments);
  void attend(const LayerWeights& layer, std::size_t index, std::span<const Segment> segments,
              std::size_t rows, const KvPool& pool);
  void rotate_and_store(const LayerWeights& layer, std::byte* base,
                        std::span<const Segment> segments, const KvPool& pool);
  void store_row(std::byte* base, const KvPool& pool, const Segment& segment,
                 std::size_t row) const;
  void attention(std::byte* base, std::span<const Segment> segments, const KvPool& pool);
  void attention_task(const AttentionTask& task, std::size_t head, std::byte* base,
                      const KvPool& pool, int thread);
  void feed_forward(const LayerWeights& layer, std::size_t rows);
  float* project_logits(std::span<const Segment> segments, float* logits);

  template <typename Body>
  void each_row(std::size_t rows, const Body& body);
  template <typename After>
  void multiply(std::span<const Product> products, std::size_t rows, const After& after);
  void normalize(const std::vector<float>& weight, std::size_t rows);
  void add_product(const Linear& linear, const float* x, std::size_t rows);

  ModelConfig config_;
  ModelOptions options_;
  KernelChoice choice_;
  Weights weights_;
  Rotary rotary_;
  WorkerPool workers_;
  std::size_t q_width_;
  std::size_t kv_width_;

  // Row-major, kBatchRows rows each.
  std::vector<float> hidden_;
  std::vector<float> normed_;
  std::vector<float> q_;
  std::vector<float> k_;
  std::vector<float> v_;
  std::vector<float> attended_;
  std::vector<float> gate_;
  std::vector<float> up_;
  std::vector<float> product_;
  std::vector<float> angles_;  // of each row's position, as Rotary makes them
  std::vector<AttentionTask> attention_tasks_;
  std::vector<std::vector<float>> attention_scratch_;  // one a thread
};

void CpuModel::reserve_rows() {
  hidden_.resize(kBatchRows * config_.embedding_size);
  normed_.resize(kBatchRows * config_.embedding_size);
  product_.resize(kBatchRows * config_.embedding_size);
  q_.resize(kBatchRows * q_width_);
  attended_.resize(kBatchRows * q_width_);
  k_.resize(kBatchRows * kv_width_);
  v_.resize(kBatchRows * kv_width_);
  gate_.resize(kBatchRows * config_.feed_forward_size);
  up_.resize(kBatchRows * config_.feed_forward_size);
  angles_.resize(kBatchRows * config_.head_dim);
}

void CpuModel::check(std::span<const SequenceChunk> chunks, const KvPool& pool,
                     std::span<const float> logits) const {
  BATON_CHECK(pool.layers.size() == config_.num_layers, "{} layers in the pool, {} in the model",
              pool.layers.size(), config_.num_layers);
  BATON_CHECK(std::has_single_bit(pool.block_size), "block size {}", pool.block_size);
  BATON_CHECK(pool.stride_bytes >= kv_block_bytes(config_, options_.kv_dtype, pool.block_size),
              "blocks {} bytes apart", pool.stride_bytes);
  std::size_t wanted = 0;
  for (const SequenceChunk& chunk : chunks) {
    const std::size_t end = chunk.start + chunk.tokens.size();
    BATON_CHECK(!chunk.tokens.empty() && end <= config_.context_length, "tokens [{}, {}) of {}",
                chunk.start, end, config_.context_length);
    BATON_CHECK(end <= chunk.block_table.size() * pool.block_size, "{} tokens, {} blocks of {}",
                end, chunk.block_table.size(), pool.block_size);
    for (const BlockId block : chunk.block_table) {
      BATON_CHECK(block < pool.num_blocks, "block {} of {}", block, pool.num_blocks);
    }
    for (const TokenId token : chunk.tokens) {
      BATON_CHECK(token >= 0 && static_cast<std::uint32_t>(token) < config_.vocab_size,
                  "token {} of {}", token, config_.vocab_size);
    }
    wanted += chunk.want_logits ? 1 : 0;
  }
  BATON_CHECK(logits.size() == wanted * config_.vocab_size,
              "room for {} logits, {} rows of {} wanted", logits.size(), wanted,
              config_.vocab_size);
}

void CpuModel::forward(std::span<const SequenceChunk> chunks, const KvPool& pool,
                       std::span<float> logits) {
  check(chunks, pool, logits);
  std::vector<Segment> segments;
  std::size_t rows = 0;
  float* next_logits = logits.data();
  const auto flush = [&] {
    if (rows != 0) next_logits = run_batch(segments, rows, pool, next_logits);
    segments.clear();
    rows = 0;
  };
  for (const SequenceChunk& chunk : chunks) {
    for (std::size_t first = 0; first < chunk.tokens.size();) {
      const std::size_t some = std::min(chunk.tokens.size() - first, kBatchRows - rows);
      segments.push_back({&chunk, first, some, rows});
      rows += some;
      first += some;
      if (rows == kBatchRows) flush();
    }
  }
  flush();
}

float* CpuModel::run_batch(std::span<const Segment> segments, std::size_t rows, const KvPool& pool,
                           float* logits) {
  embed(segments);
  for (std::size_t i = 0; i < weights_.layers.size(); ++i) {
    attend(weights_.layers[i], i, segments, rows, pool);
    feed_forward(weights_.layers[i], rows);
  }
  return project_logits(segments, logits);
}

void CpuModel::embed(std::span<const Segment> segments) {
  const std::size_t width = config_.embedding_size;
  for (const Segment& segment : segments) {
    for (std::size_t i = 0; i < segment.rows; ++i) {
      const auto token = static_cast<std::size_t>(segment.chunk->tokens[segment.first + i]);
      const std::uint16_t* from = weights_.embedding.data() + token * width;
      float* to = hidden_.data() + (segment.row + i) * width;
      for (std::size_t k = 0; k < width; ++k) to[k] = bf16_to_float(from[k]);
      const std::size_t position = segment.chunk->start + segment.first + i;
      rotary_.angles(position, angles_.data() + (segment.row + i) * config_.head_dim);
    }
  }
}

template <typename Body>
void CpuModel::each_row(std::size_t rows, const Body& body) {
  workers_.run((rows + kRowStep - 1) / kRowStep, [&](std::size_t task, int) {
    const std::size_t end = std::min(rows, (task + 1) * kRowStep);
    for (std::size_t row = task * kRowStep; row < end; ++row) body(row);
  });
}

// Computes all products; after each task's columns of some rows are there, calls
// after(product, first row, rows, first column, columns) on the same thread.
template <typename After>
void CpuModel::multiply(std::span<const Product> products, std::size_t rows, const After& after) {
  const std::size_t row_tasks = (rows + kTaskRows - 1) / kTaskRows;
  std::size_t tasks = 0;
  for (const Product& product : products) tasks += product.linear->tasks() * row_tasks;
  workers_.run(tasks, [&](std::size_t task, int) {
    const Product* product = products.data();
    while (task >= product->linear->tasks() * row_tasks) {
      task -= product->linear->tasks() * row_tasks;
      ++product;
    }
    const Linear& linear = *product->linear;
    const std::size_t column_task = task / row_tasks;
    const std::size_t row = task % row_tasks * kTaskRows;
    const std::size_t some = std::min(kTaskRows, rows - row);
    linear.multiply(column_task, product->x + row * linear.inputs(), linear.inputs(), some,
                    product->y + row * linear.outputs(), linear.outputs());
    after(*product, row, some, linear.first_column(column_task), linear.task_columns(column_task));
  });
}

constexpr auto kNothingAfter = [](const auto&, std::size_t, std::size_t, std::size_t, std::size_t) {
};

void CpuModel::normalize(const std::vector<float>& weight, std::size_t rows) {
  const std::size_t width = config_.embedding_size;
  each_row(rows, [&](std::size_t row) {
    choice_.kernels->rms_norm(hidden_.data() + row * width, weight.data(), width,
                              config_.norm_epsilon, normed_.data() + row * width);
  });
}

// hidden += x * W^T
void CpuModel::add_product(const Linear& linear, const float* x, std::size_t rows) {
  const Product product = {&linear, x, product_.data()};
  const std::size_t width = config_.embedding_size;
  multiply({&product, 1}, rows,
           [&](const Product&, std::size_t row, std::size_t some, std::size_t column,
               std::size_t columns) {
             for (std::size_t r = row; r < row + some; ++r) {
               float* to = hidden_.data() + r * width + column;
               const float* from = product_.data() + r * width + column;
               for (std::size_t c = 0; c < columns; ++c) to[c] += from[c];
             }
           });
}

void CpuModel::attend(const LayerWeights& layer, std::size_t index,
                      std::span<const Segment> segments, std::size_t rows, const KvPool& pool) {
  normalize(layer.attention_norm, rows);
  const Product products[] = {{layer.q.get(), normed_.data(), q_.data()},
                              {layer.k.get(), normed_.data(), k_.data()},
                              {layer.v.get(), normed_.data(), v_.data()}};
  multiply(products, rows, kNothingAfter);
  std::byte* base = pool.layers[index];
  rotate_and_store(layer, base, segments, pool);
  attention(base, segments, pool);
  add_product(*layer.attention_output, attended_.data(), rows);
}

void CpuModel::rotate_and_store(const LayerWeights& layer, std::byte* base,
                                std::span<const Segment> segments, const KvPool& pool) {
  const std::size_t dim = config_.head_dim;
  const auto head = [&](float* values, const std::vector<float>& norm, const float* angles) {
    if (!norm.empty())
      choice_.kernels->rms_norm(values, norm.data(), dim, config_.norm_epsilon, values);
    rotary_.rotate(values, angles);
  };
  for (const Segment& segment : segments) {
    each_row(segment.rows, [&](std::size_t i) {
      const std::size_t row = segment.row + i;
      const float* angles = angles_.data() + row * dim;
      for (std::size_t h = 0; h < q_width_; h += dim)
        head(q_.data() + row * q_width_ + h, layer.q_norm, angles);
      for (std::size_t h = 0; h < kv_width_; h += dim)
        head(k_.data() + row * kv_width_ + h, layer.k_norm, angles);
      store_row(base, pool, segment, i);
    });
  }
}

void CpuModel::store_row(std::byte* base, const KvPool& pool, const Segment& segment,
                         std::size_t row) const {
  const std::size_t position = segment.chunk->start + segment.first + row;
  const std::size_t dim = config_.head_dim;
  const std::size_t row_bytes = dim * element_bytes(options_.kv_dtype);
  std::byte* block =
      base + segment.chunk->block_table[position / pool.block_size] * pool.stride_bytes;
  const auto store = [&](const float* from, std::size_t head) {
    std::byte* to = block + (head * pool.block_size + position % pool.block_size) * row_bytes;
    if (options_.kv_dtype == KvDtype::kFloat32) {
      std::memcpy(to, from, row_bytes);
      return;
    }
    auto* words = reinterpret_cast<std::uint16_t*>(to);
    for (std::size_t i = 0; i < dim; ++i) words[i] = float_to_bf16(from[i]);
  };
  for (std::size_t h = 0; h < config_.num_kv_heads; ++h) {
    const std::size_t at = (segment.row + row) * kv_width_ + h * dim;
    store(k_.data() + at, h);
    store(v_.data() + at, config_.num_kv_heads + h);
  }
}

void CpuModel::attention(std::byte* base, std::span<const Segment> segments, const KvPool& pool) {
  attention_tasks_.clear();
  for (const Segment& segment : segments) {
    for (std::size_t first = 0; first < segment.rows; first += kAttentionRows) {
      attention_tasks_.push_back({&segment, first, std::min(kAttentionRows, segment.rows - first)});
    }
  }
  const std::size_t heads = config_.num_kv_heads;
  workers_.run(attention_tasks_.size() * heads, [&](std::size_t task, int thread) {
    attention_task(attention_tasks_[task / heads], task % heads, base, pool, thread);
  });
}

void CpuModel::attention_task(const AttentionTask& task, std::size_t head, std::byte* base,
                              const KvPool& pool, int thread) {
  const std::size_t dim = config_.head_dim;
  const std::size_t head_bytes = pool.block_size * dim * element_bytes(options_.kv_dtype);
  const Segment& segment = *task.segment;
  AttentionJob job;
  job.kv = {base,
            pool.stride_bytes,
            segment.chunk->block_table.data(),
            static_cast<unsigned>(std::countr_zero(pool.block_size)),
            head * head_bytes,
            (config_.num_kv_heads + head) * head_bytes,
            dim * element_bytes(options_.kv_dtype),
            options_.kv_dtype == KvDtype::kBfloat16};
  job.start = segment.chunk->start + segment.first + task.first;
  job.rows = task.rows;
  job.group = config_.num_heads / config_.num_kv_heads;
  job.head_dim = dim;
  job.scale = 1.0F / std::sqrt(static_cast<float>(dim));
  const std::size_t at = (segment.row + task.first) * q_width_ + head * job.group * dim;
  job.q = q_.data() + at;
  job.q_stride = q_width_;
  job.out = attended_.data() + at;
  job.out_stride = q_width_;
  std::vector<float>& scratch = attention_scratch_[static_cast<std::size_t>(thread)];
  const std::size_t needed = attention_scratch(job.rows, job.group, dim, job.start + job.rows);
  if (scratch.size() < needed) scratch.resize(needed);
  job.scratch = scratch.data();
  choice_.kernels->attention(job);
}

void CpuModel::feed_forward(const LayerWeights& layer, std::size_t rows) {
  normalize(layer.feed_forward_norm, rows);
  const std::size_t width = config_.feed_forward_size;
  const Product gate = {layer.gate.get(), normed_.data(), gate_.data()};
  multiply({&gate, 1}, rows,
           [&](const Product&, std::size_t row, std::size_t some, std::size_t column,
               std::size_t columns) {
             const std::size_t inputs = config_.embedding_size;
             layer.up->multiply(column / layer.up->task_columns(0), normed_.data() + row * inputs,
                                inputs, some, up_.data() + row * width, width);
             for (std::size_t r = row; r < row + some; ++r) {
               const std::size_t at = r * width + column;
               choice_.kernels->silu_multiply(gate_.data() + at, up_.data() + at, columns);
             }
           });
  add_product(*layer.down, gate_.data(), rows);
}

// Of the segments that end a chunk which wants logits; answers where the next ones go.
float* CpuModel::project_logits(std::span<const Segment> segments, float* logits) {
  const std::size_t width = config_.embedding_size;
  std::size_t wanted = 0;
  for (const Segment& segment : segments) {
    const bool ends = segment.first + segment.rows == segment.chunk->tokens.size();
    if (!ends || !segment.chunk->want_logits) continue;
    const float* row = hidden_.data() + (segment.row + segment.rows - 1) * width;
    choice_.kernels->rms_norm(row, weights_.output_norm.data(), width, config_.norm_epsilon,
                              normed_.data() + wanted * width);
    ++wanted;
  }
  if (wanted == 0) return logits;
  const Product product = {weights_.output.get(), normed_.data(), logits};
  multiply({&product, 1}, wanted, kNothingAfter);
  return logits + wanted * config_.vocab_size;
}

}  // namespace

std::size_t kv_block_bytes(const ModelConfig& config, KvDtype dtype, std::uint32_t block_size) {
  return 2 * std::size_t{config.num_kv_heads} * block_size * config.head_dim * element_bytes(dtype);
}

Result<std::unique_ptr<Model>> Model::load(const GgufFile& file, const ModelOptions& options) {
  if (options.threads < 1) {
    return fail(Errc::kInvalidArgument,
                fmt::format("threads is {}, not 1 or more", options.threads));
  }
  Result<ModelConfig> config = read_config(file);
  if (!config) return tl::unexpected<Error>(std::move(config).error());
  const char* wanted = std::getenv("BATON_KERNELS");
  Result<KernelChoice> choice = choose_kernels(
      options.kernels.empty() && wanted != nullptr ? std::string(wanted) : options.kernels);
  if (!choice) return tl::unexpected<Error>(std::move(choice).error());
  Result<Weights> weights = read_weights(file, *config, *choice);
  if (!weights) return tl::unexpected<Error>(std::move(weights).error());
  return std::make_unique<CpuModel>(*std::move(config), options, *std::move(choice),
                                    *std::move(weights));
}

}  // namespace baton::model
