// The half of the one that offered: who was let in, by which token, to write or to read, and
// whether its process still lives. Owner thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/unique_fd.h"
#include "fabric/event_ring.h"
#include "fabric/fabric.h"
#include "fabric/shm/messages.h"
#include "fabric/shm/process.h"

namespace baton::fabric::shm {

class Inbound {
 public:
  // Unpolled immediates of one writer, beyond which its socket is not read: the writer is held
  // back, nobody else.
  static constexpr std::uint32_t kQueuedMax = 1024;

  Inbound(InboundId id, PeerId peer, Access access, const Token& token)
      : id_(id), peer_(std::move(peer)), access_(access), token_(token) {}

  const PeerId& peer() const { return peer_; }
  Access access() const { return access_; }
  const Token& token() const { return token_; }
  // Somebody proved the token: from here on only the death of that process, or its farewell, is a
  // fence.
  bool bound() const { return process_.has_value(); }
  int pidfd() const { return process_->pidfd(); }
  bool is_of(pid_t process) const { return bound() && process_->pid() == process; }
  bool voided() const { return voided_; }
  // The process has said its farewell, and has not come back since.
  bool left() const { return left_; }

  // Says why `process`, which means to use this for `access`, may not, or nothing.
  std::optional<std::string> objection(Access access, const PeerProcess& process) const;
  // Lets it in; an older connection of the same process ends. True: bound for the first time.
  bool admit(UniqueFd socket, PeerProcess process);
  void drop_connection() { socket_.reset(); }

  // No new connection, and the one that stands is asked to end: its process, if it runs, unmaps our
  // memory and says farewell. Not a fence.
  void void_offer();
  // Takes immediates, or the farewell, from the socket, a bounded number; a reader that sends any
  // loses its connection. `all`: the writer is dead, take what it left.
  void read_immediates(EventRing& events, bool all);
  void on_delivered() { --queued_; }

 private:
  InboundId id_;
  PeerId peer_;
  Access access_;
  Token token_;
  UniqueFd socket_;
  std::optional<PeerProcess> process_;
  std::uint32_t queued_ = 0;  // immediates in the event queue
  bool voided_ = false;
  bool left_ = false;
};

}  // namespace baton::fabric::shm
