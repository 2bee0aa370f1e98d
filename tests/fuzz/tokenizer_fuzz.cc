// Text of a stranger into tokens and back, with each pre-tokenizer, and into chat templates. The
// pieces of plain text are that text again, token by token through the detokenizer it is valid
// UTF-8, and a user's text never becomes a control token.
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "input.h"
#include "model/bpe_tokenizer.h"
#include "model/byte_alphabet.h"
#include "model/chat_template.h"
#include "model/utf8.h"

namespace baton::fuzz {
namespace {

constexpr std::array<std::string_view, 3> kPre = {"smollm", "qwen2", "gpt-2"};
constexpr TokenId kFirstControl = 263;

// All bytes, a few merges, a few special tokens.
std::unique_ptr<model::Tokenizer> make(std::string_view pre) {
  std::vector<std::string> tokens;
  for (unsigned byte = 0; byte < 256; ++byte) {
    tokens.emplace_back(model::byte_to_character(static_cast<unsigned char>(byte)));
  }
  for (const char* merged : {"ab", "abc", "bc", "cd",
                             "\xC4\xA0"
                             "a",
                             "11", "\xC4\xA0\xC4\xA0"}) {
    tokens.emplace_back(merged);
  }
  for (const char* control : {"<|im_start|>", "<|im_end|>", "<|endoftext|>"}) {
    tokens.emplace_back(control);
  }
  const std::vector<std::string> merges = {
      "a b", "ab c", "b c", "c d", "\xC4\xA0 a", "1 1", "\xC4\xA0 \xC4\xA0"};
  model::TokenizerData data;
  data.pre = pre;
  data.tokens.assign(tokens.begin(), tokens.end());
  data.token_type.assign(tokens.size(), 1);
  for (std::size_t i = kFirstControl; i < tokens.size(); ++i) data.token_type[i] = 3;
  data.merges.assign(merges.begin(), merges.end());
  data.end_token_ids = {kFirstControl + 1};
  auto made = model::make_bpe_tokenizer(data);
  BATON_CHECK(made.has_value(), "no tokenizer");
  return std::move(*made);
}

const model::Tokenizer& tokenizer(std::uint32_t which) {
  static const std::array<std::unique_ptr<model::Tokenizer>, 3> made = {
      make(kPre[0]), make(kPre[1]), make(kPre[2])};
  return *made[which];
}

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const model::Utf8Step step = model::utf8_step(text);
    if (step.kind != model::Utf8Step::Kind::kCharacter) return false;
    text.remove_prefix(step.size);
  }
  return true;
}

void check_plain(const model::Tokenizer& t, std::string_view text, bool is_normalised) {
  std::string again;
  std::string shown;
  model::Detokenizer detokenizer(t);
  for (const TokenId token : t.encode(text, false)) {
    BATON_CHECK(token < kFirstControl, "a user's text became a control token");
    again += t.piece(token);
    shown += detokenizer.push(token);
  }
  BATON_CHECK(is_valid_utf8(shown), "half a character was shown");
  shown += detokenizer.finish();
  BATON_CHECK(is_valid_utf8(shown), "broken text at the end");
  // Qwen's pre-tokenizer brings text into normal form C first.
  if (!is_normalised) BATON_CHECK(again == text, "another text");
}

void check_chat(const model::Tokenizer& t, Input& in) {
  static const auto chat = model::ChatTemplate::from_text(model::smollm2_template_text());
  std::vector<model::ChatMessage> messages;
  while (!in.empty() && messages.size() < 8) {
    const std::string role = std::array{"system", "user", "assistant"}[in.below(3)];
    messages.push_back({role, std::string(in.text(in.byte()))});
  }
  if (const auto text = chat->render(messages)) static_cast<void>(t.encode(*text, true));
}

}  // namespace
}  // namespace baton::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace baton;
  fuzz::Input in(data, size);
  const std::uint32_t pre = in.below(3);
  const model::Tokenizer& t = fuzz::tokenizer(pre);
  switch (in.below(3)) {
    case 0:
      fuzz::check_chat(t, in);
      break;
    case 1:
      static_cast<void>(t.encode(in.rest(), true));
      break;
    default:
      fuzz::check_plain(t, in.rest(), fuzz::kPre[pre] == "qwen2");
  }
  return 0;
}
