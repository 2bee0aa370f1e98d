// An instance as a router sees it: an HTTP server that answers as a test says.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "http/server.h"
#include "http/sse.h"
#include "serving/instance_info.h"
#include "serving/testing/browse.h"

namespace baton::serving::testing {

class FakeInstance {
 public:
  FakeInstance(std::string engine_id, std::string role) : engine_id_(std::move(engine_id)) {
    info_.ready = true;
    info_.version = "0";
    info_.engine_id = engine_id_;
    info_.incarnation = 7;
    info_.role = std::move(role);
    info_.mode = "push";
    info_.handover_host = "127.0.0.1";
    info_.handover_port = 5600;
    info_.models = {"tiny"};
    info_.kv_load_failure_policy = "fail";
    start(0);
  }
  ~FakeInstance() { stop(); }

  // 0: any port. One that it had may be somebody's outgoing connection's for a while.
  void start(std::uint16_t port) {
    http::ServerOptions options;
    options.port = port;
    ASSERT_TRUE(eventually([&] {
      auto server = http::Server::start(
          options, [this](http::Request request, std::shared_ptr<http::ResponseWriter> w) {
            handle(std::move(request), std::move(w));
          });
      if (server) server_ = std::move(*server);
      return server.has_value();
    })) << port;
    port_ = server_->port();
  }
  void stop() {
    if (server_) server_->stop(Duration::zero());
    server_.reset();
  }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  std::uint16_t port() const { return port_; }

  void change(const std::function<void(InstanceInfo&)>& edit) {
    const std::lock_guard lock(mutex_);
    edit(info_);
  }
  void answer_polls(bool answers) { answers_polls_ = answers; }

  // The i-th completion request: waited for, then answered by the test.
  struct Leg {
    http::Request request;
    std::shared_ptr<http::ResponseWriter> writer;
    std::shared_ptr<std::atomic<bool>> closed;  // by the router, before the answer was complete

    void open() const { writer->start_stream(200, "text/event-stream"); }
    void say(const std::string& data) const { writer->write(http::format_sse(data)); }
    void done() const {
      say("[DONE]");
      writer->finish();
    }
    void refuse(int status, const std::string& message) const {
      writer->respond(status, "application/json",
                      R"({"error":{"message":")" + message + R"(","param":"prompt"}})");
    }
    bool is_closed() const {
      return eventually([this] { return closed->load(); });
    }
  };
  Leg leg(std::size_t i) {
    EXPECT_TRUE(eventually([&] { return legs() > i; })) << engine_id_ << " was not asked";
    const std::lock_guard lock(mutex_);
    return legs_.at(i);
  }
  std::size_t legs() const {
    const std::lock_guard lock(mutex_);
    return legs_.size();
  }

 private:
  void handle(http::Request request, std::shared_ptr<http::ResponseWriter> writer) {
    const std::lock_guard lock(mutex_);
    if (request.path == "/baton/instance") {
      if (answers_polls_) return writer->respond(200, "application/json", to_json(info_));
      return held_.push_back(std::move(writer));
    }
    if (request.path == "/baton/watch") {
      writer->start_stream(200, "text/plain");
      return held_.push_back(std::move(writer));
    }
    Leg leg{std::move(request), std::move(writer), std::make_shared<std::atomic<bool>>(false)};
    leg.writer->on_closed([closed = leg.closed] { *closed = true; });
    legs_.push_back(std::move(leg));
  }

  const std::string engine_id_;
  mutable std::mutex mutex_;
  InstanceInfo info_;
  std::atomic<bool> answers_polls_{true};
  std::vector<Leg> legs_;
  std::vector<std::shared_ptr<http::ResponseWriter>> held_;
  std::unique_ptr<http::Server> server_;
  std::uint16_t port_ = 0;
};

}  // namespace baton::serving::testing
