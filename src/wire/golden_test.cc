// The bytes of every released protocol version: today's decoder reads them with the right fields,
// and today's encoder gives exactly them on a link of that version.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "wire/testing/golden.h"

namespace baton::wire::testing {
namespace {

struct Line {
  std::string name, hex, fields;
};

std::vector<Line> recorded(int version) {
  const std::string path = std::string(BATON_GOLDEN_DIR) + "/wire_v" + std::to_string(version);
  std::ifstream file(path + ".tsv");
  EXPECT_TRUE(file) << path;
  std::vector<Line> out;
  for (std::string text; std::getline(file, text);) {
    std::istringstream stream(text);
    Line line;
    std::getline(stream, line.name, '\t');
    std::getline(stream, line.hex, '\t');
    std::getline(stream, line.fields);
    out.push_back(line);
  }
  return out;
}

class GoldenTest : public ::testing::TestWithParam<int> {};

TEST_P(GoldenTest, TodaysDecoderReadsEveryMessageAsItWasMeant) {
  const auto lines = recorded(GetParam());
  ASSERT_GE(lines.size(), 30U);
  for (const Line& line : lines) {
    FrameReader reader;
    const auto message = read_frame(from_hex(line.hex), reader);
    ASSERT_TRUE(message) << line.name << ": " << message.error().message;
    EXPECT_EQ(describe(*message), line.fields) << line.name;
  }
}

TEST_P(GoldenTest, TodaysEncoderGivesExactlyTheseBytes) {
  std::map<std::string, std::string> today;
  for (const Golden& golden : golden_messages(static_cast<std::uint16_t>(GetParam()))) {
    today[golden.name] = to_hex(golden.frame);
  }
  const auto lines = recorded(GetParam());
  EXPECT_EQ(lines.size(), today.size());
  for (const Line& line : lines) EXPECT_EQ(today[line.name], line.hex) << line.name;
}

INSTANTIATE_TEST_SUITE_P(Wire, GoldenTest, ::testing::Values(1, 2));

}  // namespace
}  // namespace baton::wire::testing
