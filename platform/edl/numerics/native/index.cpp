#include "index.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace edl {
namespace {

constexpr std::size_t kArenaBytes = std::size_t{8} << 20;
constexpr std::size_t kAhead = 16;

}  // namespace

Index::Index(const Rows& rows, std::uint64_t salt) : rows_(rows), salt_(salt), directory_{0}, segments_(1) {
  make_room(segments_[0], 0);
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
  if (is_full(segments_[number(hash)])) grow(hash);
  put(segments_[number(hash)], {hash, position});
}

void Index::put(Segment& segment, const Entry& entry) {
  const std::uint32_t count = bucket_count(segment);
  std::uint32_t which = home_in(segment, entry.hash);
  for (std::uint32_t seen = 0; seen < count; ++seen) {
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
  throw std::logic_error("a segment of the index has no place left");
}

void Index::erase(std::uint64_t hash, std::uint32_t position) {
  Segment& segment = segments_[number(hash)];
  const std::uint32_t count = bucket_count(segment);
  std::uint32_t which = home_in(segment, hash);
  for (std::uint32_t seen = 0; seen < count; ++seen) {
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
  throw std::logic_error("a row to forget is not in the index");
}

void Index::clear(Segment& segment) {
  const std::size_t bytes = sizeof(Bucket) * kPieceBuckets << segment.width;
  for (std::uint32_t piece = 0; piece < segment.piece_count; ++piece) {
    std::memset(static_cast<void*>(segment.pieces[piece]), 0, bytes);
  }
  segment.entries = 0;
}

void Index::grow(std::uint64_t hash) {
  const std::uint32_t which = number(hash);
  if (segments_[which].piece_count == kMostPieces && may_split(segments_[which])) return split(hash);
  collect(segments_[which]);
  Segment larger = segments_[which];
  make_room(larger, larger.entries);
  clear(larger);
  segments_[which] = larger;
  for (const Entry& entry : moving_) put(segments_[which], entry);
}

// Not where most of the directory leads to few segments: ids whose hashes begin alike would double it at each split.
bool Index::may_split(const Segment& segment) const {
  return segment.depth < depth_ || 2 * directory_.size() <= kMostLeads * (segments_.size() + 1);
}

void Index::split(std::uint64_t hash) {
  const std::uint32_t number_of_lower = number(hash);
  const Segment former = segments_[number_of_lower];
  const unsigned depth = former.depth;
  const auto is_upper = [depth](const Entry& entry) { return (leading(entry.hash, depth + 1) & 1) != 0; };
  // All that can fail comes first; a segment that nothing leads to does no harm.
  collect(former);
  const auto entries_of_upper = static_cast<std::size_t>(std::count_if(moving_.begin(), moving_.end(), is_upper));
  const std::size_t entries_of_lower = moving_.size() - entries_of_upper;
  if (depth == depth_) directory_.reserve(directory_.size() * 2);
  const auto number_of_upper = static_cast<std::uint32_t>(segments_.size());
  segments_.emplace_back();

  // The pieces that there were go to the lower half as far as it needs them, and then to the upper.
  Segment lower = former, upper = former;
  const std::size_t needed = entries_of_lower / room(1, former.width) + 1;
  lower.piece_count = static_cast<std::uint8_t>(std::min<std::size_t>(needed, former.piece_count));
  std::copy(former.pieces + lower.piece_count, former.pieces + former.piece_count, upper.pieces);
  upper.piece_count = static_cast<std::uint8_t>(former.piece_count - lower.piece_count);
  make_room(lower, entries_of_lower);
  make_room(upper, entries_of_upper);
  clear(lower), clear(upper);
  lower.depth = upper.depth = static_cast<std::uint16_t>(depth + 1);

  segments_[number_of_lower] = lower;
  segments_[number_of_upper] = upper;
  redirect(hash, depth, number_of_upper);
  for (const Entry& entry : moving_) put(segments_[is_upper(entry) ? number_of_upper : number_of_lower], entry);
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
    moving_[i].hash = hash(rows_.id(moving_[i].position));
  }
}

// Gives a segment pieces until it has room for one more than so many entries. Where seven are too few they are given up for
// some of twice the width: only ids that were chosen for the salt come to that.
void Index::make_room(Segment& segment, std::size_t entries) {
  while (room(kMostPieces, segment.width) <= entries) {
    ++segment.width;
    segment.piece_count = 0;
  }
  while (room(segment.piece_count, segment.width) <= entries) {
    segment.pieces[segment.piece_count] = new_piece(segment.width);
    ++segment.piece_count;
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

Bucket* Index::new_piece(unsigned width) {
  const std::size_t bytes = sizeof(Bucket) * kPieceBuckets << width;
  if (bytes_left_ < bytes) {
    memory_.emplace_back(std::max(kArenaBytes, bytes), memory_.empty() ? kHugePage : 0);
    bytes_left_ = memory_.back().size();
  }
  std::byte* const piece = memory_.back().data() + (memory_.back().size() - bytes_left_);
  bytes_left_ -= bytes;
  return reinterpret_cast<Bucket*>(piece);
}

std::size_t Index::heap_bytes() const {
  return directory_.capacity() * sizeof(directory_[0]) + segments_.capacity() * sizeof(Segment) +
         moving_.capacity() * sizeof(Entry);
}

std::size_t Index::reserved_bytes() const {
  std::size_t bytes = heap_bytes();
  for (const Pages& pages : memory_) bytes += pages.size();
  return bytes;
}

std::size_t Index::resident_bytes() const {
  std::size_t bytes = heap_bytes();
  for (const Pages& pages : memory_) bytes += pages.resident();
  return bytes;
}

}  // namespace edl
