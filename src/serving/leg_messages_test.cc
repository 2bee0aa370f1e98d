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
  std::string record, kept;
  const std::string body = take_record(R"({"baton":{"x":1}})", record, kept);
  EXPECT_EQ(record, R"({"x":1})");
  EXPECT_EQ(kept, "");
  EXPECT_EQ(with_record(body, record), R"({"baton":{"x":1}})");
}

TEST(LegMessages, WhatDKeptIsForTheRouterAlone) {
  std::string record, kept;
  EXPECT_EQ(take_record(R"({"id":"a","kv_transfer_params":{"remote_num_tokens":4}})", record, kept),
            R"({"id":"a"})");
  EXPECT_EQ(kept, R"({"remote_num_tokens":4})");
  const DecodeEvent event =
      read_decode_event(R"({"id":"a","kv_transfer_params":{"remote_num_tokens":4}})", true);
  EXPECT_EQ(event.data, R"({"id":"a"})");
  EXPECT_EQ(event.kept, kept);
  EXPECT_EQ(with_host(R"({"remote_host":"0.0.0.0","remote_port":1})", "d1"),
            R"({"remote_host":"d1","remote_port":1})");
}

}  // namespace
}  // namespace baton::serving
