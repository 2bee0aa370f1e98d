// A routed request as a Chrome trace: what router, P and D recorded of it, laid on one time line
// for ui.perfetto.dev and chrome://tracing. Pure text.
//
// Each process is a track group. Its lane "phases" cuts its part of the request into spans without
// gaps or overlaps; the other lanes show what went on beside them. Arrows join cause and effect
// between processes.
//
// Clocks: CLOCK_MONOTONIC is one clock for all processes of a host, recognised by its boot id.
// Records of another host are moved by the difference of both clocks in the middle of the HTTP call
// that fetched them; they may be off by half of the call's time, and the trace says so.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace baton::serving {

// What GET /debug/transfers?id= of one leg's instance answered. Times that no monotonic clock shows
// (2^60 ns and more from its zero) count as not told.
struct TraceSource {
  std::string name;                     // "prefill" or "decode"
  std::string body;                     // {"transfers": [...], "clock": {...}}
  std::string trouble;                  // why there is no body; "" if there is one
  std::int64_t sent = 0, received = 0;  // of the call, on our monotonic clock, ns
};

// `record` is route_record()'s text, `own_boot_id` this host's.
std::string trace_json(std::string_view record, std::span<const TraceSource> sources,
                       std::string_view own_boot_id);

// Where the leg's instance is, by the router's record; "" if the record does not say.
std::string leg_url(std::string_view record, std::string_view leg);

}  // namespace baton::serving
