#include "gradients.hpp"

namespace edl {

void Gradients::take(std::span<const std::int64_t> ids, const float* gradients) {
  given_ = gradients;
  sources_.clear(), sums_.clear();
  sources_.reserve(ids.size());
  distinct_.take(ids, [&](std::size_t i, std::uint32_t index, bool is_new) {
    if (is_new) {
      sources_.push_back(static_cast<std::int64_t>(i));
    } else {
      add(index, gradients + i * dim_);
    }
  });
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
  return distinct_.bytes() + sources_.capacity() * sizeof(sources_[0]) + sums_.capacity() * sizeof(sums_[0]);
}

}  // namespace edl
