#include "rpc/memory/streaming_copy.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "rpc/memory/machine.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace verbena::memory {

#if defined(__x86_64__)
namespace {

constexpr size_t kLineBytes = 64;

// `to` is a multiple of a line, `bytes` too.
__attribute__((target("avx512f"))) void LinesAvx512(std::byte* to, const std::byte* from,
                                                    size_t bytes) {
  for (size_t at = 0; at < bytes; at += kLineBytes) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), _mm512_loadu_si512(from + at));
  }
}

__attribute__((target("avx2"))) void LinesAvx2(std::byte* to, const std::byte* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kLineBytes) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at + 32), b);
  }
}

void LinesSse2(std::byte* to, const std::byte* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += 16) {
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at));
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + at), a);
  }
}

using Lines = void (*)(std::byte*, const std::byte*, size_t);

Lines BestLines() {
  if (__builtin_cpu_supports("avx512f")) return LinesAvx512;
  if (__builtin_cpu_supports("avx2")) return LinesAvx2;
  return LinesSse2;
}

}  // namespace

uint64_t StreamingThresholdBytes() {
  constexpr uint64_t kAtMost = 8 << 20, kUnknown = 4 << 20;
  static const uint64_t threshold =
      LastLevelCacheBytes() == 0 ? kUnknown : std::min(LastLevelCacheBytes() / 2, kAtMost);
  return threshold;
}

void StreamingCopy(std::byte* to, const std::byte* from, size_t bytes) {
  static const Lines lines = BestLines();
  const size_t head = std::min<size_t>(-reinterpret_cast<uintptr_t>(to) % kLineBytes, bytes);
  const size_t middle = (bytes - head) / kLineBytes * kLineBytes;
  const size_t tail = bytes - head - middle;
  if (head > 0) std::memcpy(to, from, head);
  lines(to + head, from + head, middle);
  if (tail > 0) std::memcpy(to + head + middle, from + head + middle, tail);
}

void StreamingFence() { _mm_sfence(); }

#else

uint64_t StreamingThresholdBytes() { return std::numeric_limits<uint64_t>::max(); }
void StreamingCopy(std::byte* to, const std::byte* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}
void StreamingFence() {}

#endif

}  // namespace verbena::memory
