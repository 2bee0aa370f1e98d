// Which full blocks hold the KV of which beginning of a prompt, so that a request computes, or has
// handed over, only what no earlier one left behind (vLLM's automatic prefix caching).
//
// A block is known by its tokens and by the block before it: a chain from the first token on. Both
// are compared, not only hashed, so that no collision, found or made, can show one request another
// one's KV. Blocks are indexed once their KV has been computed here, or was received and read by a
// step without a fault; a block that is written into is never in here. A salt (vLLM's cache_salt)
// is part of a chain's first block: who gives another one, or none, finds nothing of it. The index
// holds no block:
// one that nobody uses stays in the pool as free, its contents intact, until the pool needs it
// (BlockPool, forget()).
//
// The engine thread alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "baton/ids.h"

namespace baton::engine {

class PrefixCache {
 public:
  // One indexed block as the parent of the next; 0: the beginning of a prompt. Never used twice.
  using Node = std::uint64_t;
  static constexpr Node kRoot = 0;

  struct Match {
    std::vector<BlockId> blocks;  // in token order
    Node last = kRoot;            // the node of the last of them
  };

  PrefixCache(std::uint32_t block_size, std::uint32_t num_blocks);

  // The longest indexed chain of whole blocks at the beginning of `tokens`, without the block that
  // has the last token: that one is computed, for its logits.
  Match match(std::span<const TokenId> tokens, std::string_view salt = {}) const;

  // `block` holds the KV of `tokens` (block_size of them) behind `parent`. Where another block is
  // known for that already, it stays the one, and `indexed` is false. The salt counts behind kRoot
  // alone: every other parent is one salt's already.
  struct Inserted {
    Node node = kRoot;
    bool indexed = false;
  };
  Inserted insert(Node parent, std::span<const TokenId> tokens, BlockId block,
                  std::string_view salt = {});

  // The pool is about to give the block to somebody else.
  void forget(BlockId block);

  std::size_t size() const { return nodes_.size(); }
  // Grows with each block that is indexed or forgotten: while it stands, match() says the same.
  std::uint64_t changes() const { return changes_; }

 private:
  struct Key {
    Node parent;
    std::vector<TokenId> tokens;
    std::string salt;  // behind kRoot
  };
  struct View {
    Node parent;
    std::span<const TokenId> tokens;
    std::string_view salt;
  };
  // What is looked up behind `parent`.
  static View view_of(Node parent, std::span<const TokenId> tokens, std::string_view salt) {
    return {parent, tokens, parent == kRoot ? salt : std::string_view()};
  }
  struct Equal {
    using is_transparent = void;
    static View view(const Key& key) { return {key.parent, key.tokens, key.salt}; }
    static View view(const View& view) { return view; }
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      const View x = view(a), y = view(b);
      return x.parent == y.parent && x.salt == y.salt &&
             std::equal(x.tokens.begin(), x.tokens.end(), y.tokens.begin(), y.tokens.end());
    }
  };
  struct Hash {
    using is_transparent = void;
    std::uint64_t seed;  // of this process: nobody outside can aim at a bucket
    std::size_t operator()(const View& view) const;
    std::size_t operator()(const Key& key) const { return (*this)(Equal::view(key)); }
  };
  struct Entry {
    Node node;
    BlockId block;
  };

  const std::uint32_t block_size_;
  Node last_node_ = kRoot;
  std::uint64_t changes_ = 0;
  std::unordered_map<Key, Entry, Hash, Equal> nodes_;
  std::vector<const Key*> by_block_;  // of nodes_; null: not indexed
};

}  // namespace baton::engine
