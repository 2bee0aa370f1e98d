#include "model/pretokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/golden_lines.h"

namespace baton::model {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> split(const std::string& name, const std::string& text) {
  const auto pretokenizer = Pretokenizer::create(name);
  EXPECT_TRUE(pretokenizer.has_value());
  std::vector<std::string_view> pieces;
  (*pretokenizer)->split(text, pieces);
  return {pieces.begin(), pieces.end()};
}

TEST(Pretokenizer, CutsAsTheVocabulariesOwnLibraryDoes) {
  const auto lines = golden_lines("pretokenizer.tsv");
  ASSERT_GT(lines.size(), 400U);
  for (const auto& line : lines) {
    ASSERT_EQ(line.size(), 3U);
    std::vector<std::int32_t> sizes;
    for (const std::string& piece : split(line[0], unescape(line[2]))) {
      sizes.push_back(static_cast<std::int32_t>(piece.size()));
    }
    EXPECT_EQ(sizes, numbers(line[1])) << line[0] << ": " << line[2];
  }
}

TEST(Pretokenizer, SmollmTakesDigitsOneByOne) {
  EXPECT_THAT(split("smollm", "ab 12c"), ElementsAre("ab", " ", "1", "2", "c"));
  EXPECT_THAT(split("gpt-2", "ab 12c"), ElementsAre("ab", " 12", "c"));
  EXPECT_THAT(split("qwen2", "ab 12c"), ElementsAre("ab", " ", "1", "2", "c"));
}

TEST(Pretokenizer, MillionsOfBlanksAreOnePiece) {
  const std::string blanks(12'000'000, ' ');
  for (const std::string name : {"smollm", "qwen2", "gpt-2"}) {
    EXPECT_THAT(split(name, blanks + "x"), ElementsAre(blanks.substr(1), std::string(" x")))
        << name;
  }
}

TEST(Pretokenizer, RefusesOtherNamesByName) {
  const auto other = Pretokenizer::create("llama-bpe");
  ASSERT_FALSE(other.has_value());
  EXPECT_EQ(other.error().code, Errc::kUnsupported);
  EXPECT_THAT(other.error().message, ::testing::HasSubstr("'llama-bpe'"));
}

}  // namespace
}  // namespace baton::model
