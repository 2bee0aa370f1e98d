// What a call of the kernel said when it failed, as an Error. Call from any thread, straight after
// the call.
#pragma once

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "baton/result.h"

namespace baton::fabric::shm {

inline tl::unexpected<Error> refused(const char* call) {
  return fail(Errc::kIo, fmt::format("{}: {}", call, std::strerror(errno)));
}

}  // namespace baton::fabric::shm
