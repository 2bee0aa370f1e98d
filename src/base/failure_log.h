// One structured line for each failure, so that a machine can count them and a person can follow
// one through three processes by its ids:
//
//   failure cause=peer_died transfer=0123... request=cmpl-7 prefill=p0 decode=d0 text="..."
//
// Limited for each cause, so that a storm of one failure neither fills a disk nor hides another: of
// each cause kLinesMax lines in kWindow; the next line of that cause, or the next failure of any,
// tells how many were left out. Every failure is counted, told or not. Any thread.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"

namespace baton::log {

struct Field {
  std::string_view key;    // a word
  std::string_view value;  // left out where it is empty
};

// `cause` is one of a closed set of words. It may come from another process: what is no word of up
// to kCauseBytesMax lower-case letters, digits and '_' is told escaped, and limited and counted as
// "other".
void failure(Level level, std::string_view cause, std::initializer_list<Field> fields);

struct FailureCount {
  std::string cause;
  std::uint64_t total = 0;
  std::uint64_t suppressed = 0;  // of these
};
std::vector<FailureCount> failure_counts();  // of this process, for /metrics

// What decides whether a line is told.
class FailureLimiter {
 public:
  static constexpr std::uint32_t kLinesMax = 10;
  static constexpr Duration kWindow = std::chrono::seconds(10);
  static constexpr std::size_t kCausesMax = 64;  // more share one entry, "other"
  static constexpr std::size_t kCauseBytesMax = 64;

  struct Verdict {
    bool tell = false;
    std::uint64_t suppressed = 0;  // with tell: of this cause since the last line told
    // Other causes whose window is over with lines left out: told now, because perhaps no failure
    // of theirs comes again.
    std::vector<std::pair<std::string, std::uint64_t>> others;
  };
  Verdict admit(std::string_view cause, Time now);
  std::vector<FailureCount> counts() const;

 private:
  struct Entry {
    Time window_end{};
    std::uint32_t lines = 0;
    std::uint64_t untold = 0;
    std::uint64_t total = 0;
    std::uint64_t suppressed = 0;
  };
  std::map<std::string, Entry, std::less<>> entries_;
};

// key=value with quotes where a reader of fields needs them, and nothing in it that a terminal
// would act on.
std::string field_text(const Field& field);

}  // namespace baton::log
