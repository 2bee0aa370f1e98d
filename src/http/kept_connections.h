// Connections of the client that are between two calls. For the .cc files of this room; it shows
// Boost. On the client's thread only.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"

namespace baton::http {

class KeptConnections {
 public:
  // Shorter than servers keep an idle connection (ours 75 s, uvicorn 5 s), so that it is the client
  // that closes and a request seldom meets a connection whose other end is going.
  static constexpr Duration kIdleMost = std::chrono::seconds(4);
  static constexpr std::size_t kMost = 1024;

  ~KeptConnections() { close_all(); }

  // `where`: host and port. The connection is between an answer and a request.
  void keep(const std::string& where, boost::asio::ip::tcp::socket socket);
  // The one that was used last and is still open.
  std::optional<boost::asio::ip::tcp::socket> take(const std::string& where);
  void close_all();

 private:
  struct Kept;
  using List = std::list<std::shared_ptr<Kept>>;

  void drop(const std::shared_ptr<Kept>& kept);

  std::map<std::string, List> by_place_;
  std::size_t count_ = 0;
};

}  // namespace baton::http
