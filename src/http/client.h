// An HTTP/1.1 client for http:// addresses: many calls at once on one thread of its own, a
// connection each, so that cancelling a call is closing its connection, which the server notices at
// once. A connection whose call ended well is kept for the next one for a few seconds: connections
// grow with the calls that run at once, not with their number. One that the server closed meanwhile
// is found out before anything is sent on it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "baton/result.h"
#include "http/message.h"
#include "http/resolve.h"

namespace baton::http {

struct Url {
  std::string host;  // without the brackets of an IPv6 address
  std::uint16_t port = 80;
  std::string target;  // path and query, at least "/"
};
Result<Url> parse_url(std::string_view text);

struct Call {
  std::string method = "GET";
  std::string url;       // "http://host:port/path?query"
  Headers headers = {};  // beside Host, Connection and Content-Length, which the client sets
  std::string body = {};
  // Where to connect to, in this order, instead of looking the url's host up.
  Addresses addresses = {};
  Duration connect_timeout = std::chrono::seconds(2);  // names resolved, connection made
  Duration idle_timeout = Duration::max();  // without a byte from the server after the request
  Duration timeout = Duration::max();       // for the whole call
};

enum class CallFailure {
  kBadUrl,
  kRefused,      // nobody listens there
  kUnreachable,  // no route, unknown name, other trouble before the connection stood
  kTimedOut,     // a time of Call passed; the message says which
  kReset,        // the connection broke
  kClosedEarly,  // the server closed before its answer was complete
  kMalformed,    // what came is not HTTP
  kCancelled,    // cancel(), or the client was destroyed
};
std::string_view to_string(CallFailure failure);

struct CallError {
  CallFailure failure = CallFailure::kReset;
  std::string message;          // names the address
  bool answer_started = false;  // on_headers was called
  bool connected = false;       // the request may have reached the server
};

// All on the client's thread; must not block; each may be empty. on_headers at most once, then
// on_data as bytes come, then exactly one of on_end and on_error. That one is always called, also
// after cancel(), and is the last.
struct CallCallbacks {
  std::function<void(int status, const Headers&)> on_headers;
  std::function<void(std::string_view)> on_data;
  std::function<void()> on_end;
  std::function<void(const CallError&)> on_error;
};

// A running call. Dropping the handle does not end the call.
class CallHandle {
 public:
  virtual ~CallHandle() = default;
  // Any thread. Closes the connection now; on_error(kCancelled) follows on the client's thread
  // unless the call has ended already. May be called again.
  virtual void cancel() = 0;
};

class Client {
 public:
  static std::unique_ptr<Client> start();
  // Cancels what runs, waits for the callbacks to end. Not from a callback.
  virtual ~Client() = default;

  // Any thread, callbacks included. Never calls back before it returns, unless on another thread.
  virtual std::shared_ptr<CallHandle> send(Call call, CallCallbacks callbacks) = 0;
};

struct FetchedResponse {
  int status = 0;
  Headers headers;
  std::string body = {};
};
// For tests and tools: one call, waited for. Call::timeout bounds it (30 s where none is set), the
// look-up of the host's name included, which no Client could end. A body over 64 MiB is an error.
Result<FetchedResponse> fetch(Call call, const Lookup& lookup = look_up);
inline Result<FetchedResponse> fetch_get(std::string url) {
  Call call;
  call.url = std::move(url);
  return fetch(std::move(call));
}

}  // namespace baton::http
