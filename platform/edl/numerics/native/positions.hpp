// Positions by id, in an open-addressed map of pairs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "hash.hpp"

namespace edl {

class Positions {
 public:
  static constexpr std::uint32_t kNowhere = 0xFFFFFFFF;

  // No result depends on `salt`.
  explicit Positions(std::uint64_t salt) : salt_(salt) {}

  // An id that is not there yet. Throws std::bad_alloc, having changed nothing.
  void add(std::uint64_t id, std::uint32_t position) {
    if (entries_.size() < 2 * (count_ + 1)) enter_anew(entries_.empty() ? 64 : 2 * entries_.size());
    while (!enter({id, position})) enter_anew(entries_.size());
    ++count_;
  }
  std::uint32_t find(std::uint64_t id) const {
    if (entries_.empty()) return kNowhere;
    std::size_t here = place(id, salt_) & (entries_.size() - 1);
    for (std::size_t probes = 0; probes < most_probes_; ++probes) {
      if (entries_[here].position == kNowhere) return kNowhere;
      if (entries_[here].id == id) return entries_[here].position;
      here = (here + 1) & (entries_.size() - 1);
    }
    return kNowhere;
  }
  std::size_t bytes() const { return entries_.capacity() * sizeof(Entry); }

 private:
  struct Entry {
    std::uint64_t id = 0;
    std::uint32_t position = kNowhere;
  };
  // False if so many places from where it belongs on are taken.
  bool enter(const Entry& entry) {
    std::size_t here = place(entry.id, salt_) & (entries_.size() - 1);
    for (std::size_t probes = 0; probes < most_probes_; ++probes) {
      if (entries_[here].position == kNowhere) {
        entries_[here] = entry;
        return true;
      }
      here = (here + 1) & (entries_.size() - 1);
    }
    return false;
  }
  // All entries into so many places, under the same salt first where those are more than before. It ends: the bound of a probe
  // doubles with each salt, half of the places are free, and a probe of all of them finds one.
  void enter_anew(std::size_t size) {
    std::vector<Entry> former(size);
    entries_.swap(former);
    if (size == former.size()) take_next_salt();
    while (!enter_all(former)) {
      take_next_salt();
      entries_.assign(size, Entry{});
    }
  }
  bool enter_all(const std::vector<Entry>& former) {
    return std::ranges::all_of(former, [this](const Entry& entry) { return entry.position == kNowhere || enter(entry); });
  }
  void take_next_salt() {
    salt_ = next_salt(salt_);
    most_probes_ *= 2;
  }

  std::vector<Entry> entries_;
  std::size_t count_ = 0;
  std::uint64_t salt_;
  std::size_t most_probes_ = 256;  // chance ids need some dozens
};

}  // namespace edl
