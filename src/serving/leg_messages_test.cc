#include "serving/leg_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::serving {
namespace {

TEST(LegMessages, ARecordGoesIntoABodyOfAnyMembers) {
  EXPECT_EQ(with_record(R"({"id":"a"})", "1"), R"({"id":"a","baton":1})");
  EXPECT_EQ(with_record(R"({"a":{}})", "{}"), R"({"a":{},"baton":{}})");
  EXPECT_EQ(with_record("{}", "1"), R"({"baton":1})");
  EXPECT_EQ(with_record("{ \n}", "1"), "{ \n\"baton\":1}");
  EXPECT_EQ(with_record("", "1"), "");
}

TEST(LegMessages, TakeARecordAndPutItBack) {
  std::string record;
  const std::string body = take_record(R"({"baton":{"x":1}})", record);
  EXPECT_EQ(record, R"({"x":1})");
  EXPECT_EQ(with_record(body, record), R"({"baton":{"x":1}})");
}

}  // namespace
}  // namespace baton::serving
