#include "fabric/shm/copy.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace baton::fabric::shm {

#if defined(__x86_64__)
namespace {

constexpr std::size_t kVector = 32;
constexpr std::size_t kStep = 4 * kVector;

// Whole steps only; `to` is aligned to a vector.
__attribute__((target("avx2"))) void stream_avx2(std::byte* to, const std::byte* from,
                                                 std::size_t bytes) {
  for (const std::byte* const end = from + bytes; from != end; from += kStep, to += kStep) {
    const auto* source = reinterpret_cast<const __m256i*>(from);
    auto* target = reinterpret_cast<__m256i*>(to);
    const __m256i a = _mm256_loadu_si256(source);
    const __m256i b = _mm256_loadu_si256(source + 1);
    const __m256i c = _mm256_loadu_si256(source + 2);
    const __m256i d = _mm256_loadu_si256(source + 3);
    _mm256_stream_si256(target, a);
    _mm256_stream_si256(target + 1, b);
    _mm256_stream_si256(target + 2, c);
    _mm256_stream_si256(target + 3, d);
  }
  // Streamed stores are weakly ordered: without the fence an immediate could overtake them.
  _mm_sfence();
}

}  // namespace

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (bytes < kStreamBytes || !has_avx2) {
    std::memcpy(to, from, bytes);
    return;
  }
  const std::size_t head = (kVector - reinterpret_cast<std::uintptr_t>(to) % kVector) % kVector;
  const std::size_t body = (bytes - head) / kStep * kStep;
  std::memcpy(to, from, head);
  stream_avx2(to + head, from + head, body);
  std::memcpy(to + head + body, from + head + body, bytes - head - body);
}

#else

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

#endif

}  // namespace baton::fabric::shm
