#include "serving/kv_transfer_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

#include "serving/json.h"

namespace baton::serving {
namespace {

using Problems = std::vector<std::string>;

constexpr std::array kKeys = {"kv_connector",
                              "kv_role",
                              "engine_id",
                              "kv_rank",
                              "kv_parallel_size",
                              "kv_buffer_device",
                              "kv_connector_extra_config",
                              "kv_load_failure_policy",
                              "kv_ip",
                              "kv_port"};
constexpr std::array kExtraKeys = {"backends",
                                   "kv_lease_duration",
                                   "kv_tls_cert",
                                   "kv_tls_key",
                                   "kv_tls_ca",
                                   "kv_psk_file",
                                   "kv_allowed_peers",
                                   "insecure",
                                   "bidirectional_kv_xfer",
                                   "kept_blocks_max",
                                   "kv_recompute_threshold"};

// vLLM's keys that have another name here.
struct Renamed {
  std::string_view key;
  std::string_view instead;
};
constexpr std::array kRenamed = {
    Renamed{"decoder_kv_blocks_ttl",
            "kept blocks are held as long as all others that wait for a reader: give "
            "kv_lease_duration, or the flag --lease, in seconds"}};

template <std::size_t N>
void check_keys(const Json& object, std::string_view where, const std::array<const char*, N>& known,
                Problems& problems) {
  for (const auto& [key, value] : object.items()) {
    const auto same = [&key](std::string_view name) { return name == key; };
    if (std::any_of(known.begin(), known.end(), same)) continue;
    const auto renamed = std::find_if(kRenamed.begin(), kRenamed.end(),
                                      [&](const Renamed& one) { return same(one.key); });
    if (renamed != kRenamed.end()) {
      problems.push_back(
          fmt::format("{}{} {} is not offered: {}", where, key, shown(value), renamed->instead));
      continue;
    }
    problems.push_back(fmt::format("{}unknown key {}; known are {}", where, shown(Json(key)),
                                   fmt::join(known, ", ")));
  }
}

// The text of a key, or nothing (and a problem if it is of another type).
std::optional<std::string> text_of(const Json& object, std::string_view key, Problems& problems) {
  const Json* value = find(object, key);
  if (value == nullptr) return {};
  if (value->is_string()) return value->get<std::string>();
  problems.push_back(fmt::format("{} must be a text, and is {}", key, shown(*value)));
  return {};
}

std::optional<std::uint64_t> number_of(const Json& object, std::string_view key, std::uint64_t most,
                                       Problems& problems) {
  const Json* value = find(object, key);
  if (value == nullptr) return {};
  if (value->is_number_unsigned() && value->get<std::uint64_t>() <= most) {
    return value->get<std::uint64_t>();
  }
  problems.push_back(
      fmt::format("{} must be an integer from 0 to {}, and is {}", key, most, shown(*value)));
  return {};
}

bool flag_of(const Json& object, std::string_view key, Problems& problems) {
  const Json* value = find(object, key);
  if (value == nullptr) return false;
  if (value->is_boolean()) return value->get<bool>();
  problems.push_back(fmt::format("{} must be true or false, and is {}", key, shown(*value)));
  return false;
}

void read_connector(const Json& object, KvTransferConfig& out, Problems& problems) {
  const bool given = find(object, "kv_connector") != nullptr;
  const std::optional<std::string> name = text_of(object, "kv_connector", problems);
  constexpr std::string_view kKnown =
      "BatonConnector, BatonPushConnector and NixlPushConnector (push), BatonPullConnector and "
      "NixlConnector (pull)";
  if (!given) {
    problems.push_back(fmt::format("kv_connector is missing; known are {}", kKnown));
  } else if (!name) {
    return;
  } else if (*name == "BatonConnector" || *name == "BatonPushConnector" ||
             *name == "NixlPushConnector") {
    out.mode = Mode::kPush;
  } else if (*name == "BatonPullConnector" || *name == "NixlConnector") {
    out.mode = Mode::kPull;
  } else {
    problems.push_back(fmt::format("kv_connector {} is unknown; known are {}", *name, kKnown));
  }
}

void read_role(const Json& object, KvTransferConfig& out, Problems& problems) {
  const bool given = find(object, "kv_role") != nullptr;
  const std::optional<std::string> role = text_of(object, "kv_role", problems);
  constexpr std::string_view kKnown = "kv_producer, kv_consumer, kv_both";
  if (!given) {
    problems.push_back(fmt::format("kv_role is missing; known are {}", kKnown));
  } else if (role == "kv_producer") {
    out.role = Role::kProducer;
  } else if (role == "kv_consumer") {
    out.role = Role::kConsumer;
  } else if (role == "kv_both") {
    out.role = Role::kBoth;
  } else if (role) {
    problems.push_back(fmt::format("kv_role {} is unknown; known are {}", *role, kKnown));
  }
}

void read_policy(const Json& object, KvTransferConfig& out, Problems& problems) {
  const std::optional<std::string> policy = text_of(object, "kv_load_failure_policy", problems);
  if (!policy) return;
  if (*policy == "recompute") {
    out.load_failure_policy = engine::LoadFailurePolicy::kRecompute;
  } else if (*policy != "fail") {
    problems.push_back(
        fmt::format("kv_load_failure_policy {} is unknown; known are fail, recompute", *policy));
  }
}

void read_backends(const Json& extra, KvTransferConfig& out, Problems& problems) {
  const Json* list = find(extra, "backends");
  if (list == nullptr) return;
  if (!list->is_array()) {
    problems.push_back(fmt::format("backends must be a list of texts, and is {}", shown(*list)));
    return;
  }
  for (const Json& item : *list) {
    const bool shm = item == "SHM" || item == "shm";
    if (shm || item == "LIBFABRIC" || item == "libfabric") {
      const std::string name = shm ? "shm" : "libfabric";
      out.fabric = out.fabric.empty() || out.fabric == name ? name : "auto";
      continue;
    }
    problems.push_back(
        fmt::format("backends {} is unknown; known are SHM, LIBFABRIC", shown(item)));
  }
}

void read_allowed_peers(const Json& extra, Security& out, Problems& problems) {
  const Json* list = find(extra, "kv_allowed_peers");
  if (list == nullptr) return;
  const auto is_text = [](const Json& item) { return item.is_string(); };
  if (!list->is_array() || !std::all_of(list->begin(), list->end(), is_text)) {
    problems.push_back(
        fmt::format("kv_allowed_peers must be a list of texts, and is {}", shown(*list)));
    return;
  }
  for (const Json& item : *list) out.allowed_peers.push_back(item.get<std::string>());
}

// The names are those of the flags.
void read_security(const Json& extra, Security& out, Problems& problems) {
  out.certificate_file = text_of(extra, "kv_tls_cert", problems).value_or("");
  out.private_key_file = text_of(extra, "kv_tls_key", problems).value_or("");
  out.ca_file = text_of(extra, "kv_tls_ca", problems).value_or("");
  out.psk_file = text_of(extra, "kv_psk_file", problems).value_or("");
  read_allowed_peers(extra, out, problems);
  out.insecure = flag_of(extra, "insecure", problems);
}

// Behind connector and role, which it needs.
void read_bidirectional(const Json& extra, KvTransferConfig& out, Problems& problems) {
  out.bidirectional = flag_of(extra, "bidirectional_kv_xfer", problems);
  constexpr std::uint64_t kBlocks = 1ULL << 30;
  if (const auto most = number_of(extra, "kept_blocks_max", kBlocks, problems)) {
    out.kept_blocks_max = static_cast<std::uint32_t>(*most);
  }
  constexpr std::uint64_t kTokens = 1ULL << 30;
  if (const auto least = number_of(extra, "kv_recompute_threshold", kTokens, problems)) {
    out.kv_recompute_threshold = static_cast<std::uint32_t>(*least);
  }
  if (!out.bidirectional || (out.mode == Mode::kPull && out.role == Role::kBoth)) return;
  problems.push_back(
      fmt::format("bidirectional_kv_xfer needs kv_role kv_both and a kv_connector of pull "
                  "(BatonPullConnector, NixlConnector): this one is of {}, and kv_role is {}",
                  out.mode == Mode::kPull ? "pull" : "push",
                  out.role == Role::kBoth       ? "kv_both"
                  : out.role == Role::kProducer ? "kv_producer"
                                                : "kv_consumer"));
}

void read_extra(const Json& object, KvTransferConfig& out, Problems& problems) {
  const Json* extra = find(object, "kv_connector_extra_config");
  if (extra == nullptr) return;
  if (!extra->is_object()) {
    problems.push_back(
        fmt::format("kv_connector_extra_config must be an object, and is {}", shown(*extra)));
    return;
  }
  check_keys(*extra, "kv_connector_extra_config: ", kExtraKeys, problems);
  read_backends(*extra, out, problems);
  read_security(*extra, out.security, problems);
  read_bidirectional(*extra, out, problems);
  constexpr std::uint64_t kWeek = 7 * 24 * 3600;
  if (const auto lease = number_of(*extra, "kv_lease_duration", kWeek, problems)) {
    out.lease = std::chrono::seconds(*lease);
  }
}

// Nothing depends on them here, but whoever writes them counts the instances.
void check_rank(const Json& object, Problems& problems) {
  constexpr std::uint64_t kMost = 65535;
  const auto rank = number_of(object, "kv_rank", kMost, problems);
  const auto size = number_of(object, "kv_parallel_size", kMost, problems);
  if (!size || rank.value_or(0) < *size) return;
  problems.push_back(fmt::format("kv_rank {} is none of kv_parallel_size {}: ranks begin at 0",
                                 rank.value_or(0), *size));
}

void read_all(const Json& object, KvTransferConfig& out, Problems& problems) {
  check_keys(object, "", kKeys, problems);
  read_connector(object, out, problems);
  read_role(object, out, problems);
  read_policy(object, out, problems);
  read_extra(object, out, problems);
  if (const auto id = text_of(object, "engine_id", problems)) {
    constexpr std::size_t kLongest = 128;
    const bool printable =
        std::all_of(id->begin(), id->end(), [](char c) { return c >= ' ' && c <= '~'; });
    if (id->empty() || id->size() > kLongest || !printable) {
      problems.push_back(fmt::format("engine_id must be 1 to {} printable characters, and is {}",
                                     kLongest, shown(Json(*id))));
    }
    out.engine_id = *id;
  }
  const auto device = text_of(object, "kv_buffer_device", problems);
  if (device && *device != "cpu") {
    problems.push_back(fmt::format(
        "kv_buffer_device {}: this engine computes on the CPU and keeps KV in host memory; known "
        "is cpu: say that, or leave the key out",
        *device));
  }
  check_rank(object, problems);
  out.host = text_of(object, "kv_ip", problems);
  constexpr std::uint64_t kPorts = 65535;
  if (const auto port = number_of(object, "kv_port", kPorts, problems)) {
    out.port = static_cast<std::uint16_t>(*port);
  }
}

}  // namespace

Result<KvTransferConfig> parse_kv_transfer_config(std::string_view json) {
  const Result<Json> parsed = parse_json(json);
  if (!parsed) return fail(Errc::kInvalidArgument, parsed.error().message);
  if (!parsed->is_object()) {
    return fail(Errc::kInvalidArgument,
                fmt::format("the value must be a JSON object, and is {}", shown(*parsed)));
  }
  KvTransferConfig config;
  Problems problems;
  read_all(*parsed, config, problems);
  if (problems.empty()) return config;
  return fail(Errc::kInvalidArgument, fmt::format("{}", fmt::join(problems, "\n")));
}

}  // namespace baton::serving
