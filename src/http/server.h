// An HTTP/1.1 server on one thread of its own. No input ends it: a malformed request is answered
// with a JSON error and closes that connection only. Bodies are read whole before the handler sees
// them; answers are whole or streamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "baton/result.h"
#include "http/message.h"

namespace baton::http {

// The one answer to one request. Any thread may call, also after the client or the server is gone:
// such calls have no effect. Calls are carried out in the order made. Call respond() once, or
// start_stream(), write()s and finish(). A writer that is dropped before its answer is complete
// answers 500, or cuts the stream off, so that no client waits for an answer that nobody will give.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;

  virtual void respond(int status, std::string content_type, std::string body,
                       Headers extra = {}) = 0;

  // A body of unknown length (chunked; for HTTP/1.0 it ends with the connection). The head is sent
  // at once.
  virtual void start_stream(int status, std::string content_type, Headers extra = {}) = 0;
  // False: the client is gone, or was closed because it does not read
  // (ServerOptions::send_buffer_limit). Never waits.
  virtual bool write(std::string chunk) = 0;
  virtual void finish() = 0;

  // Cuts the connection without the mark that ends a body: the client sees that the answer is not
  // complete.
  virtual void abort() = 0;

  // Runs once, on the server's thread, as soon as the client is known to be gone before its answer
  // was sent to the end: it closed or half-closed the connection, did not read, or the server
  // stops. If that has happened already, it runs soon after the call, once the server has stopped
  // on the calling thread. Never after the answer was sent or aborted. The callback must not block
  // and is dropped after the answer. Replaces an earlier one.
  virtual void on_closed(std::function<void()> callback) = 0;
  // False once the client is known to be gone or the answer is complete.
  virtual bool is_open() const = 0;
};

// Called on the server's thread; must not block. Keep the writer to answer later from any thread.
// An exception that leaves it is answered with 500.
using Handler = std::function<void(Request, std::shared_ptr<ResponseWriter>)>;

struct ServerOptions {
  std::string host = "127.0.0.1";       // an IPv4 or IPv6 address, or a name that resolves to one
  std::uint16_t port = 0;               // 0: any free port, see Server::port
  std::size_t header_limit = 64 << 10;  // bytes of request line and headers; more is 431
  // Bytes; more is 413. The one thread reads a body as JSON while everybody else waits: what takes
  // longer than --peer-timeout has the instance given up as silent.
  std::size_t body_limit = 4 << 20;
  std::size_t send_buffer_limit =
      8 << 20;  // bytes of a stream that wait for a client which does not read
  std::size_t max_connections = 4096;                // more are answered 503 and closed
  Duration idle_timeout = std::chrono::seconds(75);  // a kept connection without a request
  Duration read_timeout = std::chrono::seconds(30);  // from a request's first byte to its last; 408
  Duration write_timeout =
      std::chrono::seconds(30);  // the client takes no byte of what waits for it
};

class Server {
 public:
  // Binds and serves. A port in use, an unknown host and the like are errors that name host and
  // port.
  static Result<std::unique_ptr<Server>> start(ServerOptions options, Handler handler);
  virtual ~Server() = default;  // as stop(0)

  virtual std::uint16_t port() const = 0;  // the bound one
  virtual std::size_t open_connections() const = 0;

  // Accepts no more, lets running answers end for as long as `grace`, then closes them (their
  // on_closed fires). Returns when the thread has ended. Not from the server's own thread. Calling
  // again does nothing.
  virtual void stop(Duration grace) = 0;
};

}  // namespace baton::http
