#include "bench/metrics.h"

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

}  // namespace

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
