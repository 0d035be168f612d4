#include "gradients.hpp"

#include <algorithm>
#include <bit>

#include "hash.hpp"

namespace edl {
namespace {

constexpr std::size_t kAhead = 16;

}  // namespace

void Gradients::take(std::span<const std::int64_t> ids, const float* gradients) {
  const std::size_t count = ids.size();
  const std::size_t capacity = std::bit_ceil(std::max<std::size_t>(2 * count, 16));
  const unsigned shift = static_cast<unsigned>(64 - std::bit_width(capacity - 1));
  const auto spot = [&](std::size_t i) { return place(static_cast<std::uint64_t>(ids[i])) >> shift; };
  given_ = gradients;
  places_.assign(capacity, 0);
  ids_.clear(), sources_.clear(), sums_.clear();
  ids_.reserve(count), sources_.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) prefetch_to_write(&places_[spot(i + kAhead)]);
    std::size_t here = spot(i);
    while (places_[here] != 0 && ids_[places_[here] - 1] != ids[i]) here = (here + 1) & (capacity - 1);
    if (places_[here] != 0) {
      add(places_[here] - 1, gradients + i * dim_);
      continue;
    }
    ids_.push_back(ids[i]);
    sources_.push_back(static_cast<std::int64_t>(i));
    places_[here] = static_cast<std::uint32_t>(ids_.size());
  }
}

void Gradients::add(std::uint32_t index, const float* gradient) {
  if (sources_[index] >= 0) {
    const float* first = given_ + static_cast<std::size_t>(sources_[index]) * dim_;
    sources_[index] = ~static_cast<std::int64_t>(sums_.size() / dim_);
    sums_.insert(sums_.end(), first, first + dim_);
  }
  kernels_.add(sums_.data() + static_cast<std::size_t>(~sources_[index]) * dim_, gradient, dim_);
}

std::size_t Gradients::bytes() const {
  return places_.capacity() * sizeof(places_[0]) + ids_.capacity() * sizeof(ids_[0]) +
         sources_.capacity() * sizeof(sources_[0]) + sums_.capacity() * sizeof(sums_[0]);
}

}  // namespace edl
