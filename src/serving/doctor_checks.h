// What `baton doctor` finds out by comparing what P and D say of themselves. Pure: no clock, no
// socket.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "serving/instance_info.h"
#include "serving/upstream_list.h"

namespace baton::serving {

struct Check {
  enum class Verdict : std::uint8_t { kOk, kWarning, kFail };

  std::string name;  // stable words, for scripts
  Verdict verdict = Verdict::kOk;
  std::string found;   // names both values where they are unlike
  std::string remedy;  // what to change; "" where nothing is to be
};
std::string_view to_string(Check::Verdict verdict);

inline Check ok(std::string name, std::string found) {
  return {std::move(name), Check::Verdict::kOk, std::move(found), ""};
}
inline Check warning(std::string name, std::string found, std::string remedy) {
  return {std::move(name), Check::Verdict::kWarning, std::move(found), std::move(remedy)};
}
inline Check failure(std::string name, std::string found, std::string remedy) {
  return {std::move(name), Check::Verdict::kFail, std::move(found), std::move(remedy)};
}

// One instance by itself: ready, role, room, limits of its process. `is_prefill`: it is to be P.
std::vector<Check> check_instance(const InstanceInfo& info, bool is_prefill);

// Whether the two fit together.
std::vector<Check> check_pair(const InstanceInfo& prefill, const InstanceInfo& decode);

// Whether both serve the name that clients ask for. Servers answer 404 `does not exist` otherwise.
Check check_model(const std::string& model, const InstanceInfo& prefill,
                  const InstanceInfo& decode);

// Whether what this pair serves can be asked for at the router: it lists a name exactly if a P and
// a D of its serve it.
Check check_router_models(const std::vector<std::string>& listed, const InstanceInfo& prefill,
                          const InstanceInfo& decode);

// Whether the very processes of this pair are behind the router and take requests, each on its
// side. Compared by engine id and incarnation: the router may reach them at other addresses.
Check check_router_upstreams(std::span<const UpstreamEntry> listed, const InstanceInfo& prefill,
                             const InstanceInfo& decode);

// Lines for people, or a JSON object {"ok": ..., "checks": [...]}.
std::string checks_text(std::span<const Check> checks);
std::string checks_json(std::span<const Check> checks);
bool all_well(std::span<const Check> checks);  // nothing failed

}  // namespace baton::serving
