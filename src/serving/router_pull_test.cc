// Pull through the router: P first, D once P has announced its blocks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serving/router.h"
#include "serving/testing/router_rig.h"
#include "serving/upstream_list.h"

namespace baton::serving {
namespace {

using namespace testing;
using ::testing::HasSubstr;
using ::testing::Not;
using Leg = FakeInstance::Leg;

class PullTest : public RouterTest {
 protected:
  void add_pulling(int prefills, int decodes) {
    add(prefills, decodes);
    const auto pull = [](InstanceInfo& info) { info.mode = "pull"; };
    for (const auto& instance : prefill_) instance->change(pull);
    for (const auto& instance : decode_) instance->change(pull);
  }
  // P's leg, at the point where its blocks are announced.
  static Leg announce(FakeInstance& prefill, std::size_t i) {
    const Leg leg = prefill.leg(i);
    leg.open();
    leg.say(announced());
    return leg;
  }
  bool page_says(const std::string& line) {
    return eventually(
        [&] { return get(router_->port(), "/metrics").body.find(line) != std::string::npos; });
  }
};

class PullPairTest : public PullTest {
 protected:
  PullPairTest() { add_pulling(1, 1); }
};

TEST_F(PullPairTest, DIsAskedOnceThereAreBlocksAndIsToldWhich) {
  start();
  const auto browser =
      ask(kStream, "/v1/completions",
          {{"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}});
  const Leg prefill = p().leg(0);
  EXPECT_THAT(prefill.request.body, HasSubstr(R"("do_remote_decode":true)"));
  EXPECT_EQ(d().legs(), 0U);
  prefill.open();
  prefill.say(announced());
  EXPECT_TRUE(browser->sees("One"));  // P's first token does not wait for D
  const Leg decode = d().leg(0);
  for (const char* part :
       {R"("do_remote_prefill":true)", R"("remote_block_ids":[[7,8]])", R"("remote_num_tokens":20)",
        R"("remote_first_token":1)", R"("transfer_mode":"pull")", R"("remote_port":5600)",
        R"("remote_engine_id":"engine-p1")", R"("remote_incarnation":"0000000000000007")",
        R"("remote_announcement":"0a")"}) {
    EXPECT_THAT(decode.request.body, HasSubstr(part));
  }
  EXPECT_THAT(std::string(decode.request.headers.get("traceparent")),
              ::testing::StartsWith("00-0af7651916cd43dd8448eb211c80319c-"));
  EXPECT_EQ(prefill.request.headers.get("X-Request-Id"),
            decode.request.headers.get("X-Request-Id"));
  prefill.say(kHandedOver);
  prefill.done();
  decode.open();
  decode.say(first_chunk("One"));
  decode.say(chunk(" two"));
  decode.done();
  EXPECT_TRUE(browser->ends());
  EXPECT_EQ(count(browser->body(), "One"), 1U) << browser->body();
  EXPECT_TRUE(browser->body().ends_with("data: [DONE]\n\n"));
  EXPECT_THAT(browser->body(), Not(HasSubstr("baton")));
  const std::string id = browser->header("X-Baton-Transfer-Id");
  const std::string record = get(router_->port(), "/debug/transfers?id=" + id).body;
  EXPECT_THAT(record, HasSubstr("engine-d1"));
}

TEST_F(PullPairTest, APlainAnswerIsDsAndWhatTheClientSentIsKept) {
  start();
  const auto browser = ask(R"({"prompt": "hi", "temperature": 0, "surprise": 5,
    "kv_transfer_params": {"remote_host": "evil"}})");
  announce(p(), 0);
  const Leg decode = d().leg(0);
  EXPECT_THAT(decode.request.body, HasSubstr(R"("surprise":5)"));
  EXPECT_THAT(decode.request.body, Not(HasSubstr("evil")));
  decode.writer->respond(200, "application/json", R"({"choices":[{"text":"One two"}]})");
  EXPECT_TRUE(browser->ends());
  EXPECT_EQ(browser->body(), R"({"choices":[{"text":"One two"}]})");
}

TEST_F(PullPairTest, AFailureOfDFreesP) {
  start();
  const auto refused = ask(kPlain);
  announce(p(), 0);
  d().leg(0).refuse(400, "the announced blocks (remote_block_ids) are 2");
  EXPECT_TRUE(refused->ends());
  EXPECT_EQ(refused->status(), 400);
  EXPECT_THAT(refused->body(), HasSubstr("the announced blocks"));
  EXPECT_TRUE(p().leg(0).is_closed());

  const auto died = ask(kStream);
  announce(p(), 1);
  d().leg(1).writer->abort();
  died->ends();
  EXPECT_THAT(died->body(), HasSubstr("event: error"));
  EXPECT_THAT(died->body(), Not(HasSubstr("[DONE]")));
  expect_names_everything(died->body());
  EXPECT_TRUE(p().leg(1).is_closed());
}

TEST_F(PullPairTest, AClientThatLeavesFreesPBeforeAndAfterDIsChosen) {
  start();
  const auto before = ask(kPlain);
  p().leg(0);
  before->leave();
  EXPECT_TRUE(p().leg(0).is_closed());
  const auto after = ask(kPlain);
  announce(p(), 1);
  d().leg(0);
  after->leave();
  EXPECT_TRUE(p().leg(1).is_closed());
  EXPECT_TRUE(d().leg(0).is_closed());
  EXPECT_TRUE(page_says("baton_router_requests_running 0"));
}

TEST_F(PullPairTest, AnEndOfPBeforeDIsChosenEndsTheRequest) {
  start();
  const auto died = ask(kPlain);
  p().leg(0).writer->abort();
  EXPECT_TRUE(died->ends());
  EXPECT_EQ(died->status(), 502);
  EXPECT_THAT(died->body(), HasSubstr("engine-p1"));
  EXPECT_THAT(died->body(), HasSubstr("no decode instance chosen yet"));

  ASSERT_TRUE(eventually([this] { return router_->ready(); }));
  const auto silent = ask(kPlain);
  const Leg without_blocks = p().leg(1);
  without_blocks.open();
  without_blocks.say(announced("[]"));
  EXPECT_TRUE(silent->ends());
  EXPECT_EQ(silent->status(), 502);
  EXPECT_THAT(silent->body(), HasSubstr("names no blocks (remote_block_ids)"));
  EXPECT_TRUE(p().leg(1).is_closed());
  EXPECT_EQ(d().legs(), 0U);
}

TEST_F(PullPairTest, WithoutADecodeInstanceNothingIsComputed) {
  d().change([](InstanceInfo& info) { info.models = {"other"}; });
  start();
  const auto browser = ask(R"({"prompt": "hi", "model": "tiny"})");
  EXPECT_TRUE(browser->ends());
  EXPECT_EQ(browser->status(), 404);
  EXPECT_EQ(p().legs(), 0U);
}

// D is chosen late: what counts is who is loaded when P is done, not when the request came.
TEST_F(PullTest, TheLeastLoadedIsChosenWhenPIsDone) {
  add_pulling(1, 2);
  start();
  ASSERT_TRUE(
      page_says("baton_router_instance_up{stage=\"decode\",url=\"" + decode_[0]->url() + "\"} 1"));
  ASSERT_TRUE(
      page_says("baton_router_instance_up{stage=\"decode\",url=\"" + decode_[1]->url() + "\"} 1"));
  const auto early = ask(kPlain);
  const Leg early_leg = p().leg(0);
  const auto other = ask(kPlain);
  announce(p(), 1);
  ASSERT_TRUE(eventually([this] { return decode_[0]->legs() + decode_[1]->legs() == 1; }));
  FakeInstance& busy = decode_[0]->legs() == 1 ? *decode_[0] : *decode_[1];
  FakeInstance& idle = decode_[0]->legs() == 1 ? *decode_[1] : *decode_[0];
  early_leg.open();
  early_leg.say(announced());
  idle.leg(0);
  EXPECT_EQ(busy.legs(), 1U);
}

TEST_F(PullPairTest, FreeSlotsGoToTheLowestPriorityThenToTheFirst) {
  RouterOptions options;
  options.upstreams.decode_slots = 1;
  p().change([](InstanceInfo& info) { info.lease_ms = 3'600'000; });
  start(std::move(options));
  const auto body = [](const char* name, int priority) {
    return std::string(R"({"temperature": 0, "prompt": ")") + name + R"(", "priority": )" +
           std::to_string(priority) + "}";
  };
  std::vector<std::unique_ptr<Browser>> browsers;
  std::size_t asked = 0;
  for (const auto& [name, priority] :
       {std::pair{"runs", 0}, {"patient", 5}, {"first", 0}, {"second", 0}, {"urgent", -1}}) {
    browsers.push_back(ask(body(name, priority)));
    announce(p(), asked++);
    if (asked == 1) d().leg(0);
  }
  ASSERT_TRUE(page_says("baton_router_requests_waiting_for_decode 4"));
  std::size_t i = 0;
  for (const char* name : {"runs", "urgent", "first", "second", "patient"}) {
    const Leg leg = d().leg(i);
    EXPECT_THAT(leg.request.body, HasSubstr(std::string("\"prompt\":\"") + name));
    EXPECT_EQ(d().legs(), ++i) << "one slot";
    leg.writer->respond(200, "application/json", R"({"choices":[]})");
  }
  for (const auto& browser : browsers) EXPECT_TRUE(browser->ends());
}

// Nobody renews P's lease before a decode instance has the request.
TEST_F(PullPairTest, NobodyWaitsForASlotUntilTheLeaseIsOver) {
  RouterOptions options;
  options.upstreams.decode_slots = 1;
  p().change([](InstanceInfo& info) { info.lease_ms = 200; });
  start(std::move(options));
  const auto first = ask(kPlain);
  announce(p(), 0);
  d().leg(0);
  const auto second = ask(kPlain);
  announce(p(), 1);
  d().leg(1);  // though the first one runs
}

TEST_F(PullPairTest, AWaitingRequestHearsOfItsLostBlocksAndOfTheRoutersStop) {
  RouterOptions options;
  options.upstreams.decode_slots = 1;
  p().change([](InstanceInfo& info) { info.lease_ms = 3'600'000; });
  start(std::move(options));
  const auto runs = ask(kPlain);
  announce(p(), 0);
  d().leg(0);
  const auto lapsed = ask(kPlain);
  const Leg prefill = announce(p(), 1);
  ASSERT_TRUE(page_says("baton_router_requests_waiting_for_decode 1"));
  prefill.say(R"({"object":"baton.handover","outcome":"failed","cause":"lease_expired",)"
              R"("text":"nobody renewed the lease"})");
  prefill.done();
  EXPECT_TRUE(lapsed->ends());
  EXPECT_EQ(lapsed->status(), 504);
  EXPECT_THAT(lapsed->body(), HasSubstr("\"cause\":\"lease_expired\""));
  EXPECT_THAT(lapsed->body(), HasSubstr("nobody renewed the lease"));

  const auto stopped = ask(kPlain);
  announce(p(), 2);
  ASSERT_TRUE(page_says("baton_router_requests_waiting_for_decode 1"));
  router_->stop(Duration::zero());
  EXPECT_TRUE(stopped->ends());
  EXPECT_EQ(stopped->status(), 503);
  EXPECT_TRUE(p().leg(2).is_closed());
  EXPECT_EQ(d().legs(), 1U);
}

// ---- bidirectional ----

class BothWaysTest : public PullTest {
 protected:
  BothWaysTest() {
    add_pulling(1, 1);
    const auto both_ways = [](InstanceInfo& info) {
      info.bidirectional = true;
      info.lease_ms = 3'600'000;
    };
    p().change(both_ways);
    d().change(both_ways);
  }
  static std::string chat(const std::string& more = "", const std::string& end = "}") {
    return R"({"temperature": 0, "messages": [{"role": "user", "content": "hi"})" + more + "]" +
           end;
  }
  static std::string second_turn() {
    return chat(
        R"(, {"role": "assistant", "content": "One two"}, {"role": "user", "content": "?"})");
  }
  // Answers the i-th request with kept blocks; what P was asked.
  std::string turn(std::size_t i, const std::string& body) {
    const auto browser = ask(body, "/v1/chat/completions");
    const Leg prefill = announce(p(), i);
    const Leg decode = d().leg(i);
    EXPECT_THAT(decode.request.body, HasSubstr(R"("keep_blocks":true)"));
    decode.writer->respond(200, "application/json",
                           R"({"choices":[],"kv_transfer_params":)"
                           R"({"remote_host":"0.0.0.0","remote_token_ids":[1,2]}})");
    EXPECT_TRUE(browser->ends());
    EXPECT_EQ(browser->body(), R"({"choices":[]})");
    return prefill.request.body;
  }
};

constexpr char kKept[] = R"("kept":{"remote_host":"127.0.0.1","remote_token_ids":[1,2]})";

TEST_F(BothWaysTest, TheNextTurnsPIsToldWhatDKept) {
  start();
  EXPECT_THAT(turn(0, chat()), Not(HasSubstr("kept")));
  EXPECT_TRUE(page_says("baton_router_kept_conversations 1"));
  EXPECT_THAT(turn(1, second_turn()), HasSubstr(kKept));
  EXPECT_THAT(turn(2, chat(R"(, {"role": "user", "content": "another"})", R"(, "model": "tiny"})")),
              Not(HasSubstr("kept")));
  EXPECT_TRUE(page_says("baton_router_prefixes_given_total 1"));
}

TEST_F(BothWaysTest, WhatWasKeptOfOneSaltIsNotTakenUpByAnother) {
  start();
  const std::string salted = R"(, "cache_salt": "tenant-1"})";
  EXPECT_THAT(turn(0, chat("", salted)), HasSubstr(R"("cache_salt":"tenant-1")"));
  EXPECT_THAT(turn(1, second_turn()), Not(HasSubstr("kept")));
  const std::string second = second_turn();
  EXPECT_THAT(turn(2, second.substr(0, second.size() - 1) + salted), HasSubstr(kKept));
}

TEST_F(BothWaysTest, TheRouterSaysWhichInstancesItHas) {
  p().change([](InstanceInfo& info) { info.incarnation = 0xA1; });
  start();
  const auto listed = parse_upstreams(get(router_->port(), "/baton/upstreams").body);
  ASSERT_TRUE(listed.has_value());
  ASSERT_EQ(listed->size(), 2U);
  EXPECT_EQ(listed->at(0).stage, Stage::kPrefill);
  EXPECT_EQ(listed->at(0).url, p().url());
  EXPECT_EQ(listed->at(0).engine_id, "engine-p1");
  EXPECT_EQ(listed->at(0).incarnation, 0xA1U);
  EXPECT_TRUE(listed->at(0).up);
  EXPECT_EQ(listed->at(1).stage, Stage::kDecode);
  EXPECT_FALSE(parse_upstreams(R"({"error": {}})").has_value());
}

TEST_F(BothWaysTest, AStreamIsKeptToo) {
  start();
  const auto browser = ask(chat("", R"(, "stream": true})"), "/v1/chat/completions");
  announce(p(), 0);
  const Leg decode = d().leg(0);
  decode.open();
  decode.say(first_chunk("One"));
  decode.say(
      chunk(" two", R"(,"kv_transfer_params":{"remote_host":"0.0.0.0","remote_token_ids":[1,2]})"));
  decode.done();
  EXPECT_TRUE(browser->ends());
  EXPECT_THAT(browser->body(), Not(HasSubstr("kv_transfer_params")));
  EXPECT_THAT(turn(1, second_turn()), HasSubstr(kKept));
}

TEST_F(BothWaysTest, AKeeperThatDiedIsNotNamed) {
  add_pulling(0, 1);
  decode_[1]->change([](InstanceInfo& info) { info.incarnation = 8; });
  start();
  turn(0, chat());
  d().stop();
  ASSERT_TRUE(page_says("baton_router_instance_up{stage=\"decode\",url=\"" + d().url() + "\"} 0"));
  const auto browser = ask(second_turn(), "/v1/chat/completions");
  EXPECT_THAT(p().leg(1).request.body, Not(HasSubstr("kept")));
}

TEST_F(BothWaysTest, WhatLapsedIsNotNamed) {
  d().change([](InstanceInfo& info) { info.lease_ms = 0; });
  start();
  turn(0, chat());
  EXPECT_THAT(turn(1, second_turn()), Not(HasSubstr("kept")));
}

TEST_F(BothWaysTest, WithoutRoomForConversationsNothingIsKept) {
  RouterOptions options;
  options.conversations_max = 0;
  start(std::move(options));
  const auto browser = ask(chat(), "/v1/chat/completions");
  announce(p(), 0);
  EXPECT_THAT(d().leg(0).request.body, Not(HasSubstr("keep_blocks")));
}

// ---- modes ----

class ModeTest : public RouterTest {
 protected:
  ModeTest() { add(1, 1); }
  void start_unready(RouteMode mode) {
    RouterOptions options;
    options.port = 0;
    options.upstreams.mode = mode;
    options.upstreams.prefill = {p().url()};
    options.upstreams.decode = {d().url()};
    options.upstreams.poll_interval = options.upstreams.poll_interval_down =
        std::chrono::milliseconds(20);
    router_ = std::move(Router::start(std::move(options)).value());
  }
  bool health_says(const std::string& words) {
    return eventually(
        [&] { return get(router_->port(), "/health").body.find(words) != std::string::npos; });
  }
};

TEST_F(ModeTest, AMixtureIsRefusedWithWhoSaysWhatUntilItIsNone) {
  d().change([](InstanceInfo& info) { info.mode = "pull"; });
  start_unready(RouteMode::kAuto);
  EXPECT_TRUE(health_says("decode " + d().url() + " (engine-d1) says pull"));
  EXPECT_TRUE(health_says("prefill " + p().url() + " (engine-p1) says push"));
  const auto browser = ask(kPlain);
  EXPECT_TRUE(browser->ends());
  EXPECT_EQ(browser->status(), 503);
  EXPECT_THAT(browser->body(), HasSubstr("\"cause\":\"mode_mismatch\""));
  EXPECT_EQ(p().legs() + d().legs(), 0U);
  d().change([](InstanceInfo& info) { info.mode = "push"; });
  EXPECT_TRUE(eventually([this] { return router_->ready(); }));
  const auto pushed = ask(kPlain);
  d().leg(0);  // at once
}

TEST_F(ModeTest, WhatIsNotRoutedIsNamed) {
  start_unready(RouteMode::kPull);
  EXPECT_TRUE(health_says("its mode is 'push', and this router's --mode is pull"));
  for (FakeInstance* instance : {&p(), &d()}) {
    instance->change([](InstanceInfo& info) { info.mode = "pull"; });
  }
  EXPECT_TRUE(eventually([this] { return router_->ready(); }));
  p().change([](InstanceInfo& info) { info.mode = "carry"; });
  EXPECT_TRUE(health_says("its mode is 'carry', and push and pull are routed"));
}

}  // namespace
}  // namespace baton::serving
