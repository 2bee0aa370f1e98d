#include "engine/text_stream.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace baton::engine {

namespace {

// Length of the longest end of `text` that is a beginning of `stop`, and not all of it.
std::size_t overlap(std::string_view text, std::string_view stop) {
  std::size_t length = std::min(text.size(), stop.size() - 1);
  while (length > 0 && text.substr(text.size() - length) != stop.substr(0, length)) --length;
  return length;
}

}  // namespace

TextStream::TextStream(const model::Tokenizer& tokenizer, std::vector<std::string> stop,
                       bool include_stop)
    : detokenizer_(tokenizer), stop_(std::move(stop)), include_stop_(include_stop) {}

TextStream::Step TextStream::push(TokenId token) {
  return add(detokenizer_.push(token), false);
}

TextStream::Step TextStream::finish() {
  return add(detokenizer_.finish(), true);
}

TextStream::Step TextStream::add(const std::string& text, bool last) {
  pending_ += text;
  const std::string* found = nullptr;
  std::size_t begin = 0;
  std::size_t end = 0;
  for (const std::string& stop : stop_) {
    const std::size_t at = pending_.find(stop);
    if (at == std::string::npos) continue;
    const std::size_t to = at + stop.size();
    if (found == nullptr || to < end || (to == end && at < begin)) {
      found = &stop;
      begin = at;
      end = to;
    }
  }
  Step step;
  if (found != nullptr) {
    step.text = pending_.substr(0, include_stop_ ? end : begin);
    step.stop = *found;
    pending_.clear();
    return step;
  }
  const std::size_t keep = last ? 0 : held_back();
  step.text = pending_.substr(0, pending_.size() - keep);
  pending_.erase(0, pending_.size() - keep);
  return step;
}

std::size_t TextStream::held_back() const {
  std::size_t most = 0;
  for (const std::string& stop : stop_) most = std::max(most, overlap(pending_, stop));
  return most;
}

}  // namespace baton::engine
