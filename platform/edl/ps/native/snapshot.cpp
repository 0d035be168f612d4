#include "snapshot.hpp"

#include <algorithm>
#include <cstring>

namespace edl {

Snapshot::Snapshot(const Rows& rows)
    : rows_(rows),
      size_(rows.size()),
      places_(std::max<std::size_t>(size_, 1) * sizeof(std::uint32_t), kHugePage),
      kept_(rows.like()) {}

void Snapshot::reserve(std::size_t rows) { kept_.reserve(std::min(count_ + rows, size_)); }

void Snapshot::copy(std::uint32_t position) {
  const std::uint32_t place = count_.fetch_add(1, std::memory_order_relaxed);
  std::memcpy(kept_.start(place), rows_.start(position), rows_.stride());
  places()[position] = place + 1;
}

}  // namespace edl
