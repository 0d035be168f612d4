// The ids of a batch, each once, in the order in which they come first.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "hash.hpp"

namespace edl {

class Distinct {
 public:
  // Takes a batch instead of the last one. Calls use(i, index, is_new) for each of its ids: the number of the equal one among
  // `ids()`, and whether this is the first of them. Throws std::bad_alloc.
  template <typename Use>
  void take(std::span<const std::int64_t> ids, const Use& use) {
    const std::size_t count = ids.size();
    const std::size_t capacity = std::bit_ceil(std::max<std::size_t>(2 * count, 16));
    const unsigned shift = static_cast<unsigned>(64 - std::bit_width(capacity - 1));
    const auto spot = [&](std::size_t i) { return scattered(static_cast<std::uint64_t>(ids[i])) >> shift; };
    places_.assign(capacity, 0);
    ids_.clear();
    ids_.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      if (i + kAhead < count) prefetch_to_write(&places_[spot(i + kAhead)]);
      std::size_t here = spot(i);
      while (places_[here] != 0 && ids_[places_[here] - 1] != ids[i]) here = (here + 1) & (capacity - 1);
      const bool is_new = places_[here] == 0;
      if (is_new) {
        ids_.push_back(ids[i]);
        places_[here] = static_cast<std::uint32_t>(ids_.size());
      }
      use(i, places_[here] - 1, is_new);
    }
  }

  std::span<const std::int64_t> ids() const { return ids_; }
  std::size_t bytes() const { return places_.capacity() * sizeof(places_[0]) + ids_.capacity() * sizeof(ids_[0]); }

 private:
  static constexpr std::size_t kAhead = 16;

  // One product, of which both halves are used, as in wyhash: half of the work of `place`, for a table that is left at once.
  static std::uint64_t scattered(std::uint64_t id) {
    __extension__ typedef unsigned __int128 Wide;
    const Wide product = Wide{id ^ 0xA0761D6478BD642FU} * 0xE7037ED1A0B428DBU;
    return static_cast<std::uint64_t>(product >> 64) ^ static_cast<std::uint64_t>(product);
  }

  std::vector<std::uint32_t> places_;  // by hash: index + 1, 0 for none
  std::vector<std::int64_t> ids_;
};

}  // namespace edl
