// Compiled several times, with EDL_ISA as the namespace and other instructions allowed. Nothing in here may be inline with
// external linkage, the standard library's functions included: the linker would keep one copy, perhaps the one that needs
// the newest processor.
#include "kernels.hpp"

#define EDL_NAME_(isa) #isa
#define EDL_NAME(isa) EDL_NAME_(isa)

namespace edl::EDL_ISA {
namespace {

using Size = std::size_t;
using U64 = std::uint64_t;

// `kDim` is the row's length when it is known here, so that the loop has no remainder; 0 means `dim`.
template <Optimizer kOptimizer, Size kDim>
void update(const Step& step, float* __restrict row, const float* __restrict gradient, Size dim) {
  const Size n = kDim == 0 ? dim : kDim;
  if (step.decay != 0.0F) {
    for (Size i = 0; i < n; ++i) row[i] -= row[i] * step.decay * step.decay_rate;
  }
  float* __restrict const first = row + n;
  float* __restrict const second = first + n;
  float* __restrict const largest = second + n;
  for (Size i = 0; i < n; ++i) {
    const float g = gradient[i];
    if constexpr (kOptimizer == Optimizer::sgd) {
      row[i] -= g * step.rate;
    } else if constexpr (kOptimizer == Optimizer::momentum) {
      first[i] = first[i] * step.momentum - g * step.rate;
      row[i] += first[i];
    } else if constexpr (kOptimizer == Optimizer::nesterov) {
      const float change = g * step.rate;
      first[i] = first[i] * step.momentum - change;
      row[i] += first[i] * step.momentum - change;
    } else if constexpr (kOptimizer == Optimizer::adagrad) {
      first[i] += g * g;
      row[i] -= g * step.rate / __builtin_sqrtf(first[i] + step.epsilon);
    } else {
      first[i] += (g - first[i]) * step.first_weight;
      second[i] += (g * g - second[i]) * step.second_weight;
      float v = second[i];
      if constexpr (kOptimizer == Optimizer::amsgrad) {
        v = largest[i] > v ? largest[i] : v;
        largest[i] = v;
      }
      row[i] -= first[i] * step.rate / (__builtin_sqrtf(v) + step.epsilon);
    }
  }
}

template <Optimizer kOptimizer>
Update for_dim(Size dim) {
  switch (dim) {
    case 8: return update<kOptimizer, 8>;
    case 16: return update<kOptimizer, 16>;
    case 32: return update<kOptimizer, 32>;
    case 64: return update<kOptimizer, 64>;
    default: return update<kOptimizer, 0>;
  }
}

Update choose(Optimizer optimizer, Size dim) {
  switch (optimizer) {
    case Optimizer::sgd: return for_dim<Optimizer::sgd>(dim);
    case Optimizer::momentum: return for_dim<Optimizer::momentum>(dim);
    case Optimizer::nesterov: return for_dim<Optimizer::nesterov>(dim);
    case Optimizer::adagrad: return for_dim<Optimizer::adagrad>(dim);
    case Optimizer::adam: return for_dim<Optimizer::adam>(dim);
    default: return for_dim<Optimizer::amsgrad>(dim);
  }
}

U64 mixed(U64 key) {
  U64 x = key + 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

// Uniform in (0, 1]: 53 bits of a row's stream.
double fraction(U64 stream, U64 place) {
  return (static_cast<double>(static_cast<std::int64_t>(mixed(stream + place) >> 11)) + 0.5) * 0x1p-53;
}

// The functions of edl.spec.elementary: the same operations in the same order, hence the same bits.
double log_of(double x) {
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

// 1/n! with the signs of the series.
constexpr double kCos[] = {1.0 / 20922789888000, -1.0 / 87178291200, 1.0 / 479001600, -1.0 / 3628800, 1.0 / 40320,
                           -1.0 / 720,           1.0 / 24,           -1.0 / 2,        1.0};
constexpr double kSin[] = {1.0 / 355687428096000, -1.0 / 1307674368000, 1.0 / 6227020800, -1.0 / 39916800, 1.0 / 362880,
                           -1.0 / 5040,           1.0 / 120,            -1.0 / 6,         1.0};

double series(const double (&coefficients)[9], double z) {
  double sum = coefficients[0];
#pragma GCC unroll 8
  for (int i = 1; i < 9; ++i) sum = sum * z + coefficients[i];
  return sum;
}

double cos_of_turns(double turns) {
  const double quarter = __builtin_floor(turns * 4.0 + 0.5);
  const double angle = (turns - quarter * 0.25) * 6.283185307179586;
  const double z = angle * angle;
  const double even = series(kCos, z);
  const double odd = series(kSin, z) * angle;
  const bool negative = quarter == 1.0 || quarter == 2.0;
  const double size = quarter == 1.0 || quarter == 3.0 ? odd : even;
  return negative ? -size : size;
}

void initialize(const Initializer& how, U64 id, float* values, Size dim) {
  const U64 stream = mixed(id ^ how.seed);
  switch (how.distribution) {
    case Distribution::constant:
      for (Size i = 0; i < dim; ++i) values[i] = static_cast<float>(how.a);
      return;
    case Distribution::uniform: {
      const double width = how.b - how.a;
      for (Size i = 0; i < dim; ++i) values[i] = static_cast<float>(how.a + width * fraction(stream, i));
      return;
    }
    case Distribution::normal:
      for (Size i = 0; i < dim; ++i) {
        const double radius = __builtin_sqrt(-2.0 * log_of(fraction(stream, i)));
        const double gaussian = radius * cos_of_turns(fraction(stream, dim + i));
        values[i] = static_cast<float>(how.a + how.b * gaussian);
      }
  }
}

void add(float* __restrict sum, const float* __restrict term, Size dim) {
  for (Size i = 0; i < dim; ++i) sum[i] += term[i];
}

void copy(float* __restrict to, const float* __restrict from, Size dim) {
  switch (dim) {
    case 8: __builtin_memcpy(to, from, 8 * sizeof(float)); return;
    case 16: __builtin_memcpy(to, from, 16 * sizeof(float)); return;
    case 32: __builtin_memcpy(to, from, 32 * sizeof(float)); return;
    default: __builtin_memcpy(to, from, dim * sizeof(float));
  }
}

}  // namespace

extern const Kernels kernels;
const Kernels kernels{EDL_NAME(EDL_ISA), choose, initialize, add, copy};

}  // namespace edl::EDL_ISA
