#include "baton/pool.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <utility>

namespace baton {
namespace {

TEST(PoolMemory, IsZeroedSealedAndShared) {
  auto memory = PoolMemory::create("test", 10000);
  ASSERT_TRUE(memory.has_value()) << memory.error().message;
  EXPECT_GE(memory->size(), 10000U);
  EXPECT_EQ(memory->data()[9999], std::byte{0});
  const int seals = ::fcntl(memory->memfd(), F_GET_SEALS);
  EXPECT_EQ(seals, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  EXPECT_NE(::ftruncate(memory->memfd(), 0), 0);
  EXPECT_NE(::ftruncate(memory->memfd(), 1 << 20), 0);

  memory->data()[5000] = std::byte{42};
  void* again = ::mmap(nullptr, memory->size(), PROT_READ, MAP_SHARED, memory->memfd(), 0);
  ASSERT_NE(again, MAP_FAILED);
  EXPECT_EQ(static_cast<const std::byte*>(again)[5000], std::byte{42});
  ::munmap(again, memory->size());
}

TEST(PoolMemory, ChildrenDoNotInheritIt) {
  auto memory = PoolMemory::create("test", 4096);
  ASSERT_TRUE(memory.has_value());
  const pid_t child = ::fork();
  if (child == 0) {
    unsigned char resident = 0;  // mincore answers ENOMEM where nothing is mapped
    ::_exit(::mincore(memory->data(), 4096, &resident) == 0 ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(PoolMemory, SaysWhatCannotBeHad) {
  EXPECT_EQ(PoolMemory::create("test", 0).error().code, Errc::kInvalidArgument);
  const auto huge = PoolMemory::create("test", 1ULL << 60);
  ASSERT_FALSE(huge.has_value());
  EXPECT_NE(huge.error().message.find("1152921504606846976 bytes"), std::string::npos)
      << huge.error().message;
}

TEST(PoolMemory, MovesItsMemory) {
  auto memory = PoolMemory::create("test", 4096);
  ASSERT_TRUE(memory.has_value());
  std::byte* data = memory->data();
  PoolMemory other = std::move(*memory);
  EXPECT_EQ(other.data(), data);
  EXPECT_EQ(memory->data(), nullptr);
}

}  // namespace
}  // namespace baton
