// Files made by the project itself: a small random model for tests, and the bfloat16 copy of a
// model.
#pragma once

#include <cstdint>
#include <string>

#include "baton/result.h"
#include "model/gguf.h"

namespace baton::model {

// A Qwen3-shaped model with a byte-level tokenizer that can encode any text. The same spec gives
// the same bytes on every machine. Weights are scaled so that the next token depends on the whole
// context; control tokens (end of text, chat marks) are never the likeliest, so that greedy answers
// run to their length.
struct RandomModelSpec {
  std::uint64_t seed = 1;
  std::uint32_t layers = 2;
  std::uint32_t embedding_size = 128;     // a multiple of 16
  std::uint32_t feed_forward_size = 256;  // a multiple of 16
  std::uint32_t heads = 16;               // a multiple of kv_heads
  std::uint32_t kv_heads = 8;
  std::uint32_t head_dim = 16;     // a multiple of 16
  std::uint32_t vocab_size = 512;  // at least kMinVocab
  std::uint32_t context_length = 2048;

  static constexpr std::uint32_t kMinVocab = 320;
};

Status write_random_model(const RandomModelSpec& spec, const std::string& path);

// The same metadata and norms; every matrix dequantised and rounded to bfloat16.
Status write_bf16_copy(const GgufFile& file, const std::string& path);

}  // namespace baton::model
