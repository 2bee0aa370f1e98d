// A completions server that answers as a test says, and knows what it was asked.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "http/server.h"
#include "http/sse.h"

namespace baton::bench::testing {

class FakeServer {
 public:
  using Writer = std::shared_ptr<http::ResponseWriter>;
  // Called on the server's thread with the number of the request, from 0.
  using Answer = std::function<void(std::size_t number, const http::Request&, const Writer&)>;

  // The first `loading` looks at its health find it loading; it lists models all the while.
  explicit FakeServer(Answer answer, int loading = 0)
      : answer_(std::move(answer)), loading_(loading) {
    auto server = http::Server::start({}, [this](http::Request request, Writer writer) {
      if (request.path == "/health" && loading_-- > 0) {
        return writer->respond(503, "application/json", "{}");
      }
      if (request.path == "/v1/models") {
        if (loading_ > 0)
          return writer->respond(200, "application/json", R"({"data":[{"id":"x"}]})");
        return writer->respond(200, "application/json",
                               R"({"data":[{"id":"fake","vocab_size":100}]})");
      }
      if (request.method == "GET") return writer->respond(404, "application/json", "{}");
      answer_(asked_++, request, writer);
    });
    server_ = std::move(server.value());
  }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(server_->port()); }
  std::size_t asked() const { return asked_; }

 private:
  const Answer answer_;
  std::atomic<int> loading_;
  std::atomic<std::size_t> asked_{0};
  std::unique_ptr<http::Server> server_;
};

inline void answer_tokens(const FakeServer::Writer& writer, int tokens) {
  writer->start_stream(200, std::string(http::kSseContentType));
  for (int i = 0; i < tokens; ++i) {
    writer->write(http::format_sse(R"({"choices":[{"index":0,"text":"x"}]})"));
  }
  writer->write(
      http::format_sse(R"({"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":)" +
                       std::to_string(tokens) + "}}"));
  writer->write(http::format_sse("[DONE]"));
  writer->finish();
}

}  // namespace baton::bench::testing
