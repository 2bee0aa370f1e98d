// The receiver's socket: an abstract name that cannot be guessed. Connections wait here, unproven,
// until they say a token; of those that never do, only so many are kept. Owner thread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>

#include "base/unique_fd.h"
#include "fabric/shm/messages.h"
#include "fabric/shm/process.h"

namespace baton::fabric::shm {

class Listener {
 public:
  struct Visitor {
    std::uint32_t id = 0;
    UniqueFd socket;
    PeerProcess process;
  };

  static Result<Listener> open();

  int socket() const { return socket_.get(); }
  const SocketName& name() const { return name_; }

  // Takes one waiting connection of a process of this user; its socket is then in visitors().
  // Answers nothing when none waits. Connections that cannot be held are closed on the way.
  Visitor* accept(std::uint32_t id);
  // Takes the visitor out, nullopt if it left.
  std::optional<Visitor> take(std::uint32_t id);
  void put_back(Visitor visitor) { visitors_.push_back(std::move(visitor)); }

 private:
  void drop_one_connection();

  SocketName name_{};
  UniqueFd socket_;
  UniqueFd spare_;  // given up for a moment when descriptors run out, so that a connection can be
                    // refused
  std::deque<Visitor> visitors_;
  std::uint64_t refusals_ = 0;
};

}  // namespace baton::fabric::shm
