#include "bench/machine.h"

#include <array>
#include <charconv>
#include <fstream>
#include <iterator>

namespace baton::bench {
namespace {

std::string file_text(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

std::optional<CpuTicks> parse_proc_stat(std::string_view text) {
  if (!text.starts_with("cpu ")) return {};
  text = text.substr(4, text.find('\n') - 4);
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

std::optional<CpuTicks> cpu_ticks() {
  return parse_proc_stat(file_text("/proc/stat"));
}

std::optional<double> busy_share(const CpuTicks& before, const CpuTicks& after) {
  if (after.total <= before.total || after.busy < before.busy) return {};
  return static_cast<double>(after.busy - before.busy) /
         static_cast<double>(after.total - before.total);
}

}  // namespace baton::bench
