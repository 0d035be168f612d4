// The gradients of one push: each id once, with the sum of its gradients in the order in which they came.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "distinct.hpp"
#include "kernels.hpp"

namespace edl {

class Gradients {
 public:
  Gradients(const Kernels& kernels, std::size_t dim, std::uint64_t salt)
      : kernels_(kernels), dim_(dim), distinct_(salt) {}

  // Take `ids` and their gradients, `[ids.size(), dim]`; they must stay where they are. Throws std::bad_alloc.
  void take(std::span<const std::int64_t> ids, const float* gradients);

  std::size_t size() const { return ids().size(); }
  std::span<const std::int64_t> ids() const { return distinct_.ids(); }
  // Of the id at `index`; the gradient itself where the id came once.
  const float* gradient(std::size_t index) const {
    const std::int64_t source = sources_[index];
    return source >= 0 ? given_ + static_cast<std::size_t>(source) * dim_
                       : sums_.data() + static_cast<std::size_t>(~source) * dim_;
  }
  std::size_t bytes() const;

 private:
  void add(std::uint32_t index, const float* gradient);

  const Kernels& kernels_;
  std::size_t dim_;
  const float* given_ = nullptr;
  Distinct distinct_;
  std::vector<std::int64_t> sources_;  // a given gradient, or ~ a sum
  std::vector<float> sums_;
};

}  // namespace edl
