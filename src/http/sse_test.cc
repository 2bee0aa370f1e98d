#include "http/sse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"

namespace baton::http {
namespace {

using ::testing::ElementsAre;

// Each event as "name|data".
std::vector<std::string> parse(const std::vector<std::string>& pieces) {
  SseParser parser;
  std::vector<std::string> out;
  for (const std::string& piece : pieces) {
    const auto events = parser.push(piece);
    EXPECT_TRUE(events.has_value());
    for (const SseEvent& event : *events) out.push_back(event.event + "|" + event.data);
  }
  return out;
}

TEST(Sse, FormatsLinesSoThatTheyComeBack) {
  EXPECT_EQ(format_sse("x"), "data: x\n\n");
  EXPECT_EQ(format_sse("error", "a\nb"), "event: error\ndata: a\ndata: b\n\n");
  EXPECT_THAT(parse({format_sse("a\n\nb\r\nc\r")}), ElementsAre("|a\n\nb\nc\n"));
  EXPECT_THAT(parse({format_sse("")}), ElementsAre("|"));
}

TEST(Sse, KnowsEveryKindOfLine) {
  EXPECT_THAT(parse({": comment\n\ndata:1\n\nid: 7\nretry: 5\nother\n\ndata\n\nevent: e\ndata:  2\n"
                     "data:3\n\nevent: lost\n\ndata: 4\n\ndata: unfinished\n"}),
              ElementsAre("|1", "|", "e| 2\n3", "|4"));
  EXPECT_THAT(parse({"\xEF\xBB\xBF"
                     "data: 1\r\rdata: 2\r\n\r\ndata: 3\n\r\n"}),
              ElementsAre("|1", "|2", "|3"));
}

TEST(Sse, CutsAnywhereChangeNothing) {
  const std::string stream =
      "data: one\r\n\r\nevent: x\rdata: two\r\rdata: three\ndata: more\n\n: c\r\n\r\n"
      "data: \xF0\x9F\x98\x80\r\n\r\ndata: [DONE]\n\n";
  const std::vector<std::string> whole = parse({stream});
  ASSERT_EQ(whole.size(), 5U);
  std::vector<std::string> bytes;
  for (const char c : stream) bytes.emplace_back(1, c);
  EXPECT_EQ(parse(bytes), whole);
  for (std::size_t i = 0; i <= stream.size(); ++i) {
    EXPECT_EQ(parse({stream.substr(0, i), stream.substr(i)}), whole) << i;
  }
  Rng rng(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < stream.size();) {
      const std::size_t size = rng.below(12);
      pieces.push_back(stream.substr(at, size));
      at += size;
    }
    EXPECT_EQ(parse(pieces), whole);
  }
}

TEST(Sse, EventsAreBounded) {
  SseParser one_line(100);
  EXPECT_TRUE(one_line.push(std::string(100, 'x')).has_value());
  EXPECT_FALSE(one_line.push("x").has_value());
  SseParser many_lines(100);
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(many_lines.push("data: 12345678\n").has_value());
  const auto more = many_lines.push("data: 12345678901234567890\n");
  ASSERT_FALSE(more.has_value());
  EXPECT_EQ(more.error().code, Errc::kResourceExhausted);
}

}  // namespace
}  // namespace baton::http
