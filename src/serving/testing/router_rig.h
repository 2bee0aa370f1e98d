// A router over instances that do what a test says.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "serving/router.h"
#include "serving/testing/browse.h"
#include "serving/testing/fake_instance.h"
#include "serving/upstream_list.h"

namespace baton::serving::testing {

inline constexpr char kStream[] = R"({"prompt": "hi", "stream": true, "temperature": 0})";
inline constexpr char kPlain[] = R"({"prompt": "hi", "temperature": 0})";

inline std::string prefilled(const std::string& text = "One") {
  return R"({"object":"baton.prefilled","first_token":{"id":1,"text":")" + text + "\"}}";
}
// Of a P that is pulled from.
inline std::string announced(const std::string& ids = "[[7,8]]") {
  return R"({"object":"baton.prefilled","first_token":{"id":1,"text":"One"},"kv_transfer_params":)"
         R"({"transfer_mode":"pull","remote_num_tokens":20,"remote_announcement":"0a",)"
         R"("remote_block_ids":)" +
         ids + "}}";
}
inline constexpr char kHandedOver[] =
    R"({"object":"baton.handover","outcome":"done","cause":"none","text":"","baton":{"bytes":5}})";

inline std::string chunk(const std::string& text, const std::string& more = "") {
  return R"({"id":"x","choices":[{"index":0,"text":")" + text + "\"}]" + more + "}";
}
inline std::string first_chunk(const std::string& text) {
  return chunk(text, R"(,"baton":{"first_token":true})");
}

inline std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

class RouterTest : public ::testing::Test {
 protected:
  void TearDown() override { router_.reset(); }

  void start(Duration request_timeout = std::chrono::seconds(600),
             Duration peer_timeout = std::chrono::seconds(30)) {
    start(RouterOptions(), request_timeout, peer_timeout);
  }
  void start(RouterOptions options, Duration request_timeout = std::chrono::seconds(600),
             Duration peer_timeout = std::chrono::seconds(30)) {
    options.port = 0;
    options.request_timeout = request_timeout;
    options.upstreams.peer_timeout = peer_timeout;
    options.upstreams.poll_interval = options.upstreams.poll_interval_down =
        std::chrono::milliseconds(20);
    for (const auto& instance : prefill_) options.upstreams.prefill.push_back(instance->url());
    for (const auto& instance : decode_) options.upstreams.decode.push_back(instance->url());
    router_ = std::move(Router::start(std::move(options)).value());
    ASSERT_TRUE(eventually([this] { return all_up(); }));
  }
  // More than ready(), which one of each stage is enough for.
  bool all_up() {
    const auto listed = parse_upstreams(get(router_->port(), "/baton/upstreams").body);
    return listed && std::all_of(listed->begin(), listed->end(),
                                 [](const UpstreamEntry& entry) { return entry.up; });
  }
  std::unique_ptr<Browser> ask(std::string body, const std::string& path = "/v1/completions",
                               http::Headers headers = {}) {
    return std::make_unique<Browser>(
        post(router_->port(), path, std::move(body), std::move(headers)));
  }
  FakeInstance& p() { return *prefill_[0]; }
  FakeInstance& d() { return *decode_[0]; }
  void add(int prefills, int decodes) {
    for (int i = 1; i <= prefills; ++i) {
      prefill_.push_back(
          std::make_unique<FakeInstance>("engine-p" + std::to_string(i), "kv_producer"));
    }
    for (int i = 1; i <= decodes; ++i) {
      decode_.push_back(
          std::make_unique<FakeInstance>("engine-d" + std::to_string(i), "kv_consumer"));
    }
  }
  // What every error of the router's own must say.
  void expect_names_everything(const std::string& body) {
    for (const char* part : {"engine-p1", "engine-d1", "transfer ", "\"cause\":"}) {
      EXPECT_THAT(body, ::testing::HasSubstr(part));
    }
  }

  std::vector<std::unique_ptr<FakeInstance>> prefill_, decode_;
  std::unique_ptr<Router> router_;
};

class PairTest : public RouterTest {
 protected:
  PairTest() { add(1, 1); }
};

}  // namespace baton::serving::testing
