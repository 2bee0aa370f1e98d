#include "http/server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <thread>

#include "base/failure_log.h"
#include "base/log.h"
#include "http/connection.h"

namespace baton::http {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// Refused connections that may wait for their 503 to be read; more are closed without a word.
constexpr std::size_t kMaxRefused = 64;
constexpr Duration kAcceptPause = std::chrono::milliseconds(50);

class ServerImpl final : public Server {
 public:
  ServerImpl(ServerOptions options, Handler handler)
      : core_(std::make_shared<ServerCore>(std::move(options), std::move(handler))),
        acceptor_(core_->io),
        pause_(core_->io),
        work_(core_->io.get_executor()) {}
  ~ServerImpl() override { stop(Duration(0)); }
  ServerImpl(const ServerImpl&) = delete;
  ServerImpl& operator=(const ServerImpl&) = delete;

  Status listen();
  void run();

  std::uint16_t port() const override { return port_; }
  std::size_t open_connections() const override { return core_->open; }
  void stop(Duration grace) override;

 private:
  error_code listen_at(const tcp::endpoint& endpoint);
  void accept();
  void close_all();

  const std::shared_ptr<ServerCore> core_;
  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::uint16_t port_ = 0;
  std::thread thread_;

  std::mutex stop_mutex_;
  std::condition_variable emptied_;
  bool empty_ = false;  // guarded by stop_mutex_
};

error_code ServerImpl::listen_at(const tcp::endpoint& endpoint) {
  error_code error;
  if (acceptor_.open(endpoint.protocol(), error)) return error;
  ::fcntl(acceptor_.native_handle(), F_SETFD, FD_CLOEXEC);
  // A server that was just killed must be able to come back on its port.
  acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(tcp::acceptor::max_listen_connections, error);
  if (error) {
    error_code ignored;
    acceptor_.close(ignored);
    return error;
  }
  port_ = acceptor_.local_endpoint(error).port();
  return error;
}

Status ServerImpl::listen() {
  const ServerOptions& options = core_->options;
  error_code error;
  tcp::resolver resolver(core_->io);
  const auto found =
      resolver.resolve(options.host, std::to_string(options.port),
                       tcp::resolver::passive | tcp::resolver::numeric_service, error);
  for (const auto& entry : found) {
    error = listen_at(entry.endpoint());
    if (!error) return {};
  }
  const Errc code = error == asio::error::address_in_use ? Errc::kAlreadyExists : Errc::kIo;
  return fail(
      code, fmt::format("cannot listen on {}:{}: {}", options.host, options.port, error.message()));
}

void ServerImpl::run() {
  accept();
  thread_ = std::thread([core = core_] {
    ::pthread_setname_np(::pthread_self(), "http-server");
    for (;;) {
      try {
        core->io.run();
        break;
      } catch (const std::exception& error) {
        // Out of memory, say: it costs the connection that met it, by its deadline.
        log::error("the http server goes on after: {}", error.what());
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

void ServerImpl::accept() {
  acceptor_.async_accept([this](error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted || core_->stopping) return;
    if (error) {
      // No descriptor is free, say. Trying again at once would only spin.
      log::failure(log::Level::kError, "cannot_accept", {{"text", error.message()}});
      pause_.expires_after(kAcceptPause);
      pause_.async_wait([this](error_code cancelled) {
        if (!cancelled) accept();
      });
      return;
    }
    const std::size_t open = core_->connections.size();
    const std::size_t limit = core_->options.max_connections;
    if (open < limit + kMaxRefused) Connection::start(core_, std::move(socket), open >= limit);
    accept();
  });
}

void ServerImpl::close_all() {
  const auto connections = core_->connections;  // close() takes them out of the set
  for (const auto& connection : connections) connection->close();
}

void ServerImpl::stop(Duration grace) {
  if (!thread_.joinable()) return;
  asio::post(core_->io, [this] {
    core_->stopping = true;
    core_->on_empty = [this] {
      const std::lock_guard lock(stop_mutex_);
      empty_ = true;
      emptied_.notify_all();
    };
    error_code ignored;
    acceptor_.close(ignored);
    pause_.cancel();
    const auto connections = core_->connections;
    for (const auto& connection : connections) connection->close_when_idle();
    if (core_->connections.empty()) core_->on_empty();
  });
  {
    std::unique_lock lock(stop_mutex_);
    emptied_.wait_for(lock, std::min<Duration>(grace, std::chrono::hours(24)),
                      [this] { return empty_; });
  }
  asio::post(core_->io, [this] { close_all(); });
  work_.reset();
  thread_.join();
  core_->on_empty = nullptr;
}

}  // namespace

Result<std::unique_ptr<Server>> Server::start(ServerOptions options, Handler handler) {
  auto server = std::make_unique<ServerImpl>(std::move(options), std::move(handler));
  if (Status status = server->listen(); !status) return tl::unexpected(status.error());
  server->run();
  return server;
}

}  // namespace baton::http
