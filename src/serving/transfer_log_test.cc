#include "serving/transfer_log.h"

#include <gtest/gtest.h>

namespace baton::serving {
namespace {

TransferId id(std::uint64_t low) {
  return {7, low};
}

std::string query(std::uint64_t low) {
  return "id=" + id(low).to_string();
}

TEST(TransferLog, GivesRecordsInTheOrderOfTheirEnds) {
  TransferLog log;
  EXPECT_EQ(log.page(""), R"({"transfers":[]})");
  log.add(id(1), R"({"a":1})");
  log.add(id(2), R"({"b":2})");
  log.add(id(1), R"({"c":3})");
  EXPECT_EQ(log.page(""), R"({"transfers":[{"a":1},{"b":2},{"c":3}]})");
  EXPECT_EQ(log.page(query(1)), R"({"transfers":[{"a":1},{"c":3}]})");
  EXPECT_EQ(log.page("x=1&" + query(2) + "&y=2"), R"({"transfers":[{"b":2}]})");
  EXPECT_EQ(log.page(query(3)), R"({"transfers":[]})");
}

TEST(TransferLog, ForgetsTheOldest) {
  TransferLog log(2);
  for (const std::uint64_t i : {1, 2, 3}) log.add(id(i), "{}");
  EXPECT_EQ(log.page(query(1)), R"({"transfers":[]})");
  EXPECT_EQ(log.page(""), R"({"transfers":[{},{}]})");
}

}  // namespace
}  // namespace baton::serving
