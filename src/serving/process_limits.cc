#include "serving/process_limits.h"

#include <sys/resource.h>

#include <filesystem>
#include <fstream>

namespace baton::serving {
namespace {

std::int64_t limit_of(__rlimit_resource what) {
  rlimit limit{};
  if (getrlimit(what, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return -1;
  return static_cast<std::int64_t>(limit.rlim_cur);
}

std::int64_t open_files() {
  std::error_code error;
  std::int64_t count = 0;
  for (auto at = std::filesystem::directory_iterator("/proc/self/fd", error);
       !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
    ++count;
  }
  return error ? -1 : count;
}

}  // namespace

InstanceInfo::Limits process_limits() {
  InstanceInfo::Limits limits;
  limits.open_files = open_files();
  limits.open_files_max = limit_of(RLIMIT_NOFILE);
  limits.locked_bytes_max = limit_of(RLIMIT_MEMLOCK);
  std::ifstream scope("/proc/sys/kernel/yama/ptrace_scope");
  if (!(scope >> limits.ptrace_scope)) limits.ptrace_scope = -1;
  return limits;
}

void raise_open_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace baton::serving
