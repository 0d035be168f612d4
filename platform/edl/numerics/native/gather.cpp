#include "gather.hpp"

#include "hash.hpp"
#include "kernels.hpp"

namespace edl {

void gather(const float* rows, std::size_t dim, std::span<const std::int64_t> positions, float* out) {
  constexpr std::size_t kAhead = 32;
  constexpr std::size_t kLineFloats = 16;
  const auto row = [&](std::size_t i) { return rows + static_cast<std::size_t>(positions[i]) * dim; };
  const Kernels& best = kernels("");
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (i + kAhead < positions.size()) {
      for (std::size_t place = 0; place < dim; place += kLineFloats) prefetch(row(i + kAhead) + place);
    }
    best.copy(out + i * dim, row(i), dim);
  }
}

}  // namespace edl
