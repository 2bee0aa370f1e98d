#include "bench/metric_line.h"

#include <fmt/format.h>

namespace baton::bench {

std::string metric_label(std::string_view line, std::string_view name) {
  const std::string key = fmt::format("{}=\"", name);
  for (std::size_t at = line.find(key); at != line.npos; at = line.find(key, at + 1)) {
    // Not the end of a longer name.
    if (at == 0 || (line[at - 1] != '{' && line[at - 1] != ',')) continue;
    const std::size_t from = at + key.size();
    return std::string(line.substr(from, line.find('"', from) - from));
  }
  return "";
}

}  // namespace baton::bench
