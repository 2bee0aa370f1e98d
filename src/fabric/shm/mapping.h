// A peer's memfd, mapped for writing or for reading. Warming and unmapping come in small pieces,
// because both visit every page and the owner thread has other work.
#pragma once

#include <cstddef>
#include <cstdint>

#include "baton/result.h"
#include "fabric/fabric.h"

namespace baton::fabric::shm {

// Ok when `fd` is a memfd sealed against shrinking and growing that holds at least `bytes`: then no
// access to a mapping of it can end in SIGBUS, whatever its other users do.
Status check_sealed(int fd, std::uint64_t bytes);

class Mapping {
 public:
  Mapping() = default;
  // Maps [begin, end) of `fd`, widened to whole pages, after check_sealed; for reads the pages are
  // read-only here. Children do not inherit the mapping: a child that outlives its dead parent
  // could write, or read, past the fence. `fd` may be closed afterwards.
  static Result<Mapping> map(int fd, std::uint64_t begin, std::uint64_t end, Access access);
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  std::byte* at(std::uint64_t memfd_offset) const { return data_ + (memfd_offset - begin_); }
  // Makes the next pages present; false: all are.
  bool warm_some();
  bool warm() const { return warmed_ >= size_; }
  // Unmaps the next pages; false: nothing is mapped any more.
  bool unmap_some();

 private:
  std::byte* data_ = nullptr;
  std::uint64_t begin_ = 0;  // offset in the memfd of data_
  std::uint64_t size_ = 0;
  std::uint64_t warmed_ = 0;
  Access access_ = Access::kWrite;
};

}  // namespace baton::fabric::shm
