#include "serving/instance_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serving/instance_info.h"
#include "serving/testing/browse.h"
#include "serving/testing/fake_engine.h"
#include "serving/version.h"

namespace baton::serving {
namespace {

using testing::Browser;
using ::testing::ElementsAre;
using testing::eventually;
using testing::get;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::post;

constexpr char kId[] = "0123456789abcdef0123456789abcdef";

engine::Output text_output(std::string text, std::vector<TokenId> tokens) {
  engine::Output output;
  output.text = std::move(text);
  output.tokens = std::move(tokens);
  return output;
}

engine::Output last_output(engine::FinishReason reason) {
  engine::Output output;
  output.finish = reason;
  output.prompt_tokens = 2;
  output.completion_tokens = 3;
  output.computed_prompt_tokens = 1;
  return output;
}

engine::Output failed_output(Cause cause) {
  engine::Output output = last_output(engine::FinishReason::kError);
  output.error = {Errc::kUnavailable, "the hand-over failed: it went away"};
  output.handover.emplace();
  output.handover->transfer = *TransferId::parse(kId);
  output.handover->outcome = Outcome::kFailed;
  output.handover->cause = cause;
  return output;
}

class InstanceServerTest : public ::testing::Test {
 protected:
  explicit InstanceServerTest(bool with_agent = true) : engine_(with_agent) {
    InstanceServerOptions options;
    options.port = 0;
    options.model_names = {"tiny", "alias"};
    server_ = std::move(InstanceServer::start(std::move(options)).value());
  }
  ~InstanceServerTest() override { server_->stop(Duration::zero()); }

  void attach() { server_->attach({&engine_, &tokenizer_, &template_}); }

  std::unique_ptr<Browser> ask(std::string body, const std::string& path = "/v1/completions",
                               http::Headers headers = {}) {
    const std::size_t before = engine_.submitted();
    auto browser =
        std::make_unique<Browser>(post(server_->port(), path, std::move(body), std::move(headers)));
    EXPECT_TRUE(eventually([&] { return engine_.submitted() > before || browser->status() != 0; }));
    return browser;
  }
  std::string kv(const std::string& role) {
    return R"("kv_transfer_params": {")" + role + R"(": true, "transfer_id": ")" + kId +
           R"(", "remote_engine_id": "engine-p", "remote_host": "127.0.0.1", "remote_port": 1})";
  }

  testing::FakeEngine engine_;
  testing::FakeTokenizer tokenizer_;
  testing::FakeChatTemplate template_;
  std::unique_ptr<InstanceServer> server_;
};

TEST_F(InstanceServerTest, IsUnhealthyUntilItCanServe) {
  EXPECT_EQ(get(server_->port(), "/health").status, 503);
  const auto early = parse_instance_info(get(server_->port(), "/baton/instance").body);
  ASSERT_TRUE(early.has_value()) << early.error().message;
  EXPECT_FALSE(early->ready);
  const auto refused = ask(R"({"prompt": "ab"})");
  EXPECT_TRUE(refused->ends());
  EXPECT_EQ(refused->status(), 503);

  attach();
  EXPECT_EQ(get(server_->port(), "/health").status, 200);
  const auto info = parse_instance_info(get(server_->port(), "/baton/instance").body);
  ASSERT_TRUE(info.has_value()) << info.error().message;
  EXPECT_TRUE(info->ready);
  EXPECT_EQ(info->build, build_identity());
  EXPECT_NE(info->build, "");
  EXPECT_NE(info->host.name, "");
  EXPECT_NE(info->host.kernel, "");
  EXPECT_GE(info->host.cores, 1U);
  EXPECT_NE(info->libfabric_version, "");
  EXPECT_EQ(info->engine_id, "engine-1");
  EXPECT_EQ(info->incarnation, 0xabcU);
  EXPECT_EQ(info->role, "kv_both");
  EXPECT_EQ(info->handover_port, 5600);
  EXPECT_THAT(info->models, ElementsAre("tiny", "alias"));
  EXPECT_EQ(info->blocks_quarantined, 1U);
  EXPECT_EQ(info->blocks_total, 10U);
}

TEST_F(InstanceServerTest, AnswersPlain) {
  attach();
  const auto browser = ask(R"({"model": "alias", "prompt": "ab", "max_tokens": 3,
                               "return_token_ids": true})");
  EXPECT_THAT(engine_.request(0).prompt, ElementsAre('a', 'b'));
  EXPECT_EQ(engine_.request(0).sampling.max_tokens, 3U);
  engine_.say(0, text_output("x", {1}));
  engine_.say(0, text_output("yz", {2, 3}));
  engine_.say(0, last_output(engine::FinishReason::kLength));
  EXPECT_TRUE(browser->ends());
  EXPECT_EQ(browser->status(), 200);
  for (const char* part : {R"("object":"text_completion")", R"("model":"alias")", R"("text":"xyz")",
                           R"("finish_reason":"length")", R"("token_ids":[1,2,3])",
                           R"("usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5,)",
                           R"("prompt_tokens_details":{"cached_tokens":0}})"}) {
    EXPECT_THAT(browser->body(), HasSubstr(part));
  }
  EXPECT_THAT(browser->body(), Not(HasSubstr("baton")));
}

TEST_F(InstanceServerTest, StreamsChat) {
  attach();
  const auto browser = ask(R"({"messages": [{"role": "user", "content": "ab"}], "stream": true,
              "stream_options": {"include_usage": true}})",
                           "/v1/chat/completions", {{"X-Request-Id", "req-7"}});
  EXPECT_EQ(engine_.request(0).prompt.size(), 7U);              // "user:ab"
  EXPECT_EQ(engine_.request(0).sampling.max_tokens, 100U - 7);  // what the context leaves
  engine_.say(0, text_output("hello", {1}));
  EXPECT_TRUE(browser->sees("hello"));
  engine_.say(0, last_output(engine::FinishReason::kStop));
  EXPECT_TRUE(browser->ends());
  const std::string body = browser->body();
  EXPECT_THAT(body, HasSubstr(R"("id":"chatcmpl-req-7","object":"chat.completion.chunk")"));
  EXPECT_LT(body.find(R"("delta":{"role":"assistant","content":""})"),
            body.find(R"("delta":{"content":"hello"})"));
  EXPECT_THAT(body, HasSubstr(R"("choices":[],"usage":{"prompt_tokens":2)"));
  EXPECT_TRUE(body.ends_with("data: [DONE]\n\n")) << body;
}

TEST_F(InstanceServerTest, RefusesBeforeTheEngineIsAsked) {
  attach();
  const std::tuple<const char*, int, const char*> table[] = {
      {R"({"model": "other", "prompt": "a"})", 404, "`other` does not exist. Served: tiny, alias"},
      {R"({"prompt": "a", "n": 2})", 400, "n must be 1"},
      {R"({"prompt": "a", "max_tokens": 100})", 400, "100 tokens. However, you requested 101"},
      {"{", 400, "invalid JSON"},
  };
  for (const auto& [body, status, words] : table) {
    const auto browser = ask(body);
    EXPECT_TRUE(browser->ends());
    EXPECT_EQ(browser->status(), status) << body;
    EXPECT_THAT(browser->body(), HasSubstr(words));
    EXPECT_THAT(browser->body(), HasSubstr(R"({"error":{"message":)"));
  }
  const std::string longer(100, 'a');
  const auto browser = ask(R"({"prompt": ")" + longer + "\"}");
  EXPECT_TRUE(browser->ends());
  EXPECT_EQ(browser->status(), 400);
  EXPECT_THAT(browser->body(), HasSubstr("context length is 100 tokens. However, the prompt has"));
  EXPECT_EQ(engine_.submitted(), 0U);
}

TEST_F(InstanceServerTest, AFullQueueIs429WithAHint) {
  attach();
  engine_.refuse({Errc::kResourceExhausted, "4096 requests wait already"});
  const auto browser = ask(R"({"prompt": "a"})");
  EXPECT_TRUE(browser->ends());
  EXPECT_EQ(browser->status(), 429);
  EXPECT_EQ(browser->header("Retry-After"), "1");
}

TEST_F(InstanceServerTest, AClientThatLeavesIsAborted) {
  attach();
  const auto browser = ask(R"({"prompt": "a", "stream": true})");
  engine_.say(0, text_output("x", {1}));
  EXPECT_TRUE(browser->sees("x"));
  browser->leave();
  EXPECT_TRUE(eventually([&] { return !engine_.aborted().empty(); }));
  EXPECT_THAT(engine_.aborted(), ElementsAre(engine_.request(0).id));
}

TEST_F(InstanceServerTest, AFailureBeforeTheFirstTokenIsAStatus) {
  attach();
  const auto browser =
      ask("{\"prompt\": \"a\", \"stream\": true, " + kv("do_remote_prefill") + "}");
  EXPECT_EQ(engine_.request(0).remote_prefill->peer.engine_id, "engine-p");
  engine_.say(0, failed_output(Cause::kPeerDied));
  EXPECT_TRUE(browser->ends());
  EXPECT_EQ(browser->status(), 502);
  EXPECT_THAT(browser->body(), HasSubstr(kId));
  EXPECT_THAT(browser->body(), HasSubstr(R"("prefill":"engine-p","decode":"engine-1")"));
  EXPECT_THAT(browser->body(), HasSubstr("it went away"));
}

TEST_F(InstanceServerTest, AFailureAfterTheFirstTokenIsAnEventAndNoEnd) {
  attach();
  const auto browser =
      ask("{\"prompt\": \"a\", \"stream\": true, " + kv("do_remote_prefill") + "}");
  engine::Output first = text_output("x", {1});
  first.is_first_token = true;
  engine_.say(0, std::move(first));
  engine_.say(0, failed_output(Cause::kPeerSilent));
  browser->ends();
  EXPECT_EQ(browser->status(), 200);
  EXPECT_THAT(browser->body(), HasSubstr(R"("baton":{"first_token":true})"));
  EXPECT_THAT(browser->body(), HasSubstr("event: error"));
  EXPECT_THAT(browser->body(), HasSubstr(R"("code":504)"));
  EXPECT_THAT(browser->body(), Not(HasSubstr("[DONE]")));
}

TEST_F(InstanceServerTest, PrefillTellsWhenBlocksArePinnedAndHowTheHandoverEnded) {
  attach();
  const auto browser = ask("{\"prompt\": \"a\", \"stream\": true, " + kv("do_remote_decode") + "}");
  EXPECT_EQ(engine_.request(0).remote_decode->transfer.to_string(), kId);
  engine::Output prefilled = text_output("x", {42});
  prefilled.prefilled = prefilled.is_first_token = true;
  engine_.say(0, std::move(prefilled));
  EXPECT_TRUE(browser->sees(R"("first_token":{"id":42,"text":"x"})"));
  EXPECT_THAT(browser->body(), HasSubstr(R"("remote_engine_id":"engine-1")"));
  EXPECT_THAT(browser->body(), HasSubstr(R"("remote_incarnation":"0000000000000abc")"));
  engine::Output last = last_output(engine::FinishReason::kHandedOver);
  last.handover.emplace();
  last.handover->side = Side::kPrefill;
  last.handover->transfer = *TransferId::parse(kId);
  last.handover->range = {0, 17};
  last.handover->bytes = 4096;
  engine_.say(0, std::move(last));
  EXPECT_TRUE(browser->ends());
  EXPECT_THAT(browser->body(), HasSubstr(R"("object":"baton.handover","outcome":"done")"));
  EXPECT_TRUE(browser->body().ends_with("data: [DONE]\n\n"));
  const std::string log = get(server_->port(), std::string("/debug/transfers?id=") + kId).body;
  EXPECT_THAT(log, HasSubstr(R"("side":"prefill")"));
  EXPECT_THAT(log, HasSubstr(R"("bytes":4096)"));
  EXPECT_THAT(log, HasSubstr(R"("blocks":2)"));
  EXPECT_THAT(get(server_->port(), "/debug/transfers?id=00").body,
              HasSubstr(R"({"transfers":[],)"));
}

TEST_F(InstanceServerTest, B58_AnExtraKeyIsCountedAndOneThatIsMissingOrMisspeltIsRefusedByName) {
  attach();
  const auto counted = [&] {
    const std::string page = get(server_->port(), "/metrics").body;
    const std::size_t at = page.find("\nbaton_unknown_kv_transfer_params_total{");
    return at == std::string::npos ? "" : page.substr(page.find("} ", at) + 2, 2);
  };
  const std::string whole = "{" + kv("do_remote_prefill") + R"(, "prompt": "a"})";
  const auto with = [&](std::string_view key, std::string_view instead) {
    std::string body = whole;
    return body.replace(body.find(key), key.size(), instead);
  };
  const auto known = ask(whole);
  EXPECT_EQ(counted(), "0\n");
  const auto extra = ask(with("\"transfer_id\"", R"("kv_blocks": [1], "transfer_id")"));
  EXPECT_EQ(engine_.submitted(), 2U);
  EXPECT_EQ(counted(), "1\n");
  const auto misspelt = ask(with("remote_port", "remote_prot"));
  EXPECT_EQ(misspelt->status(), 400);
  EXPECT_THAT(misspelt->body(), HasSubstr("kv_transfer_params.remote_port must be"));
  EXPECT_THAT(misspelt->body(), HasSubstr("is missing"));
  const auto missing = ask(with(R"("remote_host": "127.0.0.1", )", ""));
  EXPECT_EQ(missing->status(), 400);
  EXPECT_THAT(missing->body(), HasSubstr("kv_transfer_params.remote_host must be"));
}

TEST_F(InstanceServerTest, PlainPrefillAnswersWithWhereDFindsIt) {
  attach();
  const auto browser =
      ask(R"({"prompt": "a", "cache_salt": "tenant-1", )" + kv("do_remote_decode") + "}");
  EXPECT_EQ(engine_.request(0).cache_salt, "tenant-1");
  engine::Output prefilled = text_output("x", {42});
  prefilled.prefilled = true;
  prefilled.cached_prompt_tokens = 32;
  engine_.say(0, std::move(prefilled));
  EXPECT_TRUE(browser->ends());
  EXPECT_THAT(browser->body(), HasSubstr(R"("cached_tokens":32)"));
  EXPECT_THAT(browser->body(), HasSubstr(R"("kv_transfer_params":{"do_remote_prefill":true)"));
  EXPECT_THAT(browser->body(), HasSubstr(R"("remote_port":5600)"));
  engine_.say(0, last_output(engine::FinishReason::kHandedOver));
}

TEST_F(InstanceServerTest, PulledPrefillAnnouncesItsBlocksInEitherForm) {
  engine_.set_mode(Mode::kPull);
  attach();
  EXPECT_THAT(get(server_->port(), "/baton/instance").body, HasSubstr(R"("mode":"pull")"));
  for (const bool stream : {true, false}) {
    const std::size_t i = stream ? 0 : 1;
    const auto browser = ask(std::string(R"({"prompt": "abc", "stream": )") +
                             (stream ? "true, " : "false, ") + kv("do_remote_decode") + "}");
    engine::Output prefilled = text_output("x", {42});
    prefilled.prefilled = true;
    prefilled.source = SourceBlocks{{0, 3}, {{7, 2}}, 0xABCDEF};
    engine_.say(i, std::move(prefilled));
    EXPECT_TRUE(browser->sees(R"("remote_block_ids":[[7,2]])"));
    for (const char* part : {R"("transfer_mode":"pull")", R"("remote_num_tokens":3)",
                             R"("remote_engine_id":"engine-1")", R"("remote_port":5600)",
                             R"("remote_incarnation":"0000000000000abc")",
                             R"("remote_announcement":"0000000000abcdef")"}) {
      EXPECT_THAT(browser->body(), HasSubstr(part));
    }
    engine_.say(i, last_output(engine::FinishReason::kHandedOver));
    EXPECT_TRUE(browser->ends());
  }
}

TEST_F(InstanceServerTest, AnAnnouncementReachesTheEngine) {
  engine_.set_mode(Mode::kPull);
  attach();
  std::string params = kv("do_remote_prefill");
  params.pop_back();
  const auto browser = ask(R"({"prompt": "abc", )" + params + R"(, "transfer_mode": "pull",
      "remote_block_ids": [[7, 2]], "remote_num_tokens": 3, "remote_announcement": "abcdef",
      "remote_first_token": 42}})");
  const auto remote = engine_.request(0).remote_prefill;
  ASSERT_TRUE(remote.has_value());
  ASSERT_TRUE(remote->source.has_value());
  EXPECT_EQ(remote->source->range, TokenRange({0, 3}));
  EXPECT_EQ(remote->source->announcement, 0xABCDEFU);
  EXPECT_THAT(remote->source->block_ids, ElementsAre(ElementsAre(7U, 2U)));
  EXPECT_EQ(remote->announced_token, 42);
  engine_.say(0, last_output(engine::FinishReason::kStop));
  EXPECT_TRUE(browser->ends());
}

TEST_F(InstanceServerTest, ParametersOfTheOtherModeAreRefusedWithBoth) {
  attach();
  std::string params = kv("do_remote_prefill");
  params.pop_back();
  const auto browser = ask(R"({"prompt": "abc", )" + params + R"(, "transfer_mode": "pull"}})");
  EXPECT_TRUE(browser->ends());
  EXPECT_EQ(browser->status(), 400);
  EXPECT_THAT(browser->body(), HasSubstr("transfer_mode is pull, and the mode of this instance is "
                                         "push"));
  EXPECT_EQ(engine_.submitted(), 0U);
}

TEST_F(InstanceServerTest, TheDebugHeaderAsksForTheRecord) {
  attach();
  const auto browser = ask(R"({"prompt": "a"})", "/v1/completions", {{"X-Baton-Debug", "1"}});
  engine_.say(0, last_output(engine::FinishReason::kStop));
  EXPECT_TRUE(browser->ends());
  EXPECT_THAT(browser->body(), HasSubstr(R"("computed_prompt_tokens":1)"));
}

TEST_F(InstanceServerTest, MetricsCarryVllmsNames) {
  attach();
  engine_.mutable_metrics().generation_tokens.add(5);
  engine_.mutable_metrics().time_to_first_token_seconds.observe(0.03);
  const std::string page = get(server_->port(), "/metrics").body;
  for (const char* line :
       {"vllm:generation_tokens_total{model_name=\"tiny\",engine=\"engine-1\"} 5",
        "vllm:kv_cache_usage_perc{model_name=\"tiny\",engine=\"engine-1\"} 0.3",
        "vllm:time_to_first_token_seconds_bucket{model_name=\"tiny\",engine=\"engine-1\",le=\"0."
        "04\"} 1",
        "vllm:time_to_first_token_seconds_count{model_name=\"tiny\",engine=\"engine-1\"} 1",
        "vllm:request_success_total{model_name=\"tiny\",engine=\"engine-1\",finished_reason="
        "\"stop\"} 0",
        "baton_kv_blocks{model_name=\"tiny\",engine=\"engine-1\",state=\"quarantined\"} 1",
        "# TYPE vllm:num_requests_running gauge"}) {
    EXPECT_THAT(page, HasSubstr(line));
  }
}

TEST_F(InstanceServerTest, PathsAndMethods) {
  attach();
  EXPECT_EQ(get(server_->port(), "/nothing").status, 404);
  EXPECT_EQ(get(server_->port(), "/v1/completions").status, 405);
  const auto models = get(server_->port(), "/v1/models").body;
  EXPECT_THAT(models, HasSubstr(R"("id":"tiny")"));
  EXPECT_THAT(models, HasSubstr(R"("max_model_len":100)"));
}

class LoneInstanceTest : public InstanceServerTest {
 protected:
  LoneInstanceTest() : InstanceServerTest(false) {}
};

TEST_F(LoneInstanceTest, RefusesHandoversItCannotMake) {
  attach();
  const auto browser = ask("{\"prompt\": \"a\", " + kv("do_remote_decode") + "}");
  EXPECT_TRUE(browser->ends());
  EXPECT_EQ(browser->status(), 400);
  EXPECT_THAT(browser->body(), HasSubstr("without --kv-transfer-config"));
}

}  // namespace
}  // namespace baton::serving
