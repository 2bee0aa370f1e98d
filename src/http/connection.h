// The server's side of one connection. For server.cc and connection.cc only: it shows Boost.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <memory>
#include <mutex>
#include <unordered_set>

#include "http/server.h"

namespace baton::http {

class Connection;

// What the server's connections share. Outlives the server as long as somebody holds a writer.
struct ServerCore {
  ServerCore(ServerOptions server_options, Handler request_handler)
      : options(std::move(server_options)), handler(std::move(request_handler)) {}

  // Runs `task` on the server's thread, or here if that has ended. Any thread.
  template <typename Task>
  void run(Task&& task) {
    {
      const std::lock_guard lock(mutex);
      if (running) {
        boost::asio::post(io, std::forward<Task>(task));
        return;
      }
    }
    std::forward<Task>(task)();
  }

  const ServerOptions options;
  const Handler handler;
  boost::asio::io_context io{1};

  std::mutex mutex;
  bool running = true;  // the thread will still look at what is posted; guarded by mutex

  // On the server's thread only.
  std::unordered_set<std::shared_ptr<Connection>> connections;
  bool stopping = false;
  std::function<void()> on_empty;  // when stopping, after the last connection

  std::atomic<std::size_t> open{0};  // connections.size(), for others to read
};

class Connection {
 public:
  // Adds itself to core->connections. `refuse`: answer 503 and close.
  static void start(std::shared_ptr<ServerCore> core, boost::asio::ip::tcp::socket socket,
                    bool refuse);
  virtual ~Connection() = default;
  // On the server's thread. The client counts as gone.
  virtual void close() = 0;
  // Closes once no answer is under way.
  virtual void close_when_idle() = 0;
};

}  // namespace baton::http
