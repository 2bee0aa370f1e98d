// What an instance says of itself at GET /baton/instance. The router learns P's hand-over address
// and identity from it, so that nobody types them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "baton/result.h"

namespace baton::serving {

// What an instance that computes nothing stands for.
struct EmulatedInstance {
  std::string profile, prefill;  // prefill: "computed" or "cached"
  std::uint32_t kv_bytes_scale = 0;
  std::uint64_t link_bytes_per_second = 0;
  double posting_cost_us = 0;
  std::string profile_hash;  // of the profile's numbers; "": an older instance
};

struct InstanceInfo {
  bool ready = false;  // it can serve a request now
  std::string version;
  std::string engine_id;  // "": no hand-over configured
  std::uint64_t incarnation = 0;
  std::string role;           // "kv_producer", "kv_consumer", "kv_both"
  std::string mode;           // "push" or "pull"
  std::string handover_host;  // where the control channel listens; a router replaces 0.0.0.0
  std::uint16_t handover_port = 0;
  std::uint32_t tp_size = 1;
  std::uint32_t pp_size = 1;
  std::vector<std::string> models;  // served names
  std::string weights;              // fingerprint
  std::string kernel_family;
  std::string emulated;                // what the timed backend emulates, in words; "": nothing
  std::string kv_load_failure_policy;  // "fail" or "recompute"
  std::uint32_t block_size = 0;
  std::uint32_t max_model_len = 0;
  std::uint32_t max_num_seqs = 0;  // 0: an older instance, which does not say; so the following
  std::uint64_t lease_ms = 0;      // how long finished blocks are held without renewal
  std::uint32_t vocab_size = 0;    // token ids are below it
  std::uint32_t blocks_free = 0, blocks_used = 0, blocks_quarantined = 0, blocks_total = 0;
  std::uint64_t requests_running = 0, requests_waiting = 0;
  // What an experiment must know of it; "" and unset: an older instance, which does not say.
  std::string pull_loop;                      // pull: "threaded" or "engine"
  std::string transfer_style;                 // "baton", "published" or "published-merged"
  std::optional<bool> prefix_caching;         // contents outlive their request
  std::optional<std::uint32_t> threads;       // that compute; a timed instance has none
  std::optional<EmulatedInstance> emulation;  // unset also where nothing is emulated
  // What results of it are made on; "" and 0: an older instance, or the system does not say.
  struct Host {
    std::string name, kernel, cpu;
    std::uint32_t cores = 0;
  };
  Host host;
  std::string build;              // build_identity()
  std::string libfabric_version;  // of the library that it runs with

  // For `baton doctor`; absent in what older instances say.
  struct Kv {
    std::string dtype;
    std::uint64_t num_layers = 0, num_kv_heads = 0, head_dim = 0;
    // Of an emulated instance, whose layout follows from its profile and scale; 0: the model's own.
    std::uint64_t regions_per_layer = 0, region_token_bytes = 0;
  };
  struct Protocol {
    std::uint64_t oldest = 0, newest = 0;
  };
  struct Limits {  // of the serving process itself; -1: unlimited, or not told by the system
    std::int64_t open_files = -1, open_files_max = -1;
    std::int64_t locked_bytes_max = -1;
    std::int64_t ptrace_scope = -1;
  };
  Kv kv;
  Protocol protocol;
  Limits limits;
  std::string fabric;           // "shm", "libfabric", "auto"
  std::string fabric_provider;  // libfabric's
  std::string security;         // of the control channel: "tls", "psk", "none"
  std::string boot_id;          // alike: one host, one monotonic clock
  // Where it may connect to as D, as Security has it; nothing: an older instance, which does not
  // say.
  std::optional<std::vector<std::string>> allowed_peers;
  bool insecure = false;
  bool bidirectional = false;  // it keeps answers, and reads what others kept

  bool can_prefill() const { return role == "kv_producer" || role == "kv_both"; }
  bool can_decode() const { return role == "kv_consumer" || role == "kv_both"; }
};

inline constexpr std::size_t kInfoTextMax = 1024;
inline constexpr std::size_t kInfoListMax = 256;

std::string to_json(const InstanceInfo& info);

// Names the field that is missing, of the wrong type or larger than an instance makes it: texts
// have at most kInfoTextMax bytes, lists kInfoListMax entries. Unknown members are ignored, so that
// newer instances and older routers go together.
Result<InstanceInfo> parse_instance_info(std::string_view body);

}  // namespace baton::serving
