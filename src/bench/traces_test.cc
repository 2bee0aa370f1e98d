#include "bench/traces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kMooncake[] =
    R"({"timestamp": 1000, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]})"
    "\n"
    R"({"timestamp": 4000, "input_length": 512, "output_length": 1, "hash_ids": [0]})"
    "\n";
constexpr char kHeader[] = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n";

std::string azure(const std::string& rows) {
  return kHeader + rows;
}

TEST(MooncakeTrace, rows_are_relative_to_the_first) {
  const auto rows = parse_mooncake_trace(kMooncake, "t", 10).value();
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].at, Duration::zero());
  EXPECT_EQ(rows[1].at, std::chrono::seconds(3));
  EXPECT_EQ(rows[0].input_len, 600U);
  EXPECT_EQ(rows[1].output_len, 1U);
  EXPECT_THAT(rows[0].block_ids, ElementsAre(0, 1));
  EXPECT_EQ(parse_mooncake_trace(kMooncake, "t", 1).value().size(), 1U);
}

std::string mooncake_fault(const std::string& line) {
  const auto rows = parse_mooncake_trace(kMooncake + line, "t.jsonl", 10);
  return rows ? "" : rows.error().message;
}

TEST(MooncakeTrace, faults_name_line_field_and_value) {
  EXPECT_THAT(mooncake_fault("{oops"), HasSubstr("t.jsonl:3: no JSON object: {oops"));
  EXPECT_THAT(mooncake_fault(R"({"input_length": 1, "output_length": 1})"),
              HasSubstr("timestamp must be milliseconds from 0, and is missing"));
  EXPECT_THAT(mooncake_fault(R"({"timestamp": -1, "input_length": 1, "output_length": 1})"),
              HasSubstr("-1"));
  EXPECT_THAT(mooncake_fault(R"({"timestamp": 5000, "input_length": 0, "output_length": 1})"),
              HasSubstr("input_length must be a positive integer, and is 0"));
  EXPECT_THAT(mooncake_fault(R"({"timestamp": 5000, "input_length": 1, "output_length": "x"})"),
              HasSubstr("output_length must be a positive integer, and is \"x\""));
  EXPECT_THAT(mooncake_fault(R"({"timestamp": 2000, "input_length": 1, "output_length": 1})"),
              HasSubstr("2000 ms before"));
  EXPECT_THAT(mooncake_fault(R"({"timestamp": 5000, "input_length": 513, "output_length": 1,
                                 "hash_ids": [0]})"),
              HasSubstr("no JSON object"))
      << "an object is one line";
  EXPECT_THAT(
      mooncake_fault(
          R"({"timestamp": 5000, "input_length": 513, "output_length": 1, "hash_ids": [0]})"),
      HasSubstr("1 ids, and input_length 513 makes 2 blocks of 512"));
  EXPECT_THAT(parse_mooncake_trace("\n\n", "t", 10).error().message, HasSubstr("no requests"));
}

TEST(AzureTrace, reads_times_to_100_ns_over_a_day_s_end) {
  const auto rows = parse_azure_trace(azure("2023-12-31 23:59:59.9999999,374,44\r\n"
                                            "2024-01-01 00:00:01.5,396,109\r\n"
                                            "2024-01-01 00:00:02,5,6\n"),
                                      "t", 10)
                        .value();
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[1].at, Duration(1'500'000'100));
  EXPECT_EQ(rows[2].at, Duration(2'000'000'100));
  EXPECT_EQ(rows[0].input_len, 374U);
  EXPECT_EQ(rows[1].output_len, 109U);
}

TEST(AzureTrace, faults_name_line_field_and_value) {
  const auto fault = [](const std::string& text) {
    const auto rows = parse_azure_trace(text, "t.csv", 10);
    return rows ? "" : rows.error().message;
  };
  EXPECT_THAT(fault("time,in,out\n1,2,3\n"), HasSubstr("t.csv:1: the header must be"));
  EXPECT_THAT(fault(""), HasSubstr("no requests"));
  EXPECT_THAT(fault(kHeader), HasSubstr("no requests"));
  EXPECT_THAT(fault(azure("2023-11-16 18:15:46.1,5\n")), HasSubstr("t.csv:2: not three fields"));
  EXPECT_THAT(fault(azure("2023-11-16 18:15:46.1,5,6,7\n")), HasSubstr("not three fields"));
  EXPECT_THAT(fault(azure("2023-02-30 18:15:46.1,5,6\n")), HasSubstr("'2023-02-30 18:15:46.1'"));
  EXPECT_THAT(fault(azure("2023-11-16 18:15:46.,5,6\n")), HasSubstr("TIMESTAMP"));
  EXPECT_THAT(fault(azure("2023-11-16 18:15:46.1,0,6\n")), HasSubstr("ContextTokens"));
  EXPECT_THAT(fault(azure("2023-11-16 18:15:46.1,5,-6\n")), HasSubstr("'-6'"));
  EXPECT_THAT(fault(azure("2023-11-16 18:15:46.1,5,6\n2023-11-16 18:15:45.1,5,6\n")),
              HasSubstr("t.csv:3: its time lies 1000 ms before"));
}

}  // namespace
}  // namespace baton::bench
