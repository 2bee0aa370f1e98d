#include "model/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "model/bpe.h"
#include "model/bpe_tokenizer.h"
#include "model/byte_alphabet.h"
#include "model/gguf.h"
#include "model/golden_lines.h"

namespace baton::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A vocabulary of all bytes but 0xFF (token id = byte up to there), some merges and some special
// tokens behind them.
struct TinyVocabulary {
  std::vector<std::string> tokens;
  std::vector<std::int64_t> types;
  std::vector<std::string> merges = {"a b", "ab c", "b c", "c d", "\xC4\xA0 a"};
  TokenizerData extra;

  TinyVocabulary() {
    extra.pre = "smollm";
    for (unsigned byte = 0; byte < 255; ++byte) {
      add(byte_to_character(static_cast<unsigned char>(byte)), 1);
    }
    add("ab", 1);   // 255
    add("abc", 1);  // 256
    add("bc", 1);   // 257
    add("cd", 1);   // 258
    add("\xC4\xA0"
        "a",
        1);                   // 259, " a"
    add("<|im_end|>", 3);     // 260
    add("<|im_end|><", 3);    // 261
    add("<tool>", 4);         // 262
    add("<|endoftext|>", 3);  // 263
    add("<unused>", 5);       // 264
    add("<unk>", 2);          // 265
  }
  void add(std::string text, std::int64_t type) {
    tokens.push_back(std::move(text));
    types.push_back(type);
  }
  Result<std::unique_ptr<Tokenizer>> make() const {
    TokenizerData data = extra;
    data.tokens.assign(tokens.begin(), tokens.end());
    data.token_type = types;
    data.merges.assign(merges.begin(), merges.end());
    return make_bpe_tokenizer(data);
  }
};

std::unique_ptr<Tokenizer> tiny() {
  auto tokenizer = TinyVocabulary().make();
  EXPECT_TRUE(tokenizer.has_value());
  return std::move(*tokenizer);
}

std::string text_of(const Tokenizer& tokenizer, const std::vector<TokenId>& tokens) {
  std::string text;
  for (const TokenId token : tokens) text.append(tokenizer.piece(token));
  return text;
}

TEST(Tokenizer, MergesTheMostWantedPairFirstAndThenTheLeftmost) {
  const auto t = tiny();
  EXPECT_THAT(t->encode("abcd", false), ElementsAre(256, 'd'));
  EXPECT_THAT(t->encode("bcd", false), ElementsAre(257, 'd'));
  EXPECT_THAT(t->encode("xcd", false), ElementsAre('x', 258));
  EXPECT_THAT(t->encode("ababc", false), ElementsAre(255, 256));
  EXPECT_THAT(t->encode(" abc", false), ElementsAre(' ', 256));  // "a b" ranks before "_ a"
  EXPECT_THAT(t->encode(" ax", false), ElementsAre(259, 'x'));
  EXPECT_THAT(t->encode("", false), IsEmpty());
}

TEST(Tokenizer, FindsSpecialTokensOnlyWhereTheyMayBe) {
  const auto t = tiny();
  EXPECT_THAT(t->encode("ab<|im_end|>c", true), ElementsAre(255, 260, 'c'));
  EXPECT_EQ(t->encode("ab<|im_end|>c", false).size(), 12U);
  EXPECT_EQ(text_of(*t, t->encode("ab<|im_end|>c", false)), "ab<|im_end|>c");
  // The longest of those that begin at the same place; user-defined ones always.
  EXPECT_THAT(t->encode("<|im_end|><|im_end|>", true),
              ElementsAre(261, '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>'));
  EXPECT_THAT(t->encode("<tool>", false), ElementsAre(262));
  EXPECT_THAT(t->encode("<tool><unk>", true), ElementsAre(262, 265));
  EXPECT_EQ(t->encode("<unused>", true).size(), 8U);
  EXPECT_EQ(t->encode("<|im_en", true).size(), 7U);
}

TEST(Tokenizer, EncodesBrokenUtf8ByteByByte) {
  const auto t = tiny();
  EXPECT_THAT(t->encode("ab\x80"
                        "ab",
                        false),
              ElementsAre(255, 0x80, 255));
  EXPECT_THAT(t->encode("\xE6\x97", false), ElementsAre(0xE6, 0x97));
  EXPECT_THAT(t->encode("\xC0\xAF\xED\xA0\x80", false), ElementsAre(0xC0, 0xAF, 0xED, 0xA0, 0x80));
  // No token of this vocabulary stands for 0xFF.
  EXPECT_THAT(t->encode("a\xFF"
                        "b",
                        false),
              ElementsAre('a', 'b'));
}

TEST(Tokenizer, PiecesHideControlTokens) {
  const auto t = tiny();
  EXPECT_EQ(t->piece(256), "abc");
  EXPECT_EQ(t->piece(259), " a");
  EXPECT_EQ(t->piece(260), "");
  EXPECT_EQ(t->piece(260, true), "<|im_end|>");
  EXPECT_EQ(t->piece(262), "<tool>");
  EXPECT_EQ(t->piece(264), "");
  EXPECT_EQ(t->piece(-1, true), "");
  EXPECT_EQ(t->piece(266, true), "");
  EXPECT_EQ(t->vocab_size(), 266U);
}

TEST(Tokenizer, KnowsWhatEndsAnAnswer) {
  TinyVocabulary vocabulary;
  vocabulary.extra.end_token_ids = {256};
  const auto t = std::move(*vocabulary.make());
  EXPECT_TRUE(t->is_end_of_generation(256));
  EXPECT_TRUE(t->is_end_of_generation(260));
  EXPECT_TRUE(t->is_end_of_generation(263));
  EXPECT_FALSE(t->is_end_of_generation(262));
  EXPECT_FALSE(t->is_end_of_generation(-1));
  EXPECT_FALSE(t->is_end_of_generation(266));
  EXPECT_FALSE(t->bos().has_value());
  EXPECT_FALSE(t->add_bos());
}

TEST(Tokenizer, ComposesTextForQwen2Only) {
  TinyVocabulary vocabulary;
  vocabulary.extra.pre = "qwen2";
  const auto qwen2 = std::move(*vocabulary.make());
  EXPECT_THAT(qwen2->encode("e\xCC\x81", false), ElementsAre(0xC3, 0xA9));
  EXPECT_THAT(tiny()->encode("e\xCC\x81", false), ElementsAre('e', 0xCC, 0x81));
  // A nul is a character like others.
  EXPECT_THAT(qwen2->encode(std::string("\0e\xCC\x81", 4), false), ElementsAre(0, 0xC3, 0xA9));
}

struct BadCase {
  const char* name;
  void (*spoil)(TinyVocabulary&);
  Errc code;
  const char* message;
};

class BadVocabulary : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadVocabulary, IsRefusedByFieldAndValue) {
  TinyVocabulary vocabulary;
  GetParam().spoil(vocabulary);
  const auto made = vocabulary.make();
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code, GetParam().code);
  EXPECT_THAT(made.error().message, HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadVocabulary,
    ::testing::Values(
        BadCase{"pre", [](TinyVocabulary& v) { v.extra.pre = "llama-bpe"; }, Errc::kUnsupported,
                "tokenizer.ggml.pre is 'llama-bpe'"},
        BadCase{"no_tokens", [](TinyVocabulary& v) { v.tokens.clear(); }, Errc::kCorrupt,
                "tokens has 0 entries"},
        BadCase{"type_count", [](TinyVocabulary& v) { v.types.pop_back(); }, Errc::kCorrupt,
                "token_type has 265 entries and tokens has 266"},
        BadCase{"type", [](TinyVocabulary& v) { v.types[7] = 9; }, Errc::kCorrupt,
                "token_type 7 is 9"},
        BadCase{"negative_type", [](TinyVocabulary& v) { v.types[7] = -1; }, Errc::kCorrupt,
                "token_type 7 is -1"},
        BadCase{"duplicate", [](TinyVocabulary& v) { v.tokens[98] = std::string("a"); },
                Errc::kCorrupt, "tokens 97 and 98 are both 'a'"},
        BadCase{"no_merges", [](TinyVocabulary& v) { v.merges.clear(); }, Errc::kCorrupt,
                "merges has no entries"},
        BadCase{"one_part", [](TinyVocabulary& v) { v.merges[2] = std::string("abc"); },
                Errc::kCorrupt, "merges 2 is 'abc', not two parts"},
        BadCase{"empty", [](TinyVocabulary& v) { v.merges[2] = std::string(""); }, Errc::kCorrupt,
                "merges 2 is '', not two parts"},
        BadCase{"blank", [](TinyVocabulary& v) { v.merges[2] = std::string(" "); }, Errc::kCorrupt,
                "merges 2 is ' ', not two parts"},
        BadCase{"empty_right", [](TinyVocabulary& v) { v.merges[2] = std::string("a "); },
                Errc::kCorrupt, "merges 2 is 'a ', not two parts"},
        BadCase{"unknown_part", [](TinyVocabulary& v) { v.merges[2] = std::string("a zz"); },
                Errc::kCorrupt, "'zz' is no token"},
        BadCase{"unknown_result", [](TinyVocabulary& v) { v.merges[2] = std::string("a a"); },
                Errc::kCorrupt, "merges 2 is 'a a', and 'aa' is no token"},
        BadCase{"repeated", [](TinyVocabulary& v) { v.merges[2] = std::string("a b"); },
                Errc::kCorrupt, "merges 2 is 'a b', which came before"},
        BadCase{"bos", [](TinyVocabulary& v) { v.extra.bos_token_id = 266; }, Errc::kCorrupt,
                "bos_token_id is 266, and there are 266 tokens"},
        BadCase{"no_bos", [](TinyVocabulary& v) { v.extra.add_bos_token = true; }, Errc::kCorrupt,
                "add_bos_token is true"},
        BadCase{"eos", [](TinyVocabulary& v) { v.extra.end_token_ids = {1ULL << 40}; },
                Errc::kCorrupt, "an end token's id is 1099511627776"}),
    [](const auto& info) { return std::string(info.param.name); });

// The same by rescanning for the best pair again and again.
void merge_slowly(std::vector<TokenId>& symbols,
                  const std::vector<std::array<TokenId, 3>>& merges) {
  for (;;) {
    std::size_t best = merges.size();
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      for (std::size_t rank = 0; rank < best; ++rank) {
        if (merges[rank][0] == symbols[i] && merges[rank][1] == symbols[i + 1]) {
          best = rank;
          at = i;
        }
      }
    }
    if (best == merges.size()) return;
    symbols[at] = merges[best][2];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

TEST(BpeMerges, AgreesWithTheSlowWayOnRandomWords) {
  Rng rng(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::array<TokenId, 3>> merges;
    BpeMerges fast;
    for (TokenId result = 3; result < 40; ++result) {
      const auto left = static_cast<TokenId>(rng.below(static_cast<std::uint64_t>(result)));
      const auto right = static_cast<TokenId>(rng.below(static_cast<std::uint64_t>(result)));
      if (!fast.add(left, right, static_cast<std::uint32_t>(merges.size()), result)) continue;
      merges.push_back({left, right, result});
    }
    std::vector<TokenId> symbols;
    for (std::uint64_t n = rng.below(60); n > 0; --n) {
      symbols.push_back(static_cast<TokenId>(rng.below(3)));
    }
    std::vector<TokenId> slow = symbols;
    merge_slowly(slow, merges);
    fast.apply(symbols);
    ASSERT_EQ(symbols, slow) << "round " << round;
  }
}

TEST(Detokenizer, HoldsBackBytesUntilTheyMakeACharacter) {
  const auto t = tiny();
  Detokenizer detokenizer(*t);
  EXPECT_EQ(detokenizer.push('a'), "a");
  EXPECT_EQ(detokenizer.push(0xF0), "");
  EXPECT_EQ(detokenizer.push(0x9F), "");
  EXPECT_EQ(detokenizer.push(260), "");  // a control token says nothing
  EXPECT_EQ(detokenizer.push(0x98), "");
  EXPECT_EQ(detokenizer.push(0x80), "\xF0\x9F\x98\x80");
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(Detokenizer, ReplacesBytesThatNeverMakeACharacter) {
  const auto t = tiny();
  Detokenizer detokenizer(*t);
  EXPECT_EQ(detokenizer.push(0x80), "\xEF\xBF\xBD");
  EXPECT_EQ(detokenizer.push(0xE6), "");
  EXPECT_EQ(detokenizer.push('b'),
            "\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(detokenizer.push(0xF0), "");
  EXPECT_EQ(detokenizer.push(0x9F), "");
  EXPECT_EQ(detokenizer.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(detokenizer.finish(), "");
  EXPECT_EQ(detokenizer.push('c'), "c");
}

TEST(Detokenizer, TakesOnlyShortestFormsForCharacters) {
  const auto t = tiny();
  const std::string mark = "\xEF\xBF\xBD";
  for (const std::string bytes :
       {"\xC0\x80", "\xE0\x80\x80", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x80\x80\x80",
        "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80"}) {
    Detokenizer detokenizer(*t);
    std::string text;
    std::string expected;
    for (const char byte : bytes) {
      text += detokenizer.push(static_cast<unsigned char>(byte));
      expected += mark;
    }
    EXPECT_EQ(text + detokenizer.finish(), expected);
  }
}

class RealTokenizer : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const auto file = GgufFile::open(smollm2_path());
    ASSERT_TRUE(file.has_value()) << file.error().message << " (tools/setup fetches the model)";
    auto tokenizer = Tokenizer::load(**file);
    ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
    tokenizer_ = std::move(*tokenizer);
  }
  static void TearDownTestSuite() { tokenizer_.reset(); }
  void SetUp() override { ASSERT_NE(tokenizer_, nullptr); }

  static std::unique_ptr<Tokenizer> tokenizer_;
};
std::unique_ptr<Tokenizer> RealTokenizer::tokenizer_;

TEST_F(RealTokenizer, AgreesWithLlamaCpp) {
  const auto lines = golden_lines("tokenizer_smollm2.tsv");
  ASSERT_GT(lines.size(), 150U);
  for (const auto& line : lines) {
    ASSERT_EQ(line.size(), 3U);
    EXPECT_EQ(tokenizer_->encode(unescape(line[2]), line[0] == "special"), numbers(line[1]))
        << line[2];
  }
}

TEST_F(RealTokenizer, GivesTextBackPieceByPiece) {
  for (const auto& line : golden_lines("tokenizer_smollm2.tsv")) {
    const std::string text = unescape(line[2]);
    // These hold bytes that SmolLM2's vocabulary has no token for.
    const bool whole = text.find_first_of("\x04\x06\x13\x14\x16\x1D\xF1\xF2") == text.npos &&
                       text.find("\xF4\x8F") == text.npos;
    if (line[0] != "plain" || !whole) continue;
    Detokenizer detokenizer(*tokenizer_);
    std::string back;
    for (const TokenId token : tokenizer_->encode(text, false)) {
      back += detokenizer.push(token);
    }
    EXPECT_EQ(back + detokenizer.finish(), text);
  }
}

TEST_F(RealTokenizer, SaysWhatTheFileSays) {
  EXPECT_EQ(tokenizer_->vocab_size(), 49152U);
  EXPECT_EQ(tokenizer_->bos(), 1);
  EXPECT_FALSE(tokenizer_->add_bos());
  EXPECT_TRUE(tokenizer_->is_end_of_generation(2));
  EXPECT_TRUE(tokenizer_->is_end_of_generation(0));
  EXPECT_FALSE(tokenizer_->is_end_of_generation(1));
}

TEST_F(RealTokenizer, TakesAVeryLongWord) {
  const std::string word(1'000'000, 'a');
  EXPECT_EQ(text_of(*tokenizer_, tokenizer_->encode(word, false)), word);
}

}  // namespace
}  // namespace baton::model
