// Whether the cores of this machine were the limit of what was measured on it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace baton::bench {

// Time that all cores together have spent since boot, in clock ticks, by /proc/stat.
struct CpuTicks {
  std::uint64_t busy = 0, total = 0;
};
std::optional<CpuTicks> parse_proc_stat(std::string_view text);
std::optional<CpuTicks> cpu_ticks();
// 0 to 1; absent where nothing passed in between.
std::optional<double> busy_share(const CpuTicks& before, const CpuTicks& after);

}  // namespace baton::bench
