// Finds whole tokens (<|im_start|> and its like) in text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "baton/ids.h"

namespace baton::model {

class SpecialTokens {
 public:
  struct Entry {
    std::string text;
    TokenId id = 0;
  };
  struct Found {
    std::size_t begin = std::string_view::npos;  // npos: none
    std::size_t size = 0;
    TokenId id = 0;
  };

  SpecialTokens() = default;
  // Entries with empty text are never found.
  explicit SpecialTokens(std::vector<Entry> entries);

  // The first one at or after `from`; of several that begin there the longest.
  Found find(std::string_view text, std::size_t from) const;

 private:
  const Entry* longest_prefix(std::string_view text) const;

  std::vector<Entry> entries_;  // by text
  bool starts_[256] = {};
};

}  // namespace baton::model
