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
  // Rows of `floats` elements: the values, then each slot variable. Those that are tracked say when they were seen last, and
  // can be freed.
  Rows(std::size_t floats, bool tracked);
  // Room for rows such as these, and none of them.
  Rows like() const { return Rows(Layout{stride_, head_}); }

  // Positions are below `size`; of these, so many are free.
  std::size_t size() const { return size_; }
  std::size_t free() const { return free_; }
  std::size_t stride() const { return stride_; }
  bool tracked() const { return head_ != sizeof(std::uint64_t); }

  // What is in a row: its id, perhaps when it was seen and a link, from `head` bytes on its values.
  std::byte* start(std::uint32_t position) const {
    return chunks_[position >> shift_] + std::size_t{position & mask_} * stride_;
  }
  std::size_t head() const { return head_; }
  std::uint64_t id(std::uint32_t position) const { return id_in(start(position)); }
  float* values(std::uint32_t position) const { return reinterpret_cast<float*>(start(position) + head_); }

  // Of tracked rows: the step at which one was seen last, 0 if it is free; and what its owner links it to.
  std::uint32_t seen(std::uint32_t position) const { return seen_in(start(position)); }
  void see(std::uint32_t position, std::uint32_t step) { put(position, kSeen, step); }
  std::uint32_t next(std::uint32_t position) const { return word_in(start(position), kNext); }
  void link(std::uint32_t position, std::uint32_t next) { put(position, kNext, next); }

  // The same of a row's bytes, wherever they are.
  static std::uint64_t id_in(const std::byte* row) {
    std::uint64_t value;
    std::memcpy(&value, row, sizeof value);
    return value;
  }
  static std::uint32_t seen_in(const std::byte* row) { return word_in(row, kSeen); }
  // Whether this row is stored there. Of a row that was freed, the id still stands there.
  bool holds(std::uint32_t position, std::uint64_t id) const {
    const std::byte* const row = start(position);
    return id_in(row) == id && (!tracked() || seen_in(row) != 0);
  }

  // A free position, or the one behind the last row. It is not taken before `take`, which names it: whoever fails
  // half-way leaves nothing behind. Throws std::length_error behind 2^32 - 2 rows, std::bad_alloc.
  std::uint32_t prepare();
  void take(std::uint32_t position);
  // Of tracked rows.
  void give_back(std::uint32_t position);
  // Makes room for so many rows in all. Throws std::bad_alloc.
  void reserve(std::size_t rows);

  std::size_t reserved_bytes() const;
  std::size_t resident_bytes() const;

 private:
  static constexpr std::size_t kSeen = 8, kNext = 12;
  struct Layout {
    std::size_t stride, head;
  };
  explicit Rows(Layout layout);
  void add_chunk();
  static std::uint32_t word_in(const std::byte* row, std::size_t at) {
    std::uint32_t value;
    std::memcpy(&value, row + at, sizeof value);
    return value;
  }
  void put(std::uint32_t position, std::size_t at, std::uint32_t value) {
    std::memcpy(start(position) + at, &value, sizeof value);
  }

  std::size_t stride_;
  std::size_t head_;
  unsigned shift_;
  std::uint32_t mask_;
  std::size_t size_ = 0;
  std::size_t free_ = 0;
  std::uint32_t first_free_ = 0;  // + 1; the others are linked to it
  std::vector<std::byte*> chunks_;
  std::vector<Pages> memory_;
};

}  // namespace edl
