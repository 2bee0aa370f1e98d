#include "http/exchange.h"

#include <fmt/format.h>

#include <algorithm>

namespace baton::http {

namespace {

// A line break inside a field would begin another field.
std::string one_line(std::string_view text) {
  std::string line(text);
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c == '\r' || c == '\n' || c == '\0'; }, ' ');
  return line;
}

void append_field(std::string& out, std::string_view name, std::string_view value) {
  out.append(one_line(name)).append(": ").append(one_line(value)).append("\r\n");
}

class Writer final : public ResponseWriter {
 public:
  explicit Writer(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
  ~Writer() override { exchange_->dropped(); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void respond(int status, std::string content_type, std::string body, Headers extra) override {
    exchange_->respond(status, content_type, std::move(body), extra);
  }
  void start_stream(int status, std::string content_type, Headers extra) override {
    exchange_->start_stream(status, content_type, extra);
  }
  bool write(std::string chunk) override { return exchange_->write(chunk); }
  void finish() override { exchange_->finish(); }
  void abort() override { exchange_->abort(); }
  void on_closed(std::function<void()> callback) override {
    exchange_->on_closed(std::move(callback));
  }
  bool is_open() const override { return exchange_->is_open(); }

 private:
  const std::shared_ptr<Exchange> exchange_;
};

}  // namespace

std::shared_ptr<ResponseWriter> make_writer(std::shared_ptr<Exchange> exchange) {
  return std::make_shared<Writer>(std::move(exchange));
}

std::string error_body(int status, std::string_view message) {
  const std::string_view type = status < 500 ? "invalid_request_error" : "server_error";
  return fmt::format(R"({{"error":{{"message":"{}","type":"{}","code":{}}}}})", message, type,
                     status);
}

std::string closing_response(int status, std::string_view message) {
  const std::string body = error_body(status, message);
  return fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n"
      "Connection: close\r\n\r\n{}",
      status, reason_phrase(status), body.size(), body);
}

Exchange::Exchange(ExchangeOptions options, std::function<void()> wake,
                   std::function<void(std::function<void()>)> run)
    : wake_(std::move(wake)),
      run_(std::move(run)),
      http_1_0_(options.http_1_0),
      head_(options.head),
      unsent_limit_(options.unsent_limit),
      keep_alive_(options.keep_alive) {}

void Exchange::append_head(int status, std::string_view content_type, const Headers& extra,
                           std::string_view length_field) {
  fmt::format_to(std::back_inserter(outbox_), "HTTP/1.1 {} {}\r\n", status, reason_phrase(status));
  if (!content_type.empty()) append_field(outbox_, "Content-Type", content_type);
  for (const auto& [name, value] : extra) append_field(outbox_, name, value);
  outbox_.append(length_field);
  outbox_.append(keep_alive_ ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n");
}

// Many writes before the connection gets round to them cost it one turn.
void Exchange::wake_once(std::unique_lock<std::mutex>& lock) {
  if (woken_) return;
  woken_ = true;
  lock.unlock();
  wake_();
}

void Exchange::respond(int status, std::string_view content_type, std::string body,
                       const Headers& extra) {
  std::unique_lock lock(mutex_);
  if (!live() || state_ != State::kNew) return;
  state_ = State::kWhole;
  append_head(status, content_type, extra, fmt::format("Content-Length: {}\r\n", body.size()));
  if (!head_) outbox_.append(body);
  wake_once(lock);
}

void Exchange::start_stream(int status, std::string_view content_type, const Headers& extra) {
  std::unique_lock lock(mutex_);
  if (!live() || state_ != State::kNew) return;
  state_ = State::kStreaming;
  if (http_1_0_) keep_alive_ = false;
  append_head(status, content_type, extra, http_1_0_ ? "" : "Transfer-Encoding: chunked\r\n");
  wake_once(lock);
}

bool Exchange::write(std::string_view chunk) {
  std::unique_lock lock(mutex_);
  if (!live() || state_ != State::kStreaming) return false;
  if (chunk.empty() || head_) return true;  // an empty chunk would end the body
  if (in_flight_ + outbox_.size() + chunk.size() > unsent_limit_) {
    state_ = State::kFlooded;
    woken_ = false;  // to be looked at now, whatever is on its way
    wake_once(lock);
    return false;
  }
  if (http_1_0_) {
    outbox_.append(chunk);
  } else {
    fmt::format_to(std::back_inserter(outbox_), "{:x}\r\n", chunk.size());
    outbox_.append(chunk).append("\r\n");
  }
  wake_once(lock);
  return true;
}

void Exchange::finish() {
  std::unique_lock lock(mutex_);
  if (!live() || state_ != State::kStreaming) return;
  state_ = State::kWhole;
  if (!http_1_0_ && !head_) outbox_.append("0\r\n\r\n");
  wake_once(lock);
}

void Exchange::abort() {
  std::function<void()> unused;  // what it holds is freed without the lock
  std::unique_lock lock(mutex_);
  if (!live() || (state_ != State::kNew && state_ != State::kStreaming)) return;
  state_ = State::kCut;
  unused.swap(callback_);
  wake_once(lock);
}

void Exchange::dropped() {
  respond(500, "application/json", error_body(500, "the server gave no answer"), {});
  abort();  // no effect after an answer
}

void Exchange::on_closed(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (complete_) return;
    if (!gone_) {
      callback_ = std::move(callback);
      return;
    }
  }
  run_(std::move(callback));
}

bool Exchange::is_open() const {
  const std::lock_guard lock(mutex_);
  return live() && (state_ == State::kNew || state_ == State::kStreaming);
}

Exchange::Portion Exchange::take() {
  const std::lock_guard lock(mutex_);
  woken_ = false;
  Portion portion;
  portion.bytes.swap(outbox_);
  in_flight_ = portion.bytes.size();
  portion.last = state_ == State::kWhole;
  portion.cut = state_ == State::kCut;
  return portion;
}

bool Exchange::is_flooded() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::kFlooded;
}

bool Exchange::is_whole() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::kWhole;
}

bool Exchange::keeps_alive() const {
  const std::lock_guard lock(mutex_);
  return keep_alive_;
}

void Exchange::stop_keeping_alive() {
  const std::lock_guard lock(mutex_);
  keep_alive_ = false;
}

void Exchange::complete() {
  std::function<void()> unused;  // what it holds is freed without the lock
  const std::lock_guard lock(mutex_);
  complete_ = true;
  unused.swap(callback_);
}

void Exchange::client_gone() {
  std::function<void()> callback;
  {
    const std::lock_guard lock(mutex_);
    if (!live()) return;
    gone_ = true;
    callback.swap(callback_);
    outbox_.clear();
  }
  if (callback) callback();
}

}  // namespace baton::http
