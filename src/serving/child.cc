#include "serving/child.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>

namespace baton::serving {
namespace {

// Between fork and exec: only what is safe there.
[[noreturn]] void become(char* const* arguments, pid_t parent, int output) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);  // it died before it was asked to take us along
  // A group of its own: Ctrl-C reaches the parent alone, which stops its children in order.
  setpgid(0, 0);
  if (output >= 0 && (dup2(output, STDOUT_FILENO) < 0 || dup2(output, STDERR_FILENO) < 0)) {
    _exit(127);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execv("/proc/self/exe", arguments);
  _exit(127);
}

}  // namespace

Result<Child> Child::start(std::string name, std::vector<std::string> arguments, int output) {
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return fail(Errc::kIo, fmt::format("pipe for {}: {}", name, strerror(errno)));
  }
  UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  // The copy that the child inherits has no close-on-exec.
  const UniqueFd inherited(fcntl(writer.get(), F_DUPFD, 3));
  arguments.insert(arguments.end(), {"--announce-fd", std::to_string(inherited.get())});
  arguments.insert(arguments.begin(), "baton");
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);

  Child child;
  child.name_ = std::move(name);
  child.announcement_ = std::move(reader);
  const pid_t parent = getpid();
  child.pid_ = fork();
  if (child.pid_ == 0) become(pointers.data(), parent, output);
  if (child.pid_ < 0) {
    return fail(Errc::kIo, fmt::format("cannot start {}: {}", child.name_, strerror(errno)));
  }
  return child;
}

std::optional<std::uint16_t> Child::read_port() {
  char text[16];
  const ssize_t size = read(announcement_.get(), text, sizeof(text));
  announcement_.reset();
  if (size <= 0) return {};
  std::uint16_t port = 0;
  const auto [stop, error] = std::from_chars(text, text + size, port);
  if (error != std::errc() || stop == text) return {};
  return port;
}

void Child::signal(int number) const {
  if (running()) ::kill(pid_, number);
}

bool Child::reap() {
  int status = 0;
  if (running() && waitpid(pid_, &status, WNOHANG) == pid_) status_ = status;
  return !running();
}

std::string Child::end_text() const {
  const int status = status_.value_or(0);
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    return fmt::format("was killed by signal {} ({})", number, strsignal(number));
  }
  return fmt::format("exited with code {}", WEXITSTATUS(status));
}

int Child::exit_code() const {
  const int status = status_.value_or(0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace baton::serving
