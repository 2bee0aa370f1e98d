// How the process at the other end of a socket is held, with the kernel's help and without.
#include "fabric/shm/process.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

namespace baton::fabric::shm {
namespace {

// A child that holds one end of a socket until it is killed.
class Child {
 public:
  Child() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      ::pause();
      ::_exit(0);
    }
    ::close(ends[1]);
    ours_.reset(ends[0]);
  }
  ~Child() { kill(); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }
  int socket() const { return ours_.get(); }

 private:
  pid_t pid_ = 0;
  UniqueFd ours_;
};

bool is_dead(const UniqueFd& pidfd) {
  pollfd state{pidfd.get(), POLLIN, 0};
  return ::poll(&state, 1, 0) == 1;
}

TEST(HoldByNumber, ALivingPeerIsHeldAndItsEndIsSeen) {
  Child child;
  const UniqueFd held = hold_by_number(child.socket(), child.pid());
  ASSERT_TRUE(held);
  EXPECT_FALSE(is_dead(held));
  child.kill();
  EXPECT_TRUE(is_dead(held));
}

// The number may be another process's by now, as here, where it is our own.
TEST(HoldByNumber, APeerThatHasGoneIsNotHeldByItsNumber) {
  Child child;
  child.kill();
  EXPECT_FALSE(hold_by_number(child.socket(), ::getpid()));
}

TEST(PeerProcess, IsTheOneThatConnected) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  const UniqueFd first(ends[0]);
  const UniqueFd second(ends[1]);
  const auto peer = PeerProcess::of(first.get());
  ASSERT_TRUE(peer) << peer.error().message;
  EXPECT_EQ(peer->pid(), ::getpid());
  EXPECT_TRUE(peer->alive());
}

}  // namespace
}  // namespace baton::fabric::shm
