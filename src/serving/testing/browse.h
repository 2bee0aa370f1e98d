// HTTP for the tests of servers: one line a call, and waiting for conditions.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "http/client.h"

namespace baton::serving::testing {

inline bool eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

inline http::Call post(std::uint16_t port, const std::string& path, std::string body,
                       http::Headers headers = {}) {
  http::Call call;
  call.method = "POST";
  call.url = "http://127.0.0.1:" + std::to_string(port) + path;
  call.body = std::move(body);
  call.headers = std::move(headers);
  return call;
}

inline http::FetchedResponse get(std::uint16_t port, const std::string& path) {
  auto answer = http::fetch_get("http://127.0.0.1:" + std::to_string(port) + path);
  EXPECT_TRUE(answer.has_value()) << answer.error().message;
  return answer ? *answer : http::FetchedResponse{};
}

// A request whose answer comes bit by bit.
class Browser {
 public:
  explicit Browser(http::Call call) : state_(std::make_shared<State>()) {
    http::CallCallbacks callbacks;
    const auto state = state_;
    callbacks.on_headers = [state](int status, const http::Headers& headers) {
      const std::lock_guard lock(state->mutex);
      state->status = status;
      state->headers = headers;
    };
    callbacks.on_data = [state](std::string_view bytes) {
      const std::lock_guard lock(state->mutex);
      state->body += bytes;
    };
    callbacks.on_end = [state] { state->end(true); };
    callbacks.on_error = [state](const http::CallError&) { state->end(false); };
    client_ = http::Client::start();
    handle_ = client_->send(std::move(call), std::move(callbacks));
  }

  std::string body() const {
    const std::lock_guard lock(state_->mutex);
    return state_->body;
  }
  int status() const {
    const std::lock_guard lock(state_->mutex);
    return state_->status;
  }
  std::string header(std::string_view name) const {
    const std::lock_guard lock(state_->mutex);
    return std::string(state_->headers.get(name));
  }
  // True once `text` is in the body.
  bool sees(const std::string& text) const {
    return eventually([&] { return body().find(text) != std::string::npos; });
  }
  // Waits for the end; true: the answer was whole HTTP.
  bool ends() const {
    EXPECT_TRUE(eventually([&] {
      const std::lock_guard lock(state_->mutex);
      return state_->over;
    })) << "no end of the answer: "
        << body();
    const std::lock_guard lock(state_->mutex);
    return state_->whole;
  }
  void leave() { handle_->cancel(); }

 private:
  struct State {
    std::mutex mutex;
    int status = 0;
    http::Headers headers;
    std::string body;
    bool over = false;
    bool whole = false;
    void end(bool is_whole) {
      const std::lock_guard lock(mutex);
      over = true;
      whole = is_whole;
    }
  };
  std::shared_ptr<State> state_;
  std::unique_ptr<http::Client> client_;
  std::shared_ptr<http::CallHandle> handle_;
};

}  // namespace baton::serving::testing
