// Chat templates. A GGUF file carries a Jinja program; it is not run: built-in renderers are chosen
// by the template's hash (SmolLM2's ChatML, Qwen3's). Any other template is an error on the chat
// endpoint only.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

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
  static std::unique_ptr<ChatTemplate> from_text(std::string_view text);
  virtual ~ChatTemplate() = default;
  // The prompt text, ready for Tokenizer::encode(text, true), with the assistant's turn opened.
  virtual Result<std::string> render(std::span<const ChatMessage> messages) const = 0;
};

// What a template is known by: XXH3-128 of its text, 32 hex digits.
std::string chat_template_hash(std::string_view text);

// SmolLM2's template (Apache-2.0, from SmolLM2-135M-Instruct), for files that tests make.
std::string_view smollm2_template_text();

}  // namespace baton::model
