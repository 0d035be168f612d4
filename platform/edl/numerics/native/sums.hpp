// Element-wise sums of two buffers, for reductions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace edl::collective {

// The numbers are those of the frames; edl/collective/element_types.py has the same.
enum class Element : std::uint8_t {
  float32 = 1,
  float64 = 2,
  float16 = 3,
  bfloat16 = 4,
  int8 = 5,
  int16 = 6,
  int32 = 7,
  int64 = 8,
};

// Adds `count` elements: into[i] = into[i] + from[i]. `from` need not be aligned. Integers wrap around, so unsigned ones
// are added as signed ones. Halves are added in float32 and rounded to nearest even, as NumPy does.
using Sum = void (*)(std::byte* into, const std::byte* from, std::size_t count);

// Bytes of one element; 0 for a number that names none.
std::size_t element_size(std::uint8_t element);

// The fastest sum that this processor runs, or the one compiled for an instruction set: "baseline", "avx2".
Sum find_sum(Element element, std::string_view isa = {});

// Rounds values to halves (float16 or bfloat16) and leaves in `residual` what rounding took from values + residual.
using Compress = void (*)(const float* values, float* residual, std::uint16_t* halves, std::size_t count);
// Widens halves.
using Expand = void (*)(const std::uint16_t* halves, float* values, std::size_t count);

struct HalfConversion {
  Compress compress;
  Expand expand;
};
HalfConversion find_conversion(Element element, std::string_view isa = {});

namespace baseline {
Sum sum_of(Element element);
HalfConversion conversion_of(Element element);
}  // namespace baseline
namespace avx2 {
Sum sum_of(Element element);
HalfConversion conversion_of(Element element);
}  // namespace avx2

}  // namespace edl::collective
