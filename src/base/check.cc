#include "base/check.h"

#include <execinfo.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>

namespace baton {

void check_failed(const char* file, int line, const char* expression, const std::string& message) {
  std::fprintf(stderr, "%s:%d: check failed: %s%s%s\n", file, line, expression,
               message.empty() ? "" : ": ", message.c_str());
  std::array<void*, 48> frames{};
  backtrace_symbols_fd(frames.data(), backtrace(frames.data(), static_cast<int>(frames.size())),
                       STDERR_FILENO);
  std::abort();
}

}  // namespace baton
