#include "serving/instance_info.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>

#include "serving/json.h"

namespace baton::serving {
namespace {

Status take_text(const Json& value, std::string_view field, std::string& out) {
  out = value.get<std::string>();
  if (out.size() <= kInfoTextMax) return {};
  return fail(Errc::kInvalidArgument, fmt::format("{} has {} bytes, at most {} are taken", field,
                                                  out.size(), kInfoTextMax));
}

Status read_text(const Json& body, std::string_view field, std::string& out) {
  const Json* value = find(body, field);
  if (value == nullptr || !value->is_string()) {
    return fail(Errc::kInvalidArgument, fmt::format("{} must be a text, and is {}", field,
                                                    value == nullptr ? "missing" : shown(*value)));
  }
  return take_text(*value, field, out);
}

// Absent in what older instances say.
Status read_text_if_there(const Json& body, std::string_view field, std::string& out) {
  const Json* value = find(body, field);
  return value == nullptr || !value->is_string() ? Status() : take_text(*value, field, out);
}

template <typename T>
Status read_number(const Json& body, std::string_view field, T& out) {
  const Json* value = find(body, field);
  if (value == nullptr || !value->is_number_unsigned() ||
      value->get<std::uint64_t>() > std::numeric_limits<T>::max()) {
    return fail(Errc::kInvalidArgument, fmt::format("{} must be an integer from 0 to {}, and is {}",
                                                    field, std::numeric_limits<T>::max(),
                                                    value == nullptr ? "missing" : shown(*value)));
  }
  out = value->get<T>();
  return {};
}

Status read_identity(const Json& body, InstanceInfo& info) {
  for (const auto& [field, target] : {std::pair{"version", &info.version},
                                      {"engine_id", &info.engine_id},
                                      {"role", &info.role},
                                      {"mode", &info.mode},
                                      {"handover_host", &info.handover_host}}) {
    if (Status read = read_text(body, field, *target); !read) return read;
  }
  std::string incarnation;
  if (Status read = read_text(body, "incarnation", incarnation); !read) return read;
  const char* end = incarnation.data() + incarnation.size();
  const auto [stop, error] = std::from_chars(incarnation.data(), end, info.incarnation, 16);
  if (error != std::errc() || stop != end) {
    return fail(Errc::kInvalidArgument,
                fmt::format("incarnation must be hex digits, and is '{}'", incarnation));
  }
  if (Status read = read_number(body, "handover_port", info.handover_port); !read) return read;
  return read_number(body, "tp_size", info.tp_size);
}

Status read_texts(const Json& list, std::string_view field, std::vector<std::string>& out) {
  if (!list.is_array()) {
    return fail(Errc::kInvalidArgument, fmt::format("{} must be a list of texts", field));
  }
  if (list.size() > kInfoListMax) {
    return fail(Errc::kInvalidArgument, fmt::format("{} has {} entries, at most {} are taken",
                                                    field, list.size(), kInfoListMax));
  }
  for (const Json& item : list) {
    if (!item.is_string()) {
      return fail(Errc::kInvalidArgument, fmt::format("{} must be a list of texts", field));
    }
    if (Status read = take_text(item, field, out.emplace_back()); !read) return read;
  }
  return {};
}

Status read_models(const Json& body, InstanceInfo& info) {
  const Json* models = find(body, "models");
  if (models == nullptr) return fail(Errc::kInvalidArgument, "models must be a list of texts");
  return read_texts(*models, "models", info.models);
}

template <typename T>
Status read_number_if_there(const Json& body, std::string_view field, T& out) {
  return find(body, field) == nullptr ? Status() : read_number(body, field, out);
}

Status read_emulation(const Json& object, InstanceInfo& info) {
  EmulatedInstance& out = info.emulation.emplace();
  if (Status read = read_text(object, "profile", out.profile); !read) return read;
  if (Status read = read_text(object, "prefill", out.prefill); !read) return read;
  if (Status read = read_number(object, "kv_bytes_scale", out.kv_bytes_scale); !read) return read;
  if (Status read = read_number(object, "link_bytes_per_second", out.link_bytes_per_second);
      !read) {
    return read;
  }
  const Json* cost = find(object, "posting_cost_us");
  if (cost == nullptr || !cost->is_number()) {
    return fail(Errc::kInvalidArgument, "emulation.posting_cost_us must be a number");
  }
  out.posting_cost_us = cost->get<double>();
  return read_text_if_there(object, "profile_hash", out.profile_hash);
}

Status read_host(const Json& body, InstanceInfo& info) {
  for (const auto& [field, target] :
       {std::pair{"build", &info.build}, {"libfabric_version", &info.libfabric_version}}) {
    if (Status read = read_text_if_there(body, field, *target); !read) return read;
  }
  const Json* host = find(body, "host");
  if (host == nullptr || !host->is_object()) return {};
  for (const auto& [field, target] : {std::pair{"name", &info.host.name},
                                      {"kernel", &info.host.kernel},
                                      {"cpu", &info.host.cpu}}) {
    if (Status read = read_text_if_there(*host, field, *target); !read) return read;
  }
  return find(*host, "cores") == nullptr ? Status() : read_number(*host, "cores", info.host.cores);
}

// Null and absent are the same.
Status read_experiments(const Json& body, InstanceInfo& info) {
  if (Status read = read_text_if_there(body, "pull_loop", info.pull_loop); !read) return read;
  if (Status read = read_text_if_there(body, "transfer_style", info.transfer_style); !read) {
    return read;
  }
  const Json* caching = find(body, "prefix_caching");
  if (caching != nullptr && caching->is_boolean()) info.prefix_caching = caching->get<bool>();
  const Json* threads = find(body, "threads");
  if (threads != nullptr && !threads->is_null()) {
    if (Status read = read_number(body, "threads", info.threads.emplace()); !read) return read;
  }
  const Json* emulation = find(body, "emulation");
  return emulation != nullptr && emulation->is_object() ? read_emulation(*emulation, info)
                                                        : Status();
}

Json emulation_json(const InstanceInfo& info) {
  if (!info.emulation) return nullptr;
  return {{"profile", info.emulation->profile},
          {"prefill", info.emulation->prefill},
          {"kv_bytes_scale", info.emulation->kv_bytes_scale},
          {"link_bytes_per_second", info.emulation->link_bytes_per_second},
          {"posting_cost_us", info.emulation->posting_cost_us},
          {"profile_hash", info.emulation->profile_hash}};
}

std::int64_t int_or_none(const Json& object, std::string_view key) {
  const Json* value = find(object, key);
  const bool fits = value != nullptr && value->is_number_integer() &&
                    (!value->is_number_unsigned() ||
                     value->get<std::uint64_t>() <=
                         static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
  return fits ? value->get<std::int64_t>() : -1;
}

Status read_doctors(const Json& body, InstanceInfo& info) {
  if (const Json* kv = find(body, "kv"); kv != nullptr) {
    if (Status read = read_text_if_there(*kv, "dtype", info.kv.dtype); !read) return read;
    info.kv.num_layers = uint_or(*kv, "num_layers", 0);
    info.kv.num_kv_heads = uint_or(*kv, "num_kv_heads", 0);
    info.kv.head_dim = uint_or(*kv, "head_dim", 0);
    info.kv.regions_per_layer = uint_or(*kv, "regions_per_layer", 0);
    info.kv.region_token_bytes = uint_or(*kv, "region_token_bytes", 0);
  }
  if (const Json* protocol = find(body, "protocol"); protocol != nullptr) {
    info.protocol.oldest = uint_or(*protocol, "oldest", 0);
    info.protocol.newest = uint_or(*protocol, "newest", 0);
  }
  if (const Json* limits = find(body, "limits"); limits != nullptr) {
    info.limits.open_files = int_or_none(*limits, "open_files");
    info.limits.open_files_max = int_or_none(*limits, "open_files_max");
    info.limits.locked_bytes_max = int_or_none(*limits, "locked_bytes_max");
    info.limits.ptrace_scope = int_or_none(*limits, "ptrace_scope");
  }
  for (const auto& [field, target] :
       {std::pair{"insecure", &info.insecure}, {"bidirectional", &info.bidirectional}}) {
    const Json* flag = find(body, field);
    *target = flag != nullptr && flag->is_boolean() && flag->get<bool>();
  }
  const Json* allowed = find(body, "allowed_peers");
  if (allowed == nullptr) return {};
  return read_texts(*allowed, "allowed_peers", info.allowed_peers.emplace());
}

Status read_sizes(const Json& body, InstanceInfo& info) {
  if (Status read = read_number_if_there(body, "pp_size", info.pp_size); !read) return read;
  if (Status read = read_number_if_there(body, "block_size", info.block_size); !read) return read;
  for (const auto& [field, target] : {std::pair{"max_model_len", &info.max_model_len},
                                      {"max_num_seqs", &info.max_num_seqs},
                                      {"vocab_size", &info.vocab_size}}) {
    if (Status read = read_number_if_there(body, field, *target); !read) return read;
  }
  if (Status read = read_number_if_there(body, "lease_ms", info.lease_ms); !read) return read;
  const Json* blocks = find(body, "blocks");
  if (blocks == nullptr) return {};
  for (const auto& [field, target] : {std::pair{"free", &info.blocks_free},
                                      {"used", &info.blocks_used},
                                      {"quarantined", &info.blocks_quarantined},
                                      {"total", &info.blocks_total}}) {
    if (Status read = read_number_if_there(*blocks, field, *target); !read) return read;
  }
  return {};
}

Status read_texts_of_newer_ones(const Json& body, InstanceInfo& info) {
  for (const auto& [field, target] : {std::pair{"weights", &info.weights},
                                      {"kernel_family", &info.kernel_family},
                                      {"emulated", &info.emulated},
                                      {"kv_load_failure_policy", &info.kv_load_failure_policy},
                                      {"fabric", &info.fabric},
                                      {"fabric_provider", &info.fabric_provider},
                                      {"security", &info.security},
                                      {"boot_id", &info.boot_id}}) {
    if (Status read = read_text_if_there(body, field, *target); !read) return read;
  }
  return {};
}

}  // namespace

std::string to_json(const InstanceInfo& info) {
  Json out =
      Json{{"ready", info.ready},
           {"version", info.version},
           {"engine_id", info.engine_id},
           {"incarnation", fmt::format("{:016x}", info.incarnation)},
           {"role", info.role},
           {"mode", info.mode},
           {"handover_host", info.handover_host},
           {"handover_port", info.handover_port},
           {"tp_size", info.tp_size},
           {"pp_size", info.pp_size},
           {"models", info.models},
           {"weights", info.weights},
           {"kernel_family", info.kernel_family},
           {"emulated", info.emulated},
           {"kv_load_failure_policy", info.kv_load_failure_policy},
           {"block_size", info.block_size},
           {"max_model_len", info.max_model_len},
           {"max_num_seqs", info.max_num_seqs},
           {"lease_ms", info.lease_ms},
           {"vocab_size", info.vocab_size},
           {"blocks",
            {{"free", info.blocks_free},
             {"used", info.blocks_used},
             {"quarantined", info.blocks_quarantined},
             {"total", info.blocks_total}}},
           {"requests", {{"running", info.requests_running}, {"waiting", info.requests_waiting}}},
           {"kv",
            {{"dtype", info.kv.dtype},
             {"num_layers", info.kv.num_layers},
             {"num_kv_heads", info.kv.num_kv_heads},
             {"head_dim", info.kv.head_dim},
             {"regions_per_layer", info.kv.regions_per_layer},
             {"region_token_bytes", info.kv.region_token_bytes}}},
           {"protocol", {{"oldest", info.protocol.oldest}, {"newest", info.protocol.newest}}},
           {"limits",
            {{"open_files", info.limits.open_files},
             {"open_files_max", info.limits.open_files_max},
             {"locked_bytes_max", info.limits.locked_bytes_max},
             {"ptrace_scope", info.limits.ptrace_scope}}},
           {"fabric", info.fabric},
           {"fabric_provider", info.fabric_provider},
           {"security", info.security},
           {"boot_id", info.boot_id},
           {"insecure", info.insecure},
           {"bidirectional", info.bidirectional},
           {"pull_loop", info.pull_loop},
           {"transfer_style", info.transfer_style},
           {"prefix_caching", info.prefix_caching ? Json(*info.prefix_caching) : Json(nullptr)},
           {"threads", info.threads ? Json(*info.threads) : Json(nullptr)},
           {"emulation", emulation_json(info)},
           {"host",
            {{"name", info.host.name},
             {"kernel", info.host.kernel},
             {"cpu", info.host.cpu},
             {"cores", info.host.cores}}},
           {"build", info.build},
           {"libfabric_version", info.libfabric_version}};
  if (info.allowed_peers) out["allowed_peers"] = *info.allowed_peers;
  return to_text(out);
}

Result<InstanceInfo> parse_instance_info(std::string_view body) {
  const Result<Json> parsed = parse_json(body);
  if (!parsed) return tl::unexpected<Error>(parsed.error());
  if (!parsed->is_object()) return fail(Errc::kInvalidArgument, "the answer is no JSON object");
  InstanceInfo info;
  const Json* ready = find(*parsed, "ready");
  info.ready = ready != nullptr && ready->is_boolean() && ready->get<bool>();
  if (Status read = read_identity(*parsed, info); !read) {
    return tl::unexpected<Error>(read.error());
  }
  if (Status read = read_models(*parsed, info); !read) return tl::unexpected<Error>(read.error());
  info.kv_load_failure_policy = "fail";
  for (const auto read :
       {read_texts_of_newer_ones, read_sizes, read_doctors, read_experiments, read_host}) {
    if (Status ok = read(*parsed, info); !ok) return tl::unexpected<Error>(ok.error());
  }
  if (const Json* requests = find(*parsed, "requests"); requests != nullptr) {
    info.requests_running = uint_or(*requests, "running", 0);
    info.requests_waiting = uint_or(*requests, "waiting", 0);
  }
  return info;
}

}  // namespace baton::serving
