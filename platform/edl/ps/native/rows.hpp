// Rows by position: id, values and slot variables beside each other, in chunks that never move.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "pages.hpp"

namespace edl {

class Rows {
 public:
  // Rows of `floats` elements: the values, then each slot variable.
  explicit Rows(std::size_t floats);
  // Room for rows such as these, and none of them.
  Rows like() const { return Rows(Stride{stride_}); }

  std::size_t size() const { return size_; }
  std::size_t stride() const { return stride_; }

  std::uint64_t id(std::uint32_t position) const {
    std::uint64_t value;
    std::memcpy(&value, start(position), sizeof value);
    return value;
  }
  float* values(std::uint32_t position) const {
    return reinterpret_cast<float*>(start(position) + kHead);
  }
  // The id is the first thing in a row, and right behind it are its values.
  static constexpr std::size_t kHead = sizeof(std::uint64_t);
  std::byte* start(std::uint32_t position) const {
    return chunks_[position >> shift_] + std::size_t{position & mask_} * stride_;
  }

  // The row behind the last one, which is not counted until `commit`: whoever fails half-way leaves nothing behind.
  // Throws std::length_error behind 2^32 - 2 rows, std::bad_alloc.
  std::uint32_t prepare(std::uint64_t id);
  void commit() { ++size_; }
  // Makes room for so many rows in all. Throws std::bad_alloc.
  void reserve(std::size_t rows);

  std::size_t reserved_bytes() const;
  std::size_t resident_bytes() const;

 private:
  struct Stride {
    std::size_t bytes;
  };
  explicit Rows(Stride stride);
  void add_chunk();

  std::size_t stride_;
  unsigned shift_;
  std::uint32_t mask_;
  std::size_t size_ = 0;
  std::vector<std::byte*> chunks_;
  std::vector<Pages> memory_;
};

}  // namespace edl
