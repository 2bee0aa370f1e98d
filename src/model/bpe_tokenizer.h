// The tokenizer behind Tokenizer::load, made from what a file says. Apart, so that tests can say it
// without a file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "baton/result.h"
#include "model/tokenizer.h"

namespace baton::model {

// GGUF's tokenizer.ggml.token_type.
enum class TokenType : std::int64_t {
  kNormal = 1,   // text in the byte alphabet of GPT-2
  kUnknown = 2,  // these two are found in text only where it may hold control tokens
  kControl = 3,
  kUserDefined = 4,  // plain text that is always one token
  kUnused = 5,
};

// Fields are named as in the file, under tokenizer.ggml. The views are not kept.
struct TokenizerData {
  std::string_view pre;
  std::vector<std::string_view> tokens;
  std::vector<std::int64_t> token_type;  // empty: all normal
  std::vector<std::string_view> merges;  // "left right", the most wanted first
  std::optional<std::uint64_t> bos_token_id;
  std::vector<std::uint64_t> end_token_ids;  // eos, eot, eom
  bool add_bos_token = false;
};

// kCorrupt for data that contradicts itself, naming the field, kUnsupported for another `pre`.
Result<std::unique_ptr<Tokenizer>> make_bpe_tokenizer(const TokenizerData& data);

}  // namespace baton::model
