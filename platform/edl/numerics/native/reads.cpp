#include "reads.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace edl {
namespace {

std::uint64_t sum_of(std::span<const std::int64_t> ids) {
  return std::accumulate(ids.begin(), ids.end(), std::uint64_t{0},
                         [](std::uint64_t sum, std::int64_t id) { return sum + static_cast<std::uint64_t>(id); });
}

}  // namespace

void Reads::remember(std::span<const std::int64_t> ids, std::vector<std::uint32_t> positions) {
  if (positions.empty() || positions.size() > kMostPositions) return;
  const std::size_t count = positions.size();
  Read read{sum_of(ids), std::move(positions)};
  const std::lock_guard lock(mutex_);
  while (reads_.size() == kMostReads || positions_ + count > kMostPositions) {
    positions_ -= reads_.front().positions.size();
    reads_.pop_front();
  }
  reads_.push_back(std::move(read));
  positions_ += count;
}

std::vector<std::uint32_t> Reads::recall(std::span<const std::int64_t> ids) {
  const std::uint64_t sum = sum_of(ids);
  const std::lock_guard lock(mutex_);
  const auto fits = [&](const Read& read) { return read.sum == sum && read.positions.size() == ids.size(); };
  const auto found = std::find_if(reads_.rbegin(), reads_.rend(), fits);
  if (found == reads_.rend()) return {};
  std::vector<std::uint32_t> positions = std::move(found->positions);
  reads_.erase(std::next(found).base());
  positions_ -= positions.size();
  return positions;
}

std::size_t Reads::bytes() const {
  const std::lock_guard lock(mutex_);
  return positions_ * sizeof(std::uint32_t) + reads_.size() * sizeof(Read);
}

}  // namespace edl
