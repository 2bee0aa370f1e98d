#include "bench/sweep_modes.h"

#include <fmt/format.h>

namespace baton::bench {
namespace {

constexpr char kPush[] = "BatonConnector";
constexpr char kPull[] = "BatonPullConnector";

constexpr SweepMode kModes[] = {
    // name, local, connector, route --mode, --pull-loop, --transfer-style, pays, timed only
    {"local", true, "", "", "", "", false, false},
    {"engine-loop-pull", false, kPull, "pull", "engine", "published", true, false},
    {"engine-loop-pull-merged", false, kPull, "pull", "engine", "published-merged", true, true},
    {"threaded-pull", false, kPull, "pull", "threaded", "baton", false, false},
    {"published-push", false, kPush, "push", "", "published", true, true},
    {"published-push-merged", false, kPush, "push", "", "published-merged", true, true},
    {"push", false, kPush, "push", "", "baton", false, false},
    // As the servers themselves do it: the name for running ones, and that of the article's files.
    {"pull", false, kPull, "pull", "", "", false, false},
};

void add(std::vector<std::string>& out, std::initializer_list<std::string_view> words) {
  for (const std::string_view word : words) out.emplace_back(word);
}

// What all instances of a sweep have in common.
std::vector<std::string> instance(const SweepMode& mode, const SweepOptions& o) {
  // Without a prefix cache: the points of a sweep ask with the same prompts, and each computes and
  // moves every one of them whole.
  std::vector<std::string> out = {"serve", "--no-enable-prefix-caching"};
  if (!o.model.empty()) out.push_back(o.model);
  add(out, {"--host", "127.0.0.1", "--port", "0", "--served-model-name", o.served_model_name});
  add(out, {"--max-num-seqs", std::to_string(o.max_num_seqs == 0 ? kNoSlotLimit : o.max_num_seqs)});
  if (o.backend == "timed") {
    add(out, {"--backend", "timed", "--profile", o.profile, "--prefill", o.prefill});
    if (!mode.transfer_style.empty()) add(out, {"--transfer-style", mode.transfer_style});
    if (mode.pays_posting && o.posting_cost) {
      add(out, {"--posting-cost", fmt::format("{}", *o.posting_cost)});
    }
  }
  add(out, {"--transfer-records", std::to_string(o.transfer_records)});
  out.insert(out.end(), o.serve_flags.begin(), o.serve_flags.end());
  return out;
}

std::vector<std::string> half(const SweepMode& mode, const SweepOptions& o, std::string_view role,
                              std::string_view engine_id) {
  std::vector<std::string> out = instance(mode, o);
  if (!mode.pull_loop.empty()) add(out, {"--pull-loop", mode.pull_loop});
  add(out, {"--kv-transfer-config",
            fmt::format(R"({{"kv_connector":"{}","kv_role":"{}","engine_id":"{}"}})",
                        mode.connector, role, engine_id)});
  return out;
}

}  // namespace

std::span<const SweepMode> all_modes() {
  return kModes;
}

std::vector<std::string> mode_names() {
  std::vector<std::string> out;
  for (const SweepMode& mode : kModes) out.emplace_back(mode.name);
  return out;
}

const SweepMode* find_mode(std::string_view name) {
  for (const SweepMode& mode : kModes) {
    if (mode.name == name) return &mode;
  }
  return nullptr;
}

std::vector<std::string> local_command(const SweepOptions& options) {
  return instance(*find_mode("local"), options);
}

std::vector<std::string> prefill_command(const SweepMode& mode, const SweepOptions& options) {
  return half(mode, options, "kv_producer", "prefill-engine-001");
}

std::vector<std::string> decode_command(const SweepMode& mode, const SweepOptions& options) {
  return half(mode, options, "kv_consumer", "decode-engine-001");
}

std::vector<std::string> route_command(const SweepMode& mode, const SweepOptions& options,
                                       const std::string& prefill_url,
                                       const std::string& decode_url) {
  std::vector<std::string> out = {"route", "--prefill", prefill_url, "--decode", decode_url};
  add(out, {"--host", "127.0.0.1", "--port", "0", "--first-token", options.first_token});
  add(out, {"--transfer-records", std::to_string(options.transfer_records)});
  // Push is what a router does unless it is told otherwise.
  if (mode.router_mode != "push") add(out, {"--mode", mode.router_mode});
  return out;
}

}  // namespace baton::bench
