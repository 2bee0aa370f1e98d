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

// The page's list; what comes behind it is the clock.
std::string records(const TransferLog& log, const std::string& query) {
  const std::string page = log.page(query);
  const std::string begin = R"({"transfers":)";
  const std::size_t clock = page.find(R"(,"clock":{"boot_id":")");
  EXPECT_TRUE(page.starts_with(begin) && clock != std::string::npos) << page;
  return page.substr(begin.size(), clock - begin.size());
}

TEST(TransferLog, GivesRecordsInTheOrderOfTheirEnds) {
  TransferLog log;
  EXPECT_EQ(records(log, ""), R"([])");
  log.add(id(1), R"({"a":1})");
  log.add(id(2), R"({"b":2})");
  log.add(id(1), R"({"c":3})");
  EXPECT_EQ(records(log, ""), R"([{"a":1},{"b":2},{"c":3}])");
  EXPECT_EQ(records(log, query(1)), R"([{"a":1},{"c":3}])");
  EXPECT_EQ(records(log, "x=1&" + query(2) + "&y=2"), R"([{"b":2}])");
  EXPECT_EQ(records(log, query(3)), R"([])");
}

TEST(TransferLog, ForgetsTheOldest) {
  TransferLog log(2);
  for (const std::uint64_t i : {1, 2, 3}) log.add(id(i), "{}");
  EXPECT_EQ(records(log, query(1)), R"([])");
  EXPECT_EQ(records(log, ""), R"([{},{}])");
}

TEST(TransferLog, FindsTheLatestOfATransfer) {
  TransferLog log;
  EXPECT_FALSE(log.find(id(1).to_string()).has_value());
  log.add(id(1), R"({"a":1})");
  log.add(id(1), R"({"a":2})");
  log.add(id(2), R"({"a":3})");
  EXPECT_EQ(log.find(id(1).to_string()), R"({"a":2})");
}

TEST(TransferLog, AnIdIsAMemberOfItsOwn) {
  EXPECT_EQ(id_in("id=ab"), "ab");
  EXPECT_EQ(id_in("x=1&id=ab&y"), "ab");
  EXPECT_EQ(id_in("grid=ab"), "");
  EXPECT_EQ(id_in(""), "");
}

}  // namespace
}  // namespace baton::serving
