// Memory for a KV pool that peers on the same host may map: an anonymous file, sealed against
// shrinking, growing and further seals, so that no peer can make a mapping fault.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "baton/result.h"

namespace baton {

class PoolMemory {
 public:
  // `bytes` > 0, rounded up to whole pages. Every page is touched before it returns, so that no
  // step and no transfer pays for a page fault; children do not inherit the mapping. The contents
  // are zero. Errors: kResourceExhausted where the memory cannot be had.
  static Result<PoolMemory> create(const std::string& name, std::uint64_t bytes);
  ~PoolMemory();
  PoolMemory(PoolMemory&& other) noexcept;
  PoolMemory& operator=(PoolMemory&& other) noexcept;
  PoolMemory(const PoolMemory&) = delete;
  PoolMemory& operator=(const PoolMemory&) = delete;

  std::byte* data() const { return data_; }
  std::uint64_t size() const { return size_; }
  int memfd() const { return memfd_; }  // Region::memfd

 private:
  PoolMemory() = default;

  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
  int memfd_ = -1;
};

}  // namespace baton
