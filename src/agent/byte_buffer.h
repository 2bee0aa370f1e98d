// Bytes that arrive at one end and leave at the other. Grows as bytes really come, never by what a
// peer announces; gives large memory back as soon as it is empty.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>

namespace baton {

class ByteBuffer {
 public:
  std::size_t size() const { return end_ - begin_; }
  bool empty() const { return begin_ == end_; }
  std::span<const std::byte> readable() const { return {data_.get() + begin_, size()}; }

  // Room for at least `bytes` behind what is there. Invalidates readable().
  std::span<std::byte> writable(std::size_t bytes) {
    if (capacity_ - end_ < bytes) make_room(bytes);
    return {data_.get() + end_, capacity_ - end_};
  }
  void commit(std::size_t bytes) { end_ += bytes; }
  void append(std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    std::memcpy(writable(bytes.size()).data(), bytes.data(), bytes.size());
    commit(bytes.size());
  }
  void consume(std::size_t bytes) {
    begin_ += bytes;
    if (begin_ < end_) return;
    begin_ = end_ = 0;
    if (capacity_ > kKeptCapacity) {
      data_.reset();
      capacity_ = 0;
    }
  }

 private:
  static constexpr std::size_t kKeptCapacity = 64 * 1024;

  void make_room(std::size_t bytes) {
    const std::size_t held = size();
    const std::size_t needed = held + bytes;
    if (needed <= capacity_) {
      std::memmove(data_.get(), data_.get() + begin_, held);
    } else {
      const std::size_t capacity = std::max(needed, std::max<std::size_t>(4096, 2 * capacity_));
      auto data = std::make_unique_for_overwrite<std::byte[]>(capacity);
      if (held > 0) std::memcpy(data.get(), data_.get() + begin_, held);
      data_ = std::move(data);
      capacity_ = capacity;
    }
    begin_ = 0;
    end_ = held;
  }

  std::unique_ptr<std::byte[]> data_;
  std::size_t capacity_ = 0;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace baton
