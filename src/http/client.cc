#include "http/client.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>

#include <atomic>
#include <boost/asio/buffer.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <charconv>
#include <future>
#include <mutex>
#include <thread>
#include <unordered_set>

#include "base/log.h"
#include "http/deadline.h"
#include "http/kept_connections.h"

namespace baton::http {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::size_t kAnswerReadSize = 16 << 10;
constexpr std::size_t kFetchLimit = 64 << 20;

// A body that is handed on as it comes.
struct PassingBody {
  struct value_type {
    std::function<void(std::string_view)> pass;
  };
  class reader {
   public:
    template <bool kIsRequest, class Fields>
    reader(beast::http::header<kIsRequest, Fields>&, value_type& value) : value_(value) {}
    void init(const boost::optional<std::uint64_t>&, error_code& error) { error = {}; }
    template <class Buffers>
    std::size_t put(const Buffers& buffers, error_code& error) {
      error = {};
      std::size_t size = 0;
      for (const asio::const_buffer buffer : beast::buffers_range_ref(buffers)) {
        value_.pass({static_cast<const char*>(buffer.data()), buffer.size()});
        size += buffer.size();
      }
      return size;
    }
    void finish(error_code& error) { error = {}; }

   private:
    value_type& value_;
  };
};

class RunningCall;

// What calls share with the client; a handle that outlives the client keeps it.
struct ClientCore {
  template <typename Task>
  void run(Task&& task) {
    const std::lock_guard lock(mutex);
    if (running) asio::post(io, std::forward<Task>(task));
  }

  asio::io_context io{1};
  std::mutex mutex;
  bool running = true;                                     // guarded by mutex
  std::unordered_set<std::shared_ptr<RunningCall>> calls;  // on the client's thread only
  KeptConnections kept;                                    // likewise
  bool stopping = false;
};

// Everything but cancel() is on the client's thread.
class RunningCall final : public CallHandle, public std::enable_shared_from_this<RunningCall> {
 public:
  RunningCall(std::shared_ptr<ClientCore> core, Call call, CallCallbacks callbacks)
      : core_(std::move(core)),
        call_(std::move(call)),
        callbacks_(std::move(callbacks)),
        resolver_(core_->io),
        socket_(core_->io) {}

  void begin();
  void cancel() override;
  void fail_cancelled() { fail(CallFailure::kCancelled, "the call was cancelled"); }

 private:
  using Parser = beast::http::response_parser<PassingBody>;

  std::vector<tcp::endpoint> known_endpoints() const;
  void connect(const tcp::resolver::results_type& found);
  void on_connected(const error_code& error);
  void on_open();
  std::string place() const { return fmt::format("{} {}", url_.host, url_.port); }
  bool may_be_kept() const;
  std::string request_bytes() const;
  void new_parser();
  void read();
  void on_read(const error_code& error, std::size_t size);
  void parse();
  void announce();
  void pass(std::string_view bytes);
  void on_end_of_stream();
  void succeed();
  void fail(CallFailure failure, std::string message);
  bool retire();
  bool wanted() const { return !done_ && !cancelled_; }

  const std::shared_ptr<ClientCore> core_;
  Call call_;
  CallCallbacks callbacks_;
  Url url_;
  tcp::resolver resolver_;
  tcp::socket socket_;
  std::shared_ptr<Deadline> connect_deadline_;
  std::shared_ptr<Deadline> idle_deadline_;
  std::shared_ptr<Deadline> deadline_;
  std::string request_;
  beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  bool connected_ = false;
  bool announced_ = false;
  bool done_ = false;
  bool is_sent_ = false;  // the whole request has left
  std::atomic<bool> cancelled_{false};
};

void RunningCall::begin() {
  if (core_->stopping || cancelled_) return fail_cancelled();
  auto url = parse_url(call_.url);
  if (!url) return fail(CallFailure::kBadUrl, url.error().message);
  url_ = std::move(*url);
  request_ = request_bytes();
  const auto make = [&](Duration after, std::string_view what) {
    auto deadline = std::make_shared<Deadline>(core_->io, [weak = weak_from_this(), what] {
      const auto self = weak.lock();
      if (self == nullptr) return;
      self->fail(CallFailure::kTimedOut, fmt::format("{} took too long", what));
    });
    deadline->set_after(after);
    return deadline;
  };
  deadline_ = make(call_.timeout, "the whole call");
  connect_deadline_ = make(call_.connect_timeout, "connecting");
  idle_deadline_ = make(Duration::max(), "waiting for the server's next byte");

  if (auto kept = core_->kept.take(place())) {
    socket_ = std::move(*kept);
    return on_open();
  }
  if (auto known = known_endpoints(); !known.empty()) {
    return connect(tcp::resolver::results_type::create(known.begin(), known.end(), url_.host, ""));
  }
  resolver_.async_resolve(
      url_.host, std::to_string(url_.port), tcp::resolver::numeric_service,
      [self = shared_from_this()](error_code error, const tcp::resolver::results_type& found) {
        if (self->done_) return;
        if (error) return self->fail(CallFailure::kUnreachable, error.message());
        self->connect(found);
      });
}

// None: a name, to be looked up.
std::vector<tcp::endpoint> RunningCall::known_endpoints() const {
  std::vector<tcp::endpoint> known;
  for (const std::string& text : call_.addresses.empty() ? Addresses{url_.host} : call_.addresses) {
    error_code not_numeric;
    const auto address = asio::ip::make_address(text, not_numeric);
    if (!not_numeric) known.emplace_back(address, url_.port);
  }
  return known;
}

void RunningCall::connect(const tcp::resolver::results_type& found) {
  asio::async_connect(socket_, found,
                      [self = shared_from_this()](error_code error, const tcp::endpoint&) {
                        self->on_connected(error);
                      });
}

void RunningCall::on_connected(const error_code& error) {
  if (done_) return;
  if (error == asio::error::connection_refused) {
    return fail(CallFailure::kRefused, "nobody listens there");
  }
  if (error) return fail(CallFailure::kUnreachable, error.message());
  error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  ::fcntl(socket_.native_handle(), F_SETFD, FD_CLOEXEC);
  on_open();
}

void RunningCall::on_open() {
  connected_ = true;
  connect_deadline_->clear();
  idle_deadline_->set_after(call_.idle_timeout);
  new_parser();
  // A server may answer, and close, before it took the whole request: what the reading side finds
  // decides, so an error of writing is not looked at.
  asio::async_write(
      socket_, asio::buffer(request_),
      [self = shared_from_this()](error_code error, std::size_t) { self->is_sent_ = !error; });
  read();
}

std::string RunningCall::request_bytes() const {
  const auto clean = [](std::string text) {
    std::erase_if(text, [](char c) { return c == '\r' || c == '\n' || c == '\0'; });
    return text;
  };
  const bool v6 = url_.host.find(':') != std::string::npos;
  std::string out = fmt::format("{} {} HTTP/1.1\r\nHost: {}{}{}:{}\r\n", clean(call_.method),
                                url_.target, v6 ? "[" : "", url_.host, v6 ? "]" : "", url_.port);
  for (const auto& [name, value] : call_.headers) {
    out.append(clean(name)).append(": ").append(clean(value)).append("\r\n");
  }
  if (!call_.body.empty() || call_.method == "POST" || call_.method == "PUT") {
    out.append(fmt::format("Content-Length: {}\r\n", call_.body.size()));
  }
  return out.append("\r\n").append(call_.body);
}

void RunningCall::new_parser() {
  parser_.emplace();
  parser_->eager(true);
  parser_->skip(call_.method == "HEAD");
  parser_->body_limit(boost::none);
  parser_->header_limit(64 << 10);
  parser_->get().body().pass = [this](std::string_view bytes) { pass(bytes); };
}

void RunningCall::read() {
  socket_.async_read_some(buffer_.prepare(kAnswerReadSize),
                          [self = shared_from_this()](error_code error, std::size_t size) {
                            self->on_read(error, size);
                          });
}

void RunningCall::on_read(const error_code& error, std::size_t size) {
  if (done_) return;
  if (error == asio::error::eof) return on_end_of_stream();
  if (error) return fail(CallFailure::kReset, error.message());
  idle_deadline_->set_after(call_.idle_timeout);
  buffer_.commit(size);
  parse();
}

void RunningCall::parse() {
  error_code error;
  while (buffer_.size() > 0 && !done_) {
    const std::size_t used = parser_->put(buffer_.data(), error);
    buffer_.consume(used);
    if (error == beast::http::error::need_more) {
      error = {};
      break;
    }
    const bool has_header = parser_->is_header_done();
    if (has_header && !error && parser_->get().result_int() / 100 == 1) {
      new_parser();  // "100 Continue" and its like come before the answer
      continue;
    }
    if (has_header) announce();
    if (error) return fail(CallFailure::kMalformed, "the answer is not well-formed HTTP/1.1");
    if (parser_->is_done()) return succeed();
    if (used == 0) break;
  }
  if (!done_ && parser_->is_done()) return succeed();
  if (!done_) read();
}

void RunningCall::announce() {
  if (announced_ || !wanted()) return;
  announced_ = true;
  const auto& message = parser_->get();
  Headers headers;
  for (const auto& field : message.base()) {
    headers.add({field.name_string().data(), field.name_string().size()},
                {field.value().data(), field.value().size()});
  }
  if (callbacks_.on_headers) {
    callbacks_.on_headers(static_cast<int>(message.result_int()), headers);
  }
}

void RunningCall::pass(std::string_view bytes) {
  announce();
  if (wanted() && callbacks_.on_data) callbacks_.on_data(bytes);
}

void RunningCall::on_end_of_stream() {
  error_code error;
  if (parser_->got_some()) parser_->put_eof(error);
  if (!error && parser_->is_done()) {
    announce();
    return succeed();
  }
  fail(CallFailure::kClosedEarly, announced_ ? "the server closed before its answer was complete"
                                             : "the server closed without an answer");
}

// True: this ends the call, and nothing has before.
bool RunningCall::retire() {
  if (done_) return false;
  done_ = true;
  error_code ignored;
  resolver_.cancel();
  socket_.close(ignored);
  for (const auto& deadline : {deadline_, connect_deadline_, idle_deadline_}) {
    if (deadline != nullptr) deadline->cancel();
  }
  core_->calls.erase(shared_from_this());
  return true;
}

void RunningCall::succeed() {
  const auto self = shared_from_this();
  if (cancelled_) return fail_cancelled();
  if (may_be_kept()) core_->kept.keep(place(), std::move(socket_));
  if (!retire()) return;
  const CallCallbacks callbacks = std::move(callbacks_);
  if (callbacks.on_end) callbacks.on_end();
}

// Both sides have said everything and agree to go on.
bool RunningCall::may_be_kept() const {
  return !done_ && !core_->stopping && is_sent_ && parser_->is_done() && buffer_.size() == 0 &&
         parser_->get().keep_alive() && !parser_->need_eof() && socket_.is_open();
}

void RunningCall::fail(CallFailure failure, std::string message) {
  const auto self = shared_from_this();
  if (!retire()) return;
  const CallCallbacks callbacks = std::move(callbacks_);
  CallError error;
  error.failure = cancelled_ ? CallFailure::kCancelled : failure;
  error.message = fmt::format("{}: {}", call_.url, message);
  error.answer_started = announced_;
  error.connected = connected_;
  if (callbacks.on_error) callbacks.on_error(error);
}

void RunningCall::cancel() {
  if (cancelled_.exchange(true)) return;
  core_->run([self = shared_from_this()] { self->fail_cancelled(); });
}

class ClientImpl final : public Client {
 public:
  ClientImpl() : work_(core_->io.get_executor()) {
    thread_ = std::thread([core = core_] {
      ::pthread_setname_np(::pthread_self(), "http-client");
      for (;;) {
        try {
          core->io.run();
          break;
        } catch (const std::exception& error) {
          log::error("the http client goes on after: {}", error.what());
        }
      }
      {
        const std::lock_guard lock(core->mutex);
        core->running = false;
      }
      core->io.restart();
      core->io.poll();  // what was posted just before
    });
  }
  ~ClientImpl() override {
    asio::post(core_->io, [core = core_.get()] {
      core->stopping = true;
      const auto calls = core->calls;  // each takes itself out
      for (const auto& call : calls) call->cancel();
      core->kept.close_all();
    });
    work_.reset();
    thread_.join();
  }
  ClientImpl(const ClientImpl&) = delete;
  ClientImpl& operator=(const ClientImpl&) = delete;

  std::shared_ptr<CallHandle> send(Call call, CallCallbacks callbacks) override {
    auto running = std::make_shared<RunningCall>(core_, std::move(call), std::move(callbacks));
    core_->run([core = core_.get(), running] {
      core->calls.insert(running);
      running->begin();
    });
    return running;
  }

 private:
  const std::shared_ptr<ClientCore> core_ = std::make_shared<ClientCore>();
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::thread thread_;
};

Errc code_of(CallFailure failure) {
  switch (failure) {
    case CallFailure::kBadUrl:
      return Errc::kInvalidArgument;
    case CallFailure::kTimedOut:
      return Errc::kDeadlineExceeded;
    case CallFailure::kMalformed:
      return Errc::kCorrupt;
    case CallFailure::kCancelled:
      return Errc::kCancelled;
    case CallFailure::kRefused:
    case CallFailure::kUnreachable:
    case CallFailure::kReset:
    case CallFailure::kClosedEarly:
      return Errc::kUnavailable;
  }
  return Errc::kInternal;
}

}  // namespace

std::string_view to_string(CallFailure failure) {
  switch (failure) {
    case CallFailure::kBadUrl:
      return "bad url";
    case CallFailure::kRefused:
      return "refused";
    case CallFailure::kUnreachable:
      return "unreachable";
    case CallFailure::kTimedOut:
      return "timed out";
    case CallFailure::kReset:
      return "reset";
    case CallFailure::kClosedEarly:
      return "closed early";
    case CallFailure::kMalformed:
      return "malformed";
    case CallFailure::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

Result<Url> parse_url(std::string_view text) {
  constexpr std::string_view kScheme = "http://";
  const auto bad = [&](std::string_view why) {
    return fail(Errc::kInvalidArgument, fmt::format("'{}' is no http address: {}", text, why));
  };
  if (!text.starts_with(kScheme)) return bad("it does not begin with http://");
  for (const char c : text) {
    if (static_cast<unsigned char>(c) <= ' ' || c == '\x7F') return bad("it holds a blank");
  }
  std::string_view rest = text.substr(kScheme.size());
  Url url;
  const std::size_t target = std::min(rest.find_first_of("/?#"), rest.size());
  url.target = rest.substr(target, rest.find('#') - target);
  if (!url.target.starts_with('/')) url.target.insert(0, "/");
  rest = rest.substr(0, target);
  if (rest.find('@') != std::string_view::npos) return bad("user names are not supported");

  std::string_view port;
  if (rest.starts_with('[')) {
    const std::size_t end = rest.find(']');
    if (end == std::string_view::npos) return bad("a bracket is not closed");
    url.host = rest.substr(1, end - 1);
    rest.remove_prefix(end + 1);
    if (!rest.empty() && !rest.starts_with(':')) return bad("the port is not well-formed");
    port = rest;
  } else {
    const std::size_t colon = std::min(rest.find(':'), rest.size());
    url.host = rest.substr(0, colon);
    port = rest.substr(colon);
  }
  if (url.host.empty()) return bad("the host is missing");
  if (!port.empty()) {
    port.remove_prefix(1);
    unsigned number = 0;
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
    if (error != std::errc() || end != port.data() + port.size() || number == 0 || number > 65535) {
      return bad("the port is not a number from 1 to 65535");
    }
    url.port = static_cast<std::uint16_t>(number);
  }
  return url;
}

std::unique_ptr<Client> Client::start() {
  return std::make_unique<ClientImpl>();
}

namespace {

// Before a client is made: ending one waits for a look-up that it began.
Status find_addresses(Call& call, const Lookup& lookup) {
  const auto url = parse_url(call.url);
  if (!url) return tl::unexpected(url.error());
  const Time begun = now();
  auto found = resolve_within(url->host, std::min(call.timeout, call.connect_timeout), lookup);
  if (!found) {
    return fail(found.error().code == Errc::kNotFound ? Errc::kUnavailable : found.error().code,
                fmt::format("{}: {}", call.url, found.error().message));
  }
  call.addresses = std::move(*found);
  const Duration spent = now() - begun;
  for (Duration* rest : {&call.timeout, &call.connect_timeout}) {
    *rest = std::max(*rest - spent, Duration{1});
  }
  return {};
}

}  // namespace

Result<FetchedResponse> fetch(Call call, const Lookup& lookup) {
  if (call.timeout == Duration::max()) call.timeout = std::chrono::seconds(30);
  if (call.addresses.empty()) {
    if (Status ok = find_addresses(call, lookup); !ok) return tl::unexpected(ok.error());
  }
  FetchedResponse response;
  std::promise<Status> ended;
  bool too_long = false;
  CallCallbacks callbacks;
  callbacks.on_headers = [&](int status, const Headers& headers) {
    response.status = status;
    response.headers = headers;
  };
  callbacks.on_data = [&](std::string_view bytes) {
    if (response.body.size() + bytes.size() <= kFetchLimit) {
      response.body.append(bytes);
    } else {
      too_long = true;
    }
  };
  callbacks.on_end = [&] { ended.set_value({}); };
  callbacks.on_error = [&](const CallError& error) {
    ended.set_value(fail(code_of(error.failure), error.message));
  };
  const std::string url = call.url;
  const auto client = Client::start();
  client->send(std::move(call), std::move(callbacks));
  if (Status status = ended.get_future().get(); !status) return tl::unexpected(status.error());
  if (too_long) {
    return fail(Errc::kResourceExhausted,
                fmt::format("{}: the answer has more than {} bytes", url, kFetchLimit));
  }
  return response;
}

}  // namespace baton::http
