#include "serving/process.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "base/check.h"
#include "base/log.h"

namespace baton::serving {
namespace {

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

void hold_stop_signals() {
  const sigset_t set = stop_signals();
  BATON_CHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0);
  signal(SIGPIPE, SIG_IGN);
}

int wait_for_stop() {
  const sigset_t set = stop_signals();
  int number = 0;
  while (sigwait(&set, &number) != 0) {
  }
  return number;
}

DrainEnd drain(Duration longest, const std::function<bool()>& is_idle) {
  const sigset_t set = stop_signals();
  const Time until = now() + longest;
  while (!is_idle()) {
    if (now() >= until) return DrainEnd::kTimeUp;
    const timespec pause{0, 20'000'000};
    if (sigtimedwait(&set, nullptr, &pause) > 0) return DrainEnd::kSecondSignal;
  }
  return DrainEnd::kIdle;
}

void end_within(Duration longest) {
  std::thread([longest] {
    std::this_thread::sleep_for(longest);
    _exit(static_cast<int>(Exit::kOk));
  }).detach();
}

void announce_port(int fd, std::uint16_t port) {
  if (fd < 0) return;
  const std::string line = fmt::format("{}\n", port);
  if (write(fd, line.data(), line.size()) < 0) log::warning("cannot announce port {}", port);
  close(fd);
}

std::string base_url(std::string_view host, std::uint16_t port) {
  const bool v6 = host.find(':') != std::string_view::npos;
  return v6 ? fmt::format("http://[{}]:{}", host, port) : fmt::format("http://{}:{}", host, port);
}

void complain(std::string_view who, std::string_view text) {
  while (true) {
    const std::size_t end = text.find('\n');
    fmt::print(stderr, "{}: {}\n", who, text.substr(0, end));
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}

void refuse_given(std::initializer_list<std::pair<std::string_view, bool>> flags,
                  std::string_view why, std::vector<std::string>& problems) {
  for (const auto& [flag, is_given] : flags) {
    if (is_given) problems.push_back(fmt::format("{} {}", flag, why));
  }
}

std::string seconds_problem(std::string_view flag, double value) {
  constexpr double kMost = 7 * 24 * 3600;
  if (std::isfinite(value) && value > 0 && value <= kMost) return "";
  return fmt::format("{} must be more than 0 and at most {} seconds, and is {}", flag, kMost,
                     value);
}

Duration from_seconds(double seconds) {
  return std::chrono::milliseconds(std::max(1LL, std::llround(seconds * 1000)));
}

bool is_loopback(std::string_view host) {
  return host.starts_with("127.") || host == "::1" || host == "localhost";
}

void warn_if_exposed(std::string_view host, std::string_view what) {
  if (is_loopback(host)) return;
  log::warning("{} listens on {}: whoever reaches it can use it, there is no authentication", what,
               host);
}

}  // namespace baton::serving
