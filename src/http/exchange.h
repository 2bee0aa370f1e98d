// One request's answer on its way from whoever writes it, on any thread, to the connection that
// sends it, on the server's thread. Frames the answer as HTTP; knows no socket.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "http/server.h"

namespace baton::http {

struct ExchangeOptions {
  bool keep_alive = true;        // what the request asked for
  bool http_1_0 = false;         // no chunks: the body ends with the connection
  bool head = false;             // HEAD: a head without a body
  std::size_t unsent_limit = 0;  // bytes of a stream
};

class Exchange {
 public:
  // `wake` asks the connection to call take() soon, `run` runs something on the server's thread.
  // Both may be called on any thread, without the lock held.
  Exchange(ExchangeOptions options, std::function<void()> wake,
           std::function<void(std::function<void()>)> run);

  // The writer's side; ResponseWriter says what each does.
  void respond(int status, std::string_view content_type, std::string body, const Headers& extra);
  void start_stream(int status, std::string_view content_type, const Headers& extra);
  bool write(std::string_view chunk);
  void finish();
  void abort();
  void on_closed(std::function<void()> callback);
  bool is_open() const;
  void dropped();  // nobody can write any more

  // The connection's side, on the server's thread.
  struct Portion {
    std::string bytes;  // to send now; empty: nothing to do yet
    bool last = false;  // the answer is complete with these
    bool cut = false;   // close the connection after these
  };
  Portion take();           // what take() gave last is sent when this is called again
  bool is_whole() const;    // the writer has said everything
  bool is_flooded() const;  // the client does not read: close the connection now
  bool keeps_alive() const;
  void stop_keeping_alive();
  void complete();     // everything is sent
  void client_gone();  // runs the callback unless the answer was complete

 private:
  enum class State { kNew, kStreaming, kWhole, kCut, kFlooded };
  void append_head(int status, std::string_view content_type, const Headers& extra,
                   std::string_view length_field);
  bool live() const { return !gone_ && !complete_; }
  void wake_once(std::unique_lock<std::mutex>& lock);

  const std::function<void()> wake_;
  const std::function<void(std::function<void()>)> run_;
  const bool http_1_0_;
  const bool head_;
  const std::size_t unsent_limit_;

  mutable std::mutex mutex_;
  State state_ = State::kNew;
  bool keep_alive_;
  bool gone_ = false;
  bool complete_ = false;
  bool woken_ = false;
  std::string outbox_;
  std::size_t in_flight_ = 0;  // bytes that take() gave out last
  std::function<void()> callback_;
};

// The handle that a Handler gets: the last one to go tells the exchange.
std::shared_ptr<ResponseWriter> make_writer(std::shared_ptr<Exchange> exchange);

// {"error": {...}} in the shape of OpenAI's API. `message` needs no escaping.
std::string error_body(int status, std::string_view message);
// A whole response for a connection that closes after it.
std::string closing_response(int status, std::string_view message);

}  // namespace baton::http
