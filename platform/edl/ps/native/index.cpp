#include "index.hpp"

#include <algorithm>
#include <cstring>

namespace edl {
namespace {

constexpr std::size_t kArenaBytes = std::size_t{8} << 20;
constexpr std::size_t kAhead = 16;

}  // namespace

Index::Index(const Rows& rows) : rows_(rows), directory_{0}, segments_(1) {
  segments_[0].pieces[0] = new_piece();
  segments_[0].piece_count = 1;
}

std::uint32_t Index::find(std::uint64_t id, std::uint64_t hash) const {
  const Segment& segment = segments_[number(hash)];
  const std::uint32_t count = bucket_count(segment);
  std::uint32_t which = home_in(segment, hash);
  for (std::uint32_t seen = 0; seen < count; ++seen) {
    const Bucket& here = bucket(segment, which);
    for (std::uint32_t found = here.matching(tag(hash)); found != 0; found &= found - 1) {
      const std::uint32_t position = here.positions[__builtin_ctz(found)];
      if (rows_.id(position) == id) return position;
    }
    if (here.passed == 0) return kNowhere;
    which = which + 1 == count ? 0 : which + 1;
  }
  return kNowhere;
}

std::uint32_t Index::behind(std::uint64_t hash, const Bucket** here) const {
  const Segment& segment = segments_[number(hash)];
  const std::uint32_t count = bucket_count(segment);
  std::uint32_t which = home_in(segment, hash);
  for (std::uint32_t seen = 1; seen < count && (*here)->passed != 0; ++seen) {
    which = which + 1 == count ? 0 : which + 1;
    *here = &bucket(segment, which);
    const std::uint32_t found = (*here)->matching(tag(hash));
    if (found != 0) return found;
  }
  return 0;
}

void Index::insert(std::uint64_t hash, std::uint32_t position) {
  while (is_full(segments_[number(hash)])) grow(hash);
  put(segments_[number(hash)], {hash, position});
}

void Index::put(Segment& segment, const Entry& entry) {
  const std::uint32_t count = bucket_count(segment);
  std::uint32_t which = home_in(segment, entry.hash);
  for (;;) {
    Bucket& here = bucket(segment, which);
    const std::uint32_t free = here.matching(0);
    if (free != 0) {
      const int slot = __builtin_ctz(free);
      here.tags[slot] = tag(entry.hash);
      here.positions[slot] = entry.position;
      ++segment.entries;
      return;
    }
    ++here.passed;
    which = which + 1 == count ? 0 : which + 1;
  }
}

void Index::erase(std::uint64_t hash, std::uint32_t position) {
  Segment& segment = segments_[number(hash)];
  const std::uint32_t count = bucket_count(segment);
  std::uint32_t which = home_in(segment, hash);
  for (;;) {
    Bucket& here = bucket(segment, which);
    for (std::uint32_t found = here.matching(tag(hash)); found != 0; found &= found - 1) {
      const int slot = __builtin_ctz(found);
      if (here.positions[slot] != position) continue;
      here.tags[slot] = 0;
      --segment.entries;
      return;
    }
    --here.passed;
    which = which + 1 == count ? 0 : which + 1;
  }
}

void Index::clear(Segment& segment) {
  for (std::uint32_t piece = 0; piece < segment.piece_count; ++piece) {
    std::memset(static_cast<void*>(segment.pieces[piece]), 0, kPieceBuckets * sizeof(Bucket));
  }
  segment.entries = 0;
}

void Index::grow(std::uint64_t hash) {
  if (segments_[number(hash)].piece_count == kMostPieces) return split(hash);
  Segment& segment = segments_[number(hash)];
  collect(segment);
  Bucket* const piece = new_piece();
  clear(segment);
  segment.pieces[segment.piece_count++] = piece;
  for (const Entry& entry : moving_) put(segment, entry);
}

void Index::split(std::uint64_t hash) {
  const std::uint32_t number_of_lower = number(hash);
  const unsigned depth = segments_[number_of_lower].depth;
  // All that can fail comes first; a segment that nothing leads to does no harm.
  collect(segments_[number_of_lower]);
  if (depth == depth_) directory_.reserve(directory_.size() * 2);
  const auto number_of_upper = static_cast<std::uint32_t>(segments_.size());
  segments_.emplace_back();
  Bucket* const piece = new_piece();

  Segment& lower = segments_[number_of_lower];
  Segment& upper = segments_[number_of_upper];
  clear(lower);
  std::copy(lower.pieces + 4, lower.pieces + kMostPieces, upper.pieces);
  upper.pieces[3] = piece;
  lower.piece_count = upper.piece_count = 4;
  lower.depth = upper.depth = static_cast<std::uint16_t>(depth + 1);
  redirect(hash, depth, number_of_upper);
  for (const Entry& entry : moving_) put((leading(entry.hash, depth + 1) & 1) != 0 ? upper : lower, entry);
}

void Index::collect(const Segment& segment) {
  moving_.clear();
  moving_.reserve(segment.entries);
  for (std::uint32_t which = 0; which < bucket_count(segment); ++which) {
    const Bucket& here = bucket(segment, which);
    for (std::uint32_t used = Bucket::kAll & ~here.matching(0); used != 0; used &= used - 1) {
      moving_.push_back({0, here.positions[__builtin_ctz(used)]});
    }
  }
  for (std::size_t i = 0; i < moving_.size(); ++i) {
    if (i + kAhead < moving_.size()) prefetch(rows_.start(moving_[i + kAhead].position));
    moving_[i].hash = place(rows_.id(moving_[i].position));
  }
}

void Index::redirect(std::uint64_t hash, unsigned depth, std::uint32_t upper) {
  if (depth == depth_) {
    const std::size_t before = directory_.size();
    directory_.resize(before * 2);
    for (std::size_t i = before; i-- > 0;) directory_[2 * i] = directory_[2 * i + 1] = directory_[i];
    ++depth_;
  }
  // The segment had the entries with these leading bits; the upper half of them is another's now.
  const std::size_t share = std::size_t{1} << (depth_ - depth);
  const std::size_t first = leading(hash, depth) * share;
  std::fill_n(directory_.begin() + static_cast<std::ptrdiff_t>(first + share / 2), share / 2, upper);
}

Bucket* Index::new_piece() {
  constexpr std::size_t bytes = kPieceBuckets * sizeof(Bucket);
  if (pieces_left_ == 0) {
    memory_.emplace_back(kArenaBytes, memory_.empty() ? kHugePage : 0);
    pieces_left_ = kArenaBytes / bytes;
  }
  const std::size_t used = kArenaBytes / bytes - pieces_left_;
  --pieces_left_;
  return reinterpret_cast<Bucket*>(memory_.back().data() + used * bytes);
}

std::size_t Index::reserved_bytes() const {
  return memory_.size() * kArenaBytes + directory_.capacity() * sizeof(directory_[0]) +
         segments_.capacity() * sizeof(Segment) + moving_.capacity() * sizeof(Entry);
}

std::size_t Index::resident_bytes() const {
  std::size_t bytes = reserved_bytes() - memory_.size() * kArenaBytes;
  for (const Pages& pages : memory_) bytes += pages.resident();
  return bytes;
}

}  // namespace edl
