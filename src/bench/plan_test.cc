#include "bench/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>

#include "serving/json.h"

namespace baton::bench {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::Lt;

BenchOptions random_options() {
  BenchOptions o;
  o.num_prompts = 20;
  o.request_rate = 4;
  o.random_input_len = 100;
  o.random_output_len = 10;
  o.seed = 11;
  return o;
}

std::vector<TokenId> first_prompt(const BenchOptions& o) {
  return prompt_tokens(make_plan(o).value().front(), o, 1000);
}

TEST(Plan, gives_each_request_its_lengths_and_tokens_by_the_seed) {
  BenchOptions o = random_options();
  const auto plan = make_plan(o).value();
  ASSERT_EQ(plan.size(), 20U);
  const auto tokens = prompt_tokens(plan[0], o, 1000);
  EXPECT_EQ(tokens.size(), 100U);
  EXPECT_THAT(tokens, Each(AllOf(Ge(0), Lt(1000))));
  EXPECT_NE(tokens, prompt_tokens(plan[1], o, 1000)) << "prompts must not share a cache";
  EXPECT_EQ(tokens, first_prompt(o));
  o.seed = 12;
  EXPECT_NE(tokens, first_prompt(o));
}

TEST(Plan, draws_lengths_within_the_ratio) {
  BenchOptions o = random_options();
  o.num_prompts = 500;
  o.random_range_ratio = 0.2;
  std::set<std::uint32_t> lengths;
  const auto plan = make_plan(o).value();
  for (const PlannedRequest& request : plan) {
    EXPECT_GE(request.input_len, 80U);
    EXPECT_LE(request.input_len, 120U);
    EXPECT_GE(request.output_len, 8U);
    EXPECT_LE(request.output_len, 12U);
    lengths.insert(request.input_len);
  }
  EXPECT_EQ(*lengths.begin(), 80U);
  EXPECT_EQ(*lengths.rbegin(), 120U);
}

TEST(Plan, puts_the_same_prefix_before_every_prompt) {
  BenchOptions o = random_options();
  o.random_prefix_len = 16;
  const auto plan = make_plan(o).value();
  const auto a = prompt_tokens(plan[0], o, 1000), b = prompt_tokens(plan[1], o, 1000);
  EXPECT_EQ(a.size(), 116U);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 16, b.begin()));
  EXPECT_NE(a[16], b[16]);
}

TEST(Plan, sends_token_ids_to_completions_and_text_to_chat) {
  BenchOptions o = random_options();
  const auto request = make_plan(o).value().front();
  const auto body = serving::parse_json(request_body(request, o, "m", 1000).text).value();
  EXPECT_EQ(body["prompt"].size(), 100U);
  EXPECT_EQ(body["max_tokens"], 10);
  EXPECT_EQ(body["stream"], true);
  EXPECT_EQ(body["stream_options"]["include_usage"], true);
  EXPECT_EQ(body["ignore_eos"], true);
  o.backend = "openai-chat";
  const auto chat = serving::parse_json(request_body(request, o, "m", 1000).text).value();
  const auto text = chat["messages"][0]["content"].get<std::string>();
  EXPECT_EQ(std::count(text.begin(), text.end(), ' '), 99);
  EXPECT_FALSE(chat.contains("prompt"));
}

class TraceFile : public ::testing::Test {
 protected:
  std::string write(const std::string& text) {
    const std::string path = ::testing::TempDir() + "trace";
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
};

TEST_F(TraceFile, replays_at_the_scales_asked_for_with_equal_blocks_equal) {
  BenchOptions o;
  o.dataset_name = "mooncake";
  o.dataset_path =
      write(R"({"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]})"
            "\n"
            R"({"timestamp": 3000, "input_length": 900, "output_length": 7, "hash_ids": [0, 2]})"
            "\n");
  o.trace_rate_scale = 2;
  o.trace_length_scale = 0.5;
  const auto plan = make_plan(o).value();
  ASSERT_EQ(plan.size(), 2U);
  EXPECT_EQ(plan[1].at, std::chrono::milliseconds(1500));
  EXPECT_EQ(plan[0].input_len, 500U);
  EXPECT_EQ(plan[1].output_len, 4U);
  const auto a = prompt_tokens(plan[0], o, 1000), b = prompt_tokens(plan[1], o, 1000);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 256, b.begin()));
  EXPECT_FALSE(std::equal(a.begin() + 256, a.begin() + 400, b.begin() + 256));
}

TEST_F(TraceFile, that_is_not_there_is_named) {
  BenchOptions o;
  o.dataset_name = "azure";
  o.dataset_path = "/nowhere/trace.csv";
  EXPECT_THAT(make_plan(o).error().message, ::testing::HasSubstr("'/nowhere/trace.csv'"));
}

TEST_F(TraceFile, that_cannot_be_replayed_at_its_scales_is_refused) {
  BenchOptions o;
  o.dataset_name = "mooncake";
  o.dataset_path = write(R"({"timestamp": 0, "input_length": 4000000000, "output_length": 5})"
                         "\n"
                         R"({"timestamp": 9000, "input_length": 1, "output_length": 5})"
                         "\n");
  EXPECT_THAT(make_plan(o).error().message,
              AllOf(::testing::HasSubstr("request 1 has 4000000000 tokens"),
                    ::testing::HasSubstr("at most 10000000")));
  o.trace_length_scale = 1e-6;
  EXPECT_EQ(make_plan(o).value().front().input_len, 4000U);
  o.trace_rate_scale = 1e-12;
  EXPECT_THAT(make_plan(o).error().message, ::testing::HasSubstr("--trace-rate-scale 1e-12"));
}

TEST(Plan, asks_for_what_it_was_told_to_beside_the_prompt) {
  BenchOptions o = random_options();
  o.sampling = {{"top_k", 20}, {"top_p", 0.9}};
  o.extra_body = R"({"min_tokens": 3, "top_p": 0.5})";
  const auto body =
      serving::parse_json(request_body(make_plan(o).value().front(), o, "m", 1000).text).value();
  EXPECT_TRUE(body["top_k"].is_number_integer());
  EXPECT_EQ(body["top_p"], 0.5) << "the body goes before the flags, as in vLLM";
  EXPECT_EQ(body["min_tokens"], 3);
  EXPECT_EQ(body["ignore_eos"], true) << "the lengths are the plan's, as in vLLM";
}

// What --extra-body asks for stands in the request, and so does the length that an answer must
// have.
TEST(Plan, asks_for_the_length_of_the_finished_body) {
  const auto asked = [](const std::string& extra, const std::string& backend = "openai") {
    BenchOptions o = random_options();
    o.backend = backend;
    o.extra_body = extra;
    return request_body(make_plan(o).value().front(), o, "m", 1000).asked_len;
  };
  EXPECT_EQ(asked(""), 10U);
  EXPECT_EQ(asked("", "openai-chat"), 10U);
  EXPECT_EQ(asked(R"({"max_tokens": 3})"), 3U);
  EXPECT_EQ(asked(R"({"max_tokens": 3})", "openai-chat"), 10U) << "the newer name stands";
  EXPECT_EQ(asked(R"({"max_tokens": 3, "max_completion_tokens": null})", "openai-chat"), 3U);
  EXPECT_EQ(asked(R"({"max_completion_tokens": 4})", "openai-chat"), 4U);
  EXPECT_EQ(asked(R"({"max_tokens": null})"), 0U);
  EXPECT_EQ(asked(R"({"ignore_eos": false})"), 0U);
  EXPECT_EQ(asked(R"({"ignore_eos": null})"), 0U);
  EXPECT_EQ(asked(R"({"stop": "x"})"), 0U);
  EXPECT_EQ(asked(R"({"stop_token_ids": [2]})"), 0U);
  EXPECT_EQ(asked(R"({"stop": [], "stop_token_ids": null})"), 10U);
}

TEST(Options, flags_of_the_other_kind_of_data_set_are_refused_and_not_ignored) {
  const auto message = [](const std::string& name, auto change) {
    BenchOptions o;
    o.dataset_name = name;
    if (name != "random") o.dataset_path = "t";
    change(o);
    const Status checked = check_options(o);
    return checked ? std::string() : checked.error().message;
  };
  using ::testing::HasSubstr;
  EXPECT_EQ(message("azure", [](auto&) {}), "");
  EXPECT_THAT(message("azure", [](auto& o) { o.request_rate = 4; }), HasSubstr("--request-rate"));
  EXPECT_THAT(message("azure", [](auto& o) { o.burstiness = 2; }), HasSubstr("--burstiness"));
  EXPECT_THAT(message("mooncake", [](auto& o) { o.random_prefix_len = 2; }),
              HasSubstr("--random-prefix-len"));
  EXPECT_THAT(message("random", [](auto& o) { o.trace_rate_scale = 2; }),
              HasSubstr("--trace-rate-scale"));
  EXPECT_THAT(message("random", [](auto& o) { o.dataset_path = "t"; }),
              HasSubstr("--dataset-path"));
}

TEST(Options, flags_of_the_other_kind_are_refused_with_the_usual_value_too) {
  const auto message = [](const std::string& name, std::vector<std::string> typed) {
    BenchOptions o;
    o.dataset_name = name;
    if (name != "random") o.dataset_path = "t";
    o.as_typed = std::move(typed);
    const Status checked = check_options(o);
    return checked ? std::string() : checked.error().message;
  };
  using ::testing::StartsWith;
  EXPECT_EQ(message("azure", {"bench", "serve", "--dataset-path", "t", "--trace-rate-scale=1"}),
            "");
  EXPECT_EQ(message("random", {"--random-input-len", "1024", "--request-rate=inf"}), "");
  EXPECT_THAT(message("azure", {"--random-input-len", "1024"}), StartsWith("--random-input-len "));
  EXPECT_THAT(message("azure", {"--output-len=128"}), StartsWith("--output-len "));
  EXPECT_THAT(message("mooncake", {"--burstiness=1"}), StartsWith("--burstiness "));
  EXPECT_THAT(message("random", {"--trace-rate-scale", "1"}), StartsWith("--trace-rate-scale "));
}

TEST(Options, headers_are_sent_and_their_values_not_shown) {
  BenchOptions o;
  o.headers = {"X-Team=kv=1", "Authorization=Bearer s"};
  EXPECT_TRUE(check_options(o).has_value());
  const http::Headers headers = given_headers(o);
  EXPECT_EQ(headers.get("X-Team"), "kv=1");
  EXPECT_EQ(headers.get("Authorization"), "Bearer s");
  EXPECT_EQ(headers.get("Content-Type"), "application/json");
  o.headers = {"X=a\r\nHost: b"};
  const std::string refusal = check_options(o).error().message;
  EXPECT_THAT(refusal, ::testing::HasSubstr("--header"));
  EXPECT_EQ(refusal.find("Host"), refusal.npos);
}

// curl takes "Authorization: Bearer abc==", and the first '=' is in the secret.
TEST(Options, a_header_in_another_form_is_refused_by_its_name_alone) {
  for (const char* header : {"Authorization: Bearer s3cr==", "Authorization:s3cr=",
                             "Authorization Bearer s3cr=", "Authorization: s3cr"}) {
    BenchOptions o;
    o.headers = {header};
    const Status checked = check_options(o);
    ASSERT_FALSE(checked.has_value()) << header;
    EXPECT_THAT(checked.error().message, ::testing::HasSubstr("'Authorization...'"));
    EXPECT_EQ(checked.error().message.find("s3cr"), std::string::npos) << header;
  }
  for (const char* header : {"=x", "X(y)=z", "", "X\t=z"}) {
    BenchOptions o;
    o.headers = {header};
    EXPECT_FALSE(check_options(o).has_value()) << header;
  }
}

TEST(Options, a_header_that_every_request_has_of_its_own_is_refused_with_the_reason) {
  for (const auto& [header, why] : {std::pair{"x-request-id=a", "--request-id-prefix"},
                                    {"Host=a", "--base-url"},
                                    {"Content-Length=3", "length"},
                                    {"CONTENT-TYPE=text/plain", "JSON"},
                                    {"Transfer-Encoding=chunked", "whole"}}) {
    BenchOptions o;
    o.headers = {header};
    const Status checked = check_options(o);
    ASSERT_FALSE(checked.has_value()) << header;
    EXPECT_THAT(checked.error().message,
                AllOf(::testing::HasSubstr("--header"), ::testing::HasSubstr(why)));
  }
}

TEST(Options, wrong_values_name_flag_and_value) {
  const auto message = [](auto change) {
    BenchOptions o;
    change(o);
    const Status checked = check_options(o);
    return checked ? std::string() : checked.error().message;
  };
  using ::testing::HasSubstr;
  EXPECT_EQ(message([](BenchOptions&) {}), "");
  EXPECT_THAT(message([](auto& o) { o.backend = "tgi"; }),
              AllOf(HasSubstr("--backend"), HasSubstr("'tgi'")));
  EXPECT_THAT(message([](auto& o) { o.dataset_name = "sharegpt"; }), HasSubstr("'sharegpt'"));
  EXPECT_THAT(message([](auto& o) { o.dataset_name = "azure"; }), HasSubstr("--dataset-path"));
  EXPECT_THAT(message([](auto& o) { o.request_rate = -1; }), HasSubstr("'-1'"));
  EXPECT_THAT(message([](auto& o) { o.request_rate = std::nan(""); }), HasSubstr("request-rate"));
  EXPECT_THAT(message([](auto& o) { o.request_rate = 1e-12; }), HasSubstr("'1e-12'"));
  EXPECT_THAT(message([](auto& o) { o.extra_body = "[1]"; }), HasSubstr("'[1]'"));
  EXPECT_THAT(message([](auto& o) { o.burstiness = 0; }), HasSubstr("--burstiness"));
  EXPECT_THAT(message([](auto& o) { o.num_prompts = 0; }), HasSubstr("--num-prompts"));
  EXPECT_THAT(message([](auto& o) { o.max_concurrency = 0; }), HasSubstr("--max-concurrency"));
  EXPECT_THAT(message([](auto& o) { o.random_range_ratio = 1; }), HasSubstr("range-ratio"));
  EXPECT_THAT(message([](auto& o) { o.metric_percentiles = "50,101"; }), HasSubstr("'101'"));
  EXPECT_THAT(message([](auto& o) { o.percentile_metrics = "ttft,x"; }), HasSubstr("'x'"));
  EXPECT_THAT(message([](auto& o) { o.goodput = {"ttft:fast"}; }), HasSubstr("'ttft:fast'"));
  EXPECT_THAT(message([](auto& o) { o.metadata = {"novalue"}; }), HasSubstr("'novalue'"));
  EXPECT_THAT(message([](auto& o) { o.base_url = "https://x"; }), HasSubstr("https://x"));
  EXPECT_THAT(message([](auto& o) { o.ready_check_timeout_sec = 1e300; }), HasSubstr("1e+300"));
}

}  // namespace
}  // namespace baton::bench
