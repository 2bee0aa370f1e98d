#include "serving/router_metrics.h"

#include "serving/metric_page.h"

namespace baton::serving {
namespace {

double of(const Counter& counter) {
  return static_cast<double>(counter.value());
}

}  // namespace

std::string router_metrics_text(const RouterMetrics& metrics,
                                const std::vector<UpstreamPool::Snapshot>& instances,
                                std::size_t kept_conversations) {
  MetricPage page({});
  page.counter("baton_router_requests_total", "Completion requests that came in.",
               of(metrics.requests));
  const std::string ends = "baton_router_ends_total";
  const std::string ends_help = "Routed requests by their end.";
  page.counter(ends, ends_help, of(metrics.answered), {{"end", "answered"}});
  page.counter(ends, ends_help, of(metrics.refused), {{"end", "refused"}});
  page.counter(ends, ends_help, of(metrics.failed), {{"end", "failed"}});
  page.counter(ends, ends_help, of(metrics.clients_gone), {{"end", "client_gone"}});
  const std::string first = "baton_router_first_tokens_total";
  const std::string first_help = "Streams by the leg whose first token the client got.";
  page.counter(first, first_help, of(metrics.first_from_prefill), {{"leg", "prefill"}});
  page.counter(first, first_help, of(metrics.first_from_decode), {{"leg", "decode"}});
  page.counter("baton_router_legs_cancelled_total",
               "Legs ended because the other one, or the client, went.",
               of(metrics.legs_cancelled));
  page.gauge("baton_router_requests_running", "Requests under way.",
             static_cast<double>(metrics.running.value()));
  page.gauge("baton_router_requests_waiting_for_decode",
             "Pull: requests whose blocks wait at prefill until a decode instance has a free slot.",
             static_cast<double>(metrics.waiting_for_decode.value()));
  page.gauge("baton_router_kept_conversations",
             "Chats whose KV a decode instance keeps for their next turn.",
             static_cast<double>(kept_conversations));
  page.counter(
      "baton_router_prefixes_given_total",
      "Requests whose prefill instance was told where the beginning of its prompt is kept.",
      of(metrics.prefixes_given));
  page.histogram("baton_router_time_to_first_token_seconds",
                 "From a streamed request's arrival to its first token on the way to the client.",
                 metrics.time_to_first_token_seconds);
  page.histogram("baton_router_e2e_request_latency_seconds",
                 "From a request's arrival to the end of its answer.",
                 metrics.e2e_request_latency_seconds);
  for (const UpstreamPool::Snapshot& instance : instances) {
    page.gauge("baton_router_instance_up", "1: the instance takes requests.", instance.up ? 1 : 0,
               {{"stage", std::string(to_string(instance.stage))}, {"url", instance.url}});
  }
  for (const UpstreamPool::Snapshot& instance : instances) {
    if (instance.info.emulated.empty()) continue;
    page.gauge("baton_router_instance_emulated",
               "1: the instance is emulated, and the times of its requests are a profile's.", 1,
               {{"stage", std::string(to_string(instance.stage))}, {"url", instance.url}});
  }
  for (const UpstreamPool::Snapshot& instance : instances) {
    page.gauge("baton_router_instance_running", "Legs under way at the instance.", instance.running,
               {{"stage", std::string(to_string(instance.stage))}, {"url", instance.url}});
  }
  add_failures(page);
  return page.text();
}

}  // namespace baton::serving
