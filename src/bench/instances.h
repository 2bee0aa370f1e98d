// The instances that a run's requests go to: their addresses, learned before the load, so that
// what they count can be read before it and after; and how full their KV pools were in between.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "serving/instance_info.h"

namespace baton::bench {

struct Instances {
  std::set<std::string> prefill, decode;  // URLs without a slash at the end
  std::set<std::string> all() const;
};

// Those given stand instead of what the router's /metrics lists. Empty sides: nobody said, as of a
// server that does both, or is none of ours. Blocks for seconds at most.
Instances find_instances(const std::string& router_url, const std::string& prefill_url,
                         const std::string& decode_url);
// `baton_router_instance_up` of a router's /metrics. Pure.
Instances parse_router_page(std::string_view page);

// What an instance says of itself: of its host and build, too.
struct ServerSaid {
  std::string side;  // "prefill", "decode"; "local" where one does both
  std::string url;
  serving::InstanceInfo info;
};
// Those that do not answer, or are none of ours, are left out. Blocks for seconds at most.
std::vector<ServerSaid> ask_servers(const Instances& instances);
// The build of all, "prefill a, decode b" where they differ; "": none says.
std::string builds_in_words(const std::vector<ServerSaid>& servers);

struct PoolUse {
  std::uint64_t blocks = 0, most_used = 0, block_size = 0;  // tokens, the last one
};
// Of GET /baton/instance. Absent: it does not say. Pure.
std::optional<PoolUse> parse_pool(std::string_view body);

// Asks some times a second how many blocks are in use, from construction until stop(), on a thread
// of its own. Who does not answer or does not say is not asked again.
class PoolWatch {
 public:
  explicit PoolWatch(const std::set<std::string>& urls);
  ~PoolWatch() { stop(); }
  PoolWatch(const PoolWatch&) = delete;
  PoolWatch& operator=(const PoolWatch&) = delete;

  // By URL; those that said nothing are missing.
  std::map<std::string, PoolUse> stop();

 private:
  void watch(std::set<std::string> urls);

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::map<std::string, PoolUse> uses_;  // the thread's until it has joined
  std::thread thread_;
};

// The fullest of a side; absent where none of them says.
std::optional<PoolUse> fullest(const std::map<std::string, PoolUse>& uses,
                               const std::set<std::string>& side);

// Whether at its fullest a request of so many tokens would have found no room.
bool is_full(const PoolUse& use, std::uint64_t tokens);

}  // namespace baton::bench
