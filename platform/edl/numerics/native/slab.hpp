// Dense parameters, whose values and slot variables are in arrays of their own, moved by the kernels that move rows.
#pragma once

#include <cstddef>
#include <span>

#include "kernels.hpp"

namespace edl {

constexpr std::size_t kMostSlots = 3;

// Moves `values` and their slot variables, at most kMostSlots in the optimizer's order; all are as long as `gradient`.
void move(const Kernels& kernels, Optimizer optimizer, const Step& step, float* values, std::span<float* const> slots,
          std::span<const float> gradient);

}  // namespace edl
