// Compiled several times, with EDL_ISA as the namespace and other instructions allowed, as kernels.cpp is: nothing in here
// may be inline with external linkage.
#include "sums.hpp"

#include <type_traits>

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace edl::collective::EDL_ISA {
namespace {

// An element at any address: what a socket delivers starts anywhere.
template <typename T>
struct __attribute__((packed, may_alias)) Loose {
  T value;
};

template <typename T>
void sum(std::byte* into, const std::byte* from, std::size_t count) {
  auto* __restrict const to = reinterpret_cast<Loose<T>*>(into);
  const auto* __restrict const by = reinterpret_cast<const Loose<T>*>(from);
  if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;  // wraps around; a signed overflow is undefined
    for (std::size_t i = 0; i < count; ++i) {
      to[i].value = static_cast<T>(static_cast<Unsigned>(static_cast<Unsigned>(to[i].value) + static_cast<Unsigned>(by[i].value)));
    }
  } else {
    for (std::size_t i = 0; i < count; ++i) to[i].value = to[i].value + by[i].value;
  }
}

float bfloat16_to_float(std::uint16_t bits) { return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16); }

std::uint16_t float_to_bfloat16(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;  // to nearest, ties to even
  const std::uint32_t quiet = (bits >> 16) | 0x40U;  // rounding must not turn a NaN into an infinity
  return static_cast<std::uint16_t>((bits & 0x7FFFFFFFU) > 0x7F800000U ? quiet : rounded);
}

void sum_bfloat16(std::byte* into, const std::byte* from, std::size_t count) {
  auto* __restrict const to = reinterpret_cast<Loose<std::uint16_t>*>(into);
  const auto* __restrict const by = reinterpret_cast<const Loose<std::uint16_t>*>(from);
  for (std::size_t i = 0; i < count; ++i) {
    to[i].value = float_to_bfloat16(bfloat16_to_float(to[i].value) + bfloat16_to_float(by[i].value));
  }
}

// For processors without F16C; branches are rare there, and so is float16.
float float16_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1FU;
  const std::uint32_t mantissa = half & 0x3FFU;
  if (exponent == 0x1F) {
    const std::uint32_t quiet = mantissa != 0 ? 0x400000U : 0U;
    return __builtin_bit_cast(float, sign | 0x7F800000U | quiet | (mantissa << 13));
  }
  if (exponent != 0) return __builtin_bit_cast(float, sign | ((exponent + 112U) << 23) | (mantissa << 13));
  const float subnormal = static_cast<float>(mantissa) * 0x1p-24F;
  return sign != 0 ? -subnormal : subnormal;
}

std::uint16_t float_to_float16(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  const auto sign = static_cast<std::uint32_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint16_t>(sign | 0x7E00U | ((bits >> 13) & 0x3FFU));
  if (magnitude >= 0x477FF000U) return static_cast<std::uint16_t>(sign | 0x7C00U);  // rounds to more than 65504
  if (magnitude < 0x38800000U) {
    // Below the smallest normal number the sum with one half leaves exactly the bits that a half can keep, rounded.
    const float shifted = __builtin_bit_cast(float, magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (__builtin_bit_cast(std::uint32_t, shifted) - 0x3F000000U));
  }
  const std::uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13) & 1U) - 0x38000000U;
  return static_cast<std::uint16_t>(sign | (rounded >> 13));
}

void sum_float16(std::byte* into, const std::byte* from, std::size_t count) {
  auto* __restrict const to = reinterpret_cast<Loose<std::uint16_t>*>(into);
  const auto* __restrict const by = reinterpret_cast<const Loose<std::uint16_t>*>(from);
  std::size_t i = 0;
#ifdef __F16C__
  for (; i + 8 <= count; i += 8) {
    const __m256 a = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(into + 2 * i)));
    const __m256 b = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 2 * i)));
    const __m128i rounded = _mm256_cvtps_ph(_mm256_add_ps(a, b), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(into + 2 * i), rounded);
  }
#endif
  for (; i < count; ++i) {
    to[i].value = float_to_float16(float16_to_float(to[i].value) + float16_to_float(by[i].value));
  }
}

// An infinity or a NaN has no residual: it would stay in it for ever.
float lost(float value, float kept) {
  const float difference = value - kept;
  return difference - difference == 0.0F ? difference : 0.0F;
}

void compress_bfloat16(const float* __restrict values, float* __restrict residual, std::uint16_t* __restrict halves, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float value = values[i] + residual[i];
    halves[i] = float_to_bfloat16(value);
    residual[i] = lost(value, bfloat16_to_float(halves[i]));
  }
}

void expand_bfloat16(const std::uint16_t* __restrict halves, float* __restrict values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) values[i] = bfloat16_to_float(halves[i]);
}

void compress_float16(const float* __restrict values, float* __restrict residual, std::uint16_t* __restrict halves, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float value = values[i] + residual[i];
#ifdef __F16C__
    halves[i] = _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    residual[i] = lost(value, _cvtsh_ss(halves[i]));
#else
    halves[i] = float_to_float16(value);
    residual[i] = lost(value, float16_to_float(halves[i]));
#endif
  }
}

void expand_float16(const std::uint16_t* __restrict halves, float* __restrict values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
#ifdef __F16C__
    values[i] = _cvtsh_ss(halves[i]);
#else
    values[i] = float16_to_float(halves[i]);
#endif
  }
}

}  // namespace

HalfConversion conversion_of(Element element) {
  if (element == Element::float16) return {&compress_float16, &expand_float16};
  return {&compress_bfloat16, &expand_bfloat16};
}

Sum sum_of(Element element) {
  switch (element) {
    case Element::float32: return &sum<float>;
    case Element::float64: return &sum<double>;
    case Element::float16: return &sum_float16;
    case Element::bfloat16: return &sum_bfloat16;
    case Element::int8: return &sum<std::int8_t>;
    case Element::int16: return &sum<std::int16_t>;
    case Element::int32: return &sum<std::int32_t>;
    case Element::int64: return &sum<std::int64_t>;
  }
  return nullptr;
}

}  // namespace edl::collective::EDL_ISA
