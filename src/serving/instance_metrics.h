// The text of an instance's GET /metrics: vLLM's own names where vLLM has the metric, so that its
// dashboards read them, and baton_ for the rest. docs/operating.md lists them.
#pragma once

#include <string>
#include <string_view>

#include "baton/metrics.h"
#include "engine/engine.h"
#include "serving/timed_backend.h"

namespace baton::serving {

struct MetricsSource {
  std::string model_name;
  std::string engine_id;
  const engine::EngineMetrics* engine = nullptr;
  const AgentMetrics* agent = nullptr;  // null without hand-over
  engine::Engine::Blocks blocks;
  std::uint32_t block_size = 0;
  bool prefix_caching = false;
  std::uint64_t unknown_kv_keys = 0;     // of kv_transfer_params, ignored
  const LinkMetrics* link = nullptr;     // null without an emulated link
  const Emulation* emulation = nullptr;  // null where nothing is emulated
};

std::string metrics_text(const MetricsSource& source);

inline constexpr std::string_view kMetricsContentType = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace baton::serving
