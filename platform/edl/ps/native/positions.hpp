// Positions by id, in an open-addressed map of pairs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "hash.hpp"

namespace edl {

class Positions {
 public:
  static constexpr std::uint32_t kNowhere = 0xFFFFFFFF;

  // An id that is not there yet. Throws std::bad_alloc, having changed nothing.
  void add(std::uint64_t id, std::uint32_t position) {
    if (entries_.size() < 2 * (count_ + 1)) grow();
    entries_[spot(id)] = {id, position};
    ++count_;
  }
  std::uint32_t find(std::uint64_t id) const {
    return entries_.empty() ? kNowhere : entries_[spot(id)].position;
  }
  std::size_t bytes() const { return entries_.capacity() * sizeof(Entry); }

 private:
  struct Entry {
    std::uint64_t id = 0;
    std::uint32_t position = kNowhere;
  };
  // Where an id is, or would be.
  std::size_t spot(std::uint64_t id) const {
    std::size_t here = place(id) & (entries_.size() - 1);
    while (entries_[here].position != kNowhere && entries_[here].id != id) here = (here + 1) & (entries_.size() - 1);
    return here;
  }
  void grow() {
    std::vector<Entry> former(entries_.empty() ? 64 : 2 * entries_.size());
    entries_.swap(former);
    for (const Entry& entry : former) {
      if (entry.position != kNowhere) entries_[spot(entry.id)] = entry;
    }
  }

  std::vector<Entry> entries_;
  std::size_t count_ = 0;
};

}  // namespace edl
