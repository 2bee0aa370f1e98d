// A child process that runs this program with other arguments, and dies with its parent.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "baton/result.h"

namespace baton::serving {

class Child {
 public:
  // Starts it with `arguments` and "--announce-fd N" at their end. The caller's thread must live as
  // long as the child shall. Its output goes to `output` where that is a descriptor.
  static Result<Child> start(std::string name, std::vector<std::string> arguments, int output = -1);

  const std::string& name() const { return name_; }
  pid_t pid() const { return pid_; }

  // Where its port is announced; readable when it is, or when the child has ended.
  int announcement() const { return announcement_.get(); }
  // Reads the port; nothing if the child ended without announcing one.
  std::optional<std::uint16_t> read_port();

  bool running() const { return pid_ > 0 && !status_; }
  void signal(int number) const;
  // Notes its end if it has ended; never waits.
  bool reap();

  // "exited with code 4" or "was killed by signal 9 (Killed)". After reap().
  std::string end_text() const;
  int exit_code() const;  // its own, or 1 after a signal

 private:
  std::string name_;
  pid_t pid_ = -1;
  UniqueFd announcement_;
  std::optional<int> status_;
};

}  // namespace baton::serving
