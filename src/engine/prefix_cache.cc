#include "engine/prefix_cache.h"

#include <algorithm>
#include <random>

#include "base/check.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace baton::engine {

std::size_t PrefixCache::Hash::operator()(const View& view) const {
  const std::uint64_t behind = view.salt.empty()
                                   ? view.parent
                                   : XXH3_64bits_withSeed(view.salt.data(), view.salt.size(), seed);
  return XXH3_64bits_withSeed(view.tokens.data(), view.tokens.size_bytes(), seed ^ behind);
}

PrefixCache::PrefixCache(std::uint32_t block_size, std::uint32_t num_blocks)
    : block_size_(block_size),
      nodes_(0, Hash{(std::uint64_t{std::random_device{}()} << 32) | std::random_device{}()}),
      by_block_(num_blocks, nullptr) {
  BATON_CHECK(block_size > 0);
}

PrefixCache::Match PrefixCache::match(std::span<const TokenId> tokens,
                                      std::string_view salt) const {
  Match match;
  for (std::size_t begin = 0; begin + block_size_ < tokens.size(); begin += block_size_) {
    const auto at = nodes_.find(view_of(match.last, tokens.subspan(begin, block_size_), salt));
    if (at == nodes_.end()) break;
    match.blocks.push_back(at->second.block);
    match.last = at->second.node;
  }
  return match;
}

PrefixCache::Inserted PrefixCache::insert(Node parent, std::span<const TokenId> tokens,
                                          BlockId block, std::string_view salt) {
  BATON_CHECK(tokens.size() == block_size_ && block < by_block_.size());
  const View view = view_of(parent, tokens, salt);
  if (const auto known = nodes_.find(view); known != nodes_.end()) {
    return {known->second.node, known->second.block == block};
  }
  BATON_CHECK(by_block_[block] == nullptr, "block {} is indexed for other tokens", block);
  const auto at = nodes_
                      .emplace(Key{parent, {tokens.begin(), tokens.end()}, std::string(view.salt)},
                               Entry{++last_node_, block})
                      .first;
  by_block_[block] = &at->first;
  ++changes_;
  return {last_node_, true};
}

void PrefixCache::forget(BlockId block) {
  const Key* key = by_block_.at(block);
  BATON_CHECK(key != nullptr, "block {} is not indexed", block);
  by_block_[block] = nullptr;
  ++changes_;
  nodes_.erase(nodes_.find(*key));
}

}  // namespace baton::engine
