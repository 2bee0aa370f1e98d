#include "base/failure_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "base/printable.h"

namespace baton::log {
namespace {

struct Shared {
  std::mutex mutex;
  FailureLimiter limiter;
};
Shared& shared() {
  static Shared instance;
  return instance;
}

bool is_word(std::string_view cause) {
  return !cause.empty() && cause.size() <= FailureLimiter::kCauseBytesMax &&
         std::all_of(cause.begin(), cause.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
         });
}

}  // namespace

FailureLimiter::Verdict FailureLimiter::admit(std::string_view cause, Time now) {
  auto at = entries_.find(cause);
  if (at == entries_.end()) {
    const bool room = entries_.size() < kCausesMax && is_word(cause);
    at = entries_.emplace(room ? std::string(cause) : "other", Entry{}).first;
  }
  Entry& entry = at->second;
  ++entry.total;
  if (now >= entry.window_end) {
    entry.window_end = now + kWindow;
    entry.lines = 0;
  }
  Verdict verdict;
  verdict.tell = entry.lines < kLinesMax;
  if (!verdict.tell) {
    ++entry.untold;
    ++entry.suppressed;
    return verdict;
  }
  ++entry.lines;
  verdict.suppressed = std::exchange(entry.untold, 0);
  for (auto& [name, other] : entries_) {
    if (other.untold == 0 || now < other.window_end) continue;
    verdict.others.emplace_back(name, std::exchange(other.untold, 0));
  }
  return verdict;
}

std::vector<FailureCount> FailureLimiter::counts() const {
  std::vector<FailureCount> out;
  for (const auto& [cause, entry] : entries_) out.push_back({cause, entry.total, entry.suppressed});
  return out;
}

std::string field_text(const Field& field) {
  const bool plain = std::all_of(field.value.begin(), field.value.end(), [](char c) {
    return c > ' ' && c <= '~' && c != '"' && c != '=' && c != '\\';
  });
  if (plain) return fmt::format("{}={}", field.key, field.value);
  std::string quoted;
  for (const char c : field.value) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return fmt::format("{}=\"{}\"", field.key, printable(quoted));
}

void failure(Level level, std::string_view cause, std::initializer_list<Field> fields) {
  FailureLimiter::Verdict verdict;
  {
    const std::lock_guard lock(shared().mutex);
    verdict = shared().limiter.admit(cause, now());
  }
  for (const auto& [other, suppressed] : verdict.others) {
    write(level, fmt::format("failure cause={} suppressed={}", other, suppressed));
  }
  if (!verdict.tell || !enabled(level)) return;
  std::string line = "failure ";
  line += field_text({"cause", cause.substr(0, FailureLimiter::kCauseBytesMax)});
  for (const Field& field : fields) {
    if (!field.value.empty()) line.append(" ").append(field_text(field));
  }
  if (verdict.suppressed > 0) line += fmt::format(" suppressed={}", verdict.suppressed);
  write(level, line);
}

std::vector<FailureCount> failure_counts() {
  const std::lock_guard lock(shared().mutex);
  return shared().limiter.counts();
}

}  // namespace baton::log
