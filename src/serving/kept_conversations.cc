#include "serving/kept_conversations.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/random.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace baton::serving {
namespace {

std::uint64_t hash_of(std::string_view text, std::uint64_t seed) {
  return XXH3_64bits_withSeed(text.data(), text.size(), seed);
}

// `before` and the texts behind it.
ConversationKey continued(ConversationKey before, std::string_view first, std::string_view second,
                          std::uint64_t seed) {
  const std::array<std::uint64_t, 3> parts = {before, hash_of(first, seed), hash_of(second, seed)};
  return hash_of({reinterpret_cast<const char*>(parts.data()), sizeof parts}, seed);
}

}  // namespace

KeptConversations::KeptConversations(std::size_t most) : most_(most), seed_(random_u64()) {}

std::vector<ConversationKey> KeptConversations::keys_of(
    const std::string& model, const std::string& cache_salt,
    const std::vector<model::ChatMessage>& messages) const {
  std::vector<ConversationKey> keys;
  keys.reserve(messages.size());
  ConversationKey key = continued(0, model, cache_salt, seed_);
  for (const model::ChatMessage& message : messages) {
    keys.push_back(key = continued(key, message.role, message.content, seed_));
  }
  return keys;
}

void KeptConversations::put(ConversationKey key, KeptConversation kept, Time expires) {
  const std::size_t bytes = kept.params.size();
  if (most_ == 0 || bytes > kParamsMax) return;
  const std::lock_guard lock(mutex_);
  if (const auto at = by_key_.find(key); at != by_key_.end()) erase(at->second);
  while (entries_.size() >= most_ || bytes_ + bytes > kBytesMax) erase(entries_.begin());
  entries_.push_back({key, std::move(kept), expires});
  by_key_.emplace(key, std::prev(entries_.end()));
  bytes_ += bytes;
}

std::optional<KeptConversation> KeptConversations::take(const std::vector<ConversationKey>& keys,
                                                        Time now) {
  const std::lock_guard lock(mutex_);
  for (auto key = keys.rbegin(); key != keys.rend(); ++key) {
    const auto at = by_key_.find(*key);
    if (at == by_key_.end()) continue;
    const Entries::iterator entry = at->second;
    const bool lapsed = now >= entry->expires;
    KeptConversation kept = std::move(entry->kept);
    bytes_ -= kept.params.size();
    by_key_.erase(at);
    entries_.erase(entry);
    if (!lapsed) return kept;
  }
  return {};
}

std::size_t KeptConversations::size(Time now) const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(std::count_if(entries_.begin(), entries_.end(),
                                                [now](const Entry& e) { return now < e.expires; }));
}

void KeptConversations::erase(Entries::iterator entry) {
  bytes_ -= entry->kept.params.size();
  by_key_.erase(entry->key);
  entries_.erase(entry);
}

}  // namespace baton::serving
