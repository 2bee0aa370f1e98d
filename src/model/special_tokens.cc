#include "model/special_tokens.h"

#include <algorithm>

namespace baton::model {

SpecialTokens::SpecialTokens(std::vector<Entry> entries) : entries_(std::move(entries)) {
  std::erase_if(entries_, [](const Entry& entry) { return entry.text.empty(); });
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return a.text < b.text; });
  for (const Entry& entry : entries_) starts_[static_cast<unsigned char>(entry.text[0])] = true;
}

// Narrows the sorted entries byte by byte, so that a file with very many of them costs no more than
// one with few.
const SpecialTokens::Entry* SpecialTokens::longest_prefix(std::string_view text) const {
  const Entry* longest = nullptr;
  auto low = entries_.begin();
  auto high = entries_.end();
  for (std::size_t depth = 0; low != high; ++depth) {
    if (low->text.size() == depth) {
      longest = &*low;  // the shortest sorts first, and there is only one of each text
      ++low;
    }
    if (depth == text.size()) break;
    const auto byte_at = [&](const Entry& entry) {
      return static_cast<unsigned char>(entry.text[depth]);
    };
    const auto want = static_cast<unsigned char>(text[depth]);
    low = std::partition_point(low, high, [&](const Entry& e) { return byte_at(e) < want; });
    high = std::partition_point(low, high, [&](const Entry& e) { return byte_at(e) == want; });
  }
  return longest;
}

SpecialTokens::Found SpecialTokens::find(std::string_view text, std::size_t from) const {
  if (entries_.empty()) return {};
  for (std::size_t i = from; i < text.size(); ++i) {
    if (!starts_[static_cast<unsigned char>(text[i])]) continue;
    if (const Entry* entry = longest_prefix(text.substr(i))) {
      return {i, entry->text.size(), entry->id};
    }
  }
  return {};
}

}  // namespace baton::model
