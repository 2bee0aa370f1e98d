// The one loop through which all payload goes.
#pragma once

#include <cstddef>

namespace baton::fabric::shm {

// Like memcpy, for bytes that this thread will not read again: pieces of kStreamBytes and more go
// past the caches, where the processor can (AVX2, asked at run time). That spares the read of the
// target's lines and leaves the caches to the compute: measured 1.2 to 1.4 times memcpy on cold
// memory. All bytes are visible to other threads and processes before any later store or system
// call of this thread is.
inline constexpr std::size_t kStreamBytes = 8192;
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace baton::fabric::shm
