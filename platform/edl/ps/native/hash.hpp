// Splitmix64's output function (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014), as in
// edl.core.partition.
#pragma once

#include <cstdint>

namespace edl {

inline std::uint64_t mix(std::uint64_t key) {
  std::uint64_t x = key + 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

// Where a row is looked for. Salted: mix(id) itself decides which server owns a row, so that on one server its low bits
// are all alike.
inline std::uint64_t place(std::uint64_t id) { return mix(id ^ 0xA0761D6478BD642FU); }

inline void prefetch(const void* address) { __builtin_prefetch(address, 0, 3); }
inline void prefetch_to_write(const void* address) { __builtin_prefetch(address, 1, 3); }

}  // namespace edl
