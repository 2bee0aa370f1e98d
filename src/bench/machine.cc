#include "bench/machine.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <iterator>
#include <vector>

#include "bench/summary.h"

namespace baton::bench {
namespace {

std::string file_text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// "cpu  1 2 3" or "cpu0 1 2 3", without its name.
std::optional<CpuTicks> parse_cpu_line(std::string_view text) {
  // user nice system idle iowait irq softirq steal; guests are counted in user already.
  std::array<std::uint64_t, 8> field{};
  const char* at = text.data();
  const char* end = text.data() + text.size();
  for (std::uint64_t& value : field) {
    while (at != end && *at == ' ') ++at;
    const auto [stop, error] = std::from_chars(at, end, value);
    if (error != std::errc()) return {};
    at = stop;
  }
  CpuTicks out;
  for (const std::uint64_t value : field) out.total += value;
  out.busy = out.total - field[3] - field[4];
  return out;
}

std::set<int> allowed_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  std::set<int> out;
  if (sched_getaffinity(0, sizeof(mask), &mask) != 0) return out;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &mask)) out.insert(core);
  }
  return out;
}

// "/a/b" under `top`, and "/a", and "": a quota may be any group's. In a container the last may be
// the only one to be seen, and is then its own. Nothing: none says.
std::optional<double> throttled_up_from(std::string group, const std::string& top) {
  std::optional<double> out;
  while (group.ends_with('/')) group.pop_back();
  for (;;) {
    const auto seconds = parse_throttled(file_text(top + group + "/cpu.stat"));
    if (seconds) out = out.value_or(0) + *seconds;
    if (group.empty()) return out;
    group.resize(group.rfind('/') == group.npos ? 0 : group.rfind('/'));
  }
}

}  // namespace

std::optional<CpuTicks> parse_proc_stat(std::string_view text, const std::set<int>& cores) {
  std::optional<CpuTicks> out;
  for (const std::string& line : split_list(text, '\n')) {
    if (!line.starts_with("cpu")) continue;
    const std::size_t name_end = line.find(' ');
    if (name_end == line.npos) continue;
    const std::optional<double> core = to_number(line.substr(3, name_end - 3));
    const bool is_wanted =
        cores.empty() ? name_end == 3 : core && cores.contains(static_cast<int>(*core));
    if (!is_wanted) continue;
    const auto ticks = parse_cpu_line(std::string_view(line).substr(name_end));
    if (!ticks) return {};
    if (!out) out.emplace();
    out->busy += ticks->busy;
    out->total += ticks->total;
  }
  // A container's page may number the cores anew.
  return out || cores.empty() ? out : parse_proc_stat(text);
}

std::optional<CpuTicks> cpu_ticks() {
  return parse_proc_stat(file_text("/proc/stat"), allowed_cores());
}

std::optional<double> busy_share(const CpuTicks& before, const CpuTicks& after) {
  if (after.total <= before.total || after.busy < before.busy) return {};
  return static_cast<double>(after.busy - before.busy) /
         static_cast<double>(after.total - before.total);
}

std::optional<double> parse_throttled(std::string_view cpu_stat) {
  for (const std::string& line : split_list(cpu_stat, '\n')) {
    const std::size_t blank = line.find(' ');
    if (blank == line.npos) continue;
    const std::string_view name = std::string_view(line).substr(0, blank);
    const double unit = name == "throttled_usec" ? 1e-6 : name == "throttled_time" ? 1e-9 : 0;
    const std::optional<double> value = to_number(line.substr(blank + 1));
    if (unit > 0 && value) return *value * unit;
  }
  return {};
}

std::optional<double> throttled_seconds(std::string_view self_cgroup, const std::string& root) {
  for (const std::string& line : split_list(self_cgroup, '\n')) {
    // "0::/group" of version 2, "4:cpu,cpuacct:/group" of version 1.
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::vector<std::string> words = split_list(controllers, ',');
    const bool is_v1 = std::ranges::find(words, "cpu") != words.end();
    if (!is_v1 && !controllers.empty()) continue;
    const auto seconds = throttled_up_from(line.substr(second + 1), root + (is_v1 ? "/cpu" : ""));
    if (seconds) return seconds;
  }
  return {};
}

std::optional<double> throttled_seconds() {
  return throttled_seconds(file_text("/proc/self/cgroup"));
}

}  // namespace baton::bench
