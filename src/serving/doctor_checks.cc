#include "serving/doctor_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/nearest.h"
#include "base/printable.h"
#include "serving/json.h"
#include "serving/process.h"

namespace baton::serving {
namespace {

using Checks = std::vector<Check>;

constexpr std::int64_t kFilesFew = 1024;
constexpr std::size_t kShownMax = 1000;  // bytes of one text

std::string both(const std::string& prefill, const std::string& decode) {
  return fmt::format("prefill {}, decode {}", prefill.empty() ? "(none)" : prefill,
                     decode.empty() ? "(none)" : decode);
}

// A field that must be alike on both sides.
void must_equal(Checks& out, const std::string& name, const std::string& prefill,
                const std::string& decode, std::string remedy) {
  if (prefill == decode) {
    out.push_back(ok(name, prefill.empty() ? "(none)" : prefill));
  } else {
    out.push_back(failure(name, both(prefill, decode), std::move(remedy)));
  }
}

void must_equal(Checks& out, const std::string& name, std::uint64_t prefill, std::uint64_t decode,
                std::string remedy) {
  must_equal(out, name, std::to_string(prefill), std::to_string(decode), std::move(remedy));
}

void check_files(const std::string& name, const InstanceInfo& info, Checks& out) {
  const InstanceInfo::Limits& limits = info.limits;
  if (limits.open_files_max <= 0) return;
  const std::string found =
      fmt::format("{} of {} are open", limits.open_files, limits.open_files_max);
  const bool few = limits.open_files_max < kFilesFew;
  const bool nearly_all = limits.open_files > limits.open_files_max / 5 * 4;
  if (few || nearly_all) {
    out.push_back(warning(name, found,
                          "raise the limit before the start: ulimit -Hn 65536, or LimitNOFILE= of "
                          "its systemd unit; every client and peer takes a descriptor"));
  } else {
    out.push_back(ok(name, found));
  }
}

void check_locked_memory(const std::string& name, const InstanceInfo& info, Checks& out) {
  const std::int64_t most = info.limits.locked_bytes_max;
  const std::string found = most < 0 ? "unlimited" : fmt::format("at most {} KiB", most / 1024);
  const std::string& provider = info.fabric_provider;
  const bool locks =
      info.fabric != "shm" && (provider.starts_with("efa") || provider.starts_with("verbs"));
  if (!locks || most < 0) return out.push_back(ok(name, locks ? found : found + "; not needed"));
  out.push_back(warning(name, found,
                        provider + " locks the KV pool in memory: ulimit -l unlimited, or "
                                   "LimitMEMLOCK=infinity in its systemd unit"));
}

void check_ptrace(const std::string& name, const InstanceInfo& info, Checks& out) {
  const std::int64_t scope = info.limits.ptrace_scope;
  if (scope < 0) return;
  out.push_back(
      ok(name, fmt::format("{}{}", scope,
                           scope == 0 ? ""
                                      : "; harmless: this pool is a memfd that peers map, "
                                        "and process_vm_writev is for others")));
}

void check_room(const std::string& side, const InstanceInfo& info, Checks& out) {
  const std::string name = side + " room";
  const std::string found =
      fmt::format("{} of {} blocks of {} tokens are free, {} in quarantine", info.blocks_free,
                  info.blocks_total, info.block_size, info.blocks_quarantined);
  const std::uint64_t tokens = std::uint64_t{info.blocks_total} * info.block_size;
  if (tokens < info.max_model_len) {
    out.push_back(warning(name, found,
                          fmt::format("a prompt of the whole context ({} tokens) does not fit: "
                                      "raise --kv-cache-memory-bytes or lower --max-model-len",
                                      info.max_model_len)));
  } else if (info.blocks_quarantined > 0) {
    out.push_back(warning(name, found,
                          "a writer neither drained nor died: end or wake the prefill process that "
                          "is stopped or cut off"));
  } else if (info.blocks_free == 0) {
    out.push_back(warning(name, found, "it is full: more instances or more KV memory"));
  } else {
    out.push_back(ok(name, found));
  }
}

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string names_of(const InstanceInfo& p, const InstanceInfo& d) {
  return both(fmt::format("{}", fmt::join(p.models, " ")),
              fmt::format("{}", fmt::join(d.models, " ")));
}

void check_models(const InstanceInfo& p, const InstanceInfo& d, Checks& out) {
  const bool common = std::any_of(p.models.begin(), p.models.end(),
                                  [&d](const std::string& name) { return has(d.models, name); });
  const std::string found = names_of(p, d);
  out.push_back(common ? ok("model names", found)
                       : failure("model names", found,
                                 "give both the same --served-model-name: a router asks both legs "
                                 "for the client's model"));
  must_equal(out, "weights", p.weights, d.weights, "start both with the same model file");
  if (p.kernel_family != d.kernel_family) {
    out.push_back(warning("kernels", both(p.kernel_family, d.kernel_family),
                          "tokens may differ from those of one process: use like machines, or "
                          "BATON_KERNELS on both"));
  } else {
    out.push_back(ok("kernels", p.kernel_family));
  }
}

void check_ranks(const InstanceInfo& p, const InstanceInfo& d, Checks& out) {
  must_equal(out, "TP size", p.tp_size, d.tp_size,
             "give both the same --tensor-parallel-size: D waits for a word of each rank of P");
  must_equal(out, "PP size", p.pp_size, d.pp_size, "give both the same number of pipeline stages");
}

void check_geometry(const InstanceInfo& p, const InstanceInfo& d, Checks& out) {
  must_equal(out, "block size", p.block_size, d.block_size, "give both the same --block-size");
  must_equal(out, "KV dtype", p.kv.dtype, d.kv.dtype, "give both the same --dtype");
  must_equal(out, "layers", p.kv.num_layers, d.kv.num_layers, "start both with the same model");
  must_equal(out, "KV heads", p.kv.num_kv_heads, d.kv.num_kv_heads,
             "start both with the same model");
  must_equal(out, "head size", p.kv.head_dim, d.kv.head_dim, "start both with the same model");
  if (p.max_model_len != d.max_model_len) {
    out.push_back(warning("context",
                          both(std::to_string(p.max_model_len), std::to_string(d.max_model_len)),
                          "prompts between the two are taken by one and refused by the other: give "
                          "both the same --max-model-len"));
  } else {
    out.push_back(ok("context", std::to_string(p.max_model_len)));
  }
}

void check_protocol(const InstanceInfo& p, const InstanceInfo& d, Checks& out) {
  const auto range = [](const InstanceInfo& info) {
    return fmt::format("{} to {}", info.protocol.oldest, info.protocol.newest);
  };
  const std::uint64_t spoken = std::min(p.protocol.newest, d.protocol.newest);
  if (spoken < std::max(p.protocol.oldest, d.protocol.oldest)) {
    out.push_back(failure("protocol", both(range(p), range(d)),
                          "upgrade the older one: releases more than one protocol apart do not "
                          "speak with each other"));
  } else {
    out.push_back(
        ok("protocol", fmt::format("{} is spoken ({})", spoken, both(range(p), range(d)))));
  }
  if (p.version != d.version) {
    out.push_back(
        warning("version", both(p.version, d.version), "fine while an upgrade is under way"));
  } else {
    out.push_back(ok("version", p.version));
  }
}

void check_fabric(const InstanceInfo& p, const InstanceInfo& d, Checks& out) {
  must_equal(
      out, "mode", p.mode, d.mode,
      "the same kind of kv_connector on both: BatonConnector or NixlPushConnector (push), or "
      "BatonPullConnector or NixlConnector (pull)");
  const bool same_host = !p.boot_id.empty() && p.boot_id == d.boot_id;
  const bool alike = p.fabric == d.fabric || p.fabric == "auto" || d.fabric == "auto";
  const std::string& fabric = p.fabric == "auto" ? d.fabric : p.fabric;
  if (!alike) {
    out.push_back(failure("fabric", both(p.fabric, d.fabric), "give both the same --fabric"));
  } else {
    out.push_back(ok("fabric", p.fabric == d.fabric ? p.fabric : both(p.fabric, d.fabric)));
  }
  const bool over_libfabric = fabric == "libfabric" || (fabric == "auto" && !same_host);
  if (alike && over_libfabric) {
    must_equal(out, "provider", p.fabric_provider, d.fabric_provider,
               "give both the same --fabric-provider");
  }
  if (same_host) {
    out.push_back(ok("hosts", "both on one"));
  } else if (alike && fabric == "shm") {
    out.push_back(failure("hosts", "two hosts, and shm moves KV within one",
                          "--fabric libfabric on both, or both on one host"));
  } else {
    out.push_back(ok("hosts", "two"));
  }
  if (!same_host && is_loopback(p.handover_host)) {
    out.push_back(
        failure("side channel address", fmt::format("prefill listens on {} only", p.handover_host),
                "set kv_ip in its --kv-transfer-config to an address that decode can reach"));
  }
}

// What each side takes for its peer; the doctor compares, and moves no bytes of its own.
void check_path(const InstanceInfo& p, const InstanceInfo& d, Checks& out) {
  const bool same_host = !p.boot_id.empty() && p.boot_id == d.boot_id;
  const auto choice = [same_host](const InstanceInfo& info) -> std::string {
    if (info.fabric == "shm" || (info.fabric == "auto" && same_host)) return "shm";
    const std::string& provider = info.fabric_provider;
    return fmt::format("libfabric ({})", provider.empty() ? "provider not told" : provider);
  };
  out.push_back(ok("KV path", fmt::format("prefill would choose {}, decode {}; compared only, no "
                                          "bytes were moved",
                                          choice(p), choice(d))));
}

void check_security(const InstanceInfo& p, const InstanceInfo& d, Checks& out) {
  must_equal(out, "security", p.security, d.security,
             "give both certificates of one authority, or both the same key file, or neither");
  const bool same_host = !p.boot_id.empty() && p.boot_id == d.boot_id;
  const bool plain = p.security == "none" || d.security == "none";
  if (plain && !same_host) {
    out.push_back(warning("exposure", "the control channel between two hosts is plain",
                          "certificates or a pre-shared key: see SECURITY.md"));
  }
}

}  // namespace

std::string_view to_string(Check::Verdict verdict) {
  switch (verdict) {
    case Check::Verdict::kOk:
      return "ok";
    case Check::Verdict::kWarning:
      return "warning";
    case Check::Verdict::kFail:
      return "FAIL";
  }
  return "FAIL";
}

std::vector<Check> check_instance(const InstanceInfo& info, bool is_prefill) {
  const std::string side = is_prefill ? "prefill" : "decode";
  Checks out;
  if (info.ready) {
    out.push_back(ok(side + " ready", info.engine_id.empty() ? "yes" : info.engine_id));
  } else {
    out.push_back(failure(side + " ready", "it is loading its model, or stopping",
                          "wait for its line \"serving ...\", or see its log"));
  }
  if (is_prefill ? info.can_prefill() : info.can_decode()) {
    out.push_back(ok(side + " role", info.role));
  } else {
    out.push_back(failure(side + " role",
                          info.role.empty() ? "none: no --kv-transfer-config" : info.role,
                          fmt::format("kv_role {} or kv_both in its --kv-transfer-config",
                                      is_prefill ? "kv_producer" : "kv_consumer")));
  }
  check_room(side, info, out);
  check_files(side + " descriptors", info, out);
  check_locked_memory(side + " locked memory", info, out);
  check_ptrace(side + " ptrace scope", info, out);
  return out;
}

std::vector<Check> check_pair(const InstanceInfo& prefill, const InstanceInfo& decode) {
  Checks out;
  if (prefill.engine_id == decode.engine_id) {
    out.push_back(failure("engine ids", "both are '" + prefill.engine_id + "'",
                          "give each its own engine_id in --kv-transfer-config"));
  } else {
    out.push_back(ok("engine ids", both(prefill.engine_id, decode.engine_id)));
  }
  check_protocol(prefill, decode, out);
  check_models(prefill, decode, out);
  check_ranks(prefill, decode, out);
  check_geometry(prefill, decode, out);
  check_fabric(prefill, decode, out);
  check_path(prefill, decode, out);
  check_security(prefill, decode, out);
  return out;
}

Check check_model(const std::string& model, const InstanceInfo& prefill,
                  const InstanceInfo& decode) {
  constexpr char kName[] = "model asked for";
  if (has(prefill.models, model) && has(decode.models, model)) return ok(kName, model);
  const std::string nearest = nearest_word(model, decode.models);
  return failure(kName,
                 fmt::format("{} is not served by {}: {}", model,
                             has(prefill.models, model)  ? "decode"
                             : has(decode.models, model) ? "prefill"
                                                         : "either",
                             names_of(prefill, decode)),
                 fmt::format("clients get 404 `does not exist`: --served-model-name {} on both, or "
                             "ask for {}",
                             model, nearest.empty() ? "one that both serve" : nearest));
}

Check check_router_models(const std::vector<std::string>& listed, const InstanceInfo& prefill,
                          const InstanceInfo& decode) {
  constexpr char kName[] = "router's models";
  const std::string found = fmt::format("router {}", fmt::join(listed, " "));
  for (const std::string& name : prefill.models) {
    if (!has(decode.models, name) || has(listed, name)) continue;
    return failure(kName,
                   fmt::format("{}, and not {} ({})", listed.empty() ? "router (none)" : found,
                               name, names_of(prefill, decode)),
                   "it routes other instances: give it this pair with --prefill and --decode");
  }
  return ok(kName, found);
}

namespace {

std::string entry_text(const UpstreamEntry& entry) {
  std::string text = fmt::format("{} {} ({})", to_string(entry.stage), entry.url,
                                 entry.engine_id.empty() ? "not heard of" : entry.engine_id);
  if (!entry.up) text += fmt::format(" is not up: {}", entry.reason);
  return text;
}

// What is against it that the router routes this one; "" if it does.
std::string not_routed(std::span<const UpstreamEntry> listed, Stage stage,
                       const InstanceInfo& info) {
  std::string text = fmt::format("{} {} is not among them", to_string(stage), info.engine_id);
  for (const UpstreamEntry& entry : listed) {
    if (entry.stage != stage || entry.engine_id != info.engine_id) continue;
    if (entry.incarnation == info.incarnation) return entry.up ? "" : entry_text(entry);
    text = fmt::format(
        "the {} {} there, {}, is another process (incarnation {:016x}, and asked was {:016x})",
        to_string(stage), info.engine_id, entry.url, entry.incarnation, info.incarnation);
  }
  return text;
}

}  // namespace

Check check_router_upstreams(std::span<const UpstreamEntry> listed, const InstanceInfo& prefill,
                             const InstanceInfo& decode) {
  constexpr char kName[] = "router's instances";
  std::vector<std::string> known, missing;
  for (const UpstreamEntry& entry : listed) known.push_back(entry_text(entry));
  for (const auto& [stage, info] :
       {std::pair{Stage::kPrefill, &prefill}, {Stage::kDecode, &decode}}) {
    std::string trouble = not_routed(listed, stage, *info);
    if (!trouble.empty()) missing.push_back(std::move(trouble));
  }
  std::string found = fmt::format("{}", fmt::join(known, ", "));
  if (missing.empty()) return ok(kName, std::move(found));
  return failure(kName,
                 fmt::format("{}; the router has {}", fmt::join(missing, "; "),
                             found.empty() ? "none" : found),
                 "it routes other instances: give it this pair with --prefill and --decode, or the "
                 "doctor those that it has");
}

std::string checks_text(std::span<const Check> checks) {
  // What was found is mostly what servers and peers say.
  const auto shown = [](const std::string& text) { return printable(text, kShownMax); };
  std::size_t width = 0;
  for (const Check& check : checks) width = std::max(width, check.name.size());
  std::string out;
  for (const Check& check : checks) {
    out += fmt::format("{:<8} {:<{}}  {}\n", to_string(check.verdict), check.name, width,
                       shown(check.found));
    if (!check.remedy.empty())
      out += fmt::format("{:<8} {:<{}}  -> {}\n", "", "", width, shown(check.remedy));
  }
  const auto count = [&checks](Check::Verdict verdict) {
    return std::count_if(checks.begin(), checks.end(),
                         [verdict](const Check& check) { return check.verdict == verdict; });
  };
  return out + fmt::format("{} checks: {} ok, {} warnings, {} failed\n", checks.size(),
                           count(Check::Verdict::kOk), count(Check::Verdict::kWarning),
                           count(Check::Verdict::kFail));
}

std::string checks_json(std::span<const Check> checks) {
  Json list = Json::array();
  for (const Check& check : checks) {
    list.push_back(
        {{"name", check.name},
         {"verdict",
          check.verdict == Check::Verdict::kFail ? "fail" : std::string(to_string(check.verdict))},
         {"found", printable(check.found, kShownMax)},
         {"remedy", printable(check.remedy, kShownMax)}});
  }
  return to_text(Json{{"ok", all_well(checks)}, {"checks", std::move(list)}});
}

bool all_well(std::span<const Check> checks) {
  return std::none_of(checks.begin(), checks.end(),
                      [](const Check& check) { return check.verdict == Check::Verdict::kFail; });
}

}  // namespace baton::serving
