// The modes that a sweep compares, and the command lines of their servers: the one place that
// knows them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/sweep_options.h"

namespace baton::bench {

struct SweepMode {
  std::string_view name;
  bool is_local;  // one instance that does both
  std::string_view connector;
  std::string_view router_mode;
  // Of `baton serve`, both instances; "": not given.
  std::string_view pull_loop;       // --pull-loop
  std::string_view transfer_style;  // --transfer-style, of the timed backend
  bool pays_posting;                // the profile's price of a descriptor, or --posting-cost
  bool needs_timed;                 // this published way is emulated only
};

std::span<const SweepMode> all_modes();
std::vector<std::string> mode_names();
const SweepMode* find_mode(std::string_view name);  // null if unknown

// That an instance of a sweep without a slot limit has; more than any point has open.
inline constexpr std::uint32_t kNoSlotLimit = 1024;

// Arguments of `baton`, from the command's name on; ports are 0: each announces its own.
std::vector<std::string> local_command(const SweepOptions& options);
std::vector<std::string> prefill_command(const SweepMode& mode, const SweepOptions& options);
std::vector<std::string> decode_command(const SweepMode& mode, const SweepOptions& options);
std::vector<std::string> route_command(const SweepMode& mode, const SweepOptions& options,
                                       const std::string& prefill_url,
                                       const std::string& decode_url);

}  // namespace baton::bench
