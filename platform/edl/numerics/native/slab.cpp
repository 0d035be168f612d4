#include "slab.hpp"

#include <algorithm>
#include <array>
#include <cassert>

namespace edl {
namespace {

// Elements that become a row for the kernel at a time: it stays in the nearest cache. No two of its parts are a multiple
// of 4 KB apart: processors take a load for one that waits for a store to the other address.
constexpr std::size_t kPart = 1280;

}  // namespace

void move(const Kernels& kernels, Optimizer optimizer, const Step& step, float* values, std::span<float* const> slots,
          std::span<const float> gradient) {
  assert(slots.size() <= kMostSlots);
  alignas(64) std::array<float, kPart*(1 + kMostSlots)> row;
  const Update update = kernels.rule(optimizer, kPart).update;
  for (std::size_t begin = 0; begin < gradient.size(); begin += kPart) {
    const std::size_t count = std::min(kPart, gradient.size() - begin);
    const auto part_of_row = [&](std::size_t part) { return row.data() + part * count; };
    kernels.copy(row.data(), values + begin, count);
    for (std::size_t i = 0; i < slots.size(); ++i) kernels.copy(part_of_row(i + 1), slots[i] + begin, count);
    update(step, row.data(), gradient.data() + begin, count);
    kernels.copy(values + begin, row.data(), count);
    for (std::size_t i = 0; i < slots.size(); ++i) kernels.copy(slots[i] + begin, part_of_row(i + 1), count);
  }
}

}  // namespace edl
