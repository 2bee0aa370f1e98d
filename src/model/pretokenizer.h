// Cuts text into the pieces inside which byte pairs may merge, by the regular expressions that the
// vocabulary was trained with. Another cut gives other tokens, so these follow llama.cpp's.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "baton/result.h"

namespace baton::model {

class Pretokenizer {
 public:
  // `name` as in tokenizer.ggml.pre: "smollm", "qwen2" or "gpt-2"; others are kUnsupported.
  static Result<std::unique_ptr<Pretokenizer>> create(std::string_view name);
  virtual ~Pretokenizer() = default;

  // Appends the pieces of `text`, which is valid UTF-8; together they are `text`. Any thread.
  virtual void split(std::string_view text, std::vector<std::string_view>& pieces) const = 0;
  // Whether the vocabulary expects text in Unicode's composed normal form (NFC).
  virtual bool wants_nfc() const = 0;
};

}  // namespace baton::model
