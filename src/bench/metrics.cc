#include "bench/metrics.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace baton::bench {
namespace {

struct Lists {
  std::vector<double> ttft, tpot, itl, e2el, second_token, lateness;
};

void take_good(const RequestResult& r, const Slo& slo, Metrics& out, Lists& lists) {
  ++out.completed;
  out.total_input_tokens += r.input_len;
  out.total_output_tokens += r.output_len;
  lists.ttft.push_back(r.ttft_ms());
  lists.e2el.push_back(r.e2el_ms());
  if (r.output_len > 1) lists.tpot.push_back(r.tpot_ms());
  for (const double gap : r.gaps) lists.itl.push_back(gap * 1e3);
  if (r.second) lists.second_token.push_back(RequestResult::ms(*r.second - r.sent));
  if (is_good(slo, r.ttft_ms(), r.tpot_ms(), r.e2el_ms())) ++out.good;
}

std::optional<Duration> first_sent(std::span<const RequestResult> results) {
  std::optional<Duration> start;
  for (const RequestResult& r : results) {
    if (r.ok) start = std::min(start.value_or(r.sent), r.sent);
  }
  return start;
}

}  // namespace

double most_tokens_a_second(std::span<const RequestResult> results) {
  const std::optional<Duration> start = first_sent(results);
  std::map<std::int64_t, std::size_t> by_second;
  for (const RequestResult& r : results) {
    if (!r.ok || !r.first) continue;
    double at = std::chrono::duration<double>(*r.first - *start).count();
    ++by_second[static_cast<std::int64_t>(at)];
    for (const double gap : r.gaps) ++by_second[static_cast<std::int64_t>(at += gap)];
  }
  std::size_t most = 0;
  for (const auto& [second, tokens] : by_second) most = std::max(most, tokens);
  return static_cast<double>(most);
}

std::size_t most_answered_at_once(std::span<const RequestResult> results) {
  using std::chrono::floor, std::chrono::seconds;
  const std::optional<Duration> start = first_sent(results);
  // Sorted, a second that one has left comes before the same second that another enters.
  std::vector<std::pair<seconds, int>> changes;
  for (const RequestResult& r : results) {
    if (!r.ok) continue;
    changes.emplace_back(floor<seconds>(r.sent - *start), 1);
    changes.emplace_back(floor<seconds>(r.last.value_or(r.sent) - *start) + seconds(1), -1);
  }
  std::sort(changes.begin(), changes.end());
  int open = 0, most = 0;
  for (const auto& [at, change] : changes) most = std::max(most, open += change);
  return static_cast<std::size_t>(most);
}

Metrics measure(std::span<const RequestResult> results, const Slo& slo) {
  Metrics out;
  Lists lists;
  for (const RequestResult& r : results) {
    lists.lateness.push_back(RequestResult::ms(r.sent - r.due));
    if (r.ok) {
      take_good(r, slo, out, lists);
    } else {
      ++out.failed;
      ++out.failures[r.cause];
    }
  }
  out.ttft = Samples(std::move(lists.ttft));
  out.tpot = Samples(std::move(lists.tpot));
  out.itl = Samples(std::move(lists.itl));
  out.e2el = Samples(std::move(lists.e2el));
  out.second_token = Samples(std::move(lists.second_token));
  out.lateness = Samples(std::move(lists.lateness));
  return out;
}

}  // namespace baton::bench
