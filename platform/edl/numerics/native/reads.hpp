// Where rows were when they were read: most pushes are of the very ids that were read just before. Whoever uses a position
// compares the id that stands there, so that none of them need be right.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <vector>

namespace edl {

// Safe to be used by several threads at once.
class Reads {
 public:
  // One position for each id of a read, kNowhere among them. Throws std::bad_alloc.
  void remember(std::span<const std::int64_t> ids, std::vector<std::uint32_t> positions);
  // The positions of the newest read of these ids, which is forgotten with that; empty if none is remembered.
  std::vector<std::uint32_t> recall(std::span<const std::int64_t> ids);
  std::size_t bytes() const;

 private:
  // Of what no push follows, the oldest are forgotten: 4 MB are 64 reads of 16,000 ids, one for each of 64 workers.
  static constexpr std::size_t kMostReads = 256, kMostPositions = std::size_t{1} << 20;
  struct Read {
    std::uint64_t sum;  // of the ids, by which they are told apart from others
    std::vector<std::uint32_t> positions;
  };

  mutable std::mutex mutex_;
  std::deque<Read> reads_;
  std::size_t positions_ = 0;
};

}  // namespace edl
