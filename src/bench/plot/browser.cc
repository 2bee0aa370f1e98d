#include "bench/plot/browser.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <sstream>

#include "base/unique_fd.h"
#include "bench/plot/text_file.h"

namespace baton::bench::plot {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kOutputMax = std::size_t{1} << 30;

// A folder of its own that ends with the question.
class Scratch {
 public:
  Scratch() {
    std::error_code error;
    std::string name = (fs::temp_directory_path(error) / "baton-plot-XXXXXX").string();
    if (::mkdtemp(name.data()) != nullptr) path_ = name;
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

bool is_program(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
}

std::optional<fs::path> in_path(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    return is_program(name) ? std::optional<fs::path>(name) : std::nullopt;
  }
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (is_program(fs::path(folder) / name)) return fs::path(folder) / name;
  }
  return {};
}

std::vector<std::string> command_line(const fs::path& browser, const fs::path& profile,
                                      const std::vector<std::string>& arguments) {
  std::vector<std::string> out = {browser.string(),
                                  "--headless",
                                  "--disable-gpu",
                                  "--disable-quic",
                                  "--no-first-run",
                                  "--disable-background-networking",
                                  "--disable-component-update",
                                  "--disable-sync",
                                  "--disable-dev-shm-usage",  // small in containers
                                  "--hide-scrollbars",
                                  "--user-data-dir=" + profile.string()};
  if (::geteuid() == 0) out.emplace_back("--no-sandbox");  // which Chromium refuses root
  out.insert(out.end(), arguments.begin(), arguments.end());
  return out;
}

// In the child, after fork(). This program has one thread when it plots.
[[noreturn]] void become(const std::vector<std::string>& command, const fs::path& scratch) {
  ::setpgid(0, 0);
  const auto onto = [&](const char* name, int fd) {
    const int file = ::open((scratch / name).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file >= 0) ::dup2(file, fd);
  };
  onto("stdout", STDOUT_FILENO);
  onto("stderr", STDERR_FILENO);
  // Its settings, caches and crash reports stay in the folder that is removed.
  for (const char* name : {"HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"}) {
    ::setenv(name, scratch.c_str(), 1);
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  ::execv(argv[0], argv.data());
  ::_exit(127);
}

// The exit status; empty: it ran out of time. Either way it and all its children are ended: helpers
// that outlive it would write into the folder as it is removed.
std::optional<int> wait_for(pid_t child, std::chrono::seconds timeout) {
  const UniqueFd ended(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  const auto end = std::chrono::steady_clock::now() + timeout;
  pollfd wait{ended.get(), POLLIN, 0};
  int ready = 0;
  do {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    ready = ::poll(&wait, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
  } while (ready < 0 && errno == EINTR);
  ::kill(-child, SIGKILL);  // before it is reaped: the group's number is still its own
  int status = 0;
  ::waitpid(child, &status, 0);
  if (ready != 1) return {};
  return status;
}

std::string last_words(const fs::path& file) {
  constexpr std::size_t kShown = 300;
  std::string text = read_file(file, kOutputMax).value_or("");
  while (!text.empty() && text.back() == '\n') text.pop_back();
  if (text.size() > kShown) text = "..." + text.substr(text.size() - kShown);
  return text.empty() ? "it said nothing" : printable(text);
}

}  // namespace

Result<fs::path> find_browser(const std::string& given) {
  const char* variable = std::getenv("BATON_CHROMIUM");
  const std::string wanted = !given.empty() ? given : variable != nullptr ? variable : "";
  if (!wanted.empty()) {
    if (const auto found = in_path(wanted)) return *found;
    return fail(Errc::kNotFound,
                fmt::format("{} is {}, which is no program",
                            given.empty() ? "BATON_CHROMIUM" : "--chromium", printable(wanted)));
  }
  for (const char* name : {"chromium", "chromium-browser", "google-chrome", "chrome"}) {
    if (const auto found = in_path(name)) return *found;
  }
  return fail(Errc::kNotFound,
              "Chromium is not installed (Debian's package chromium; --chromium or BATON_CHROMIUM "
              "name another)");
}

Result<std::string> run_browser(const fs::path& browser, const std::vector<std::string>& arguments,
                                std::chrono::seconds timeout) {
  const Scratch scratch;
  if (scratch.path().empty()) return fail(Errc::kIo, "no temporary folder can be made");
  const auto command = command_line(browser, scratch.path() / "profile", arguments);
  const pid_t child = ::fork();
  if (child < 0) return fail(Errc::kIo, "fork failed");
  if (child == 0) become(command, scratch.path());
  ::setpgid(child, child);  // whichever of the two comes first
  const auto status = wait_for(child, timeout);
  const std::string name = printable(browser.string());
  if (!status) {
    return fail(Errc::kDeadlineExceeded,
                fmt::format("{} did not end within {} s", name, timeout.count()));
  }
  if (!WIFEXITED(*status) || WEXITSTATUS(*status) != 0) {
    return fail(
        Errc::kUnavailable,
        fmt::format("{} ended with {} {}: {}", name, WIFEXITED(*status) ? "exit code" : "signal",
                    WIFEXITED(*status) ? WEXITSTATUS(*status) : WTERMSIG(*status),
                    last_words(scratch.path() / "stderr")));
  }
  return read_file(scratch.path() / "stdout", kOutputMax);
}

}  // namespace baton::bench::plot
