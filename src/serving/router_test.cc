#include "serving/router.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "serving/testing/router_rig.h"

namespace baton::serving {
namespace {

using namespace testing;
using ::testing::HasSubstr;
using ::testing::Not;
using Leg = FakeInstance::Leg;

TEST_F(PairTest, StreamsPsFirstTokenAtOnceAndDsRest) {
  start();
  const auto browser =
      ask(R"({"prompt": "hi", "stream": true, "temperature": 0.5})", "/v1/completions",
          {{"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}});
  const Leg prefill = p().leg(0);
  const Leg decode = d().leg(0);
  prefill.open();
  prefill.say(prefilled());
  EXPECT_TRUE(browser->sees("One"));  // before D has said a word
  prefill.say(kHandedOver);
  prefill.done();
  decode.open();
  decode.say(first_chunk("One"));
  decode.say(chunk(" two"));
  decode.done();
  EXPECT_TRUE(browser->ends());
  const std::string body = browser->body();
  EXPECT_EQ(count(body, "One"), 1U) << body;
  EXPECT_LT(body.find("One"), body.find(" two"));
  EXPECT_TRUE(body.ends_with("data: [DONE]\n\n"));
  EXPECT_THAT(body, Not(HasSubstr("baton")));
  const auto of_prefill = std::string(prefill.request.headers.get("traceparent"));
  const auto of_decode = std::string(decode.request.headers.get("traceparent"));
  for (const std::string& trace : {of_prefill, of_decode, browser->header("traceparent")}) {
    EXPECT_THAT(trace, ::testing::StartsWith("00-0af7651916cd43dd8448eb211c80319c-"));
    EXPECT_THAT(trace, Not(HasSubstr("b7ad6b7169203331"))) << "each hop is a span of its own";
  }
  EXPECT_NE(of_prefill, of_decode);
  EXPECT_EQ(prefill.request.headers.get("X-Request-Id"),
            decode.request.headers.get("X-Request-Id"));
}

TEST_F(PairTest, TheSecondCopyOfTheFirstTokenIsDroppedInEitherOrder) {
  start();
  const auto browser = ask(kStream);
  const Leg prefill = p().leg(0);
  const Leg decode = d().leg(0);
  decode.open();
  decode.say(first_chunk("One"));
  decode.say(chunk(" two"));
  EXPECT_TRUE(browser->sees(" two"));
  prefill.open();
  prefill.say(prefilled());
  prefill.say(kHandedOver);
  prefill.done();
  decode.done();
  EXPECT_TRUE(browser->ends());
  EXPECT_EQ(count(browser->body(), "One"), 1U) << browser->body();
}

TEST_F(PairTest, AChatStreamHasItsRoleOnce) {
  start();
  const auto browser = ask(R"({"messages": [{"role": "user", "content": "x"}], "stream": true})",
                           "/v1/chat/completions");
  p().leg(0).open();
  p().leg(0).say(prefilled());
  EXPECT_TRUE(browser->sees("One"));
  const Leg decode = d().leg(0);
  decode.open();
  decode.say(R"({"choices":[{"index":0,"delta":{"role":"assistant","content":""},)"
             R"("finish_reason":null}]})");
  decode.say(R"({"choices":[{"index":0,"delta":{"content":"One"}}],"baton":{"first_token":true}})");
  decode.say(R"({"choices":[{"index":0,"delta":{"content":" two"}}]})");
  decode.done();
  EXPECT_TRUE(browser->ends());
  const std::string body = browser->body();
  EXPECT_EQ(count(body, R"("role":"assistant")"), 1U) << body;
  EXPECT_EQ(count(body, "One"), 1U) << body;
  EXPECT_LT(body.find("assistant"), body.find("One"));
}

TEST_F(PairTest, TellsBothLegsWhatTheyNeed) {
  start();
  const auto browser = ask(R"({"prompt": "hi", "temperature": 1, "surprise": 5,
    "kv_transfer_params": {"do_remote_prefill": true, "remote_host": "evil", "remote_port": 1}})");
  const std::string prefill = p().leg(0).request.body;
  const std::string decode = d().leg(0).request.body;
  for (const std::string* body : {&prefill, &decode}) {
    EXPECT_THAT(*body, Not(HasSubstr("evil")));
    EXPECT_THAT(*body, HasSubstr(R"("surprise":5)"));
    EXPECT_THAT(*body, HasSubstr(R"("first_token":"prefill")"));
  }
  EXPECT_THAT(prefill, HasSubstr(R"("do_remote_decode":true)"));
  EXPECT_THAT(prefill, HasSubstr(R"("stream":true)"));
  for (const char* part : {R"("do_remote_prefill":true)", R"("remote_engine_id":"engine-p1")",
                           R"("remote_port":5600)", R"("remote_incarnation":"0000000000000007")"}) {
    EXPECT_THAT(decode, HasSubstr(part));
  }
  const auto after = [](const std::string& body, const std::string& key) {
    const auto at = body.find(key);
    return at == std::string::npos ? "" : body.substr(at, body.find_first_of(",}", at) - at);
  };
  EXPECT_NE(after(prefill, "\"seed\":"), "");
  EXPECT_EQ(after(prefill, "\"seed\":"), after(decode, "\"seed\":"));
  EXPECT_EQ(after(prefill, "\"transfer_id\":"), after(decode, "\"transfer_id\":"));
}

TEST_F(PairTest, APlainAnswerIsDs) {
  start();
  const auto browser = ask(kPlain);
  const Leg prefill = p().leg(0);
  prefill.open();
  prefill.say(prefilled());
  prefill.say(kHandedOver);
  prefill.done();
  d().leg(0).writer->respond(200, "application/json", R"({"choices":[{"text":"One two"}]})");
  EXPECT_TRUE(browser->ends());
  EXPECT_EQ(browser->status(), 200);
  EXPECT_EQ(browser->body(), R"({"choices":[{"text":"One two"}]})");
  EXPECT_EQ(browser->header("X-Baton-Transfer-Id").size(), 32U);
}

TEST_F(PairTest, DebugCarriesBothRecordsAndWaitsForPs) {
  start();
  for (const bool stream : {true, false}) {
    const std::size_t i = stream ? 0 : 1;
    const auto browser =
        ask(stream ? kStream : kPlain, "/v1/completions", {{"X-Baton-Debug", "1"}});
    const Leg prefill = p().leg(i);
    const Leg decode = d().leg(i);
    EXPECT_THAT(decode.request.body, HasSubstr(R"("debug":true)"));
    prefill.open();
    prefill.say(prefilled());
    if (stream) {
      decode.open();
      decode.say(first_chunk("One"));
      decode.say(chunk("", R"(,"baton":{"computed_prompt_tokens":0})"));
      decode.done();
    } else {
      decode.writer->respond(200, "application/json",
                             R"({"choices":[],"baton":{"computed_prompt_tokens":0}})");
    }
    prefill.say(kHandedOver);
    prefill.done();
    EXPECT_TRUE(browser->ends());
    EXPECT_THAT(browser->body(),
                HasSubstr(R"("prefill":{"bytes":5},"decode":{"computed_prompt_tokens":0}})"));
  }
}

TEST_F(PairTest, DebugEndsWithoutPsRecordIfItDoesNotCome) {
  start();
  const auto browser = ask(kStream, "/v1/completions", {{"X-Baton-Debug", "1"}});
  p().leg(0).open();
  p().leg(0).say(prefilled());  // and no more
  d().leg(0).open();
  d().leg(0).say(first_chunk("One"));
  d().leg(0).done();
  EXPECT_TRUE(browser->ends());
  EXPECT_THAT(browser->body(), HasSubstr(R"("prefill":null)"));
  EXPECT_THAT(browser->body(), HasSubstr("[DONE]"));
}

TEST_F(PairTest, ARefusalByEitherIsTheClientsWordForWordAndEndsTheOther) {
  start();
  const auto by_prefill = ask(kStream);
  p().leg(0).refuse(400, "the prompt has 9 tokens");
  EXPECT_TRUE(by_prefill->ends());
  EXPECT_EQ(by_prefill->status(), 400);
  EXPECT_THAT(by_prefill->body(), HasSubstr(R"("message":"the prompt has 9 tokens")"));
  EXPECT_THAT(by_prefill->body(), HasSubstr(R"("param":"prompt")"));
  EXPECT_TRUE(d().leg(0).is_closed());

  const auto by_decode = ask(kStream);
  d().leg(1).refuse(404, "no such model");
  EXPECT_TRUE(by_decode->ends());
  EXPECT_EQ(by_decode->status(), 404);
  EXPECT_TRUE(p().leg(1).is_closed());

  const auto full = ask(kStream);
  d().leg(2).refuse(429, "full");
  EXPECT_TRUE(full->ends());
  EXPECT_EQ(full->status(), 429);
  EXPECT_TRUE(p().leg(2).is_closed());
}

TEST_F(PairTest, AnErrorOfEitherIs502NamesAllAndEndsTheOther) {
  start();
  const auto by_prefill = ask(kStream);
  p().leg(0).refuse(500, "out of luck");
  EXPECT_TRUE(by_prefill->ends());
  EXPECT_EQ(by_prefill->status(), 502);
  EXPECT_THAT(by_prefill->body(), HasSubstr("out of luck"));
  expect_names_everything(by_prefill->body());
  EXPECT_TRUE(d().leg(0).is_closed());

  const auto by_decode = ask(kPlain);
  d().leg(1).refuse(500, "out of luck");
  EXPECT_TRUE(by_decode->ends());
  EXPECT_EQ(by_decode->status(), 502);
  expect_names_everything(by_decode->body());
  EXPECT_TRUE(p().leg(1).is_closed());
}

TEST_F(PairTest, ADThatIsGoneIsToldAtOnceAndPIsFreed) {
  start();
  d().answer_polls(false);  // so that only the leg finds out
  const std::uint16_t port = d().port();
  d().stop();
  const auto browser = ask(kStream);
  EXPECT_TRUE(browser->ends());
  EXPECT_THAT(browser->status(), ::testing::AnyOf(502, 503));
  EXPECT_THAT(browser->body(), HasSubstr(std::to_string(port)));
  if (p().legs() > 0) {
    EXPECT_TRUE(p().leg(0).is_closed());
  }
  EXPECT_TRUE(eventually([this] { return get(router_->port(), "/health").status == 503; }));
  d().answer_polls(true);
  d().start(port);
  EXPECT_TRUE(eventually([this] { return get(router_->port(), "/health").status == 200; }));
}

TEST_F(PairTest, HangsEndWithTheRequestsDeadline) {
  start(std::chrono::seconds(1));  // enough for both legs to begin, whatever the cores have to do
  for (const char* body : {kStream, kPlain}) {
    const std::size_t i = body == kStream ? 0 : 1;
    const auto browser = ask(body);
    const Leg prefill = p().leg(i);
    EXPECT_TRUE(browser->ends());
    EXPECT_EQ(browser->status(), 504);
    expect_names_everything(browser->body());
    EXPECT_THAT(browser->body(), HasSubstr("deadline"));
    EXPECT_TRUE(prefill.is_closed());
    EXPECT_TRUE(d().leg(i).is_closed());
  }
}

TEST_F(PairTest, AClientThatLeavesEndsBothLegs) {
  start();
  const auto before = ask(kPlain);
  const Leg prefill = p().leg(0);
  const Leg decode = d().leg(0);
  before->leave();
  EXPECT_TRUE(prefill.is_closed());
  EXPECT_TRUE(decode.is_closed());

  const auto during = ask(kStream);
  d().leg(1).open();
  d().leg(1).say(first_chunk("One"));
  EXPECT_TRUE(during->sees("One"));
  during->leave();
  EXPECT_TRUE(p().leg(1).is_closed());
  EXPECT_TRUE(d().leg(1).is_closed());
}

TEST_F(PairTest, ADThatDiesInTheMiddleEndsTheStreamWithAnErrorAndNeverAsIfWhole) {
  start();
  const auto aborted = ask(kStream);
  d().leg(0).open();
  d().leg(0).say(first_chunk("One"));
  EXPECT_TRUE(aborted->sees("One"));
  d().leg(0).writer->abort();
  aborted->ends();
  EXPECT_THAT(aborted->body(), HasSubstr("event: error"));
  EXPECT_THAT(aborted->body(), Not(HasSubstr("[DONE]")));
  expect_names_everything(aborted->body());
  EXPECT_TRUE(p().leg(0).is_closed());

  ASSERT_TRUE(eventually([this] { return router_->ready(); }));
  const auto short_stream = ask(kStream);
  d().leg(1).open();
  d().leg(1).say(first_chunk("One"));
  d().leg(1).writer->finish();  // well-formed HTTP, but no [DONE]
  short_stream->ends();
  EXPECT_THAT(short_stream->body(), HasSubstr("event: error"));
  EXPECT_THAT(short_stream->body(), Not(HasSubstr("[DONE]")));

  const auto told = ask(kStream);
  d().leg(2).open();
  d().leg(2).say(first_chunk("One"));
  d().leg(2).say(
      R"({"error":{"message":"hand-over broke","code":504,"baton":{"cause":"fabric"}}})");
  told->ends();
  EXPECT_THAT(told->body(), HasSubstr(R"("cause":"fabric")"));
  EXPECT_THAT(told->body(), HasSubstr(R"("code":504)"));
}

TEST_F(PairTest, APThatDiesBeforeItsPromptIsComputedEndsTheRequest) {
  start();
  const auto browser = ask(kPlain);
  p().leg(0).writer->abort();
  EXPECT_TRUE(browser->ends());
  EXPECT_EQ(browser->status(), 502);
  expect_names_everything(browser->body());
  EXPECT_TRUE(d().leg(0).is_closed());
}

TEST_F(PairTest, APThatDiesOnceDHasItAllHarmsNothing) {
  start();
  const auto browser = ask(kStream);
  p().leg(0).open();
  p().leg(0).say(prefilled());
  d().leg(0).open();
  d().leg(0).say(first_chunk("One"));
  d().leg(0).say(chunk(" two"));
  EXPECT_TRUE(browser->sees(" two"));
  p().leg(0).writer->abort();
  d().leg(0).say(chunk(" three"));
  EXPECT_TRUE(browser->sees(" three"));
  d().leg(0).done();
  EXPECT_TRUE(browser->ends());
  EXPECT_THAT(browser->body(), HasSubstr("[DONE]"));
}

TEST_F(PairTest, APThatDiesWhileDWaitsEndsTheRequestSoon) {
  start();
  const auto browser = ask(kPlain);
  p().leg(0).open();
  p().leg(0).say(prefilled());
  p().leg(0).writer->abort();
  EXPECT_TRUE(browser->ends());  // D said nothing
  EXPECT_EQ(browser->status(), 502);
  EXPECT_TRUE(d().leg(0).is_closed());
}

TEST_F(PairTest, ADThatRecomputesIsLeftToDoSo) {
  d().change([](InstanceInfo& info) { info.kv_load_failure_policy = "recompute"; });
  start();
  const auto browser = ask(kStream);
  const Leg decode = d().leg(0);
  p().leg(0).writer->abort();
  decode.open();
  decode.say(first_chunk("One"));
  decode.done();
  EXPECT_TRUE(browser->ends());
  EXPECT_THAT(browser->body(), HasSubstr("[DONE]"));
}

TEST_F(PairTest, ASilentInstanceEndsItsRequests) {
  start(std::chrono::seconds(600), std::chrono::seconds(2));  // the other one is never so slow
  const auto browser = ask(kPlain);
  const Leg prefill = p().leg(0);
  const Leg decode = d().leg(0);
  d().answer_polls(false);
  EXPECT_TRUE(browser->ends());
  EXPECT_EQ(browser->status(), 504);
  EXPECT_THAT(browser->body(), HasSubstr("instance_silent"));
  EXPECT_TRUE(prefill.is_closed());
  EXPECT_TRUE(decode.is_closed());
}

// What leaves the router has the times of its instances in it.
TEST_F(PairTest, SaysThatAnInstanceIsEmulated) {
  d().change([](InstanceInfo& info) { info.emulated = "emulated: profile x"; });
  start();
  EXPECT_THAT(get(router_->port(), "/health").body,
              HasSubstr(R"("emulated":"emulated: profile x")"));
  EXPECT_THAT(get(router_->port(), "/v1/models").body,
              HasSubstr(R"("emulated":"emulated: profile x")"));
  EXPECT_THAT(get(router_->port(), "/baton/upstreams").body,
              HasSubstr(R"("emulated":"emulated: profile x")"));
  EXPECT_THAT(get(router_->port(), "/metrics").body,
              HasSubstr("baton_router_instance_emulated{stage=\"decode\",url=\"" + d().url()));
}

TEST_F(PairTest, WhatIsMissingIsNamed) {
  d().change([](InstanceInfo& info) { info.role = "kv_producer"; });
  RouterOptions options;
  options.port = 0;
  options.upstreams.prefill = {p().url()};
  options.upstreams.decode = {d().url()};
  options.upstreams.poll_interval_down = std::chrono::milliseconds(20);
  router_ = std::move(Router::start(std::move(options)).value());
  EXPECT_TRUE(eventually([this] {
    return get(router_->port(), "/health").body.find("its kv_role is 'kv_producer'") !=
           std::string::npos;
  }));
  const auto browser = ask(kPlain);
  EXPECT_TRUE(browser->ends());
  EXPECT_EQ(browser->status(), 503);
  EXPECT_THAT(browser->body(), HasSubstr("no decode instance is ready"));
  EXPECT_EQ(p().legs(), 0U);
  d().change([](InstanceInfo& info) { info.role = "kv_consumer"; });
  EXPECT_TRUE(eventually([this] { return router_->ready(); }));
}

TEST_F(PairTest, BadRequestsStartNoLeg) {
  start();
  for (const auto& [body, status] : {std::pair{R"({"prompt": "x", "n": 2})", 400},
                                     {R"({"prompt": 5})", 400},
                                     {R"({"prompt": "x", "model": "other"})", 404},
                                     {"{", 400}}) {
    const auto browser = ask(body);
    EXPECT_TRUE(browser->ends());
    EXPECT_EQ(browser->status(), status) << body;
  }
  EXPECT_EQ(p().legs() + d().legs(), 0U);
  EXPECT_THAT(get(router_->port(), "/v1/models").body, HasSubstr(R"("id":"tiny")"));
  EXPECT_THAT(get(router_->port(), "/metrics").body,
              HasSubstr("baton_router_ends_total{end=\"refused\"} 4"));
}

TEST_F(RouterTest, SpreadsOverTheLeastLoaded) {
  add(2, 3);
  start();
  ASSERT_TRUE(eventually([this] {
    const std::string page = get(router_->port(), "/metrics").body;
    return count(page, "} 1\n") >= 5;
  }));
  std::vector<std::unique_ptr<Browser>> browsers;
  for (int i = 0; i < 6; ++i) browsers.push_back(ask(kPlain));
  for (const auto& instance : prefill_) instance->leg(2);
  for (const auto& instance : decode_) instance->leg(1);
  for (const auto& instance : prefill_) EXPECT_EQ(instance->legs(), 3U);
  for (const auto& instance : decode_) EXPECT_EQ(instance->legs(), 2U);
}

TEST_F(PairTest, StopsInGoodOrder) {
  start();
  const auto browser = ask(kStream);
  d().leg(0).open();
  d().leg(0).say(first_chunk("One"));
  EXPECT_TRUE(browser->sees("One"));
  std::thread stopper([this] { router_->stop(std::chrono::seconds(20)); });
  d().leg(0).say(chunk(" two"));
  EXPECT_TRUE(browser->sees(" two"));
  d().leg(0).done();
  EXPECT_TRUE(browser->ends());
  stopper.join();
  EXPECT_THAT(browser->body(), HasSubstr("[DONE]"));
}

}  // namespace
}  // namespace baton::serving
