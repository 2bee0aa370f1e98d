// What the router tells of a request that it routed: the third record of a transfer, beside P's and
// D's.
#pragma once

#include <cstdint>
#include <string>

#include "baton/ids.h"
#include "serving/trace_context.h"

namespace baton::serving {

struct RouteRecord {
  struct Leg {
    std::string engine_id;
    std::string url;
    std::string span_id;
    int status = 0;  // 0: it did not answer
    // CLOCK_MONOTONIC, ns; 0: did not happen.
    std::int64_t dispatched = 0;
    std::int64_t answered = 0;     // its head came
    std::int64_t first_token = 0;  // P: with the word that its blocks are pinned
    std::int64_t ended = 0;
  };

  TransferId transfer;
  std::string request_id;
  TraceContext trace;
  std::string path;
  bool stream = false;
  std::uint32_t binding = 0;
  Leg prefill, decode;
  std::int64_t arrived = 0;
  std::int64_t first_byte = 0;  // to the client
  std::int64_t ended = 0;
  std::string end;  // "answered", "refused", "failed", "client_gone"
  std::string cause, text;
};

// A JSON object, for TransferLog.
std::string route_record(const RouteRecord& record);

}  // namespace baton::serving
