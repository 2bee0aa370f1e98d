#include "model/bpe.h"

#include <algorithm>

namespace baton::model {

namespace {

std::uint64_t key_of(TokenId left, TokenId right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
         static_cast<std::uint32_t>(right);
}

constexpr std::size_t kNone = static_cast<std::size_t>(-1);

struct Symbol {
  TokenId id = 0;
  std::size_t previous = kNone;
  std::size_t next = kNone;
};

// A merge that could be made when it was noted. It is stale if either symbol changed since.
struct Candidate {
  std::uint32_t rank = 0;
  TokenId result = 0;
  std::size_t left = 0;
  std::size_t right = 0;
  TokenId left_id = 0;
  TokenId right_id = 0;
};

// For a heap whose top is the lowest rank, then the leftmost.
bool is_later(const Candidate& a, const Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
}

}  // namespace

bool BpeMerges::add(TokenId left, TokenId right, std::uint32_t rank, TokenId result) {
  return merges_.emplace(key_of(left, right), Merge{rank, result}).second;
}

const BpeMerges::Merge* BpeMerges::find(TokenId left, TokenId right) const {
  const auto found = merges_.find(key_of(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void BpeMerges::apply(std::vector<TokenId>& symbols) const {
  if (symbols.size() < 2) return;
  std::vector<Symbol> chain(symbols.size());
  std::vector<Candidate> heap;
  const auto note = [&](std::size_t left, std::size_t right) {
    const Merge* merge = find(chain[left].id, chain[right].id);
    if (merge == nullptr) return;
    heap.push_back({merge->rank, merge->result, left, right, chain[left].id, chain[right].id});
    std::push_heap(heap.begin(), heap.end(), is_later);
  };

  for (std::size_t i = 0; i < chain.size(); ++i) {
    chain[i] = {symbols[i], i == 0 ? kNone : i - 1, i + 1 == chain.size() ? kNone : i + 1};
    if (i > 0) note(i - 1, i);
  }
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), is_later);
    const Candidate top = heap.back();
    heap.pop_back();
    Symbol& left = chain[top.left];
    // A symbol that was merged away has the id -1, so that the comparison below fails for it.
    if (left.id != top.left_id || left.next != top.right || chain[top.right].id != top.right_id) {
      continue;
    }
    left.id = top.result;
    left.next = chain[top.right].next;
    chain[top.right].id = -1;
    if (left.next != kNone) {
      chain[left.next].previous = top.left;
      note(top.left, left.next);
    }
    if (left.previous != kNone) note(left.previous, top.left);
  }

  symbols.clear();
  for (std::size_t i = 0; i != kNone; i = chain[i].next) symbols.push_back(chain[i].id);
}

}  // namespace baton::model
