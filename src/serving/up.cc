#include "serving/up.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <thread>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/unique_fd.h"
#include "http/client.h"
#include "serving/child.h"
#include "serving/model_files.h"

namespace baton::serving {
namespace {

constexpr char kWho[] = "baton up";
constexpr Duration kKillAfter = std::chrono::seconds(5);  // beyond what draining may take
constexpr Duration kHealthPause = std::chrono::milliseconds(50);

// SIGINT, SIGTERM and SIGCHLD as a descriptor to poll.
UniqueFd open_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&set, number);
  BATON_CHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0);
  return UniqueFd(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
}

class Supervisor {
 public:
  explicit Supervisor(const UpOptions& options) : options_(options), signals_(open_signals()) {}

  Exit run() {
    Exit exit = start_all();
    if (exit == Exit::kOk && !stop_asked_) exit = wait_until_ready();
    if (exit == Exit::kOk && !stop_asked_) {
      print_ready();
      exit = supervise();
    }
    stop_all();
    // Last, where it is not buried under the lines of those that stop.
    if (!cause_.empty()) complain(kWho, fmt::format("stopped, because {}", cause_));
    return exit;
  }

 private:
  // Nothing wrong: kOk. Otherwise somebody ended, which has been told.
  Exit start_all() {
    const Exit prefill = start("prefill", instance_arguments("kv_producer", options_.prefill_port));
    if (prefill != Exit::kOk) return prefill;
    const Exit decode = start("decode", instance_arguments("kv_consumer", options_.decode_port));
    if (decode != Exit::kOk) return decode;
    for (std::size_t i = 0; i < 2; ++i) {
      const Exit announced = wait_for_port(i);
      if (announced != Exit::kOk || stop_asked_) return announced;
    }
    const Exit router = start("router", router_arguments());
    return router == Exit::kOk ? wait_for_port(2) : router;
  }

  Exit start(const char* name, std::vector<std::string> arguments) {
    Result<Child> child = Child::start(name, std::move(arguments));
    if (!child) {
      complain(kWho, child.error().message);
      return Exit::kOther;
    }
    children_.push_back(std::move(*child));
    ports_.push_back(0);
    return Exit::kOk;
  }

  std::vector<std::string> instance_arguments(const std::string& role, std::uint16_t port) const {
    const std::string engine = role == "kv_producer" ? "prefill" : "decode";
    const std::string connector = options_.mode == "pull" ? "BatonPullConnector" : "BatonConnector";
    std::vector<std::string> arguments = {
        "serve",
        options_.model,
        "--host",
        "127.0.0.1",
        "--port",
        std::to_string(port),
        "--drain-timeout",
        fmt::format("{}", options_.drain_timeout),
        "--kv-transfer-config",
        fmt::format(R"({{"kv_connector":"{}","kv_role":"{}","engine_id":"{}",)"
                    R"("kv_load_failure_policy":"{}"}})",
                    connector, role, engine, options_.kv_load_failure_policy)};
    // Two instances share this machine's cores.
    const bool threads_given = std::find(options_.serve_flags.begin(), options_.serve_flags.end(),
                                         "--threads") != options_.serve_flags.end();
    if (!threads_given) {
      const unsigned half = std::max(1U, std::thread::hardware_concurrency() / 2);
      arguments.insert(arguments.end(), {"--threads", std::to_string(half)});
    }
    arguments.insert(arguments.end(), options_.serve_flags.begin(), options_.serve_flags.end());
    return arguments;
  }

  std::vector<std::string> router_arguments() const {
    return {"route",
            "--prefill",
            base_url("127.0.0.1", ports_[0]),
            "--decode",
            base_url("127.0.0.1", ports_[1]),
            "--host",
            options_.host,
            "--port",
            std::to_string(options_.port),
            "--first-token",
            options_.first_token,
            "--drain-timeout",
            fmt::format("{}", options_.drain_timeout)};
  }

  Exit wait_for_port(std::size_t index) {
    while (!stop_asked_) {
      const bool announced = wait(children_[index].announcement(), Duration::max());
      const Exit ended = check_children();
      if (ended != Exit::kOk) return ended;
      if (!announced) continue;
      const std::optional<std::uint16_t> port = children_[index].read_port();
      if (port) {
        ports_[index] = *port;
        return Exit::kOk;
      }
      // It closed the pipe: its end is about to be known.
      return wait_for_end();
    }
    return Exit::kOk;
  }

  Exit wait_for_end() {
    while (!stop_asked_) {
      wait(-1, Duration::max());
      const Exit ended = check_children();
      if (ended != Exit::kOk) return ended;
    }
    return Exit::kOk;
  }

  // Until the router says that a P and a D are ready.
  Exit wait_until_ready() {
    while (!stop_asked_) {
      http::Call call;
      call.url = url() + "/health";
      call.timeout = std::chrono::seconds(1);
      const auto answer = http::fetch(std::move(call));
      if (answer && answer->status == 200) return Exit::kOk;
      wait(-1, kHealthPause);
      const Exit ended = check_children();
      if (ended != Exit::kOk) return ended;
    }
    return Exit::kOk;
  }

  Exit supervise() {
    while (!stop_asked_) {
      wait(-1, Duration::max());
      if (stop_asked_) break;
      const Exit ended = check_children();
      if (ended != Exit::kOk) return ended;
    }
    return Exit::kOk;
  }

  // Waits for a signal, for `fd` or for the time to pass. True: `fd` is readable.
  bool wait(int fd, Duration longest) {
    std::array<pollfd, 2> polled = {pollfd{signals_.get(), POLLIN, 0}, pollfd{fd, POLLIN, 0}};
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(longest).count();
    const int timeout = longest == Duration::max() ? -1 : static_cast<int>(ms);
    poll(polled.data(), fd < 0 ? 1 : 2, timeout);
    signalfd_siginfo info{};
    while (read(signals_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
      if (info.ssi_signo == SIGCHLD) continue;
      hurry_ = stop_asked_;
      stop_asked_ = true;
    }
    return fd >= 0 && polled[1].revents != 0;
  }

  // A child that ended although nobody asked it to ends everything.
  Exit check_children() {
    if (stop_asked_) return Exit::kOk;
    for (Child& child : children_) {
      if (!child.reap()) continue;
      cause_ = fmt::format("{} (process {}) {}", child.name(), child.pid(), child.end_text());
      complain(kWho, cause_ + ": everything stops");
      const int code = child.exit_code();
      return code == 0 ? Exit::kOther : static_cast<Exit>(code);
    }
    return Exit::kOk;
  }

  // The router first, so that no request is cut that could end; then the instances.
  void stop_all() {
    if (children_.size() == 3) stop({&children_[2]});
    std::vector<Child*> instances;
    for (std::size_t i = 0; i < std::min<std::size_t>(2, children_.size()); ++i) {
      instances.push_back(&children_[i]);
    }
    stop(instances);
  }

  void stop(const std::vector<Child*>& children) {
    for (const Child* child : children) child->signal(SIGTERM);
    const Time kill_at = now() + from_seconds(options_.drain_timeout) + kKillAfter;
    bool killed = false;
    const auto all_ended = [&children] {
      bool all = true;
      for (Child* child : children) all = child->reap() && all;
      return all;
    };
    while (!all_ended()) {
      const Time at = now();
      if (hurry_ && hurry_until_ == kNever) hurry_until_ = at + 2 * kHurry;
      if (at >= std::min(kill_at, hurry_until_) && !killed) {
        killed = true;
        for (const Child* child : children) child->signal(SIGKILL);
      }
      if (hurry_) {
        // Whoever has not heard the first one hears it now, and then the second.
        for (const Child* child : children) child->signal(SIGTERM);
        wait(-1, kHealthPause);
      } else {
        wait(-1, killed ? Duration::max() : kill_at - at);
      }
    }
  }

  std::string url() const { return base_url(options_.host, ports_[2]); }

  void print_ready() const {
    const std::string name =
        options_.model_names.empty() ? options_.model : options_.model_names.front();
    fmt::print(
        "\nprefill {}   decode {}   router {}\n\n"
        "Ask it something:\n\n"
        "curl -N {}/v1/chat/completions -H 'Content-Type: application/json' -d "
        "'{{\"model\": \"{}\", \"stream\": true, \"max_tokens\": 64, \"messages\": "
        "[{{\"role\": \"user\", \"content\": \"What is the capital of France?\"}}]}}'\n\n"
        "Ctrl-C stops all three.\n",
        base_url("127.0.0.1", ports_[0]), base_url("127.0.0.1", ports_[1]), url(), url(), name);
    std::fflush(stdout);
  }

  const UpOptions& options_;
  const UniqueFd signals_;
  std::vector<Child> children_;  // prefill, decode, router
  std::vector<std::uint16_t> ports_;
  std::string cause_;  // who ended although nobody asked it to
  bool stop_asked_ = false;
  bool hurry_ = false;  // asked again
  Time hurry_until_ = kNever;
};

}  // namespace

Exit run_up(const UpOptions& options) {
  if (const Result<std::string> path = find_model(options.model); !path) {
    complain(kWho, path.error().message);
    return Exit::kModel;
  }
  return Supervisor(options).run();
}

}  // namespace baton::serving
