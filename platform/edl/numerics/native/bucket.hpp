// One cache line of the index: up to twelve rows, each with eight bits of its hash, so that a look-up reads one line here
// and almost always one row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace edl {

struct alignas(64) Bucket {
  static constexpr std::size_t kRows = 12;
  static constexpr std::uint32_t kAll = (1U << kRows) - 1;

  std::uint8_t tags[kRows];      // 0: free
  std::uint32_t passed;          // rows that belong here or before and lie behind, for want of room
  std::uint32_t positions[kRows];

  // One bit for each row with this tag. `passed` is read with the tags, and masked.
  std::uint32_t matching(std::uint8_t tag) const {
#if defined(__SSE2__)
    const __m128i line = _mm_load_si128(reinterpret_cast<const __m128i*>(tags));
    const __m128i equal = _mm_cmpeq_epi8(line, _mm_set1_epi8(static_cast<char>(tag)));
    return static_cast<std::uint32_t>(_mm_movemask_epi8(equal)) & kAll;
#else
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < kRows; ++i) bits |= static_cast<std::uint32_t>(tags[i] == tag) << i;
    return bits;
#endif
  }
};
static_assert(sizeof(Bucket) == 64);

}  // namespace edl
