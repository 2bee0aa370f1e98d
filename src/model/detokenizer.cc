#include "model/tokenizer.h"
#include "model/utf8.h"

namespace baton::model {

namespace {
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
}

std::string Detokenizer::push(TokenId token) {
  pending_.append(tokenizer_->piece(token));
  std::string whole;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Step step = utf8_step(rest);
    if (step.kind == Utf8Step::Kind::kIncomplete) break;
    whole.append(step.kind == Utf8Step::Kind::kCharacter ? rest.substr(0, step.size)
                                                         : kReplacement);
    rest.remove_prefix(step.size);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return whole;
}

std::string Detokenizer::finish() {
  // What push() kept is the start of one character at most.
  const bool broken = !pending_.empty();
  pending_.clear();
  return broken ? std::string(kReplacement) : std::string();
}

}  // namespace baton::model
