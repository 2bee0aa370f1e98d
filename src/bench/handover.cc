#include "bench/handover.h"

#include <algorithm>
#include <map>

namespace baton::bench {
namespace {

// Absent where an end is not known or they are out of order.
std::optional<double> between(std::int64_t from, std::int64_t to) {
  if (from == 0 || to == 0 || to < from) return {};
  return static_cast<double>(to - from) / 1e6;
}

// From `from` to `to`, as far as it lies behind `floor`; 0 where all of it lies before.
std::optional<double> beyond(std::int64_t floor, std::int64_t from, std::int64_t to) {
  if (floor == 0 || from == 0 || to == 0) return {};
  return between(std::max(floor, from), std::max({floor, from, to}));
}

std::int64_t later_known(std::int64_t a, std::int64_t b) {
  return a == 0 || b == 0 ? 0 : std::max(a, b);
}

std::int64_t first_known(std::int64_t a, std::int64_t b) {
  return a != 0 ? a : b;
}

// P writes in push, D reads in pull: whoever moves the bytes has noted it.
struct Moved {
  std::int64_t first = 0, last = 0, landed = 0, complete = 0;
};
Moved moved(const Handover& h) {
  Moved out;
  out.first = first_known(h.prefill.first_write, h.decode.first_write);
  out.last = first_known(h.prefill.last_write, h.decode.last_write);
  out.landed = first_known(h.decode.last_byte, h.prefill.last_byte);
  // D knows that nothing is missing when both the bytes and P's count of them are there.
  out.complete = std::max(out.landed, h.decode.final_came);
  return out;
}

// P hears of it in push; in pull D alone knows when it began to read.
std::int64_t registered(const Handover& h) {
  return first_known(h.prefill.registered, h.decode.registered);
}

void split_transfer(const Handover& h, HandoverSplit& out) {
  const std::int64_t computed = h.prefill.computed;
  const Moved m = moved(h);
  out.register_wait = beyond(computed, computed, registered(h));
  out.match = between(later_known(h.prefill.ready, registered(h)), m.first);
  out.post = beyond(computed, m.first, m.last);
  out.wire = beyond(computed, first_known(m.last, m.first), m.landed);
  out.detect = beyond(computed, m.complete, h.decode.told);
  out.first_step = beyond(computed, h.decode.told, h.decode.first_step);
  out.total = between(computed, h.decode.first_step);
}

// D's first token had come to the router before the client's stream began: it is what began it.
// Both moments are the router's, so that no two clocks decide.
bool decode_gave_first_token(const Handover& h) {
  return h.router.decode_first_token != 0 && h.router.decode_first_token <= h.router.first_byte;
}

}  // namespace

HandoverSplit split_of(const Handover& h, ClientMoments client) {
  HandoverSplit out;
  out.front_end = between(client.sent, h.prefill.submitted);
  out.decode_front_end = between(h.router.decode_asked, h.decode.submitted);
  out.queue = between(h.decode.submitted, h.decode.started);
  out.prefill_queue = between(h.prefill.submitted, h.prefill.first_step);
  out.prefill = between(h.prefill.first_step, h.prefill.computed);
  out.block_hold = between(h.prefill.computed, h.prefill.told);
  split_transfer(h, out);
  if (h.has_router) {
    const bool by_decode = decode_gave_first_token(h);
    out.first_token =
        between(by_decode ? h.decode.first_step : h.prefill.computed, client.first_token);
  }
  return out;
}

std::vector<Span> spans_of(const Handover& h, ClientMoments client) {
  std::vector<Span> out;
  const auto add = [&out](const char* side, const char* name, std::int64_t from, std::int64_t to) {
    if (from != 0 && to > from) out.push_back({side, name, from, to});
  };
  const Moved m = moved(h);
  const char* mover = h.prefill.first_write != 0 ? "prefill" : "decode";
  add("router", "request", h.router.arrived, h.router.ended);
  add("prefill", "front_end", client.sent, h.prefill.submitted);
  add("prefill", "queue", h.prefill.submitted, h.prefill.first_step);
  add("prefill", "prefill", h.prefill.first_step, h.prefill.computed);
  add("prefill", "register_wait", h.prefill.computed, registered(h));
  add(mover, "match", later_known(h.prefill.ready, registered(h)), m.first);
  add(mover, "post", m.first, m.last);
  add(mover, "wire", first_known(m.last, m.first), m.landed);
  add("decode", "front_end", h.router.decode_asked, h.decode.submitted);
  add("decode", "queue", h.decode.submitted, h.decode.started);
  add("decode", "detect", m.complete, h.decode.told);
  add("decode", "first_step", h.decode.told, h.decode.first_step);
  add("decode", "decode", h.decode.first_step, h.decode.last_token);
  return out;
}

std::uint64_t bytes_of_full_prompt(const Handover& h, std::uint64_t block_size) {
  if (h.decode.blocks == 0 || block_size == 0) return 0;
  const std::uint64_t a_block = h.decode.bytes_planned / h.decode.blocks;
  return (h.decode.prompt_tokens + block_size - 1) / block_size * a_block;
}

std::int64_t covered(std::vector<Interval> intervals, Interval within) {
  std::sort(intervals.begin(), intervals.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  std::int64_t sum = 0, reached = within.begin;
  for (const Interval& i : intervals) {
    const std::int64_t begin = std::max(i.begin, reached), end = std::min(i.end, within.end);
    if (end <= begin) continue;
    sum += end - begin;
    reached = end;
  }
  return sum;
}

std::optional<Occupancy> occupancy(const std::vector<Interval>& intervals, Interval within) {
  if (intervals.empty() || within.end <= within.begin) return {};
  std::map<std::int64_t, int> changes;
  for (const Interval& i : intervals) {
    const std::int64_t begin = std::max(i.begin, within.begin), end = std::min(i.end, within.end);
    if (end <= begin) continue;
    ++changes[begin];
    --changes[end];
  }
  std::map<int, std::int64_t> time_at;  // how long so many were open
  int open = 0;
  std::int64_t at = within.begin;
  for (const auto& [when, change] : changes) {
    time_at[open] += when - at;
    at = when;
    open += change;
  }
  time_at[open] += within.end - at;
  Occupancy out;
  const auto whole = static_cast<double>(within.end - within.begin);
  double passed = 0;
  bool found = false;
  for (const auto& [level, time] : time_at) {
    if (time > 0) out.max = level;
    out.mean += level * static_cast<double>(time) / whole;
    passed += static_cast<double>(time);
    if (!found && passed >= 0.99 * whole) {
      out.p99 = level;
      found = true;
    }
  }
  return out;
}

}  // namespace baton::bench
