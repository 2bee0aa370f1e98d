#include "bench/sweep_servers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "http/client.h"
#include "serving/child.h"
#include "serving/process.h"

namespace baton::bench {
namespace {

using serving::Child;

constexpr Duration kReadyWithin = std::chrono::seconds(120);  // a real model is read from disk
constexpr Duration kStopWithin = std::chrono::seconds(10);
constexpr Duration kPause = std::chrono::milliseconds(20);

class Servers final : public SweepServers {
 public:
  Servers(const SweepOptions& options, std::string log_path)
      : options_(options), log_path_(std::move(log_path)) {}
  ~Servers() override {
    stop(router_);
    stop(instances_);
  }
  Servers(const Servers&) = delete;
  Servers& operator=(const Servers&) = delete;

  Status start(const SweepMode& mode) {
    log_.reset(::open(log_path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (!log_) return fail(Errc::kIo, fmt::format("{}: {}", log_path_, strerror(errno)));
    Status started = start_instances(mode);
    if (started && base_url_.empty()) started = start_router(mode);
    return started ? wait_until_ready() : started;
  }

  const std::string& base_url() const override { return base_url_; }
  const std::string& prefill_url() const override { return prefill_url_; }
  const std::string& decode_url() const override { return decode_url_; }
  const std::vector<std::string>& prefill_flags() const override { return prefill_flags_; }
  const std::vector<std::string>& decode_flags() const override { return decode_flags_; }
  const std::vector<std::string>& route_flags() const override { return route_flags_; }

  Status check() override {
    for (auto* group : {&router_, &instances_}) {
      for (Child& child : *group) {
        if (child.reap()) return ended(child);
      }
    }
    return {};
  }

 private:
  Status start_instances(const SweepMode& mode) {
    base_url_ = options_.router_url;
    prefill_url_ = options_.prefill_url;
    decode_url_ = options_.decode_url;
    if (!base_url_.empty() || !prefill_url_.empty()) return {};
    if (mode.is_local) {
      decode_flags_ = local_command(options_);
      Status started = launch("local", decode_flags_, instances_);
      return started ? announced(instances_.back(), base_url_) : started;
    }
    prefill_flags_ = prefill_command(mode, options_);
    decode_flags_ = decode_command(mode, options_);
    Status status = launch("prefill", prefill_flags_, instances_);
    if (status) status = launch("decode", decode_flags_, instances_);
    if (status) status = announced(instances_[0], prefill_url_);
    return status ? announced(instances_[1], decode_url_) : status;
  }

  Status start_router(const SweepMode& mode) {
    route_flags_ = route_command(mode, options_, prefill_url_, decode_url_);
    Status started = launch("router", route_flags_, router_);
    return started ? announced(router_.back(), base_url_) : started;
  }

  Status launch(const char* name, const std::vector<std::string>& arguments,
                std::vector<Child>& group) {
    Result<Child> child = Child::start(name, arguments, log_.get());
    if (!child) return tl::unexpected<Error>(child.error());
    group.push_back(std::move(*child));
    return {};
  }

  Status announced(Child& child, std::string& url) {
    pollfd wanted = {child.announcement(), POLLIN, 0};
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(kReadyWithin).count();
    if (::poll(&wanted, 1, static_cast<int>(ms)) == 1) {
      if (const auto port = child.read_port()) {
        url = serving::base_url("127.0.0.1", *port);
        return {};
      }
    }
    const Time end = now() + kStopWithin;  // it closed its pipe: its end is about to be known
    while (!child.reap() && now() < end) std::this_thread::sleep_for(kPause);
    return ended(child);
  }

  Status wait_until_ready() {
    const Time end = now() + kReadyWithin;
    for (;;) {
      http::Call call;
      call.url = base_url_ + "/health";
      call.timeout = std::chrono::seconds(5);
      const auto answer = http::fetch(std::move(call));
      if (answer && answer->status == 200) return {};
      if (Status alive = check(); !alive) return alive;
      if (now() >= end) {
        return fail(Errc::kUnavailable,
                    fmt::format("{}/health is not 200: {}; see {}", base_url_,
                                answer ? answer->body : answer.error().message, log_path_));
      }
      std::this_thread::sleep_for(kPause);
    }
  }

  tl::unexpected<Error> ended(const Child& child) const {
    return fail(Errc::kUnavailable,
                fmt::format("{} {}: {} (see {})", child.name(),
                            child.running() ? "did not announce its port" : child.end_text(),
                            last_words(), log_path_));
  }

  // The end of the log, where a server says what was wrong.
  std::string last_words() const {
    std::ifstream file(log_path_);
    std::string line, last, before;
    while (std::getline(file, line)) {
      if (line.empty()) continue;
      before = std::move(last);
      last = std::move(line);
    }
    return before.empty() ? last : before + " " + last;
  }

  static void stop(std::vector<Child>& children) {
    for (const Child& child : children) child.signal(SIGTERM);
    const Time kill_at = now() + kStopWithin;
    bool killed = false;
    const auto all_ended = [&children] {
      bool all = true;
      for (Child& child : children) all = child.reap() && all;
      return all;
    };
    while (!all_ended()) {
      if (!killed && now() >= kill_at) {
        for (const Child& child : children) child.signal(SIGKILL);
        killed = true;
      }
      std::this_thread::sleep_for(kPause);
    }
  }

  const SweepOptions& options_;
  const std::string log_path_;
  UniqueFd log_;
  std::vector<Child> instances_, router_;
  std::string base_url_, prefill_url_, decode_url_;
  std::vector<std::string> prefill_flags_, decode_flags_, route_flags_;
};

}  // namespace

Result<std::unique_ptr<SweepServers>> SweepServers::start(const SweepMode& mode,
                                                          const SweepOptions& options,
                                                          const std::string& log_path) {
  auto servers = std::make_unique<Servers>(options, log_path);
  if (Status started = servers->start(mode); !started) {
    return tl::unexpected<Error>(started.error());
  }
  return std::unique_ptr<SweepServers>(std::move(servers));
}

}  // namespace baton::bench
