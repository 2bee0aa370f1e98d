#include "serving/completion_request.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::serving {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Refused {
  const char* body;
  const char* param;
  const char* words;  // that the message must hold
};

void expect_refused(Endpoint endpoint, const Refused& row) {
  SCOPED_TRACE(row.body);
  const auto parsed = parse_completion_request(endpoint, row.body);
  ASSERT_FALSE(parsed.has_value());
  EXPECT_EQ(parsed.error().status, 400);
  EXPECT_EQ(parsed.error().param, row.param);
  EXPECT_THAT(parsed.error().message, HasSubstr(row.words));
}

TEST(CompletionRequest, RefusesByFieldAndValue) {
  const Refused table[] = {
      {"", "", "invalid JSON"},
      {"{\"prompt\": ", "", "invalid JSON"},
      {"[1]", "", "must be a JSON object, and is [1]"},
      {"{\"prompt\": \"\xff\"}", "", "invalid JSON"},
      {R"({})", "prompt", "prompt is missing"},
      {R"({"prompt": null})", "prompt", "prompt is missing"},
      {R"({"prompt": ""})", "prompt", "empty"},
      {R"({"prompt": []})", "prompt", "empty"},
      {R"({"prompt": 5})", "prompt", "and is 5"},
      {R"({"prompt": ["a", "b"]})", "prompt", "2 prompts"},
      {R"({"prompt": [1, -1]})", "prompt", "-1"},
      {R"({"prompt": [1, 2.5]})", "prompt", "2.5"},
      {R"({"prompt": [1, 3000000000]})", "prompt", "3000000000"},
      {R"({"prompt": [1, "x"]})", "prompt", "\"x\""},
      {R"({"prompt": "x", "model": 7})", "model", "and is 7"},
      {R"({"prompt": "x", "n": 2})", "n", "n must be 1: one answer a request is offered, got 2"},
      {R"({"prompt": "x", "n": 0})", "n", "got 0"},
      {R"({"prompt": "x", "max_tokens": -1})", "max_tokens", "got -1"},
      {R"({"prompt": "x", "max_tokens": 0})", "max_tokens", "got 0"},
      {R"({"prompt": "x", "max_tokens": 1.5})", "max_tokens", "got 1.5"},
      {R"({"prompt": "x", "max_tokens": 1e30})", "max_tokens", "1e+30"},
      {R"({"prompt": "x", "max_tokens": "many"})", "max_tokens", "\"many\""},
      {R"({"prompt": "x", "temperature": -0.5})", "temperature", "got -0.5"},
      {R"({"prompt": "x", "temperature": "hot"})", "temperature", "\"hot\""},
      {R"({"prompt": "x", "top_p": 0})", "top_p", "got 0"},
      {R"({"prompt": "x", "top_p": 1.5})", "top_p", "got 1.5"},
      {R"({"prompt": "x", "seed": "x"})", "seed", "\"x\""},
      {R"({"prompt": "x", "seed": 0.5})", "seed", "0.5"},
      {R"({"prompt": "x", "stop": 5})", "stop", "and is 5"},
      {R"({"prompt": "x", "stop": ["a", 1]})", "stop", "[\"a\",1]"},
      {R"({"prompt": "x", "stream": "yes"})", "stream", "\"yes\""},
      {R"({"prompt": "x", "stream_options": {}})", "stream_options", "stream true"},
      {R"({"prompt": "x", "stream": true, "stream_options": {"include_usage": 1}})",
       "stream_options.include_usage", "and is 1"},
      {R"({"prompt": "x", "ignore_eos": 1})", "ignore_eos", "and is 1"},
      {R"({"prompt": "x", "logprobs": 5})", "logprobs", "got 5"},
      {R"({"prompt": "x", "echo": true})", "echo", "got true"},
      {R"({"prompt": "x", "best_of": 3})", "best_of", "got 3"},
      {R"({"prompt": "x", "presence_penalty": 0.1})", "presence_penalty", "got 0.1"},
      {R"({"prompt": "x", "top_k": 40})", "top_k", "got 40"},
      {R"({"prompt": "x", "logit_bias": {"5": 1}})", "logit_bias", "got {\"5\":1}"},
      {R"({"prompt": "x", "response_format": {"type": "json_object"}})", "response_format",
       "json_object"},
      {R"({"prompt": "x", "kv_transfer_params": 3})", "kv_transfer_params", "and is 3"},
  };
  for (const Refused& row : table) expect_refused(Endpoint::kCompletions, row);
  const std::string deep = R"({"prompt": )" + std::string(100000, '[');
  expect_refused(Endpoint::kCompletions, {deep.c_str(), "", "nests"});
}

TEST(ChatRequest, RefusesByFieldAndValue) {
  const Refused table[] = {
      {R"({})", "messages", "missing"},
      {R"({"messages": "hello"})", "messages", "\"hello\""},
      {R"({"messages": []})", "messages", "empty"},
      {R"({"messages": [5]})", "messages[0]", "and is 5"},
      {R"({"messages": [{"content": "x"}]})", "messages[0].role", "missing"},
      {R"({"messages": [{"role": "king", "content": "x"}]})", "messages[0].role", "\"king\""},
      {R"({"messages": [{"role": "user"}]})", "messages[0].content", "missing"},
      {R"({"messages": [{"role": "user", "content": 3}]})", "messages[0].content", "and is 3"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
       "messages[0].content", "image_url"},
      {R"({"messages": [{"role": "user", "content": "x"}], "tools": [{}]})", "tools", "got [{}]"},
      {R"({"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": -3})",
       "max_completion_tokens", "got -3"},
      {R"({"messages": [{"role": "user", "content": "x"}], "logprobs": true})", "logprobs",
       "got true"},
  };
  for (const Refused& row : table) expect_refused(Endpoint::kChat, row);
}

TEST(CompletionRequest, TakesWhatClientsSend) {
  const auto parsed = parse_completion_request(Endpoint::kCompletions, R"({
    "model": "m", "prompt": "hi", "max_tokens": 5.0, "temperature": 0.0, "top_p": 1, "n": 1,
    "seed": -1, "stop": ["a", "", "b"], "stream": true, "stream_options": {"include_usage": true},
    "ignore_eos": true, "repetition_penalty": 1.0, "logprobs": null, "best_of": 1, "top_k": -1,
    "user": "me", "frequency_penalty": 0, "an_unknown_field": {"x": [1]},
    "return_token_ids": true})");
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  EXPECT_EQ(parsed->model, "m");
  EXPECT_EQ(parsed->prompt_text, "hi");
  EXPECT_EQ(parsed->max_tokens, 5U);
  EXPECT_EQ(parsed->sampling.temperature, 0.0);
  EXPECT_EQ(parsed->sampling.seed, ~0ULL);
  EXPECT_THAT(parsed->sampling.stop, ElementsAre("a", "b"));
  EXPECT_TRUE(parsed->stream && parsed->include_usage && parsed->return_token_ids);
  EXPECT_TRUE(parsed->sampling.ignore_eos);
  EXPECT_FALSE(parsed->kv.has_value());
}

TEST(CompletionRequest, APromptMayBeTextOrTokensOrAListOfOne) {
  const auto parse = [](const char* body) {
    return parse_completion_request(Endpoint::kCompletions, body).value();
  };
  EXPECT_EQ(parse(R"({"prompt": ["hi"]})").prompt_text, "hi");
  EXPECT_THAT(parse(R"({"prompt": [5, 6]})").prompt_tokens, ElementsAre(5, 6));
  EXPECT_THAT(parse(R"({"prompt": [5]})").prompt_tokens, ElementsAre(5));
  EXPECT_THAT(parse(R"({"prompt": [[5, 6]]})").prompt_tokens, ElementsAre(5, 6));
}

TEST(ChatRequest, ContentMayBeTextOrParts) {
  const auto parsed = parse_completion_request(Endpoint::kChat, R"({"messages": [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
    "max_tokens": 3, "max_completion_tokens": 4})");
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  ASSERT_EQ(parsed->messages.size(), 2U);
  EXPECT_EQ(parsed->messages[1].content, "a\nb");
  EXPECT_EQ(parsed->max_tokens, 4U);
}

constexpr char kTransferId[] = "0123456789abcdef0123456789abcdef";

std::string with_kv(const std::string& kv) {
  return R"({"prompt": "x", "kv_transfer_params": )" + kv + "}";
}

TEST(KvTransferParams, OfBothLegs) {
  const auto prefill = parse_completion_request(
      Endpoint::kCompletions, with_kv(R"({"do_remote_decode": true, "do_remote_prefill": false,
        "transfer_id": ")" + std::string(kTransferId) +
                                      R"(", "first_token": "decode", "remote_host": null})"));
  ASSERT_TRUE(prefill.has_value()) << prefill.error().message;
  EXPECT_TRUE(prefill->kv->do_remote_decode);
  EXPECT_EQ(prefill->kv->transfer_id->to_string(), kTransferId);
  EXPECT_EQ(prefill->kv->first_token, engine::FirstToken::kDecode);

  const auto decode = parse_completion_request(Endpoint::kCompletions,
                                               with_kv(R"({"do_remote_prefill": true, "binding": 2,
        "remote_engine_id": "p", "remote_host": "127.0.0.1", "remote_port": 5600, "tp_size": 1,
        "remote_incarnation": "ffffffffffffffff", "transfer_id": ")" +
                                                       std::string(kTransferId) + "\"}"));
  ASSERT_TRUE(decode.has_value()) << decode.error().message;
  EXPECT_EQ(decode->kv->peer.engine_id, "p");
  EXPECT_EQ(decode->kv->peer.port, 5600);
  EXPECT_EQ(decode->kv->peer.incarnation, ~0ULL);
  EXPECT_EQ(decode->kv->binding, 2U);
}

TEST(KvTransferParams, OfAPulledRequest) {
  const std::string head = R"({"do_remote_prefill": true, "remote_engine_id": "p",
      "remote_host": "h", "remote_port": 1, "transfer_id": ")" +
                           std::string(kTransferId) + "\", ";
  const auto pulled =
      parse_completion_request(Endpoint::kCompletions, with_kv(head + R"("transfer_mode": "pull",
      "remote_block_ids": [[3, 1, 4]], "remote_num_tokens": 40,
      "remote_announcement": "ffffffffffffffff", "remote_first_token": 9})"));
  ASSERT_TRUE(pulled.has_value()) << pulled.error().message;
  EXPECT_EQ(pulled->kv->transfer_mode, "pull");
  ASSERT_TRUE(pulled->kv->source.has_value());
  EXPECT_EQ(pulled->kv->source->range, TokenRange({0, 40}));
  EXPECT_EQ(pulled->kv->source->announcement, ~0ULL);
  EXPECT_THAT(pulled->kv->source->block_ids,
              ::testing::ElementsAre(::testing::ElementsAre(3U, 1U, 4U)));
  EXPECT_EQ(pulled->kv->announced_token, 9);
  // Push's announcement names none.
  const auto pushed = parse_completion_request(Endpoint::kCompletions,
                                               with_kv(head + R"("remote_block_ids": []})"));
  ASSERT_TRUE(pushed.has_value()) << pushed.error().message;
  EXPECT_FALSE(pushed->kv->source.has_value());
}

TEST(CompletionRequest, APriorityIsAnyInteger) {
  const auto low = parse_completion_request(Endpoint::kCompletions, R"({"prompt": "x"})");
  EXPECT_EQ(low->priority, 0);
  const auto high =
      parse_completion_request(Endpoint::kCompletions, R"({"prompt": "x", "priority": -5})");
  EXPECT_EQ(high->priority, -5);
  const auto wrong =
      parse_completion_request(Endpoint::kCompletions, R"({"prompt": "x", "priority": "a"})");
  EXPECT_THAT(wrong.error().message, HasSubstr("priority must be an integer, and is \"a\""));
}

TEST(CompletionRequest, ACacheSaltIsATextThatIsNotEmptyAndHasABound) {
  const auto parse = [](const std::string& salt) {
    return parse_completion_request(Endpoint::kCompletions,
                                    R"({"prompt": "x", "cache_salt": )" + salt + "}");
  };
  EXPECT_EQ(parse("\"tenant-1\"")->cache_salt, "tenant-1");
  EXPECT_EQ(parse("null")->cache_salt, "");
  EXPECT_TRUE(parse('"' + std::string(kCacheSaltMax, 'a') + '"').has_value());
  for (const std::string& wrong :
       {std::string("7"), std::string(R"("")"), '"' + std::string(kCacheSaltMax + 1, 'a') + '"'}) {
    const auto refused = parse(wrong);
    ASSERT_FALSE(refused.has_value()) << wrong;
    EXPECT_EQ(refused.error().status, 400);
    EXPECT_THAT(refused.error().message, HasSubstr("cache_salt must be a text of 1 to 256 bytes"));
  }
}

// Looking up each member of an object by walking the others would hold a server for minutes.
TEST(CompletionRequest, RefusesAnObjectOfManyMembersWithoutReadingIt) {
  const auto body_of = [](int members) {
    std::string body = R"({"prompt": "a", "logit_bias": {}, "metadata": {"x": [{"a": ":"}])";
    for (int i = 1; i < members; ++i) body += fmt::format(",\"k{}\":{}", i, i);
    return body + "}}";
  };
  EXPECT_TRUE(parse_completion_request(Endpoint::kCompletions, body_of(256)).has_value());
  for (const int members : {257, 1'000'000}) {
    const auto parsed = parse_completion_request(Endpoint::kCompletions, body_of(members));
    ASSERT_FALSE(parsed.has_value());
    EXPECT_EQ(parsed.error().status, 400);
    EXPECT_THAT(parsed.error().message,
                HasSubstr(fmt::format("has {} members, and at most 256 are read", members)));
  }
}

TEST(KvTransferParams, OfAChatThatGoesOn) {
  const std::string kept = R"({"transfer_id": "00000000000000000000000000000005", "remote_port": 5,
    "remote_engine_id": "d1", "remote_host": "h", "remote_incarnation": "0f",
    "remote_num_tokens": 16,
    "remote_block_ids": [[3]], "remote_token_ids": [1, 2]})";
  const auto parsed = parse_completion_request(
      Endpoint::kCompletions, with_kv(R"({"do_remote_decode": true, "kept": )" + kept + "}"));
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  ASSERT_TRUE(parsed->kv->kept.has_value());
  const KeptBlocks& blocks = *parsed->kv->kept;
  EXPECT_EQ(blocks.transfer_id.low, 5U);
  EXPECT_EQ(blocks.peer.engine_id, "d1");
  EXPECT_EQ(blocks.source.range.end, 16U);
  EXPECT_EQ(blocks.tokens, (std::vector<TokenId>{1, 2}));
  const auto without = parse_completion_request(
      Endpoint::kCompletions,
      with_kv(R"({"do_remote_prefill": true, "transfer_id": "00000000000000000000000000000005",
        "remote_port": 5, "remote_engine_id": "p", "remote_host": "h", "keep_blocks": true})"));
  ASSERT_TRUE(without.has_value()) << without.error().message;
  EXPECT_TRUE(without->kv->keep_blocks);
}

TEST(KvTransferParams, RefusedByFieldAndValue) {
  const std::string id =
      std::string(R"("do_remote_prefill": true, "transfer_id": ")") + kTransferId + "\"";
  const std::string peer = id + R"(, "remote_engine_id": "p", "remote_host": "h", "remote_port": )";
  const std::pair<std::string, const char*> table[] = {
      {R"({"do_remote_decode": 1})", "do_remote_decode must be true or false, and is 1"},
      {R"({"do_remote_decode": true, "do_remote_prefill": true})", "at once"},
      {R"({"do_remote_decode": true, "transfer_id": "xyz"})", "transfer_id must be"},
      {R"({"do_remote_decode": true, "transfer_id": "00000000000000000000000000000000"})",
       "not all"},
      {R"({"do_remote_decode": true, "kept": 3})", "kept must be an object, and is 3"},
      {R"({"do_remote_decode": true, "kept": {}})", "transfer_id must be 32 lower-case hex digits"},
      {R"({"do_remote_decode": true, "kept": )" + ("{" + peer).replace(1, 27, "") + "1}}",
       "remote_block_ids must be those of the kept blocks"},
      {R"({"do_remote_decode": true, "kept": )" + ("{" + peer).replace(1, 27, "") +
           "1, \"remote_block_ids\": [[1]], \"remote_num_tokens\": 16}}",
       "remote_token_ids must be a list of token ids, and is missing"},
      {R"({"do_remote_decode": true, "first_token": "both"})", "\"both\""},
      {R"({"do_remote_prefill": true})", "transfer_id must be 32 lower-case hex digits"},
      {"{" + id + "}", "remote_engine_id must be a text, and is missing"},
      {"{" + peer + "0}", "remote_port must be an integer from 1 to 65535, and is 0"},
      {"{" + peer + "70000}", "and is 70000"},
      {"{" + peer + "1, \"tp_size\": 8}", "tp_size must be 1"},
      {"{" + peer + "1, \"remote_incarnation\": \"zz\"}", "remote_incarnation"},
      {"{" + peer + "1, \"binding\": -1}", "binding"},
      {"{" + peer + "1, \"transfer_mode\": \"shove\"}", "\"push\" or \"pull\", and is \"shove\""},
      {"{" + peer + "1, \"remote_block_ids\": 7}", "a list of one list of block ids"},
      {"{" + peer + "1, \"remote_block_ids\": [7]}", "and is [7]"},
      {"{" + peer + "1, \"remote_block_ids\": [[-1]]}", "and is -1"},
      {"{" + peer + "1, \"remote_block_ids\": [[4294967296]]}", "and is 4294967296"},
      {"{" + peer + "1, \"remote_block_ids\": [[1]]}", "remote_num_tokens must be how many"},
      {"{" + peer + "1, \"remote_block_ids\": [[1]], \"remote_num_tokens\": 0}",
       "remote_num_tokens must be an integer from 1"},
      {"{" + peer + "1, \"remote_block_ids\": [[1]], \"remote_num_tokens\": 1, " +
           "\"remote_announcement\": \"no\"}",
       "remote_announcement must be a text of hex digits"},
      {"{" + peer + "1, \"remote_first_token\": -4}", "remote_first_token must be an integer"},
  };
  for (const auto& [kv, words] : table) {
    SCOPED_TRACE(kv);
    const auto parsed = parse_completion_request(Endpoint::kCompletions, with_kv(kv));
    ASSERT_FALSE(parsed.has_value());
    EXPECT_EQ(parsed.error().status, 400);
    EXPECT_THAT(parsed.error().message, HasSubstr(words));
    // A router does not even look.
    EXPECT_TRUE(parse_completion_request(Endpoint::kCompletions, with_kv(kv), KvParams::kIgnore)
                    .has_value());
  }
}

}  // namespace
}  // namespace baton::serving
