// The functions of edl.numerics.portable_math: the same operations in the same order, hence the same bits. Part of kernels.cpp.
// Those of initial values are always inlined, so that loops over a row have vectors.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edl::EDL_ISA {
namespace {

using Size = std::size_t;
using U64 = std::uint64_t;

template <Size kTerms>
[[gnu::always_inline]] inline double series(const double (&coefficients)[kTerms], double z) {
  double sum = coefficients[0];
#pragma GCC unroll 16
  for (Size i = 1; i < kTerms; ++i) sum = sum * z + coefficients[i];
  return sum;
}

// 1/n! of the powers from the highest down, with the signs of the series.
constexpr double kCos[] = {1.0 / 20922789888000, -1.0 / 87178291200, 1.0 / 479001600, -1.0 / 3628800, 1.0 / 40320,
                           -1.0 / 720,           1.0 / 24,           -1.0 / 2,        1.0};
constexpr double kSin[] = {1.0 / 355687428096000, -1.0 / 1307674368000, 1.0 / 6227020800, -1.0 / 39916800, 1.0 / 362880,
                           -1.0 / 5040,           1.0 / 120,            -1.0 / 6,         1.0};
constexpr double kExp[] = {1.0 / 87178291200, 1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800,
                           1.0 / 362880,      1.0 / 40320,      1.0 / 5040,      1.0 / 720,      1.0 / 120,
                           1.0 / 24,          1.0 / 6,          1.0 / 2,         1.0,            1.0};

[[gnu::always_inline]] inline double log_of(double x) {
  U64 bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  double exponent = static_cast<double>(static_cast<std::int64_t>(bits >> 52) - 1022);
  bits = (bits & 0x000FFFFFFFFFFFFFU) | 0x3FE0000000000000U;
  double m;
  __builtin_memcpy(&m, &bits, sizeof m);
  const bool low = m < 0.7071067811865476;
  m = low ? m * 2.0 : m;
  exponent = low ? exponent - 1.0 : exponent;
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;
  double sum = 1.0 / 23.0;
#pragma GCC unroll 11
  for (int n = 21; n > 0; n -= 2) sum = sum * z + 1.0 / n;
  return exponent * 0.6931471805599453 + 2.0 * s * sum;
}

inline double exp_of(double x) {
  const double exponent = __builtin_floor(x * 1.4426950408889634 + 0.5);
  const double rest = (x - exponent * 0.6931471803691238) - exponent * 1.9082149292705877e-10;
  const U64 bits = static_cast<U64>(static_cast<std::int64_t>(exponent) + 1023) << 52;
  double scale;
  __builtin_memcpy(&scale, &bits, sizeof scale);
  return series(kExp, rest) * scale;
}

inline float power(float base, double exponent) {
  constexpr float kLargest = 0x1.fffffep127F;
  const float finite = base < kLargest ? base : kLargest;
  double x = exponent * log_of(base > 0.0F ? static_cast<double>(finite) : 1.0);
  x = x > -700.0 ? x : -700.0;
  x = x < 700.0 ? x : 700.0;
  const double of_zero = exponent == 0.0 ? 1.0 : 0.0;
  return static_cast<float>(base > 0.0F ? exp_of(x) : of_zero);
}

[[gnu::always_inline]] inline double cos_of_turns(double turns) {
  const double quarter = __builtin_floor(turns * 4.0 + 0.5);
  const double angle = (turns - quarter * 0.25) * 6.283185307179586;
  const double z = angle * angle;
  const double even = series(kCos, z);
  const double odd = series(kSin, z) * angle;
  const bool negative = quarter == 1.0 || quarter == 2.0;
  const double size = quarter == 1.0 || quarter == 3.0 ? odd : even;
  return negative ? -size : size;
}

}  // namespace
}  // namespace edl::EDL_ISA
