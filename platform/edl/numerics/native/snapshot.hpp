// The rows of a table as they were at one moment, while the table goes on. Making one copies nothing: whoever is about to
// change a row has it kept here first, once, unless the snapshot's reader has passed it.
//
// Used under the table's lock: all that changes needs it alone, but that several threads of one push may `keep`
// different rows.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "pages.hpp"
#include "positions.hpp"
#include "rows.hpp"

namespace edl {

// What was asked of a snapshot that is not kept any more.
struct Released : std::runtime_error {
  Released() : std::runtime_error("the snapshot was released") {}
};

class Snapshot {
 public:
  // Of the rows as they are now; they must outlive it. `salt`: as Table has it. Throws std::bad_alloc.
  Snapshot(const Rows& rows, std::uint64_t salt);

  // Positions are below `size`; at `count` of them was a row.
  std::size_t size() const { return size_; }
  std::size_t count() const { return count_; }

  // Makes room to keep so many more rows. Throws std::bad_alloc, having changed nothing.
  void reserve(std::size_t rows);
  // The row at this position is about to change.
  void keep(std::uint32_t position) {
    if (position < size_ && position >= passed_ && places()[position] == 0) copy(position);
  }
  // The row at this position is about to be freed: what its id was at is asked of the snapshot from now on.
  void drop(std::uint32_t position);
  // The row at this position below `size` as it was, unless it was passed.
  const std::byte* row(std::uint32_t position) const {
    const std::uint32_t place = places()[position];
    return place == 0 ? rows_.start(position) : kept_.start(place - 1);
  }
  // The row of an id, which the table has at `position` now or, as most that it does not have, nowhere; null if there was
  // none.
  const std::byte* row(std::uint64_t id, std::uint32_t position) const;
  // Rows before this position are not asked for any more.
  void pass(std::size_t position) { passed_ = position; }
  std::size_t passed() const { return passed_; }

  // The table has forgotten it: rows that change are not kept any more, so that nothing may be read.
  bool is_released() const { return is_released_; }
  void release() { is_released_ = true; }

  std::size_t reserved_bytes() const { return places_.size() + kept_.reserved_bytes() + dropped_.bytes(); }
  std::size_t resident_bytes() const { return places_.resident() + kept_.resident_bytes() + dropped_.bytes(); }

 private:
  void copy(std::uint32_t position);
  bool had(std::uint64_t id, std::uint32_t position) const;
  std::uint32_t* places() const { return reinterpret_cast<std::uint32_t*>(places_.data()); }

  const Rows& rows_;
  std::size_t size_, count_;
  Pages places_;  // by position: 0, or where the row is kept + 1; pages that nobody wrote to take no memory
  Rows kept_;
  std::atomic<std::uint32_t> kept_count_ = 0;
  Positions dropped_;
  std::atomic<std::size_t> passed_ = 0;
  bool is_released_ = false;
};

}  // namespace edl
