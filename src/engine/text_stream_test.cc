#include "engine/text_stream.h"

#include <gtest/gtest.h>

#include <map>

namespace baton::engine {
namespace {

// Each token is its own text, by name.
class TableTokenizer final : public model::Tokenizer {
 public:
  explicit TableTokenizer(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {}
  std::vector<TokenId> encode(std::string_view, bool) const override { return {}; }
  std::string_view piece(TokenId token, bool) const override {
    return pieces_[static_cast<std::size_t>(token)];
  }
  std::size_t vocab_size() const override { return pieces_.size(); }
  bool is_end_of_generation(TokenId) const override { return false; }
  std::optional<TokenId> bos() const override { return std::nullopt; }
  bool add_bos() const override { return false; }

 private:
  std::vector<std::string> pieces_;
};

struct Case {
  std::string name;
  std::vector<std::string> pieces;
  std::vector<std::string> stop;
  bool include = false;
  std::vector<std::string> released;  // after each piece, then by finish() if nothing stopped it
  std::optional<std::string> stopped_by;
};

TEST(TextStream, ReleasesWhatCanNoLongerBecomeAStopString) {
  const std::vector<Case> cases{
      {"no stop strings", {"ab", "c"}, {}, false, {"ab", "c", ""}, {}},
      {"inside one piece", {"a stop b"}, {"stop"}, false, {"a "}, "stop"},
      {"included", {"a stop b"}, {"stop"}, true, {"a stop"}, "stop"},
      {"across three pieces", {"as", "to", "px"}, {"stop"}, false, {"a", "", ""}, "stop"},
      {"across, included", {"as", "to", "px"}, {"stop"}, true, {"a", "", "stop"}, "stop"},
      {"a beginning that comes to nothing",
       {"as", "to", "a"},
       {"stop"},
       false,
       {"a", "", "stoa", ""},
       {}},
      {"a beginning at the end", {"as", "to"}, {"stop"}, false, {"a", "", "sto"}, {}},
      {"a beginning that starts again", {"ab", "ab", "c"}, {"abc"}, false, {"", "ab", ""}, "abc"},
      {"overlapping beginnings", {"aa", "ab"}, {"aab"}, false, {"", "a"}, "aab"},
      {"the first complete one counts", {"xend"}, {"xendy", "nd", "en"}, false, {"x"}, "en"},
      {"of two with one end the longer", {"xend"}, {"nd", "end"}, false, {"x"}, "end"},
      {"the first piece", {"stop"}, {"stop"}, false, {""}, "stop"},
      {"only whole characters",
       {"\xE2", "\x82\xAC", "b"},
       {},
       false,
       {"", "\xE2\x82\xAC", "b", ""},
       {}},
      {"a stop of split characters",
       {"a\xE2", "\x82\xAC", "b"},
       {"\xE2\x82\xAC"
        "b"},
       false,
       {"a", "", ""},
       "\xE2\x82\xAC"
       "b"},
      {"a broken end", {"a", "\xE2"}, {}, false, {"a", "", "\xEF\xBF\xBD"}, {}},
      {"empty pieces", {"", "st", "", "op"}, {"stop"}, false, {"", "", "", ""}, "stop"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const TableTokenizer tokenizer(c.pieces);
    TextStream stream(tokenizer, c.stop, c.include);
    std::vector<std::string> released;
    std::optional<std::string> stopped_by;
    for (std::size_t i = 0; i < c.pieces.size() && !stopped_by; ++i) {
      TextStream::Step step = stream.push(static_cast<TokenId>(i));
      released.push_back(step.text);
      stopped_by = step.stop;
    }
    if (!stopped_by) released.push_back(stream.finish().text);
    EXPECT_EQ(released, c.released);
    EXPECT_EQ(stopped_by, c.stopped_by);
  }
}

// However a text is cut into pieces, what is released is the same.
TEST(TextStream, DoesNotDependOnTheCut) {
  const std::string text =
      "aabaab\xE2\x82\xAC"
      "abaabend\xF0\x9F\x98\x80 stop";
  const std::vector<std::string> stop{"abaabx", "endx", "\xF0\x9F\x98\x80 s", "stop"};
  std::map<std::string, int> seen;
  for (std::uint64_t cuts = 0; cuts < (1U << 15); cuts += 7) {
    std::vector<std::string> pieces{""};
    for (std::size_t i = 0; i < text.size(); ++i) {
      pieces.back().push_back(text[i]);
      if ((cuts >> (i % 15) & 1) != 0) pieces.emplace_back();
    }
    const TableTokenizer tokenizer(pieces);
    TextStream stream(tokenizer, stop, false);
    std::string released;
    std::optional<std::string> stopped_by;
    for (std::size_t i = 0; i < pieces.size() && !stopped_by; ++i) {
      const TextStream::Step step = stream.push(static_cast<TokenId>(i));
      released += step.text;
      stopped_by = step.stop;
    }
    if (!stopped_by) released += stream.finish().text;
    ++seen[released + "|" + stopped_by.value_or("")];
  }
  ASSERT_EQ(seen.size(), 1U);
  EXPECT_EQ(seen.begin()->first,
            "aabaab\xE2\x82\xAC"
            "abaabend|\xF0\x9F\x98\x80 s");
}

}  // namespace
}  // namespace baton::engine
