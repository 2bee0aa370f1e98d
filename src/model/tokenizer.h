// Byte-level BPE out of a GGUF file (tokenizer.ggml.model "gpt2"; pre-tokenizers "smollm", "qwen2"
// and "gpt-2"), and streaming detokenisation. Immutable after load; any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "baton/ids.h"
#include "baton/result.h"

namespace baton::model {

class GgufFile;

class Tokenizer {
 public:
  static Result<std::unique_ptr<Tokenizer>> load(const GgufFile& file);
  virtual ~Tokenizer() = default;

  // `parse_special`: text such as <|im_start|> becomes its control token (templates); otherwise it
  // is plain text (what a user typed). Invalid UTF-8 is encoded byte by byte, never refused.
  virtual std::vector<TokenId> encode(std::string_view text, bool parse_special) const = 0;
  // The bytes of one token; empty for control tokens unless `show_special`. Not necessarily whole
  // characters.
  virtual std::string_view piece(TokenId token, bool show_special = false) const = 0;

  virtual std::size_t vocab_size() const = 0;
  virtual bool is_end_of_generation(TokenId token) const = 0;  // EOS, and <|im_end|> and its like
  virtual std::optional<TokenId> bos() const = 0;
  virtual bool add_bos() const = 0;  // what the file asks of plain prompts
};

// Turns tokens into text as they come, holding back bytes that do not yet make a whole character.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  std::string push(TokenId token);  // the text that became whole; may be empty
  std::string finish();             // what is left, broken bytes as U+FFFD

 private:
  const Tokenizer* tokenizer_;
  std::string pending_;
};

}  // namespace baton::model
