#include "serving/transfer_log.h"

#include <gtest/gtest.h>

namespace baton::serving {
namespace {

TransferId id(std::uint64_t low) {
  return {7, low};
}

TEST(TransferLog, GivesRecordsInTheOrderOfTheirEnds) {
  TransferLog log;
  EXPECT_EQ(log.to_json({}), R"({"transfers":[]})");
  log.add(id(1), R"({"a":1})");
  log.add(id(2), R"({"b":2})");
  log.add(id(1), R"({"c":3})");
  EXPECT_EQ(log.to_json({}), R"({"transfers":[{"a":1},{"b":2},{"c":3}]})");
  EXPECT_EQ(log.to_json(id(1)), R"({"transfers":[{"a":1},{"c":3}]})");
  EXPECT_EQ(log.to_json(id(3)), R"({"transfers":[]})");
}

TEST(TransferLog, ForgetsTheOldest) {
  TransferLog log;
  for (std::uint64_t i = 0; i <= TransferLog::kRecordsMax; ++i) log.add(id(i), "{}");
  EXPECT_EQ(log.to_json(id(0)), R"({"transfers":[]})");
  EXPECT_EQ(log.to_json(id(1)), R"({"transfers":[{}]})");
  EXPECT_EQ(log.to_json(id(TransferLog::kRecordsMax)), R"({"transfers":[{}]})");
}

}  // namespace
}  // namespace baton::serving
