// Asks the servers after a run what they recorded of its hand-overs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "bench/counters.h"
#include "bench/handover.h"

namespace baton::bench {

// What an instance says of itself at /baton/instance; what it does not say is absent.
struct InstanceFacts {
  std::string url, mode, fabric, provider, version;
  std::optional<std::uint64_t> block_size;
};
InstanceFacts parse_instance_facts(std::string_view body);

struct Records {
  std::map<std::string, Handover> by_transfer;
  std::vector<InstanceFacts> prefill, decode;
  std::vector<std::string> troubles;  // what could not be had, and why
};

struct RecordSources {
  std::string router;   // its address; also says where P and D are
  std::string prefill;  // "" or an address that stands instead
  std::string decode;
};

// Blocks for the few calls it makes, at most some seconds each, and for up to 2 s for records of P
// that come after D's answers. Servers remember the latest 1,024 hand-overs; those of `wanted` that
// they do not remember are missing in the answer.
Records collect_records(const RecordSources& sources, const std::set<std::string>& wanted);

// Of these instances, now, by URL; what does not answer is left out.
std::map<std::string, Counters> read_counters(const std::set<std::string>& urls);

// One page of GET /debug/transfers into `records`; `offset` moves its times to this host's clock.
// False: no such page. Pure.
bool read_records(std::string_view page, std::int64_t offset, const std::set<std::string>& wanted,
                  Records& records);

}  // namespace baton::bench
