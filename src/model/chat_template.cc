#include "model/chat_template.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <array>

#include "model/gguf.h"

namespace baton::model {

namespace {

using Messages = std::span<const ChatMessage>;

void append_turn(std::string& out, std::string_view role, std::string_view content) {
  fmt::format_to(std::back_inserter(out), "<|im_start|>{}\n{}<|im_end|>\n", role, content);
}

constexpr std::string_view kOpenAssistant = "<|im_start|>assistant\n";

std::string render_smollm2(Messages messages) {
  std::string out;
  if (messages.front().role != "system") {
    append_turn(out, "system",
                "You are a helpful AI assistant named SmolLM, trained by Hugging Face");
  }
  for (const ChatMessage& message : messages) append_turn(out, message.role, message.content);
  return out.append(kOpenAssistant);
}

std::string_view trim_newlines(std::string_view text, bool front, bool back) {
  while (front && text.starts_with('\n')) text.remove_prefix(1);
  while (back && text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

// An assistant's turn as Qwen3's template splits it: what it thought, and what it said.
struct Thoughts {
  std::string_view reasoning;
  std::string_view content;
};

Thoughts split_thoughts(std::string_view content) {
  constexpr std::string_view kOpen = "<think>";
  constexpr std::string_view kClose = "</think>";
  const std::size_t first = content.find(kClose);
  if (first == std::string_view::npos) return {{}, content};
  std::string_view reasoning = trim_newlines(content.substr(0, first), false, true);
  if (const std::size_t open = reasoning.rfind(kOpen); open != std::string_view::npos) {
    reasoning.remove_prefix(open + kOpen.size());
  }
  content.remove_prefix(content.rfind(kClose) + kClose.size());
  return {trim_newlines(reasoning, true, false), trim_newlines(content, true, false)};
}

// The last message in which a user asks something, rather than handing in a tool's answer. The
// template takes the last message of all where there is none.
std::size_t last_query(Messages messages) {
  for (std::size_t i = messages.size(); i > 0; --i) {
    const ChatMessage& message = messages[i - 1];
    if (message.role == "user" && !(message.content.starts_with("<tool_response>") &&
                                    message.content.ends_with("</tool_response>"))) {
      return i - 1;
    }
  }
  return messages.size() - 1;
}

// Without tools and with `enable_thinking` unset. Thoughts of turns before the last question are
// left out, those after it kept.
std::string render_qwen3(Messages messages) {
  std::string out;
  const std::size_t query = last_query(messages);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (message.role != "assistant") {
      append_turn(out, message.role, message.content);
      continue;
    }
    const Thoughts thoughts = split_thoughts(message.content);
    const bool last = i + 1 == messages.size();
    if (i > query && (last || !thoughts.reasoning.empty())) {
      append_turn(
          out, message.role,
          fmt::format("<think>\n{}\n</think>\n\n{}", trim_newlines(thoughts.reasoning, true, true),
                      trim_newlines(thoughts.content, true, false)));
    } else {
      append_turn(out, message.role, thoughts.content);
    }
  }
  return out.append(kOpenAssistant);
}

using Renderer = std::string (*)(Messages);

struct Known {
  std::string_view hash;  // of the template's text, as chat_template_hash() gives it
  Renderer renderer;
};

// Qwen3's is the chat_template of tokenizer_config.json of Qwen3-0.6B to Qwen3-32B.
constexpr std::array<Known, 2> kKnown = {{
    {"98f63cc3d421d28f99ab995e9629dacd", render_smollm2},
    {"4457e3d12b367a860283f874ff58d644", render_qwen3},
}};

class BuiltInTemplate final : public ChatTemplate {
 public:
  explicit BuiltInTemplate(Renderer renderer) : renderer_(renderer) {}

  Result<std::string> render(Messages messages) const override {
    if (messages.empty()) return fail(Errc::kInvalidArgument, "messages is empty");
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const std::string& role = messages[i].role;
      if (role != "system" && role != "user" && role != "assistant") {
        return fail(Errc::kInvalidArgument,
                    fmt::format("messages[{}].role is '{}'; system, user and assistant are "
                                "understood",
                                i, role));
      }
    }
    return renderer_(messages);
  }

 private:
  Renderer renderer_;
};

class NoTemplate final : public ChatTemplate {
 public:
  explicit NoTemplate(std::string why) : why_(std::move(why)) {}
  Result<std::string> render(Messages) const override { return fail(Errc::kUnsupported, why_); }

 private:
  std::string why_;
};

}  // namespace

std::string chat_template_hash(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string_view smollm2_template_text() {
  return "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
         "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
         "Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + "
         "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
         "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
}

std::unique_ptr<ChatTemplate> ChatTemplate::from_text(std::string_view text) {
  const std::string hash = chat_template_hash(text);
  for (const Known& known : kKnown) {
    if (known.hash == hash) return std::make_unique<BuiltInTemplate>(known.renderer);
  }
  return std::make_unique<NoTemplate>(fmt::format(
      "the chat template of this model (XXH3-128 {}) is none of those built in (SmolLM2's "
      "and Qwen3's); plain completions work",
      hash));
}

std::unique_ptr<ChatTemplate> ChatTemplate::from(const GgufFile& file) {
  if (!file.has("tokenizer.chat_template")) {
    return std::make_unique<NoTemplate>(
        "the file of this model has no chat template; plain completions work");
  }
  const auto text = file.text("tokenizer.chat_template");
  if (!text) return std::make_unique<NoTemplate>(text.error().message);
  return from_text(*text);
}

}  // namespace baton::model
