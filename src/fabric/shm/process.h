// The process at the other end of a unix socket, held by a pidfd so that its number cannot come to
// mean another one.
#pragma once

#include <sys/types.h>

#include "base/unique_fd.h"
#include "baton/result.h"

namespace baton::fabric::shm {

// The pidfd of the process `pid` that is at the other end of `socket`, where the kernel cannot name
// it by the socket (before Linux 6.5): the number is opened, and the socket then shows that it
// still has its other end. Had the process died before (and its number perhaps gone to another
// one), the socket would be hung up, and nothing is returned.
UniqueFd hold_by_number(int socket, pid_t pid);

class PeerProcess {
 public:
  PeerProcess() = default;
  // Who connected (or listens) at the other end of `socket`. Refuses a process of another user, one
  // outside this pid namespace, and one that cannot be held for certain.
  static Result<PeerProcess> of(int socket);

  pid_t pid() const { return pid_; }
  int pidfd() const {
    return pidfd_.get();
  }  // readable once the process is dead, all threads of it
  bool alive() const;
  bool is(const PeerProcess& other) const { return pid_ == other.pid_ && alive() && other.alive(); }

 private:
  pid_t pid_ = 0;
  UniqueFd pidfd_;
};

}  // namespace baton::fabric::shm
