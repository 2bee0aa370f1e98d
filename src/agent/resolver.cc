#include "agent/resolver.h"

#include <sys/eventfd.h>

#include <mutex>
#include <system_error>
#include <thread>

#include "base/check.h"

namespace baton {

struct Resolver::Shared {
  UniqueFd fd{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  std::mutex mutex;
  int running = 0;
  std::vector<Answer> answers;
};

Resolver::Resolver() : shared_(std::make_shared<Shared>()) {
  BATON_CHECK(shared_->fd, "no eventfd: out of descriptors");
}

int Resolver::fd() const {
  return shared_->fd.get();
}

bool Resolver::ask(std::uint64_t tag, const std::string& host, std::uint16_t port) {
  {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->running >= kRunningMax) return false;
    ++shared_->running;
  }
  const auto answer = [shared = shared_, tag, host, port] {
    auto address = tcp::resolve(host, port);
    const std::lock_guard lock(shared->mutex);
    --shared->running;
    shared->answers.push_back({tag, std::move(address)});
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(shared->fd.get(), &one, sizeof(one));
  };
  try {
    std::thread(answer).detach();
  } catch (const std::system_error&) {
    const std::lock_guard lock(shared_->mutex);
    --shared_->running;
    return false;
  }
  return true;
}

std::vector<Resolver::Answer> Resolver::take() {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(fd(), &count, sizeof(count));
  const std::lock_guard lock(shared_->mutex);
  return std::exchange(shared_->answers, {});
}

}  // namespace baton
