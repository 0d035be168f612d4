// Where each id's row is: extendible hashing (Fagin et al., TODS 1979) over open-addressing segments of cache-line buckets.
//
// A segment grows by one piece of memory at a time and splits when it has seven: what is moved at once is one segment, some
// 20,000 entries, however large the table is, and the index is never less than about two thirds full.
//
// Whatever the ids are, a segment has a free place for the entry that comes next. Ids that were chosen for the salt may all
// fall into one half of a split, or on one bucket: each half takes as many pieces as its entries need, pieces twice as wide
// where seven are too few, and the directory is not doubled for few segments. Every probe ends after one turn through a
// segment. Such ids cost time, and no more memory than about twice what others do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bucket.hpp"
#include "hash.hpp"
#include "pages.hpp"
#include "rows.hpp"

namespace edl {

class Index {
 public:
  static constexpr std::uint32_t kNowhere = 0xFFFFFFFF;

  // `rows` must outlive it: ids are compared, and rehashed, there. No result depends on `salt`.
  Index(const Rows& rows, std::uint64_t salt);

  // What the functions below take as the hash of an id.
  std::uint64_t hash(std::uint64_t id) const { return place(id, salt_); }
  // The first bucket to look into.
  const Bucket& home(std::uint64_t hash) const {
    const Segment& segment = segments_[number(hash)];
    return bucket(segment, home_in(segment, hash));
  }
  // What the first bucket tells: where the row is if it is stored at all, kNowhere if it is not. In doubt, several rows may be
  // the one, or it may lie behind.
  struct Glance {
    std::uint32_t position;
    bool is_doubtful;
  };
  Glance glance(const Bucket& home, std::uint64_t hash) const {
    const std::uint32_t found = home.matching(tag(hash));
    if (found == 0) return {kNowhere, home.passed != 0};
    return {home.positions[__builtin_ctz(found)], (found & (found - 1)) != 0};
  }
  // Calls see(position) for the rows that may be the one, in the first bucket that has any.
  template <typename See>
  void candidates(const Bucket& home, std::uint64_t hash, const See& see) const {
    const Bucket* here = &home;
    std::uint32_t found = home.matching(tag(hash));
    if (found == 0) found = behind(hash, &here);
    for (; found != 0; found &= found - 1) see(here->positions[__builtin_ctz(found)]);
  }
  // The position of a row, kNowhere if it is not stored.
  std::uint32_t find(std::uint64_t id, std::uint64_t hash) const;

  // Enter a row that is not there yet. Throws std::bad_alloc, having changed nothing.
  void insert(std::uint64_t hash, std::uint32_t position);
  // Forget a row that is there.
  void erase(std::uint64_t hash, std::uint32_t position);

  std::size_t reserved_bytes() const;
  std::size_t resident_bytes() const;

 private:
  static constexpr unsigned kPieceBits = 8;
  static constexpr std::uint32_t kPieceBuckets = 1U << kPieceBits;
  static constexpr std::uint32_t kMostPieces = 7;  // with one more it is two segments of four
  static constexpr std::size_t kMostLeads = 8;     // ways in the directory for each segment; with chance ids there are 1 or 2

  struct alignas(64) Segment {
    Bucket* pieces[kMostPieces] = {};
    std::uint32_t entries = 0;
    std::uint8_t piece_count = 0;
    std::uint8_t width = 0;   // a piece has kPieceBuckets << width buckets
    std::uint16_t depth = 0;  // so many leading bits of their hashes are equal
  };
  static_assert(sizeof(Segment) == 64);

  struct Entry {
    std::uint64_t hash;
    std::uint32_t position;
  };

  static std::uint8_t tag(std::uint64_t hash) {
    const auto bits = static_cast<std::uint8_t>(hash >> 32);
    return bits == 0 ? 1 : bits;
  }
  static std::uint32_t home_in(const Segment& segment, std::uint64_t hash) {
    return static_cast<std::uint32_t>((hash & 0xFFFFFFFFU) * bucket_count(segment) >> 32);
  }
  static std::uint32_t bucket_count(const Segment& segment) {
    return std::uint32_t{segment.piece_count} * kPieceBuckets << segment.width;
  }
  static Bucket& bucket(const Segment& segment, std::uint32_t which) {
    const std::uint32_t piece_buckets = kPieceBuckets << segment.width;
    return segment.pieces[which >> (kPieceBits + segment.width)][which & (piece_buckets - 1)];
  }
  // Entries that so many pieces take before they count as full, which is 7/8 of their places.
  static std::size_t room(std::size_t pieces, unsigned width) {
    return (pieces * kPieceBuckets << width) * Bucket::kRows / 8 * 7;
  }
  static bool is_full(const Segment& segment) {
    return segment.entries >= room(segment.piece_count, segment.width);
  }
  static void put(Segment& segment, const Entry& entry);
  static void clear(Segment& segment);

  // The first bucket behind the home that has rows with this tag, and which they are; 0 if there is none.
  std::uint32_t behind(std::uint64_t hash, const Bucket** here) const;

  std::uint32_t number(std::uint64_t hash) const { return directory_[leading(hash, depth_)]; }
  static std::uint64_t leading(std::uint64_t hash, unsigned bits) { return hash >> 1 >> (63 - bits); }

  void grow(std::uint64_t hash);
  void split(std::uint64_t hash);
  bool may_split(const Segment& segment) const;
  void collect(const Segment& segment);
  void make_room(Segment& segment, std::size_t entries);
  void redirect(std::uint64_t hash, unsigned depth, std::uint32_t upper);
  Bucket* new_piece(unsigned width);
  std::size_t heap_bytes() const;

  const Rows& rows_;
  const std::uint64_t salt_;
  unsigned depth_ = 0;
  std::vector<std::uint32_t> directory_;
  std::vector<Segment> segments_;
  std::vector<Pages> memory_;
  std::size_t bytes_left_ = 0;  // of the newest memory
  std::vector<Entry> moving_;
};

}  // namespace edl
