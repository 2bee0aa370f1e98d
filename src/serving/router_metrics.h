// The router's counters, and their page.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "serving/upstream_pool.h"

namespace baton::serving {

inline constexpr std::array<double, 14> kRouterSeconds{0.001, 0.005, 0.01, 0.025, 0.05, 0.1,  0.25,
                                                       0.5,   1.0,   2.5,  5.0,   10.0, 30.0, 60.0};

struct RouterMetrics {
  Counter requests;
  Counter answered;            // to the end
  Counter refused;             // 4xx
  Counter failed;              // 5xx, or a stream that ended with an error
  Counter clients_gone;        // before their answer was complete
  Counter first_from_prefill;  // which leg's first token the client got
  Counter first_from_decode;
  Counter legs_cancelled;
  Counter prefixes_given;  // bidirectional pull: requests whose P was told what is kept
  Gauge running;
  Gauge waiting_for_decode;  // pull: P is done, no decode instance has a free slot
  Histogram time_to_first_token_seconds{kRouterSeconds};
  Histogram e2e_request_latency_seconds{kRouterSeconds};
};

std::string router_metrics_text(const RouterMetrics& metrics,
                                const std::vector<UpstreamPool::Snapshot>& instances,
                                std::size_t kept_conversations);

}  // namespace baton::serving
