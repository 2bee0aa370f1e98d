#include "fabric/shm/copy.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"

namespace baton::fabric::shm {
namespace {

// Every length around the edges of a step and of the streaming bound, at every alignment of either
// side: exactly these bytes, none beside them.
TEST(CopyBytes, IsMemcpyAtEveryAlignmentAndLength) {
  Rng rng(3);
  std::vector<std::byte> from(20000);
  for (std::byte& b : from) b = static_cast<std::byte>(rng.next());
  for (const std::size_t base :
       {std::size_t{0}, kStreamBytes - 2, kStreamBytes + 126, std::size_t{16384}}) {
    for (std::size_t extra = 0; extra < 5; ++extra) {
      for (std::size_t align = 0; align < 33; ++align) {
        const std::size_t bytes = base + extra;
        std::vector<std::byte> to(bytes + 200, std::byte{0xAA});
        copy_bytes(to.data() + align, from.data() + 32 - align, bytes);
        std::vector<std::byte> expected(bytes + 200, std::byte{0xAA});
        std::copy_n(from.begin() + 32 - static_cast<std::ptrdiff_t>(align), bytes,
                    expected.begin() + static_cast<std::ptrdiff_t>(align));
        ASSERT_EQ(to, expected) << bytes << " bytes, alignment " << align;
      }
    }
  }
}

}  // namespace
}  // namespace baton::fabric::shm
