#include "serving/instance_info.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>

#include "serving/json.h"

namespace baton::serving {
namespace {

Status read_text(const Json& body, std::string_view field, std::string& out) {
  const Json* value = find(body, field);
  if (value == nullptr || !value->is_string()) {
    return fail(Errc::kInvalidArgument, fmt::format("{} must be a text, and is {}", field,
                                                    value == nullptr ? "missing" : shown(*value)));
  }
  out = value->get<std::string>();
  return {};
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

Status read_models(const Json& body, InstanceInfo& info) {
  const Json* models = find(body, "models");
  if (models == nullptr || !models->is_array()) {
    return fail(Errc::kInvalidArgument, "models must be a list of texts");
  }
  for (const Json& name : *models) {
    if (!name.is_string()) return fail(Errc::kInvalidArgument, "models must be a list of texts");
    info.models.push_back(name.get<std::string>());
  }
  return {};
}

std::int64_t int_or_none(const Json& object, std::string_view key) {
  const Json* value = find(object, key);
  const bool fits = value != nullptr && value->is_number_integer() &&
                    (!value->is_number_unsigned() ||
                     value->get<std::uint64_t>() <=
                         static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
  return fits ? value->get<std::int64_t>() : -1;
}

void read_doctors(const Json& body, InstanceInfo& info) {
  if (const Json* kv = find(body, "kv"); kv != nullptr) {
    info.kv.dtype = text_or(*kv, "dtype", "");
    info.kv.num_layers = uint_or(*kv, "num_layers", 0);
    info.kv.num_kv_heads = uint_or(*kv, "num_kv_heads", 0);
    info.kv.head_dim = uint_or(*kv, "head_dim", 0);
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
  info.fabric = text_or(body, "fabric", "");
  info.fabric_provider = text_or(body, "fabric_provider", "");
  info.security = text_or(body, "security", "");
  info.boot_id = text_or(body, "boot_id", "");
}

}  // namespace

std::string to_json(const InstanceInfo& info) {
  return to_text(
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
           {"kv_load_failure_policy", info.kv_load_failure_policy},
           {"block_size", info.block_size},
           {"max_model_len", info.max_model_len},
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
             {"head_dim", info.kv.head_dim}}},
           {"protocol", {{"oldest", info.protocol.oldest}, {"newest", info.protocol.newest}}},
           {"limits",
            {{"open_files", info.limits.open_files},
             {"open_files_max", info.limits.open_files_max},
             {"locked_bytes_max", info.limits.locked_bytes_max},
             {"ptrace_scope", info.limits.ptrace_scope}}},
           {"fabric", info.fabric},
           {"fabric_provider", info.fabric_provider},
           {"security", info.security},
           {"boot_id", info.boot_id}});
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
  info.pp_size = static_cast<std::uint32_t>(uint_or(*parsed, "pp_size", 1));
  info.weights = text_or(*parsed, "weights", "");
  info.kernel_family = text_or(*parsed, "kernel_family", "");
  info.kv_load_failure_policy = text_or(*parsed, "kv_load_failure_policy", "fail");
  info.block_size = static_cast<std::uint32_t>(uint_or(*parsed, "block_size", 0));
  info.max_model_len = static_cast<std::uint32_t>(uint_or(*parsed, "max_model_len", 0));
  if (const Json* blocks = find(*parsed, "blocks"); blocks != nullptr) {
    info.blocks_free = static_cast<std::uint32_t>(uint_or(*blocks, "free", 0));
    info.blocks_used = static_cast<std::uint32_t>(uint_or(*blocks, "used", 0));
    info.blocks_quarantined = static_cast<std::uint32_t>(uint_or(*blocks, "quarantined", 0));
    info.blocks_total = static_cast<std::uint32_t>(uint_or(*blocks, "total", 0));
  }
  if (const Json* requests = find(*parsed, "requests"); requests != nullptr) {
    info.requests_running = uint_or(*requests, "running", 0);
    info.requests_waiting = uint_or(*requests, "waiting", 0);
  }
  read_doctors(*parsed, info);
  return info;
}

}  // namespace baton::serving
