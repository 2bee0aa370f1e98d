#include "serving/leg_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "serving/json.h"

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

// What the router says, its instances know: of all it may send, no key is counted as a stranger's.
TEST(LegMessages, HaveNoKeyThatAnInstanceDoesNotKnow) {
  LegPlan plan;
  plan.transfer = TransferId{1, 2};
  plan.prefill = {"h", 5600, "p", 3};
  plan.transfer_timeout = std::chrono::milliseconds(5);
  plan.kept = R"({"transfer_id":"00000000000000010000000000000002","remote_engine_id":"d",
      "remote_host":"h","remote_port":1,"remote_block_ids":[[1]],"remote_num_tokens":4,
      "remote_announcement":"1","remote_token_ids":[1,2,3,4]})";
  const auto legs = make_leg_bodies(R"({"prompt":"x"})", plan).value();
  for (const std::string& body :
       {legs.prefill, decode_body(legs.decode, plan, {}),
        decode_body(legs.decode, plan, Announcement{"[[1]]", 4, "1", TokenId{7}}, true)}) {
    const auto parsed = parse_completion_request(Endpoint::kCompletions, body);
    ASSERT_TRUE(parsed) << body << parsed.error().message;
    EXPECT_EQ(parsed->kv->unknown_keys, 0U) << body;
  }
}

// What P told of its cache reaches the client's usage, in a chunk as in a plain answer.
TEST(LegMessages, CachedIsWhatEitherSideFound) {
  const PrefillEvent event =
      read_prefill_event(prefilled_body({"t", 200, 192, TokenId{7}, "x"}, "{}"));
  EXPECT_EQ(event.cached_tokens, 192U);
  const auto cached = [&](std::uint32_t at_decode, std::uint64_t at_prefill) {
    AnswerHead head;
    const Usage usage{200, 4, at_decode};
    for (const std::string& body :
         {usage_chunk_body(head, usage), whole_body(head, Choice{}, usage)}) {
      const auto parsed = parse_json(with_cached_tokens(body, at_prefill));
      EXPECT_TRUE(parsed) << body;
      EXPECT_EQ((*parsed)["usage"]["prompt_tokens"], 200U);
      EXPECT_EQ((*parsed)["usage"]["prompt_tokens_details"]["cached_tokens"],
                std::max<std::uint64_t>(at_decode, at_prefill));
    }
  };
  cached(0, event.cached_tokens);
  cached(16, 192);
  cached(192, 16);
  cached(16, 0);
}

TEST(LegMessages, CachedIsTouchedInTheUsageAlone) {
  const std::string chunk = R"({"choices":[{"text":"\"cached_tokens\":1"}]})";
  EXPECT_EQ(with_cached_tokens(chunk, 9), chunk);
  const std::string broken = R"({"usage":{"prompt_tokens_details":{"cached_tokens":)";
  EXPECT_EQ(with_cached_tokens(broken, 9), broken);
}

}  // namespace
}  // namespace baton::serving
