#include "http/connection.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <optional>

#include "base/log.h"
#include "http/deadline.h"
#include "http/exchange.h"

namespace baton::http {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::size_t kReadSize = 16 << 10;
// How long a closing connection still takes what the client sends, lest a reset destroys the answer
// on its way.
constexpr Duration kLinger = std::chrono::seconds(2);

std::string to_string(beast::string_view text) {
  return {text.data(), text.size()};
}

std::string peer_of(const tcp::socket& socket) {
  error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  if (error) return {};
  const auto address = endpoint.address();
  return fmt::format("{}{}{}:{}", address.is_v6() ? "[" : "", address.to_string(),
                     address.is_v6() ? "]" : "", endpoint.port());
}

struct Refusal {
  int status = 400;
  std::string message;
};

Refusal refusal_of(const error_code& error, std::size_t body_limit) {
  namespace http = beast::http;
  if (error == http::error::header_limit) return {431, "the request's header is too long"};
  if (error == http::error::body_limit)
    return {413, fmt::format("the request's body is longer than {} bytes", body_limit)};
  return {400, "the request is not well-formed HTTP/1.1"};
}

// One read is pending at all times, also while an answer is made, so that a client which leaves is
// noticed at once. Everything runs on the server's thread.
class ServerConnection final : public Connection,
                               public std::enable_shared_from_this<ServerConnection> {
 public:
  ServerConnection(std::shared_ptr<ServerCore> core, tcp::socket socket)
      : core_(std::move(core)), socket_(std::move(socket)), peer_(peer_of(socket_)) {}

  void begin();
  void refuse();
  void close() override;
  void close_when_idle() override;

 private:
  enum class State { kIdle, kReading, kAnswering, kLingering, kClosed };
  using Parser = beast::http::request_parser<beast::http::string_body>;

  void next_request();
  void read();
  void on_read(const error_code& error, std::size_t size);
  void parse();
  void answer_request();
  Request take_request();
  void refuse(const Refusal& refusal);
  void pump();
  void send(std::string bytes, bool last);
  void send_more();
  void after_sent();
  void linger();
  void on_deadline();

  const std::shared_ptr<ServerCore> core_;
  tcp::socket socket_;
  const std::string peer_;
  std::shared_ptr<Deadline> deadline_;
  // Where the pending read writes: apart, because what was read before is parsed meanwhile.
  std::array<char, kReadSize> incoming_;
  beast::flat_buffer buffer_;  // read and not yet parsed
  std::optional<Parser> parser_;
  std::shared_ptr<Exchange> exchange_;  // while kAnswering
  State state_ = State::kIdle;
  bool reading_ = false;  // a read is pending
  bool at_end_ = false;   // the client sends no more
  bool continue_due_ = false;

  std::string sending_;  // and how much of it is sent
  std::size_t sent_ = 0;
  bool writing_ = false;
  bool last_ = false;   // the answer ends with sending_
  bool final_ = false;  // the connection ends with sending_ and refusal_
  std::string refusal_;
};

void ServerConnection::begin() {
  error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  ::fcntl(socket_.native_handle(), F_SETFD, FD_CLOEXEC);
  deadline_ = std::make_shared<Deadline>(core_->io, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->on_deadline();
  });
  next_request();
}

void ServerConnection::refuse() {
  begin();
  refuse({503, "the server has too many connections"});
}

void ServerConnection::close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  const auto self = shared_from_this();
  error_code ignored;
  socket_.close(ignored);
  deadline_->cancel();
  core_->connections.erase(self);
  core_->open = core_->connections.size();
  if (exchange_ != nullptr) std::exchange(exchange_, nullptr)->client_gone();
  if (core_->stopping && core_->connections.empty() && core_->on_empty) core_->on_empty();
}

void ServerConnection::close_when_idle() {
  if (state_ == State::kAnswering) {
    exchange_->stop_keeping_alive();
  } else if (state_ != State::kLingering) {
    close();
  }
}

void ServerConnection::next_request() {
  state_ = State::kIdle;
  parser_.emplace();
  parser_->eager(true);
  parser_->header_limit(static_cast<std::uint32_t>(core_->options.header_limit));
  parser_->body_limit(core_->options.body_limit);
  continue_due_ = true;
  deadline_->set_after(core_->options.idle_timeout);
  parse();
}

// While an answer is made, a client may send its next requests early: so much of them is taken, and
// the rest waits in the kernel.
void ServerConnection::read() {
  if (reading_ || at_end_ || state_ == State::kClosed) return;
  if (state_ == State::kAnswering && buffer_.size() > core_->options.header_limit) return;
  reading_ = true;
  socket_.async_read_some(asio::buffer(incoming_),
                          [self = shared_from_this()](error_code error, std::size_t size) {
                            self->on_read(error, size);
                          });
}

void ServerConnection::on_read(const error_code& error, std::size_t size) {
  reading_ = false;
  if (state_ == State::kClosed) return;
  buffer_.commit(asio::buffer_copy(buffer_.prepare(size), asio::buffer(incoming_, size)));
  if (error) {
    at_end_ = true;
    // A client that half-closes after its request still gets an answer that is ready.
    const bool ready = error == asio::error::eof &&
                       (state_ == State::kAnswering ? exchange_->is_whole() : final_ && writing_);
    if (!ready) close();
    return;
  }
  switch (state_) {
    case State::kIdle:
    case State::kReading:
      return parse();
    case State::kLingering:
      buffer_.consume(buffer_.size());
      return read();
    case State::kAnswering:
      return read();
    case State::kClosed:
      return;
  }
}

void ServerConnection::parse() {
  error_code error;
  while (buffer_.size() > 0 && !parser_->is_done()) {
    if (state_ == State::kIdle) {
      state_ = State::kReading;
      deadline_->set_after(core_->options.read_timeout);
    }
    const std::size_t used = parser_->put(buffer_.data(), error);
    buffer_.consume(used);
    if (error == beast::http::error::need_more) {
      error = {};
      break;
    }
    if (error) return refuse(refusal_of(error, core_->options.body_limit));
    if (used == 0) break;
  }
  if (parser_->is_done()) return answer_request();
  if (parser_->is_header_done() && continue_due_) {
    continue_due_ = false;
    if (beast::iequals(parser_->get()[beast::http::field::expect], "100-continue") && !writing_) {
      send("HTTP/1.1 100 Continue\r\n\r\n", false);
    }
  }
  read();
}

Request ServerConnection::take_request() {
  auto message = parser_->release();
  Request request;
  request.method = to_string(message.method_string());
  request.path = to_string(message.target());
  if (const std::size_t mark = request.path.find('?'); mark != std::string::npos) {
    request.query = request.path.substr(mark + 1);
    request.path.resize(mark);
  }
  for (const auto& field : message.base()) {
    request.headers.add(to_string(field.name_string()), to_string(field.value()));
  }
  request.body = std::move(message.body());
  request.peer = peer_;
  return request;
}

void ServerConnection::answer_request() {
  state_ = State::kAnswering;
  deadline_->clear();
  ExchangeOptions options;
  options.keep_alive = parser_->keep_alive() && !core_->stopping;
  options.http_1_0 = parser_->get().version() < 11;
  options.head = parser_->get().method() == beast::http::verb::head;
  options.unsent_limit = core_->options.send_buffer_limit;
  const std::weak_ptr<ServerConnection> weak = weak_from_this();
  exchange_ = std::make_shared<Exchange>(
      options,
      [weak, core = core_] {
        core->run([weak] {
          if (const auto self = weak.lock()) self->pump();
        });
      },
      [core = core_](std::function<void()> task) { core->run(std::move(task)); });
  read();
  const auto writer = make_writer(exchange_);
  try {
    core_->handler(take_request(), writer);
  } catch (...) {
    log::error("the handler of a request ended by an exception");
    writer->respond(500, "application/json", error_body(500, "the server failed"), {});
  }
}

void ServerConnection::refuse(const Refusal& refusal) {
  state_ = State::kLingering;
  final_ = true;
  deadline_->set_after(core_->options.write_timeout);
  refusal_ = closing_response(refusal.status, refusal.message);
  if (!writing_) after_sent();
  read();
}

// The exchange has something new.
void ServerConnection::pump() {
  if (state_ != State::kAnswering) return;
  if (exchange_->is_flooded()) return close();
  if (writing_) return;
  Exchange::Portion portion = exchange_->take();
  if (portion.bytes.empty()) {
    if (portion.cut) return close();
    last_ = portion.last;
    if (last_) after_sent();
    return;
  }
  send(std::move(portion.bytes), portion.last);
}

void ServerConnection::send(std::string bytes, bool last) {
  sending_ = std::move(bytes);
  sent_ = 0;
  last_ = last;
  writing_ = true;
  send_more();
}

void ServerConnection::send_more() {
  if (state_ == State::kAnswering) deadline_->set_after(core_->options.write_timeout);
  socket_.async_write_some(asio::buffer(sending_.data() + sent_, sending_.size() - sent_),
                           [self = shared_from_this()](error_code error, std::size_t size) {
                             if (self->state_ == State::kClosed) return;
                             if (error) return self->close();
                             self->sent_ += size;
                             if (self->sent_ < self->sending_.size()) return self->send_more();
                             self->writing_ = false;
                             self->after_sent();
                           });
}

void ServerConnection::after_sent() {
  if (!refusal_.empty()) return send(std::exchange(refusal_, {}), true);
  if (final_) return linger();
  if (state_ != State::kAnswering) return;
  deadline_->clear();
  if (!last_) return pump();
  last_ = false;
  const bool keep = exchange_->keeps_alive() && !at_end_;
  std::exchange(exchange_, nullptr)->complete();
  if (!keep) return linger();
  next_request();
}

void ServerConnection::linger() {
  if (at_end_) return close();
  state_ = State::kLingering;
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  deadline_->set_after(kLinger);
  buffer_.consume(buffer_.size());
  read();
}

void ServerConnection::on_deadline() {
  switch (state_) {
    case State::kReading:
      return refuse({408, "the request did not come to its end in time"});
    case State::kIdle:
    case State::kAnswering:  // what waits for the client is not taken
    case State::kLingering:
    case State::kClosed:
      return close();
  }
}

}  // namespace

void Connection::start(std::shared_ptr<ServerCore> core, tcp::socket socket, bool refuse) {
  const auto connection = std::make_shared<ServerConnection>(core, std::move(socket));
  core->connections.insert(connection);
  core->open = core->connections.size();
  if (refuse) {
    connection->refuse();
  } else {
    connection->begin();
  }
}

}  // namespace baton::http
