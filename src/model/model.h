// A transformer that runs on this machine's CPU: weights from a GGUF file, KV in blocks of a pool
// that the caller owns and has registered for the hand-over. Llama and Qwen3 architectures.
//
// Batch-invariant: the logits of a token are the same bits whatever else is in the batch, however
// the prompt was cut into chunks, with any number of threads, and whether its KV was made by decode
// or recomputed as prompt. Everything downstream ("the same tokens as one process") rests on this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "baton/ids.h"
#include "baton/result.h"

namespace baton::model {

class GgufFile;  // gguf.h

enum class KvDtype : std::uint8_t { kBfloat16, kFloat32 };

struct ModelOptions {
  int threads = 1;                        // compute threads of this model, > 0
  KvDtype kv_dtype = KvDtype::kBfloat16;  // how K and V are kept in the pool
  // "" chooses what suits this machine; else "scalar", "avx2", "avx512", "onednn-f32" or
  // "onednn-bf16". The environment variable BATON_KERNELS stands in for "".
  std::string kernels = {};
};

struct ModelConfig {
  std::string architecture;  // "llama" or "qwen3"
  std::string name;          // general.name of the file
  std::string fingerprint;   // hash of the weights file: what Geometry::model carries
  std::uint32_t num_layers = 0;
  std::uint32_t num_heads = 0;
  std::uint32_t num_kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t embedding_size = 0;
  std::uint32_t feed_forward_size = 0;
  std::uint32_t vocab_size = 0;
  std::uint32_t context_length = 0;
  float rope_base = 10000.0F;
  float norm_epsilon = 1e-5F;
};

// The KV pool as the forward pass sees it: one region a layer, `num_blocks` blocks in each, a block
// laid out [K|V][kv head][token][dim] (Geometry's kHeadsFirst). The caller owns the memory.
struct KvPool {
  std::vector<std::byte*> layers;  // base of each layer's region
  std::size_t stride_bytes = 0;    // from block to block
  std::uint32_t num_blocks = 0;
  std::uint32_t block_size = 0;  // tokens a block
};

// Bytes of one block of one layer: 2 * kv heads * block_size * head_dim * bytes an element.
std::size_t kv_block_bytes(const ModelConfig& config, KvDtype dtype, std::uint32_t block_size);

// Some next tokens of one sequence. Positions [start, start + tokens.size()); the KV of [0, start)
// is already in the blocks. `block_table[i]` holds tokens [i * block_size, (i + 1) * block_size);
// any order, no duplicates.
struct SequenceChunk {
  std::span<const TokenId> tokens;
  std::uint32_t start = 0;
  std::span<const BlockId> block_table;
  bool want_logits = false;  // of the chunk's last token
  // The sequence's tokens [0, start); `tokens` follow them in memory.
  std::span<const TokenId> before{};
  // Of those, the first ones whose KV came from another instance and that no step has read yet.
  std::uint32_t received = 0;
};

// How a model lays out its KV where it is not one region a layer of kv_block_bytes() a block.
struct KvLayout {
  std::vector<std::string> regions;  // names; what peers pair them by
  std::size_t block_bytes = 0;       // of one block in each of them
};

// What a step found wrong in KV that came from elsewhere.
struct KvFault {
  std::size_t chunk = 0;  // of the forward(); its logits mean nothing
  std::string text;       // which block of which region, and both values
};

class Model {
 public:
  // Reads and converts the weights. A file that is truncated, inconsistent or of another
  // architecture is an error that names the field; never a crash.
  static Result<std::unique_ptr<Model>> load(const GgufFile& file, const ModelOptions& options);
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;
  // The instruction set and kernels chosen at run time, e.g. "avx2-f32": unlike ones may give other
  // tokens.
  virtual const std::string& kernel_family() const = 0;

  // Writes the chunks' K and V into the pool and `logits` rows (vocab_size floats each, in the
  // order of the chunks that want them) into `logits`. One thread at a time. Every token id,
  // position and block id was checked by the caller against config and pool; a violation is a
  // BATON_CHECK.
  virtual void forward(std::span<const SequenceChunk> chunks, const KvPool& pool,
                       std::span<float> logits) = 0;

  // Unset: one region a layer, as KvPool says. KvPool::layers are the regions in this order.
  virtual std::optional<KvLayout> kv_layout(std::uint32_t block_size) const {
    static_cast<void>(block_size);
    return std::nullopt;
  }
  // Of the last forward(), by chunk. Only a model that can tell right KV from wrong has any.
  virtual std::span<const KvFault> faults() const { return {}; }
};

}  // namespace baton::model
