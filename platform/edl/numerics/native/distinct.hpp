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
  // No result depends on `salt`.
  explicit Distinct(std::uint64_t salt) : salt_(salt) {}

  // Takes a batch instead of the last one. Calls use(i, index, is_new) for each of its ids: the number of the equal one among
  // `ids()`, and whether this is the first of them. Throws std::bad_alloc.
  template <typename Use>
  void take(std::span<const std::int64_t> ids, const Use& use) {
    const std::size_t count = ids.size();
    const std::size_t capacity = std::bit_ceil(std::max<std::size_t>(2 * count, 16));
    const unsigned shift = static_cast<unsigned>(64 - std::bit_width(capacity - 1));
    places_.assign(capacity, 0);
    ids_.clear();
    ids_.reserve(count);
    // In registers: what the loop writes could change members.
    std::uint32_t* const places = places_.data();
    const std::int64_t* const known = ids_.data();
    std::size_t most_probes = kMostProbes;
    std::uint64_t salt = salt_;
    for (std::size_t i = 0; i < count; ++i) {
      if (i + kAhead < count) prefetch_to_write(&places[scattered(ids[i + kAhead], salt) >> shift]);
      const std::int64_t id = ids[i];
      std::size_t here = scattered(id, salt) >> shift;
      std::uint32_t number = places[here];
      if (number != 0 && known[number - 1] != id) {
        here = probe(id, here, most_probes);
        while (here == capacity) [[unlikely]] {
          most_probes = scatter_anew(shift, most_probes);
          salt = salt_;
          here = probe(id, scattered(id, salt) >> shift, most_probes);
        }
        number = places[here];
      }
      const bool is_new = number == 0;
      if (is_new) {
        ids_.push_back(id);
        places[here] = number = static_cast<std::uint32_t>(ids_.size());
      }
      use(i, number - 1, is_new);
    }
  }

  std::span<const std::int64_t> ids() const { return ids_; }
  std::size_t bytes() const { return places_.capacity() * sizeof(places_[0]) + ids_.capacity() * sizeof(ids_[0]); }

 private:
  static constexpr std::size_t kAhead = 16;
  static constexpr std::size_t kMostProbes = 256;  // chance ids need some dozens

  // Where an id that belongs at `here` is, or would be; as many as there are places if so many from there on are others'.
  [[gnu::noinline]] std::size_t probe(std::int64_t id, std::size_t here, std::size_t most_probes) const {
    const std::uint32_t* const places = places_.data();
    const std::int64_t* const known = ids_.data();
    const std::size_t last = places_.size() - 1;
    for (std::size_t probes = 0; probes < most_probes; ++probes) {
      if (places[here] == 0 || known[places[here] - 1] == id) return here;
      here = (here + 1) & last;
    }
    return last + 1;
  }

  // The ids so far to other places: under this salt they crowd. Returns the bound of a probe from now on. It ends: the bound
  // doubles with each salt, half of the places are free, and a probe of all of them finds one.
  [[gnu::noinline, gnu::cold]] std::size_t scatter_anew(unsigned shift, std::size_t most_probes) {
    for (bool crowded = true; crowded;) {
      salt_ = next_salt(salt_);
      most_probes *= 2;
      std::ranges::fill(places_, 0U);
      crowded = false;
      for (std::size_t i = 0; i < ids_.size() && !crowded; ++i) {
        const std::size_t here = probe(ids_[i], scattered(ids_[i], salt_) >> shift, most_probes);
        crowded = here == places_.size();
        if (!crowded) places_[here] = static_cast<std::uint32_t>(i + 1);
      }
    }
    return most_probes;
  }

  // One product, of which both halves are used, as in wyhash: half of the work of `place`, for a table that is left at once.
  static std::uint64_t scattered(std::int64_t id, std::uint64_t salt) {
    __extension__ typedef unsigned __int128 Wide;
    const Wide product = Wide{static_cast<std::uint64_t>(id) ^ salt} * 0xE7037ED1A0B428DBU;
    return static_cast<std::uint64_t>(product >> 64) ^ static_cast<std::uint64_t>(product);
  }

  std::vector<std::uint32_t> places_;  // by hash: index + 1, 0 for none
  std::vector<std::int64_t> ids_;
  std::uint64_t salt_;
};

}  // namespace edl
