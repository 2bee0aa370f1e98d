// For tests: the other side of peer_main.cc.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/unique_fd.h"
#include "baton/ids.h"

namespace baton::testing {

class PeerProcess {
 public:
  // `arguments` after the program's name.
  PeerProcess(const std::string& program, std::vector<std::string> arguments,
              const std::string& fault = {}) {
    int in[2];
    int out[2];
    BATON_CHECK(::pipe2(in, O_CLOEXEC) == 0 && ::pipe2(out, O_CLOEXEC) == 0);
    std::vector<char*> argv{const_cast<char*>(program.c_str())};
    for (auto& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    BATON_CHECK(pid_ >= 0);
    if (pid_ == 0) {
      ::dup2(in[0], STDIN_FILENO);
      ::dup2(out[1], STDOUT_FILENO);
      if (!fault.empty()) ::setenv("BATON_FAULT", fault.c_str(), 1);
      ::execv(program.c_str(), argv.data());
      ::_exit(127);
    }
    ::close(in[0]);
    ::close(out[1]);
    to_.reset(in[1]);
    from_.reset(out[0]);
    address_ = line_with("address ").substr(8);
  }
  ~PeerProcess() { kill(SIGKILL); }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  // "host port engine incarnation"
  const std::string& address() const { return address_; }
  std::string port() const {
    const auto begin = address_.find(' ') + 1;
    return address_.substr(begin, address_.find(' ', begin) - begin);
  }

  void tell(const std::string& line) {
    const std::string bytes = line + "\n";
    [[maybe_unused]] const auto written = ::write(to_.get(), bytes.data(), bytes.size());
  }
  // Tells and wants "ok".
  void order(const std::string& line) {
    tell(line);
    EXPECT_EQ(line_with(""), "ok") << line;
  }
  std::string ask(const std::string& line, const std::string& prefix) {
    tell(line);
    return line_with(prefix);
  }
  // The first line from now on that begins so; events that come meanwhile wait for event().
  std::string line_with(const std::string& prefix,
                        std::chrono::milliseconds limit = std::chrono::seconds(20)) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (true) {
      std::string line;
      if (!next_line(line, end)) return "(nothing that begins with '" + prefix + "')";
      const bool event = line.rfind("event ", 0) == 0;
      if (event && prefix.rfind("event", 0) != 0) {
        events_.push_back(line);
        continue;
      }
      if (line.rfind(prefix, 0) == 0) return line;
    }
  }
  // The first event of the transfer whose line contains `words`.
  std::string event(const std::string& words,
                    std::chrono::milliseconds limit = std::chrono::seconds(20)) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (true) {
      for (std::size_t i = 0; i < events_.size(); ++i) {
        if (events_[i].find(words) == std::string::npos) continue;
        std::string line = events_[i];
        events_.erase(events_.begin() + static_cast<std::ptrdiff_t>(i));
        return line;
      }
      std::string line;
      if (!next_line(line, end)) return "(no event with '" + words + "')";
      if (line.rfind("event ", 0) == 0) events_.push_back(line);
    }
  }
  // "N" free blocks in the end; asks until it is so.
  bool frees(std::size_t blocks) {
    for (int i = 0; i < 2000; ++i) {
      if (ask("free", "free ") == "free " + std::to_string(blocks) + " 0") return true;
      ::usleep(5000);
    }
    return false;
  }

  void kill(int signal) {
    if (pid_ <= 0) return;
    ::kill(pid_, signal);
    if (signal != SIGKILL) return;
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  int quit() {
    tell("quit");
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }

 private:
  bool next_line(std::string& line, std::chrono::steady_clock::time_point end) {
    while (true) {
      const auto newline = buffer_.find('\n');
      if (newline != std::string::npos) {
        line = buffer_.substr(0, newline);
        buffer_.erase(0, newline + 1);
        return true;
      }
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          end - std::chrono::steady_clock::now());
      if (left.count() <= 0) return false;
      pollfd fd{from_.get(), POLLIN, 0};
      if (::poll(&fd, 1, static_cast<int>(left.count())) <= 0) continue;
      char bytes[4096];
      const ssize_t got = ::read(from_.get(), bytes, sizeof(bytes));
      if (got <= 0) return false;
      buffer_.append(bytes, static_cast<std::size_t>(got));
    }
  }

  pid_t pid_ = -1;
  UniqueFd to_, from_;
  std::string buffer_;
  std::string address_;
  std::vector<std::string> events_;
};

}  // namespace baton::testing
