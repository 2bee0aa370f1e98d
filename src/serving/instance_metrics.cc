#include "serving/instance_metrics.h"

#include <fmt/format.h>

#include "serving/metric_page.h"

namespace baton::serving {
namespace {

double of(const Counter& counter) {
  return static_cast<double>(counter.value());
}
double of(const Gauge& gauge) {
  return static_cast<double>(gauge.value());
}

// Names and meanings are vLLM's.
void add_engine_parts(const engine::EngineMetrics& m, MetricPage& page) {
  page.histogram("vllm:request_queue_time_seconds", "Time spent in the waiting phase.",
                 m.request_queue_time_seconds);
  page.histogram("vllm:request_prefill_time_seconds",
                 "From a request's first step to its first token.", m.request_prefill_time_seconds);
  page.histogram("vllm:request_decode_time_seconds", "From a request's first token to its last.",
                 m.request_decode_time_seconds);
  page.histogram("vllm:request_inference_time_seconds",
                 "From a request's first step, or a first token that was handed over, to its last "
                 "token.",
                 m.request_inference_time_seconds);
  page.histogram("vllm:request_time_per_output_token_seconds",
                 "Time per output token behind the first, of each request.",
                 m.request_time_per_output_token_seconds);
  page.histogram("vllm:request_prompt_tokens", "Prompt tokens of each request.",
                 m.request_prompt_tokens);
  page.histogram("vllm:request_generation_tokens", "Generated tokens of each request.",
                 m.request_generation_tokens);
  page.histogram("vllm:iteration_tokens_total", "Tokens of each step of the engine.",
                 m.iteration_tokens);
  const std::string sources = "vllm:prompt_tokens_by_source_total";
  const std::string help = "Prompt tokens by where their KV came from; adds up to the prompts.";
  page.counter(sources, help, of(m.prompt_tokens_computed), {{"source", "local_compute"}});
  page.counter(sources, help, of(m.prompt_tokens_cached), {{"source", "local_cache_hit"}});
  page.counter(sources, help, of(m.prompt_tokens_received), {{"source", "external_kv_transfer"}});
}

void add_engine(const MetricsSource& source, MetricPage& page) {
  const engine::EngineMetrics& m = *source.engine;
  page.gauge("vllm:num_requests_running", "Number of requests in model execution batches.",
             of(m.requests_running));
  page.gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.",
             of(m.requests_waiting));
  const double total = source.blocks.total;
  page.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.",
             total > 0 ? (total - source.blocks.free) / total : 0);
  page.gauge("vllm:cache_config_info", "Information of the cache configuration.", 1,
             {{"block_size", std::to_string(source.block_size)},
              {"num_gpu_blocks", std::to_string(source.blocks.total)},
              {"enable_prefix_caching", source.prefix_caching ? "True" : "False"}});
  page.counter("vllm:prompt_tokens_total", "Number of prefill tokens processed.",
               of(m.prompt_tokens));
  page.counter("vllm:generation_tokens_total", "Number of generation tokens processed.",
               of(m.generation_tokens));
  const std::string success = "vllm:request_success_total";
  const std::string success_help = "Count of finished requests by reason.";
  page.counter(success, success_help, of(m.finished_stop), {{"finished_reason", "stop"}});
  page.counter(success, success_help, of(m.finished_length), {{"finished_reason", "length"}});
  page.counter(success, success_help, of(m.finished_aborted), {{"finished_reason", "abort"}});
  page.counter(success, success_help, of(m.finished_error), {{"finished_reason", "error"}});
  page.counter(success, success_help, of(m.finished_handed_over),
               {{"finished_reason", "handed_over"}});
  page.counter("vllm:prefix_cache_queries_total",
               "Prompt tokens of requests that looked into the prefix cache.",
               of(m.prefix_cache_queries));
  page.counter("vllm:prefix_cache_hits_total", "Prompt tokens that the prefix cache had.",
               of(m.prefix_cache_hits));
  page.counter("vllm:num_preemptions_total", "Cumulative number of preemptions.",
               of(m.preemptions));
  page.histogram("vllm:time_to_first_token_seconds", "Time to first token in seconds.",
                 m.time_to_first_token_seconds);
  page.histogram("vllm:inter_token_latency_seconds", "Inter-token latency in seconds.",
                 m.inter_token_latency_seconds);
  page.histogram("vllm:e2e_request_latency_seconds", "End to end request latency in seconds.",
                 m.e2e_request_latency_seconds);
  add_engine_parts(m, page);
}

void add_engine_own(const MetricsSource& source, MetricPage& page) {
  const engine::EngineMetrics& m = *source.engine;
  page.gauge("baton_requests_waiting_for_remote_kv", "Decode requests whose KV is on its way.",
             of(m.requests_waiting_for_remote_kv));
  const std::string blocks = "baton_kv_blocks";
  const std::string help = "Blocks of the KV pool by state; the states add up to the pool.";
  page.gauge(blocks, help, source.blocks.free, {{"state", "free"}});
  page.gauge(blocks, help, source.blocks.used, {{"state", "used"}});
  page.gauge(blocks, help, source.blocks.quarantined, {{"state", "quarantined"}});
  page.counter("baton_computed_prompt_tokens_total",
               "Prompt positions that this instance ran through the model; a decode instance that "
               "computes more than one a request prefilled again.",
               of(m.computed_prompt_tokens));
  page.counter("baton_engine_steps_total", "Steps of the engine loop.", of(m.steps));
  page.counter("baton_kv_load_failures_total", "Hand-overs that failed at this decode instance.",
               of(m.kv_load_failures));
  page.counter("baton_kv_load_recomputed_total",
               "Requests whose prompt was computed here because the hand-over failed.",
               of(m.kv_load_recomputed));
  page.counter("baton_local_prefills_total",
               "Requests that came to a decode instance without a hand-over, so that it computed "
               "their prompt.",
               of(m.local_prefills));
  page.counter("baton_registrations_withdrawn_total",
               "Registrations that gave way to others because the pool stood still.",
               of(m.registrations_withdrawn));
  page.counter("baton_prefix_tokens_read_total",
               "Tokens of prompts whose KV was read from an instance that kept it.",
               of(m.prefix_tokens_read));
  page.counter("baton_prefix_reads_failed_total",
               "Such reads that failed, so that the whole prompt was computed here.",
               of(m.prefix_reads_failed));
  page.gauge("baton_kept_blocks",
             "Used KV blocks that hold an answer for the next turn of its conversation.",
             static_cast<double>(m.blocks_kept.value()));
  page.histogram("baton_pull_posting_seconds",
                 "How long a step waited until the reads of one request were posted (--pull-loop "
                 "engine).",
                 m.pull_posting_seconds);
  page.counter("baton_pull_posting_timeouts_total",
               "Steps that went on before the reads of a request were posted (--pull-loop engine).",
               of(m.pull_posting_timeouts));
}

void add_handover_ends(const AgentMetrics& m, MetricPage& page) {
  const std::string name = "baton_handovers_total";
  const std::string help = "Attempts of hand-overs that ended on this side, by outcome.";
  page.counter(name, help, of(m.prefill_done), {{"side", "prefill"}, {"outcome", "done"}});
  page.counter(name, help, of(m.prefill_failed), {{"side", "prefill"}, {"outcome", "failed"}});
  page.counter(name, help, of(m.prefill_cancelled),
               {{"side", "prefill"}, {"outcome", "cancelled"}});
  page.counter(name, help, of(m.decode_done), {{"side", "decode"}, {"outcome", "done"}});
  page.counter(name, help, of(m.decode_failed), {{"side", "decode"}, {"outcome", "failed"}});
  page.counter(name, help, of(m.decode_cancelled), {{"side", "decode"}, {"outcome", "cancelled"}});
  page.counter("vllm:nixl_num_failed_transfers", "Number of failed KV transfers.",
               of(m.prefill_failed) + of(m.decode_failed));
  page.counter("vllm:nixl_num_kv_expired_reqs",
               "Number of requests whose finished KV nobody took before the lease ended.",
               of(m.leases_expired));
}

void add_handover_work(const AgentMetrics& m, MetricPage& page) {
  page.counter("baton_bytes_written_total", "KV bytes written to decode instances.",
               of(m.bytes_written));
  page.counter("baton_bytes_received_total", "KV bytes received from prefill instances.",
               of(m.bytes_received));
  page.counter("baton_blocks_written_total", "KV blocks written.", of(m.blocks_written));
  page.counter("baton_blocks_received_total", "KV blocks received.", of(m.blocks_received));
  page.counter("baton_writes_posted_total", "Writes posted to the fabric.", of(m.writes_posted));
  page.counter("baton_reads_posted_total", "Pull: reads posted to the fabric.", of(m.reads_posted));
  page.counter("baton_runs_merged_total", "Block pieces that were merged into an earlier write.",
               of(m.runs_merged));
  page.counter("baton_immediates_received_total", "Completion immediates received.",
               of(m.immediates_received));
  page.counter("baton_immediates_unknown_total",
               "Immediates that name no slot, or an old generation of one.",
               of(m.immediates_unknown));
  page.counter("baton_blocks_verified_total", "Blocks whose hash agreed on both sides.",
               of(m.blocks_verified));
  page.counter("baton_blocks_corrupt_total", "Blocks whose hash differed.", of(m.blocks_corrupt));
}

void add_contract(const AgentMetrics& m, MetricPage& page) {
  page.counter("baton_stale_messages_total",
               "Messages of an old incarnation, connection, attempt or generation.",
               of(m.stale_messages));
  page.counter("baton_refused_messages_total", "Malformed or hostile messages.",
               of(m.refused_messages));
  page.counter("baton_refused_peers_total", "Peers refused at the handshake.", of(m.refused_peers));
  page.counter("baton_unauthenticated_peers_total",
               "Peers that did not prove to belong to the pool, or took us for no member of it.",
               of(m.unauthenticated_peers));
  page.counter("baton_refused_connections_total",
               "Control connections turned away: too many, or too many a second.",
               of(m.refused_connections));
  page.counter("baton_quota_refusals_total", "Registrations and claims of peers past their quotas.",
               of(m.quota_refusals));
  page.counter("baton_unknown_fields_total",
               "Fields and messages of a newer protocol that were ignored.", of(m.unknown_fields));
  page.gauge("baton_quarantined_blocks_worst_peer",
             "Blocks in quarantine for the prefill peer that holds most of them.",
             of(m.blocks_quarantined_worst_peer));
  page.counter("baton_leases_expired_total", "Leases that nobody renewed.", of(m.leases_expired));
  page.counter("baton_leases_renewed_total", "Renewals of leases.", of(m.leases_renewed));
  page.counter("baton_retransmits_total", "Control messages sent again.", of(m.retransmits));
  page.counter("baton_peers_lost_total", "Peers that died, fell silent or restarted.",
               of(m.peers_lost));
  const std::string open = "baton_transfers_open";
  const std::string open_help = "Transfers under way.";
  page.gauge(open, open_help, of(m.transfers_prefill), {{"side", "prefill"}});
  page.gauge(open, open_help, of(m.transfers_decode), {{"side", "decode"}});
  page.gauge("baton_leases_held", "Finished prompts held for a decode instance.",
             of(m.leases_held));
  page.gauge("baton_peers_connected", "Peers with a live control connection.",
             of(m.peers_connected));
}

void add_handover_times(const AgentMetrics& m, MetricPage& page) {
  page.histogram("baton_handover_seconds", "Decode side: from registered to told.",
                 m.handover_seconds);
  page.histogram("baton_match_seconds",
                 "Prefill side: from the later of registration and ready to the first write.",
                 m.match_seconds);
  page.histogram("baton_write_seconds",
                 "Prefill side: from the first write to the last completion.", m.write_seconds);
  page.histogram("baton_detect_seconds", "Decode side: from the last immediate to told.",
                 m.detect_seconds);
  page.histogram("baton_register_wait_seconds",
                 "Prefill side: how long finished blocks waited for a registration.",
                 m.register_wait_seconds);
  page.histogram("vllm:nixl_xfer_time_seconds", "Transfer duration of KV cache transfers.",
                 m.write_seconds);
}

double seconds(const Counter& nanoseconds) {
  return static_cast<double>(nanoseconds.value()) * 1e-9;
}

void add_link(const LinkMetrics& link, MetricPage& page) {
  page.counter("baton_link_busy_seconds_total",
               "Emulated link: time taken by bytes. Its rate is the share of time in use.",
               seconds(link.busy_nanoseconds));
  page.counter("baton_link_posting_seconds_total", "Emulated link: time taken by posts.",
               seconds(link.posting_nanoseconds));
  page.counter("baton_link_lost_seconds_total",
               "Emulated link: time for which it stood still although something waited for it; the "
               "cores of this machine were the limit.",
               seconds(link.lost_nanoseconds));
  page.counter("baton_link_refusals_total",
               "Emulated link: posts that came too early and were tried again.", of(link.refusals));
}

void add_emulation(const Emulation& emulation, MetricPage& page) {
  page.gauge("baton_emulation_info", "What this instance emulates: its figures are of a profile.",
             1,
             {{"emulated", "true"},
              {"profile", emulation.profile},
              {"emulated_model", emulation.model},
              {"kv_bytes_scale", std::to_string(emulation.kv_bytes_scale)},
              {"prefill", emulation.prefill},
              {"transfer_style", emulation.transfer_style},
              {"posting_cost_us", fmt::format("{:g}", emulation.posting_cost_us)},
              {"link_bytes_per_second", std::to_string(emulation.link_bytes_per_second)}});
  const engine::timed::TimedMetrics& m = *emulation.metrics;
  page.counter("baton_emulated_steps_total", "Emulated steps.", of(m.steps));
  page.counter("baton_emulated_step_seconds_total", "Time that these steps should have taken.",
               seconds(m.step_nanoseconds));
  page.counter(
      "baton_emulated_overrun_steps_total",
      "Emulated steps whose bytes took longer to fill and compare than the step: the cores "
      "of this machine were the limit.",
      of(m.overrun_steps));
  page.counter("baton_emulated_overrun_seconds_total", "By how much, in all.",
               seconds(m.overrun_nanoseconds));
  page.counter("baton_emulated_late_seconds_total",
               "Time by which the system ended steps later than asked.",
               seconds(m.late_nanoseconds));
  page.counter("baton_emulated_fill_seconds_total", "Time spent on filling KV, within steps.",
               seconds(m.fill_nanoseconds));
  page.counter("baton_emulated_filled_bytes_total", "KV bytes filled.", of(m.filled_bytes));
  page.counter("baton_emulated_check_seconds_total",
               "Time spent on comparing received KV, within steps.", seconds(m.check_nanoseconds));
  page.counter("baton_emulated_checked_bytes_total", "Received KV bytes compared.",
               of(m.checked_bytes));
  page.counter("baton_emulated_checked_prompts_total", "Prompts whose received KV was compared.",
               of(m.checked_prompts));
  page.counter("baton_emulated_kv_faults_total", "Prompts whose received KV was wrong.",
               of(m.faults));
}

}  // namespace

std::string metrics_text(const MetricsSource& source) {
  MetricPage page({{"model_name", source.model_name}, {"engine", source.engine_id}});
  add_engine(source, page);
  add_engine_own(source, page);
  if (source.emulation != nullptr) add_emulation(*source.emulation, page);
  if (source.link != nullptr) add_link(*source.link, page);
  add_failures(page);
  page.counter("baton_unknown_kv_transfer_params_total",
               "Keys of kv_transfer_params that this version does not know and ignored.",
               static_cast<double>(source.unknown_kv_keys));
  if (source.agent != nullptr) {
    add_handover_ends(*source.agent, page);
    add_handover_work(*source.agent, page);
    add_contract(*source.agent, page);
    add_handover_times(*source.agent, page);
  }
  return page.text();
}

}  // namespace baton::serving
