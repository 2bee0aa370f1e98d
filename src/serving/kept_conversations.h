// Bidirectional pull, at the router: what decode instances kept of answered chats, so that the
// prefill instance of the next turn can be told. A chat is known by its messages: nothing in
// OpenAI's API names it. Whoever sends the same messages takes it up, whoever they are, unless they
// give another cache_salt. They need not go on with the same tokens, nor with the same chat where
// hashes collide: the prefill instance holds the kept tokens against its prompt.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "model/chat_template.h"

namespace baton::serving {

using ConversationKey = std::uint64_t;

struct KeptConversation {
  std::string params;  // kv_transfer_params of the instance that keeps it, a JSON object
  std::string engine_id;
  std::uint64_t incarnation = 0;
};

class KeptConversations {
 public:
  // What a P leg takes beside the client's body (http::ServerOptions::body_limit).
  static constexpr std::size_t kParamsMax = 1 << 20;
  // Of all together.
  static constexpr std::size_t kBytesMax = 64 << 20;

  // `most` conversations, of which the least recently answered goes first. 0: none is remembered.
  explicit KeptConversations(std::size_t most);

  // Of the first message, of the first two, and so on to all of them. Of this table alone: nobody
  // outside can tell which texts would be taken for each other.
  std::vector<ConversationKey> keys_of(const std::string& model, const std::string& cache_salt,
                                       const std::vector<model::ChatMessage>& messages) const;
  // In the place of what was there under this key. Too long ones are not remembered.
  void put(ConversationKey key, KeptConversation kept, Time expires);
  // The one with the most messages, and it is gone: kept blocks are read once.
  std::optional<KeptConversation> take(const std::vector<ConversationKey>& keys, Time now);
  std::size_t size(Time now) const;  // of those that have not expired

 private:
  struct Entry {
    ConversationKey key = 0;
    KeptConversation kept;
    Time expires{};
  };
  using Entries = std::list<Entry>;  // least recently answered first
  void erase(Entries::iterator entry);

  const std::size_t most_;
  const std::uint64_t seed_;
  mutable std::mutex mutex_;
  Entries entries_;
  std::unordered_map<ConversationKey, Entries::iterator> by_key_;
  std::size_t bytes_ = 0;
};

}  // namespace baton::serving
