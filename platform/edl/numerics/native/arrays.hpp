// What both modules take from Python: arrays of NumPy, checked for type, number of dimensions and order by their C++ type.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

namespace edl {

using IdArray = nanobind::ndarray<const std::int64_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using NewIds = nanobind::ndarray<std::int64_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

// The elements of an array. NumPy makes arrays at any address; what is not aligned, C++ may not read.
template <typename Array>
auto* elements(const Array& array) {
  auto* const first = array.data();
  if (reinterpret_cast<std::uintptr_t>(first) % sizeof(*first) != 0) throw std::invalid_argument("an array is not aligned");
  return first;
}

inline std::span<const std::int64_t> span(const IdArray& ids) { return {elements(ids), ids.shape(0)}; }

}  // namespace edl
