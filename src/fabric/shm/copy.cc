#include "fabric/shm/copy.h"

#include <cstring>

namespace baton::fabric::shm {

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

}  // namespace baton::fabric::shm
