// What a run leaves behind: the hash of everything that happened, the last lines of it, what the
// checkers found, and which rare branches were taken. Nothing is formatted until somebody reads it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace baton::sim {

// Rare branches. The long run fails if one of them was never reached.
enum class Mark : std::uint8_t {
#define BATON_SIM_MARK(name) name,
#include "sim/marks.inc"
#undef BATON_SIM_MARK
  kCount
};
std::string_view to_string(Mark mark);
inline constexpr std::size_t kMarks = static_cast<std::size_t>(Mark::kCount);

// One checker a name; each stands outside the product.
enum class Checker : std::uint8_t {
  kLateByte,      // [I1] a block was written after it was released
  kEarlyRead,     // [I2] a byte was not there when the decode side was told
  kSourceReused,  // [I2] a block of P came back while a write from it was posted
  kOneEnd,        // [I3] an attempt ended twice, or never
  kBound,         // [I4] something did not end within its bound
  kLease,         // [I5] a lease ended early or late
  kStale,         // [I6] a message of another life had an effect
  kMessages,      // [I7] a damaged message was taken, or a whole one refused
  kBytes,         // [I8] bytes sent are not the bytes needed
  kBooks,         // blocks, slots or credits were lost or made
  kQueues,        // a queue outgrew its bound
  kIdle,          // a table was not empty at the end
  kProbe,         // a plain request failed after the faults
  kRouter,        // [I3] at R: a request without exactly one end, or tokens lost or doubled
  kCount
};
std::string_view to_string(Checker checker);

struct Line {
  Time at{};
  std::array<char, 12> process{};
  const char* event = "";
  std::uint64_t transfer = 0;  // low word; 0: none
  std::string_view word;       // of static storage
  std::uint64_t number = 0;
};

struct Finding {
  Checker checker = Checker::kCount;
  Time at{};
  std::string text;
};

class Journal {
 public:
  explicit Journal(bool print = false) : print_(print) {}

  void note(const Line& line);
  void fault(Checker checker, Time at, std::string text);
  void mark(Mark mark) { ++marks_[static_cast<std::size_t>(mark)]; }
  void count(std::string_view what, std::string_view outcome, std::string_view cause);

  bool failed() const { return !findings_.empty(); }
  const std::vector<Finding>& findings() const { return findings_; }
  const std::array<std::uint64_t, kMarks>& marks() const { return marks_; }
  const std::map<std::array<std::string_view, 3>, std::uint64_t>& counts() const { return counts_; }
  std::uint64_t hash() const { return hash_; }
  std::uint64_t lines() const { return lines_; }
  std::string tail() const;  // the last lines, in columns
  static std::string header();

 private:
  static constexpr std::size_t kTail = 24;
  static constexpr std::size_t kFindingsMax = 8;

  bool print_;
  std::uint64_t hash_ = 0xCBF29CE484222325ULL;
  std::uint64_t lines_ = 0;
  std::array<Line, kTail> ring_{};
  std::vector<Finding> findings_;
  std::array<std::uint64_t, kMarks> marks_{};
  std::map<std::array<std::string_view, 3>, std::uint64_t> counts_;
};

}  // namespace baton::sim
