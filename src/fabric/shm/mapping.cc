#include "fabric/shm/mapping.h"
#include "fabric/shm/refused.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace baton::fabric::shm {
namespace {

constexpr std::uint64_t kWarmBytes = 256ULL << 10;
constexpr std::uint64_t kUnmapBytes = 8ULL << 20;

}  // namespace

Status check_sealed(int fd, std::uint64_t bytes) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0) return fail(Errc::kInvalidArgument, "the descriptor is not a memfd");
  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW;
  if ((seals & kNeeded) != kNeeded) {
    return fail(Errc::kInvalidArgument,
                fmt::format("the memfd is not sealed against shrinking and growing: seals {:#x}, "
                            "needed {:#x}",
                            seals, kNeeded));
  }
  struct stat info{};
  if (::fstat(fd, &info) != 0) return refused("fstat");
  if (static_cast<std::uint64_t>(info.st_size) < bytes) {
    return fail(Errc::kInvalidArgument,
                fmt::format("the memfd holds {} bytes, {} are needed", info.st_size, bytes));
  }
  return {};
}

Result<Mapping> Mapping::map(int fd, std::uint64_t begin, std::uint64_t end, Access access) {
  if (Status ok = check_sealed(fd, end); !ok) return tl::unexpected(ok.error());
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  Mapping mapping;
  mapping.begin_ = begin / page * page;
  const std::uint64_t size = (end - mapping.begin_ + page - 1) / page * page;
  mapping.access_ = access;
  const int rights = access == Access::kWrite ? PROT_READ | PROT_WRITE : PROT_READ;
  void* data = ::mmap(nullptr, size, rights, MAP_SHARED, fd, static_cast<off_t>(mapping.begin_));
  if (data == MAP_FAILED) return refused("mmap of the peer's memfd");
  mapping.data_ = static_cast<std::byte*>(data);
  mapping.size_ = size;
  if (::madvise(data, size, MADV_DONTFORK) != 0) return refused("MADV_DONTFORK");
  return mapping;
}

Mapping::Mapping(Mapping&& other) noexcept {
  *this = std::move(other);
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(begin_, other.begin_);
  std::swap(size_, other.size_);
  std::swap(warmed_, other.warmed_);
  std::swap(access_, other.access_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr && size_ > 0) ::munmap(data_, size_);
}

bool Mapping::warm_some() {
  if (warm()) return false;
  const std::uint64_t bytes = std::min(kWarmBytes, size_ - warmed_);
  // A kernel without this advice (before 5.14) faults page by page as writes or reads come.
  const int advice = access_ == Access::kWrite ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
  warmed_ = ::madvise(data_ + warmed_, bytes, advice) == 0 ? warmed_ + bytes : size_;
  return true;
}

bool Mapping::unmap_some() {
  if (size_ == 0) return false;
  const std::uint64_t bytes = std::min(kUnmapBytes, size_);
  size_ -= bytes;
  ::munmap(data_ + size_, bytes);
  warmed_ = size_;
  return size_ > 0;
}

}  // namespace baton::fabric::shm
