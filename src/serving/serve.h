// `baton serve`: one instance as a process, from its flags to its exit code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "serving/process.h"

namespace baton::serving {

// The flags as typed, with vllm serve's names. Zero means "not given" where nothing else is said.
struct ServeOptions {
  std::string model;
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;
  std::vector<std::string> served_model_names;
  std::string dtype = "auto";
  std::optional<std::uint32_t> block_size;  // default: 16, or the profile's
  std::uint32_t max_model_len = 0;
  std::uint32_t max_num_seqs = 0;
  std::uint32_t max_num_batched_tokens = 0;
  std::uint32_t tensor_parallel_size = 1;
  std::string kv_transfer_config;
  std::string pull_loop;  // "": not given
  std::string backend = "cpu";
  // Of the backend `timed`; "": not given.
  std::string profile;  // default: MODEL
  std::optional<std::uint32_t> kv_bytes_scale;
  std::string prefill;
  std::string transfer_style;
  std::optional<double> link_rate;     // bytes a second
  std::optional<double> posting_cost;  // microseconds a descriptor
  bool prefix_caching = true;
  std::uint32_t threads = 0;  // 0: one a core
  std::uint64_t kv_cache_bytes = 0;
  std::string fabric = "auto";
  std::string fabric_provider = "tcp";
  std::string fabric_address;
  // Of the hand-over's control channel; baton/security.h says what they mean.
  std::string kv_tls_cert;
  std::string kv_tls_key;
  std::string kv_tls_ca;
  std::string kv_psk_file;
  std::vector<std::string> kv_allowed_peers;
  bool insecure = false;
  double peer_timeout = 5;  // seconds, as the following
  double lease = 30;
  double transfer_timeout = 60;
  double drain_timeout = 30;
  bool verify_blocks = false;
  bool poison_blocks = false;
  std::size_t transfer_records = 1024;  // that GET /debug/transfers has
  int announce_fd = -1;
};

// The engine that the flags and the environment (VLLM_NIXL_SIDE_CHANNEL_HOST and _PORT) ask for.
// Every fault at once, one a line.
Result<engine::EngineOptions> engine_options(const ServeOptions& options);

// Serves until SIGINT or SIGTERM. hold_stop_signals() comes first.
Exit run_serve(const ServeOptions& options);

}  // namespace baton::serving
