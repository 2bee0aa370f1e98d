// W3C trace context: the `traceparent` header that ties a request's spans together across systems
// (https://www.w3.org/TR/trace-context/). Text in, text out; never a reason to refuse a request.
#pragma once

#include <string>
#include <string_view>

#include "http/message.h"

namespace baton::serving {

inline constexpr std::string_view kTraceHeader = "traceparent";
inline constexpr std::string_view kTraceStateHeader = "tracestate";

// This process's span of one request.
struct TraceContext {
  std::string trace_id;  // 32 lower-case hex digits
  std::string span_id;   // 16, of our span
  std::string parent;    // 16, of the caller's span; "" where the trace begins here
  std::string flags = "01";
  std::string state;  // the caller's tracestate, "" where its traceparent was none

  // What goes to whoever this span calls, or back to who called it.
  std::string header() const { return "00-" + trace_id + "-" + span_id + "-" + flags; }
};

// A span of our own under the caller's; a new trace where the caller sent none, more than one, or
// one that breaks a rule.
TraceContext take_trace(const http::Headers& headers);

// A span of its own for one call that `parent` makes.
TraceContext child_of(const TraceContext& parent);

// Adds traceparent, and tracestate where there is one.
void add_trace(const TraceContext& trace, http::Headers& headers);

}  // namespace baton::serving
