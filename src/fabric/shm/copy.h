// The one loop through which all payload goes.
#pragma once

#include <cstddef>

namespace baton::fabric::shm {

// Like memcpy. All bytes are visible to other processes before any later store or system call of
// this thread is.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace baton::fabric::shm
