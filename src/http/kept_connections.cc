#include "http/kept_connections.h"

#include <sys/socket.h>

#include <boost/asio/steady_timer.hpp>
#include <cerrno>

namespace baton::http {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

struct KeptConnections::Kept {
  Kept(std::string place, tcp::socket connection)
      : where(std::move(place)), socket(std::move(connection)), timer(socket.get_executor()) {}

  // Nothing was said and the other end is there: what a connection between two calls must be.
  bool is_quiet() {
    char byte = 0;
    const auto got = ::recv(socket.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }

  const std::string where;
  tcp::socket socket;
  asio::steady_timer timer;
  bool is_kept = true;
};

void KeptConnections::keep(const std::string& where, tcp::socket socket) {
  if (count_ >= kMost) return;
  const auto kept = std::make_shared<Kept>(where, std::move(socket));
  by_place_[where].push_back(kept);
  ++count_;
  kept->timer.expires_after(kIdleMost);
  kept->timer.async_wait([this, kept](error_code error) {
    if (!error && kept->is_kept) drop(kept);
  });
  kept->socket.async_wait(tcp::socket::wait_read, [this, kept](error_code error) {
    if (!error && kept->is_kept) drop(kept);
  });
}

std::optional<tcp::socket> KeptConnections::take(const std::string& where) {
  while (true) {
    const auto at = by_place_.find(where);
    if (at == by_place_.end()) return {};
    const std::shared_ptr<Kept> kept = at->second.back();
    if (!kept->is_quiet()) {
      drop(kept);
      continue;
    }
    kept->socket.cancel();
    tcp::socket socket = std::move(kept->socket);
    drop(kept);
    return socket;
  }
}

void KeptConnections::drop(const std::shared_ptr<Kept>& kept) {
  kept->is_kept = false;
  kept->timer.cancel();
  error_code ignored;
  if (kept->socket.is_open()) kept->socket.close(ignored);
  const auto at = by_place_.find(kept->where);
  at->second.remove(kept);
  if (at->second.empty()) by_place_.erase(at);
  --count_;
}

void KeptConnections::close_all() {
  while (!by_place_.empty()) drop(by_place_.begin()->second.back());
}

}  // namespace baton::http
