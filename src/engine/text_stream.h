// From tokens to the text that a client may see: whole characters only, and never the beginning of
// what may still become a stop string. What it releases, put together, is the same text however the
// tokens come. One thread at a time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "baton/ids.h"
#include "model/tokenizer.h"

namespace baton::engine {

class TextStream {
 public:
  struct Step {
    std::string text;                 // newly released
    std::optional<std::string> stop;  // the stop string that was found: nothing may follow
  };

  // `stop`: no empty strings. `include_stop`: the stop string itself is released too. The tokenizer
  // must outlive the stream.
  TextStream(const model::Tokenizer& tokenizer, std::vector<std::string> stop, bool include_stop);

  // Of several stop strings in the text the one that is complete first counts, and of two that end
  // at the same place the longer.
  Step push(TokenId token);
  Step finish();  // no more tokens: releases what was held back

 private:
  Step add(const std::string& text, bool last);
  std::size_t held_back() const;

  model::Detokenizer detokenizer_;
  std::vector<std::string> stop_;
  bool include_stop_;
  std::string pending_;  // whole characters, not released yet
};

}  // namespace baton::engine
