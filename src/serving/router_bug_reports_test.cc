// Faults that users of other routers reported, tried on this one. The numbers are those of the
// table in docs/testing.md.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>

#include "serving/process_limits.h"
#include "serving/testing/router_rig.h"

namespace baton::serving {
namespace {

using namespace testing;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Leg = FakeInstance::Leg;

class RouterBugReports : public PairTest {
 protected:
  static constexpr int kAtOnce = 16;

  std::vector<std::unique_ptr<Browser>> ask_many(const std::string& body, int n = kAtOnce) {
    std::vector<std::unique_ptr<Browser>> browsers;
    for (int i = 0; i < n; ++i) browsers.push_back(ask(body));
    return browsers;
  }
  void expect_nothing_left() {
    EXPECT_TRUE(eventually([this] {
      const std::string page = get(router_->port(), "/metrics").body;
      return count(page, "baton_router_requests_running 0") == 1;
    }));
  }
};

TEST_F(RouterBugReports, B06a_ADecodePortThatIsClosedIsToldAtOnceAndPIsDropped) {
  start();
  d().answer_polls(false);  // so that only the legs find out
  d().stop();
  const auto browsers = ask_many(kStream);
  for (const auto& browser : browsers) {
    EXPECT_TRUE(browser->ends());
    EXPECT_THAT(browser->status(), AnyOf(502, 503));
  }
  for (std::size_t i = 0; i < p().legs(); ++i) EXPECT_TRUE(p().leg(i).is_closed());
  expect_nothing_left();
}

TEST_F(RouterBugReports, B06b_ADecodeInstanceThatNeverAnswersEndsAtTheLimit) {
  start(std::chrono::seconds(2));  // all legs begin before
  const auto browsers = ask_many(kStream);
  for (const auto& browser : browsers) {
    EXPECT_TRUE(browser->ends());
    EXPECT_EQ(browser->status(), 504);
    expect_names_everything(browser->body());
  }
  for (std::size_t i = 0; i < kAtOnce; ++i) {
    EXPECT_TRUE(p().leg(i).is_closed());
    EXPECT_TRUE(d().leg(i).is_closed());
  }
  expect_nothing_left();
}

TEST_F(RouterBugReports, B06c_ADecodeInstanceThatResetsEndsTheStreamWithAnErrorNotInSilence) {
  start();
  const auto browsers = ask_many(kStream);
  for (std::size_t i = 0; i < kAtOnce; ++i) {
    d().leg(i).open();
    d().leg(i).say(first_chunk("One"));
  }
  for (const auto& browser : browsers) EXPECT_TRUE(browser->sees("One"));
  for (std::size_t i = 0; i < kAtOnce; ++i) d().leg(i).writer->abort();
  for (const auto& browser : browsers) {
    browser->ends();
    EXPECT_THAT(browser->body(), HasSubstr("event: error"));
    EXPECT_THAT(browser->body(), Not(HasSubstr("[DONE]")));
    expect_names_everything(browser->body());
  }
  for (std::size_t i = 0; i < kAtOnce; ++i) EXPECT_TRUE(p().leg(i).is_closed());
  expect_nothing_left();
}

TEST_F(RouterBugReports, B06d_APrefillThatFailsCancelsTheDecodeThatWaitsForIt) {
  start();
  const auto browsers = ask_many(kPlain);
  for (std::size_t i = 0; i < kAtOnce; ++i) {
    d().leg(i);
    p().leg(i).refuse(500, "out of luck");
  }
  for (const auto& browser : browsers) {
    EXPECT_TRUE(browser->ends());
    EXPECT_EQ(browser->status(), 502);
    EXPECT_THAT(browser->body(), HasSubstr("out of luck"));
  }
  for (std::size_t i = 0; i < kAtOnce; ++i) EXPECT_TRUE(d().leg(i).is_closed());
  expect_nothing_left();
}

TEST_F(RouterBugReports, B09_WhatDecodeRefusesIsTheClientsAndPIsDroppedAtOnce) {
  start();
  for (std::size_t i = 0; i < 50; ++i) {
    const auto browser = ask(kStream);
    p().leg(i).open();
    p().leg(i).say(prefilled());  // P has finished and holds its blocks
    d().leg(i).refuse(400, "the prompt has 9 tokens, 8 are allowed");
    browser->ends();
    EXPECT_THAT(browser->body(), HasSubstr("the prompt has 9 tokens, 8 are allowed"));
    EXPECT_THAT(browser->body(), Not(HasSubstr("[DONE]")));
    EXPECT_TRUE(p().leg(i).is_closed());
  }
  expect_nothing_left();
}

class RouterRoles : public RouterTest {
 protected:
  void expect_missing(const std::string& role) {
    RouterOptions options;
    options.port = 0;
    options.upstreams.poll_interval = options.upstreams.poll_interval_down =
        std::chrono::milliseconds(20);
    for (const auto& instance : prefill_) options.upstreams.prefill.push_back(instance->url());
    for (const auto& instance : decode_) options.upstreams.decode.push_back(instance->url());
    router_ = std::move(Router::start(std::move(options)).value());
    const std::string words = "no " + role + " instance is ready";
    EXPECT_TRUE(eventually(
        [&] { return get(router_->port(), "/health").body.find(words) != std::string::npos; }));
    const auto browser = ask(kPlain);
    EXPECT_TRUE(browser->ends());
    EXPECT_EQ(browser->status(), 503);
    EXPECT_EQ(browser->header("Retry-After"), "1");
    EXPECT_THAT(browser->body(), HasSubstr(words));
    EXPECT_THAT(browser->body(), HasSubstr("\"cause\":\"no_" + role + "_instance\""));
    router_.reset();
  }
};

TEST_F(RouterRoles, B45_AMissingRoleIs503AndNamed) {
  add(1, 0);
  expect_missing("decode");
  prefill_.clear();
  expect_missing("prefill");
  add(0, 1);
  expect_missing("prefill");
}

TEST_F(RouterRoles, B45_ADecodeInstanceThatStartsUpIsAMissingOne) {
  add(1, 1);
  d().change([](InstanceInfo& info) { info.ready = false; });
  expect_missing("decode");
}

TEST_F(RouterBugReports, B45_AFullInstanceIs429WithAHint) {
  start();
  for (const bool by_prefill : {true, false}) {
    const std::size_t i = by_prefill ? 0 : 1;
    const auto browser = ask(kStream);
    const Leg prefill = p().leg(i), decode = d().leg(i);
    (by_prefill ? prefill : decode).refuse(429, "4096 requests wait already");
    EXPECT_TRUE(browser->ends());
    EXPECT_EQ(browser->status(), 429);
    EXPECT_EQ(browser->header("Retry-After"), "1");
    EXPECT_THAT(browser->body(), HasSubstr("4096 requests wait already"));
    EXPECT_TRUE((by_prefill ? decode : prefill).is_closed());
  }
}

TEST_F(RouterRoles, B49_EnginesWithoutAConnectorAreNotRoutedTo) {
  add(1, 1);
  d().change([](InstanceInfo& info) { info.role = info.mode = info.engine_id = ""; });
  expect_missing("decode");
}

// An instance that answers at once, and counts who connects.
class StubInstance {
 public:
  explicit StubInstance(bool is_prefill) {
    info_.ready = true;
    info_.version = "0";
    info_.engine_id = is_prefill ? "p" : "d";
    info_.incarnation = 7;
    info_.role = is_prefill ? "kv_producer" : "kv_consumer";
    info_.mode = "push";
    info_.handover_host = "127.0.0.1";
    info_.handover_port = 5600;
    info_.models = {"tiny"};
    info_.kv_load_failure_policy = "fail";
    server_ = std::move(http::Server::start({}, [this, is_prefill](const http::Request& request,
                                                                   const Writer& writer) {
                          handle(is_prefill, request, writer);
                        }).value());
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(server_->port()); }
  std::size_t connections() {
    const std::lock_guard lock(mutex_);
    return peers_.size();
  }
  void forget() {
    const std::lock_guard lock(mutex_);
    peers_.clear();
  }

 private:
  using Writer = std::shared_ptr<http::ResponseWriter>;

  void handle(bool is_prefill, const http::Request& request, const Writer& writer) {
    if (request.path == "/baton/instance") {
      return writer->respond(200, "application/json", to_json(info_));
    }
    if (request.path == "/baton/watch") {
      writer->start_stream(200, "text/plain");
      watches_.push_back(writer);
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      peers_.insert(request.peer);
    }
    if (!is_prefill) {
      return writer->respond(200, "application/json", R"({"choices":[{"text":"One"}]})");
    }
    writer->start_stream(200, "text/event-stream");
    for (const std::string& event :
         {prefilled(), std::string(kHandedOver), std::string("[DONE]")}) {
      writer->write(http::format_sse(event));
    }
    writer->finish();
  }

  InstanceInfo info_;
  std::mutex mutex_;
  std::set<std::string> peers_;
  std::vector<Writer> watches_;  // the server's thread
  std::unique_ptr<http::Server> server_;
};

// Requests that are asked for at once.
class Wave {
 public:
  explicit Wave(std::uint16_t port) : port_(port) {}

  // Over once all have been answered and the router has every leg's connection back, which may be a
  // moment after the answer.
  void run(int requests) {
    running_ = requests;
    for (int i = 0; i < requests; ++i) send();
    ASSERT_TRUE(eventually([this] { return running_ == 0; })) << running_ << " have not ended";
    ASSERT_TRUE(eventually([this] { return !has_legs(); })) << "legs are under way";
  }
  int failures() const { return failures_; }

 private:
  void send() {
    const auto status = std::make_shared<int>(0);
    http::CallCallbacks callbacks;
    callbacks.on_headers = [status](int code, const http::Headers&) { *status = code; };
    const auto end = [this, status](bool whole) {
      if (!whole || *status != 200) ++failures_;
      --running_;
    };
    callbacks.on_end = [end] { end(true); };
    callbacks.on_error = [end](const http::CallError&) { end(false); };
    client_->send(post(port_, "/v1/completions", kPlain), std::move(callbacks));
  }
  bool has_legs() const {
    const std::string page = get(port_, "/metrics").body;
    const std::string name = "\nbaton_router_instance_running{";
    int known = 0;
    for (auto at = page.find(name); at != std::string::npos; at = page.find(name, at + 1)) {
      const std::string line = page.substr(at + 1, page.find('\n', at + 1) - at - 1);
      if (!line.ends_with("} 0")) return true;
      ++known;
    }
    EXPECT_EQ(known, 2);
    return false;
  }

  const std::uint16_t port_;
  std::atomic<int> running_ = 0, failures_ = 0;
  std::unique_ptr<http::Client> client_ = http::Client::start();
};

TEST(RouterConnections, B39_GrowWithTheRequestsAtOnceAndNotWithTheirNumber) {
  raise_open_files();
  const std::int64_t files = process_limits().open_files_max;  // -1: any number
  const auto many = static_cast<int>(files < 0 ? 2000 : std::min<std::int64_t>(2000, files / 7));
  StubInstance prefill(true), decode(false);
  RouterOptions options;
  options.port = 0;
  options.upstreams.prefill = {prefill.url()};
  options.upstreams.decode = {decode.url()};
  const auto router = std::move(Router::start(std::move(options)).value());
  ASSERT_TRUE(eventually([&] { return router->ready(); }));
  for (const auto& [at_once, waves] : {std::pair{1, 500}, {64, 30}, {512, 4}, {many, 1}}) {
    prefill.forget();
    decode.forget();
    Wave wave(router->port());
    for (int i = 0; i < waves; ++i) wave.run(at_once);
    EXPECT_EQ(wave.failures(), 0);
    // And the router's own question, whether the instance lives, which may be under way.
    const auto most = static_cast<std::size_t>(at_once) + 1;
    EXPECT_LE(prefill.connections(), most) << waves << " waves";
    EXPECT_LE(decode.connections(), most) << waves << " waves";
    std::printf("%d times %d requests at once: %zu and %zu connections\n", waves, at_once,
                prefill.connections(), decode.connections());
  }
}

}  // namespace
}  // namespace baton::serving
