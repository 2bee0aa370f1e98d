// What the servers need of a process: how it is told to stop, how it says that it listens, and what
// it says when it ends.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace baton::serving {

// Exit codes of every command; `baton --help` documents them.
enum class Exit : int {
  kOk = 0,
  kOther = 1,
  kUsage = 2,   // flag, value or configuration
  kModel = 3,   // weights missing or unreadable
  kListen = 4,  // port in use, host unknown
};

// Blocks SIGINT and SIGTERM for this thread and those it starts, and ignores SIGPIPE. Call before
// any thread starts; then wait_for_stop() hears them.
void hold_stop_signals();
int wait_for_stop();  // the signal's number

// After the first stop signal: waits for what runs. A second signal wants the end now.
enum class DrainEnd : std::uint8_t { kIdle, kTimeUp, kSecondSignal };
DrainEnd drain(Duration longest, const std::function<bool()>& is_idle);
// After the second signal: the process ends in good order if it can, and after this time in any
// case, with the exit code 0. What a dead process may still have written is fenced by its death.
void end_within(Duration longest);
inline constexpr Duration kHurry = std::chrono::milliseconds(1500);

// Where a parent wants to know that a child listens: writes the port and a line break to the
// descriptor and closes it. -1: nobody asked.
void announce_port(int fd, std::uint16_t port);

// "http://127.0.0.1:8000"; brackets around IPv6 addresses.
std::string base_url(std::string_view host, std::uint16_t port);

// One line of standard error for each line of the text.
void complain(std::string_view who, std::string_view text);

// Flags in seconds: what is wrong with the value ("" if nothing), and the value as a duration.
std::string seconds_problem(std::string_view flag, double value);
Duration from_seconds(double seconds);

// Flags that would do nothing here: one problem, "FLAG WHY", for each that was given.
void refuse_given(std::initializer_list<std::pair<std::string_view, bool>> flags,
                  std::string_view why, std::vector<std::string>& problems);

bool is_loopback(std::string_view host);
// One warning line if the host is not this machine's own.
void warn_if_exposed(std::string_view host, std::string_view what);

}  // namespace baton::serving
