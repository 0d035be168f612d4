// Where the rows of a batch are, some hundred ids at a time and in passes: first the index for all of them, then the few that
// one bucket does not decide, then whoever asks goes over the rows. Within a pass nothing waits for what the same pass
// fetched for another id, so that as many lines of memory as the processor can ask for are on their way.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "hash.hpp"
#include "index.hpp"
#include "rows.hpp"

namespace edl {

class Search {
 public:
  static constexpr std::size_t kMostIds = 1024;
  static constexpr std::size_t kAhead = 24;  // so many ids before its use a line is fetched

  // `bytes`: what will be used of each row, from its start.
  Search(const Index& index, const Rows& rows, std::size_t bytes) : index_(index), rows_(rows), bytes_(bytes) {}

  // Looks for the rows of at most kMostIds ids, which must stay where they are. Where `known` is not empty, it says where each
  // row was once, and kNowhere of one that it knows nothing of: only these are looked for in the index.
  void look_for(std::span<const std::int64_t> ids, std::span<const std::uint32_t> known);

  // Of these ids, by number, and best in order, since the row behind is fetched: the position, kNowhere if the row is not stored.
  std::uint32_t position(std::size_t i) const {
    if (i + kAhead < ids_.size()) fetch(i + kAhead);
    const std::uint32_t likely = likely_[i];
    if (likely == Index::kNowhere || rows_.holds(likely, id(i))) return likely;
    return index_.find(id(i), index_.hash(id(i)));
  }

 private:
  std::uint64_t id(std::size_t i) const { return static_cast<std::uint64_t>(ids_[i]); }
  void fetch(std::size_t i) const {
    if (likely_[i] != Index::kNowhere) prefetch(rows_.start(likely_[i]), bytes_);
  }
  bool is_known(std::size_t i) const { return !known_.empty() && known_[i] != Index::kNowhere; }
  void fetch_home(std::size_t i);
  void settle(std::span<const std::uint16_t> doubtful);

  const Index& index_;
  const Rows& rows_;
  std::size_t bytes_;
  std::span<const std::int64_t> ids_;
  std::span<const std::uint32_t> known_;
  std::array<std::uint64_t, kMostIds> hashes_;
  std::array<const Bucket*, kMostIds> homes_;
  std::array<std::uint32_t, kMostIds> likely_;  // where the row is if it is stored
};

}  // namespace edl
