#include "rows.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>

namespace edl {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{32} << 20;
constexpr std::size_t kMostRows = 0xFFFFFFFE;  // the last number says "nowhere"

}  // namespace

Rows::Rows(std::size_t floats, bool tracked)
    : Rows([&] {
        const std::size_t head = tracked ? kNext + sizeof(std::uint32_t) : kSeen;
        return Layout{(head + floats * sizeof(float) + 7) / 8 * 8, head};
      }()) {}

Rows::Rows(Layout layout)
    : stride_(layout.stride),
      head_(layout.head),
      shift_(static_cast<unsigned>(std::bit_width(std::max(kChunkBytes / stride_, std::size_t{1})) - 1)),
      mask_((std::uint32_t{1} << shift_) - 1) {}

std::uint32_t Rows::prepare() {
  if (first_free_ != 0) return first_free_ - 1;
  if (size_ >= kMostRows) throw std::length_error("a table holds at most 4,294,967,294 rows on one server");
  const auto position = static_cast<std::uint32_t>(size_);
  if ((position >> shift_) == chunks_.size()) add_chunk();
  return position;
}

void Rows::take(std::uint32_t position) {
  if (position == size_) {
    ++size_;
    return;
  }
  first_free_ = next(position);
  --free_;
}

void Rows::give_back(std::uint32_t position) {
  see(position, 0);
  link(position, first_free_);
  first_free_ = position + 1;
  ++free_;
}

void Rows::reserve(std::size_t rows) {
  while (chunks_.size() << shift_ < rows) add_chunk();
}

void Rows::add_chunk() {
  chunks_.push_back(nullptr);
  try {
    memory_.emplace_back(stride_ << shift_, memory_.empty() ? kHugePage : 0);
  } catch (...) {
    chunks_.pop_back();
    throw;
  }
  chunks_.back() = memory_.back().data();
}

std::size_t Rows::reserved_bytes() const {
  std::size_t bytes = 0;
  for (const Pages& pages : memory_) bytes += pages.size();
  return bytes;
}

std::size_t Rows::resident_bytes() const {
  std::size_t bytes = 0;
  for (const Pages& pages : memory_) bytes += pages.resident();
  return bytes;
}

}  // namespace edl
