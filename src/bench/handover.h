// What router, P and D recorded of one hand-over, laid on one clock, and how its time splits.
// Times are CLOCK_MONOTONIC nanoseconds of this host; 0: did not happen, or was not recorded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace baton::bench {

struct Handover {
  bool has_router = false, has_prefill = false, has_decode = false;

  struct {
    std::int64_t arrived = 0, first_byte = 0, ended = 0;
    std::int64_t decode_asked = 0;        // D's leg was sent
    std::int64_t decode_first_token = 0;  // came from D
  } router;
  struct {
    std::int64_t submitted = 0, started = 0, first_step = 0;
    std::int64_t computed = 0;  // its last piece was ready
    std::int64_t ready = 0, registered = 0, first_write = 0, last_write = 0, last_byte = 0;
    std::int64_t told = 0, ended = 0;
    std::uint64_t bytes = 0;
    std::uint64_t cached_tokens = 0;  // of the prompt, found in its prefix cache
  } prefill;
  struct {
    std::int64_t submitted = 0, started = 0, registered = 0, last_byte = 0, final_came = 0;
    std::int64_t first_write = 0, last_write = 0;  // of a D that reads (pull)
    std::int64_t told = 0, first_step = 0, first_token = 0, last_token = 0, ended = 0;
    std::uint64_t bytes = 0, bytes_planned = 0, blocks = 0, prompt_tokens = 0;
    std::uint64_t cached_tokens = 0;
  } decode;
  std::string outcome;  // D's
  std::uint64_t writes = 0;
  std::uint64_t runs = 0;
  std::string fabric;
};

// What the client saw of the same request, on the same clock; 0: unknown.
struct ClientMoments {
  std::int64_t sent = 0, first_token = 0;
};

// Milliseconds. Everything from register_wait on begins when P has computed the prompt's last
// token, so that those parts add up to `total`: what the user waits beyond the computing. What went
// on beside the computing costs nobody and is not in them; `match` alone is the owner thread's own
// time, wherever it lay.
//
// front_end, prefill_queue, prefill, total and first_token follow each other without a gap: they
// add up to the time to first token, without `total` where P gives that token. A part between two
// hosts is as good as their clocks were laid on each other, and absent where it would be negative.
struct HandoverSplit {
  std::optional<double> front_end;         // sent by the client until P's engine has it
  std::optional<double> decode_front_end;  // sent by the router until D's engine has it
  std::optional<double> queue;             // at D, for a slot and blocks
  std::optional<double> prefill_queue;     // at P
  std::optional<double> prefill;           // P's computing
  std::optional<double> register_wait;     // computed, and D's registration had not come
  std::optional<double> match;             // both there, until the first write
  std::optional<double> post;              // first write posted to last write taken by the link
  std::optional<double> wire;              // last write posted (first, if unknown) to D's last byte
  std::optional<double> detect;            // D has everything until its engine is told
  std::optional<double> first_step;        // told until the step of the model begins
  std::optional<double> total;             // computed until that step
  std::optional<double> first_token;       // that step, or P's computing, until the client has it
  std::optional<double> block_hold;        // computed until P's blocks were its own again
};
HandoverSplit split_of(const Handover& handover, ClientMoments client = {});

struct Span {
  std::string side;  // router, prefill, decode
  std::string name;
  std::int64_t start = 0, end = 0;
};
// Those whose both ends are known and in order.
std::vector<Span> spans_of(const Handover& handover, ClientMoments client = {});

// Payload of a hand-over of the whole prompt, by what D planned for each block of this one. 0 where
// D's record does not say. `block_size` in tokens.
std::uint64_t bytes_of_full_prompt(const Handover& handover, std::uint64_t block_size);

// Length of the union of the spans [first, second), in nanoseconds, within [begin, end).
struct Interval {
  std::int64_t begin = 0, end = 0;
};
std::int64_t covered(std::vector<Interval> intervals, Interval within);

// How many of the intervals are open at once, over `within`: the most, the mean over time, and the
// number that 99 % of the time is not exceeded. Absent without intervals.
struct Occupancy {
  double max = 0, mean = 0, p99 = 0;
};
std::optional<Occupancy> occupancy(const std::vector<Interval>& intervals, Interval within);

}  // namespace baton::bench
