// Rows of a plain array by position: the limit that looking rows up is measured against (bench/native_table.py).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace edl {

void gather(const float* rows, std::size_t dim, std::span<const std::int64_t> positions, float* out);

}  // namespace edl
