#include "snapshot.hpp"

#include <algorithm>
#include <cstring>

namespace edl {

Snapshot::Snapshot(const Rows& rows, std::uint64_t salt)
    : rows_(rows),
      size_(rows.size()),
      count_(rows.size() - rows.free()),
      places_(std::max<std::size_t>(size_, 1) * sizeof(std::uint32_t), kHugePage),
      kept_(rows.like()),
      dropped_(salt) {}

void Snapshot::reserve(std::size_t rows) { kept_.reserve(std::min(kept_count_ + rows, size_)); }

void Snapshot::copy(std::uint32_t position) {
  const std::uint32_t place = kept_count_.fetch_add(1, std::memory_order_relaxed);
  std::memcpy(kept_.start(place), rows_.start(position), rows_.stride());
  places()[position] = place + 1;
}

void Snapshot::drop(std::uint32_t position) {
  if (position >= size_ || position < passed_) return;
  const std::uint64_t id = rows_.id(position);
  if (had(id, position)) dropped_.add(id, position);
  reserve(1);
  keep(position);
}

const std::byte* Snapshot::row(std::uint64_t id, std::uint32_t position) const {
  if (!had(id, position)) position = dropped_.find(id);
  return position == Positions::kNowhere ? nullptr : row(position);
}

bool Snapshot::had(std::uint64_t id, std::uint32_t position) const {
  if (position >= size_) return false;
  const std::byte* const then = row(position);
  return Rows::id_in(then) == id && !(rows_.tracked() && Rows::seen_in(then) == 0);
}

}  // namespace edl
