// Chat templates. A GGUF file carries a Jinja program; it is not run: built-in renderers are chosen
// by the template's hash (SmolLM2's ChatML, Qwen3's). Any other template is an error on the chat
// endpoint only.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "baton/result.h"

namespace baton::model {

class GgufFile;

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

class ChatTemplate {
 public:
  // Never fails: an unknown template is remembered and reported by render().
  static std::unique_ptr<ChatTemplate> from(const GgufFile& file);
  virtual ~ChatTemplate() = default;
  // The prompt text, ready for Tokenizer::encode(text, true), with the assistant's turn opened.
  virtual Result<std::string> render(std::span<const ChatMessage> messages) const = 0;
};

}  // namespace baton::model
