#include "serving/host_info.h"

#include <fmt/format.h>
#include <rdma/fabric.h>
#include <sys/utsname.h>

#include <fstream>
#include <iterator>
#include <thread>

namespace baton::serving {
namespace {

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const std::size_t key = text.find("model name");
  const std::size_t colon = text.find(": ", key);
  if (key == std::string::npos || colon == std::string::npos) return "";
  return text.substr(colon + 2, text.find('\n', colon) - colon - 2);
}

}  // namespace

InstanceInfo::Host host_info() {
  InstanceInfo::Host out;
  utsname names{};
  if (uname(&names) == 0) {
    out.name = names.nodename;
    out.kernel = names.release;
  }
  out.cpu = cpu_name();
  out.cores = std::thread::hardware_concurrency();
  return out;
}

std::string libfabric_version() {
  const std::uint32_t version = fi_version();
  return fmt::format("{}.{}", FI_MAJOR(version), FI_MINOR(version));
}

}  // namespace baton::serving
