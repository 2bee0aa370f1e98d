// Whether the cores of this machine were the limit of what was measured on it.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace baton::bench {

// Time that cores together have spent since boot, in clock ticks, by /proc/stat. What a hypervisor
// took away counts as busy: nobody here could have it.
struct CpuTicks {
  std::uint64_t busy = 0, total = 0;
};
// Of these cores; of all where none is named, or the text lists none of them.
std::optional<CpuTicks> parse_proc_stat(std::string_view text, const std::set<int>& cores = {});
// Of those that this process, and so its children, may use.
std::optional<CpuTicks> cpu_ticks();
// 0 to 1; absent where nothing passed in between.
std::optional<double> busy_share(const CpuTicks& before, const CpuTicks& after);

// CPU seconds for which a control group's quota has stopped its tasks (several of them at once
// count each), of its cpu.stat (both
// versions of control groups); absent where it says nothing. Pure.
std::optional<double> parse_throttled(std::string_view cpu_stat);
// Of this process's group and all above it, as far as they are to be seen under `root`, by
// /proc/self/cgroup's text. A container's cores look idle while its quota is used up.
std::optional<double> throttled_seconds(std::string_view self_cgroup,
                                        const std::string& root = "/sys/fs/cgroup");
std::optional<double> throttled_seconds();

}  // namespace baton::bench
