#include "bench/saturation.h"

#include <algorithm>
#include <vector>

#include "bench/summary.h"

namespace baton::bench {
namespace {

// Quarters of two requests, at least.
constexpr std::size_t kFewest = 8;
// In eight seconds of arrivals: the last answer ends 1.4 s later after its arrival than the first.
constexpr double kClearlyBelow = 0.85;
constexpr double kClearlyLonger = 1.5;

std::optional<double> per_second(std::vector<Duration> moments) {
  const auto [first, last] = std::ranges::minmax_element(moments);
  const double seconds = std::chrono::duration<double>(*last - *first).count();
  if (seconds <= 0) return {};
  return static_cast<double>(moments.size() - 1) / seconds;
}

std::optional<double> median_wait(std::span<const RequestResult* const> requests) {
  std::vector<double> waits;
  for (const RequestResult* r : requests) {
    const std::optional<Duration> end = r->second ? r->second : r->first;
    if (end) waits.push_back(RequestResult::ms(*end - r->sent));
  }
  return Samples(std::move(waits)).median();
}

}  // namespace

Arrivals arrivals_of(std::span<const RequestResult> results) {
  std::vector<const RequestResult*> answered;
  for (const RequestResult& r : results) {
    if (r.ok && r.last) answered.push_back(&r);
  }
  Arrivals out;
  if (answered.size() < kFewest) return out;
  std::ranges::stable_sort(answered, {}, &RequestResult::sent);
  std::vector<Duration> sent, ended;
  for (const RequestResult* r : answered) {
    sent.push_back(r->sent);
    ended.push_back(*r->last);
  }
  out.offered_per_s = per_second(sent);
  out.answered_per_s = per_second(ended);
  out.open_at_last_arrival = static_cast<std::size_t>(std::count_if(
      answered.begin(), answered.end() - 1, [&](const auto* r) { return *r->last > sent.back(); }));
  const std::span<const RequestResult* const> all(answered);
  out.first_quarter_ms = median_wait(all.first(all.size() / 4));
  out.last_quarter_ms = median_wait(all.last(all.size() / 4));
  return out;
}

std::optional<bool> is_saturated(const Arrivals& a) {
  if (!a.offered_per_s || !a.answered_per_s || !a.first_quarter_ms || !a.last_quarter_ms) return {};
  return *a.answered_per_s < kClearlyBelow * *a.offered_per_s &&
         *a.last_quarter_ms > kClearlyLonger * *a.first_quarter_ms;
}

}  // namespace baton::bench
