// Splitmix64's output function (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014), as in
// edl.core.partition.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edl {

inline std::uint64_t mix(std::uint64_t key) {
  std::uint64_t x = key + 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

// Where an id is looked for. Salted for two reasons: mix(id) itself decides which server owns a row, so that on one server its
// low bits are all alike; and who knows the salt can choose ids that all belong in one place, so each table draws its own.
inline std::uint64_t place(std::uint64_t id, std::uint64_t salt) { return mix(id ^ salt); }

// The salt after one under which ids crowd.
inline std::uint64_t next_salt(std::uint64_t salt) { return mix(salt); }

// To GCC a function that only prefetches does nothing, and calls of it that are not inlined early are left out, lambdas around
// them too. The empty statement is something that it does.
inline void prefetch(const void* address) {
  __builtin_prefetch(address, 0, 3);
  asm volatile("");
}
inline void prefetch_to_write(const void* address) {
  __builtin_prefetch(address, 1, 3);
  asm volatile("");
}

// The cache lines of some bytes; the processor sees the pattern behind the first of them.
inline void prefetch(const std::byte* start, std::size_t bytes) {
  constexpr std::size_t kLine = 64, kMostLines = 8;
  const std::size_t before = reinterpret_cast<std::uintptr_t>(start) % kLine;
  const std::size_t lines = (before + bytes + kLine - 1) / kLine;
  for (std::size_t line = 0; line < (lines < kMostLines ? lines : kMostLines); ++line) {
    prefetch(start - before + line * kLine);
  }
}

}  // namespace edl
