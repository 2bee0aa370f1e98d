// Small messages that end in a checksum, written and read in the byte order of the machine (every
// machine this runs on is little-endian). For offers.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace baton::fabric {

static_assert(std::endian::native == std::endian::little);

// FNV-1a: tells damaged bytes from whole ones; no proof of who wrote them.
inline std::uint64_t checksum(std::span<const std::byte> bytes) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const std::byte b : bytes) {
    hash = (hash ^ static_cast<std::uint64_t>(b)) * 0x100000001b3ULL;
  }
  return hash;
}

class ByteWriter {
 public:
  template <typename T>
  void put(T value) {
    static_assert(std::is_integral_v<T>);
    append(&value, sizeof value);
  }
  // A 16-bit length, then the bytes.
  template <typename Container>
  void put_bytes(const Container& data) {
    put(static_cast<std::uint16_t>(data.size()));
    append(data.data(), data.size());
  }
  std::vector<std::byte> finish() {
    put(checksum(bytes_));
    return std::move(bytes_);
  }

 private:
  void append(const void* data, std::size_t size) {
    const std::size_t end = bytes_.size();
    bytes_.resize(end + size);
    if (size > 0) std::memcpy(bytes_.data() + end, data, size);
  }

  std::vector<std::byte> bytes_;
};

// Every read is bounded; after the first that is not, all are empty or zero and ok() is false.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  // Without the checksum; not ok() where it is wrong.
  static ByteReader checked(std::span<const std::byte> bytes) {
    constexpr std::size_t kSum = sizeof(std::uint64_t);
    ByteReader reader({});
    if (bytes.size() >= kSum) {
      const auto body = bytes.first(bytes.size() - kSum);
      reader = ByteReader(body);
      reader.ok_ = ByteReader(bytes.last(kSum)).get<std::uint64_t>() == checksum(body);
    } else {
      reader.ok_ = false;
    }
    return reader;
  }
  template <typename T>
  T get() {
    T value{};
    const auto from = take(sizeof value);
    if (from.size() == sizeof value) std::memcpy(&value, from.data(), sizeof value);
    return value;
  }
  std::span<const std::byte> get_bytes() { return take(get<std::uint16_t>()); }
  bool ok() const { return ok_; }
  bool ended() const { return ok_ && bytes_.empty(); }

 private:
  std::span<const std::byte> take(std::size_t size) {
    if (size > bytes_.size()) {
      ok_ = false;
      bytes_ = {};
      return {};
    }
    const auto taken = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    return taken;
  }

  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

}  // namespace baton::fabric
