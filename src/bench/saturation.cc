#include "bench/saturation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "bench/summary.h"

namespace baton::bench {
namespace {

// Quarters of two requests, at least.
constexpr std::size_t kFewest = 8;
constexpr double kClearlyLonger = 1.5;
// Seconds that waits grow by in a second of arrivals. Servers that are asked for a share x more
// than they can do fall behind by x seconds a second. What clustered arrivals do to those that keep
// up does not grow with the run; in one of 8 s it has come to 0.05.
constexpr double kOverload = 0.075;
constexpr double kBetweenQuarters = 0.75;  // of the run, from the middle of the first to the last's
constexpr double kMsPerSecond = 1000;

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

std::uint64_t tokens_of(const RequestResult& r) {
  return std::uint64_t{r.input_len} + r.output_len;
}

// Of a trace with lengths of every kind the shortest would say nothing of the others.
Duration quickest(std::span<const RequestResult* const> answered) {
  std::vector<std::uint64_t> sizes;
  for (const RequestResult* r : answered) sizes.push_back(tokens_of(*r));
  const auto middle = sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2);
  std::ranges::nth_element(sizes, middle);
  Duration out = Duration::max();
  for (const RequestResult* r : answered) {
    if (tokens_of(*r) >= *middle) out = std::min(out, *r->last - r->sent);
  }
  return out;
}

}  // namespace

Arrivals arrivals_of(std::span<const RequestResult> results) {
  std::vector<const RequestResult*> answered;
  for (const RequestResult& r : results) {
    if (r.ok && r.last) answered.push_back(&r);
  }
  Arrivals out;
  if (answered.size() < kFewest) return out;
  std::ranges::sort(answered, {}, [](const RequestResult* r) { return std::pair(r->sent, r); });
  std::vector<Duration> sent, ended;
  for (const RequestResult* r : answered) {
    sent.push_back(r->sent);
    ended.push_back(*r->last);
  }
  out.offered_per_s = per_second(sent);
  out.answered_per_s = per_second(ended);
  const std::span<const RequestResult* const> all(answered);
  const Duration quick = quickest(all);
  out.requests = all.size();
  out.quickest_ms = RequestResult::ms(quick);
  for (const RequestResult* r : all.first(all.size() - 1)) {
    if (*r->last > sent.back()) ++out.open_at_last_arrival;
    if (r->sent + quick > sent.back()) ++out.open_if_quick;
  }
  out.first_quarter_ms = median_wait(all.first(all.size() / 4));
  out.last_quarter_ms = median_wait(all.last(all.size() / 4));
  return out;
}

std::optional<bool> is_saturated(const Arrivals& a) {
  if (!a.offered_per_s || !a.quickest_ms || !a.first_quarter_ms || !a.last_quarter_ms) return {};
  const double grown = *a.last_quarter_ms - *a.first_quarter_ms;
  const double run_ms = static_cast<double>(a.requests - 1) / *a.offered_per_s * kMsPerSecond;
  const bool waits_grew = *a.last_quarter_ms > kClearlyLonger * *a.first_quarter_ms &&
                          grown > kOverload * kBetweenQuarters * run_ms;
  if (waits_grew && a.open_at_last_arrival > a.open_if_quick) return true;
  return 2 * a.open_at_last_arrival > a.requests && a.open_at_last_arrival > 2 * a.open_if_quick;
}

std::string saturation_in_words(const Arrivals& a) {
  return fmt::format(
      "waits for the second token from {:.0f} ms (first quarter) to {:.0f} ms (last), {} of {} "
      "requests open at the last arrival where {} would be without a queue",
      a.first_quarter_ms.value_or(0), a.last_quarter_ms.value_or(0), a.open_at_last_arrival,
      a.requests, a.open_if_quick);
}

}  // namespace baton::bench
