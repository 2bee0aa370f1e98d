// Byte-pair merging over token ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "baton/ids.h"

namespace baton::model {

class BpeMerges {
 public:
  void reserve(std::size_t merges) { merges_.reserve(merges); }
  // `rank`: its place in the file; lower ones merge first. False: the pair has a merge already.
  bool add(TokenId left, TokenId right, std::uint32_t rank, TokenId result);

  // Merges until no pair of neighbours is left that can: always the lowest rank, and of several the
  // leftmost. O(n log n). Any thread.
  void apply(std::vector<TokenId>& symbols) const;

 private:
  struct Merge {
    std::uint32_t rank = 0;
    TokenId result = 0;
  };
  struct PairHash {
    std::size_t operator()(std::uint64_t key) const {
      key *= 0x9E3779B97F4A7C15ULL;
      return static_cast<std::size_t>(key ^ (key >> 32));
    }
  };
  const Merge* find(TokenId left, TokenId right) const;

  std::unordered_map<std::uint64_t, Merge, PairHash> merges_;
};

}  // namespace baton::model
