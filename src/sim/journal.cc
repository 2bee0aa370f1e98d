#include "sim/journal.h"

#include <fmt/format.h>

#include <algorithm>

namespace baton::sim {
namespace {

constexpr std::array<std::string_view, kMarks> kMarkNames{
#define BATON_SIM_MARK(name) #name,
#include "sim/marks.inc"
#undef BATON_SIM_MARK
};

std::string columns(const Line& line) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(line.at.time_since_epoch());
  return fmt::format("{:>12} {:<11} {:<22} {:>8} {:<22} {}", us.count(), line.process.data(),
                     line.event, line.transfer == 0 ? "-" : fmt::to_string(line.transfer),
                     line.word.empty() ? "-" : line.word, line.number);
}

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash ^= value;
  hash *= 0x9E3779B97F4A7C15ULL;
  return hash ^ (hash >> 29);
}

std::uint64_t mix(std::uint64_t hash, std::string_view text) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  return hash;
}

}  // namespace

std::string_view to_string(Mark mark) {
  return kMarkNames[static_cast<std::size_t>(mark)];
}

std::string_view to_string(Checker checker) {
  switch (checker) {
    case Checker::kLateByte:
      return "late_byte [I1]";
    case Checker::kEarlyRead:
      return "early_read [I2]";
    case Checker::kSourceReused:
      return "source_reused [I2]";
    case Checker::kOneEnd:
      return "one_end [I3]";
    case Checker::kBound:
      return "bounded_end [I4]";
    case Checker::kLease:
      return "lease [I5]";
    case Checker::kStale:
      return "stale [I6]";
    case Checker::kMessages:
      return "messages [I7]";
    case Checker::kBytes:
      return "bytes [I8]";
    case Checker::kBooks:
      return "books";
    case Checker::kQueues:
      return "queues";
    case Checker::kIdle:
      return "idle";
    case Checker::kProbe:
      return "probe";
    case Checker::kRouter:
      return "router [I3]";
    case Checker::kCount:
      break;
  }
  return "?";
}

std::string Journal::header() {
  return fmt::format("{:>12} {:<11} {:<22} {:>8} {:<22} {}", "us", "process", "event", "transfer",
                     "detail", "number");
}

void Journal::note(const Line& line) {
  hash_ = mix(hash_, static_cast<std::uint64_t>(line.at.time_since_epoch().count()));
  hash_ = mix(hash_, std::string_view(line.process.data()));
  hash_ = mix(hash_, std::string_view(line.event));
  hash_ = mix(hash_, line.transfer);
  hash_ = mix(hash_, line.word);
  hash_ = mix(hash_, line.number);
  ring_[lines_++ % kTail] = line;
  if (print_) fmt::print("{}\n", columns(line));
}

void Journal::fault(Checker checker, Time at, std::string text) {
  if (print_) fmt::print("FAULT {}: {}\n", to_string(checker), text);
  if (findings_.size() < kFindingsMax) findings_.push_back({checker, at, std::move(text)});
}

void Journal::count(std::string_view what, std::string_view outcome, std::string_view cause) {
  ++counts_[{what, outcome, cause}];
}

std::string Journal::tail() const {
  std::string out = header() + "\n";
  const std::uint64_t first = lines_ > kTail ? lines_ - kTail : 0;
  for (std::uint64_t i = first; i < lines_; ++i) out += columns(ring_[i % kTail]) + "\n";
  return out;
}

}  // namespace baton::sim
