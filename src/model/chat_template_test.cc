#include "model/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/golden_lines.h"

namespace baton::model {
namespace {

using ::testing::HasSubstr;

struct Templates {
  std::unique_ptr<ChatTemplate> smollm2 = ChatTemplate::from_text(golden_text("smollm2.jinja"));
  std::unique_ptr<ChatTemplate> qwen3 = ChatTemplate::from_text(golden_text("qwen3.jinja"));
};

// One line of the table: which template, the rendered text, then role and content of each message.
TEST(ChatTemplate, RendersAsJinjaDoes) {
  const Templates templates;
  const auto lines = golden_lines("chat_template.tsv");
  ASSERT_GT(lines.size(), 40U);
  for (const auto& line : lines) {
    std::vector<ChatMessage> messages;
    for (std::size_t i = 2; i + 1 < line.size(); i += 2) {
      messages.push_back({unescape(line[i]), unescape(line[i + 1])});
    }
    const auto& chosen = line[0] == "qwen3" ? templates.qwen3 : templates.smollm2;
    const auto text = chosen->render(messages);
    ASSERT_TRUE(text.has_value()) << text.error().message;
    EXPECT_EQ(*text, unescape(line[1])) << line[0];
  }
}

TEST(ChatTemplate, TextForTestFilesIsSmolLm2s) {
  EXPECT_EQ(smollm2_template_text(), golden_text("smollm2.jinja"));
}

TEST(ChatTemplate, OtherTemplatesAreNamedByHash) {
  const auto other = ChatTemplate::from_text("{{ messages }}");
  const std::vector<ChatMessage> messages = {{"user", "hi"}};
  const auto text = other->render(messages);
  ASSERT_FALSE(text.has_value());
  EXPECT_EQ(text.error().code, Errc::kUnsupported);
  EXPECT_THAT(text.error().message, HasSubstr(chat_template_hash("{{ messages }}")));
}

TEST(ChatTemplate, RefusesWhatIsNoConversation) {
  const Templates templates;
  EXPECT_THAT(templates.smollm2->render({}).error().message, HasSubstr("messages is empty"));
  const std::vector<ChatMessage> messages = {{"user", "hi"}, {"tool", "x"}};
  const auto text = templates.qwen3->render(messages);
  ASSERT_FALSE(text.has_value());
  EXPECT_EQ(text.error().code, Errc::kInvalidArgument);
  EXPECT_THAT(text.error().message, HasSubstr("messages[1].role is 'tool'"));
}

}  // namespace
}  // namespace baton::model
