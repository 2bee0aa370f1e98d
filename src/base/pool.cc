#include "baton/pool.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

namespace baton {

namespace {

Error system_error(const char* call, const std::string& name, std::uint64_t bytes, int error) {
  return {Errc::kResourceExhausted, fmt::format("{} of {} bytes for the KV pool '{}' failed: {}",
                                                call, bytes, name, std::strerror(error))};
}

// What the kernel thinks can be had without pushing others out; 0 if it does not say. Asked before
// allocating, because the kernel does not refuse: it ends processes.
std::uint64_t available_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  std::uint64_t kilobytes = 0;
  std::string unit;
  while (meminfo >> key >> kilobytes) {
    if (key == "MemAvailable:") return kilobytes * 1024;
    std::getline(meminfo, unit);
  }
  return 0;
}

}  // namespace

Result<PoolMemory> PoolMemory::create(const std::string& name, std::uint64_t bytes) {
  if (bytes == 0) return fail(Errc::kInvalidArgument, "a KV pool of 0 bytes was asked for");
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  if (const std::uint64_t available = available_bytes(); available > 0 && bytes > available) {
    return fail(Errc::kResourceExhausted,
                fmt::format("the KV pool '{}' of {} bytes does not fit into the {} bytes of memory "
                            "that are available",
                            name, bytes, available));
  }
  PoolMemory memory;
  memory.size_ = (bytes + page - 1) / page * page;
  memory.memfd_ = ::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (memory.memfd_ < 0) {
    return tl::unexpected(system_error("memfd_create", name, memory.size_, errno));
  }
  // Allocates every page before the seals: a page that cannot be had is an error here and not a
  // SIGBUS at its first use.
  if (::fallocate(memory.memfd_, 0, 0, static_cast<off_t>(memory.size_)) != 0) {
    return tl::unexpected(system_error("fallocate", name, memory.size_, errno));
  }
  if (::fcntl(memory.memfd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return tl::unexpected(system_error("sealing", name, memory.size_, errno));
  }
  void* mapped = ::mmap(nullptr, memory.size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                        memory.memfd_, 0);
  if (mapped == MAP_FAILED) {
    return tl::unexpected(system_error("mmap", name, memory.size_, errno));
  }
  memory.data_ = static_cast<std::byte*>(mapped);
  if (::madvise(mapped, memory.size_, MADV_DONTFORK) != 0) {
    return tl::unexpected(system_error("madvise(MADV_DONTFORK)", name, memory.size_, errno));
  }
  return memory;
}

PoolMemory::~PoolMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
  if (memfd_ >= 0) ::close(memfd_);
}

PoolMemory::PoolMemory(PoolMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      memfd_(std::exchange(other.memfd_, -1)) {}

PoolMemory& PoolMemory::operator=(PoolMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(memfd_, other.memfd_);
  return *this;
}

}  // namespace baton
