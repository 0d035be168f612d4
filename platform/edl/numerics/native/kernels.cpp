// Compiled several times, with EDL_ISA as the namespace and other instructions allowed. Nothing in here may be inline with
// external linkage, the standard library's functions included: the linker would keep one copy, perhaps the one that needs
// the newest processor.
#include "kernels.hpp"

#include "elementary.hpp"
#include "rules.hpp"

#define EDL_NAME_(isa) #isa
#define EDL_NAME(isa) EDL_NAME_(isa)

namespace edl::EDL_ISA {
namespace {

template <typename... Slots>
constexpr Size count_slots(void (*)(const Step&, float, float&, Slots&...)) {
  return sizeof...(Slots);
}

// `kDim` is the row's length when it is known here, so that the loop has no remainder; 0 means `dim`.
template <auto kRule, Size kDim>
void update(const Step& step, float* __restrict row, const float* __restrict gradient, Size dim) {
  constexpr Size kSlots = count_slots(kRule);
  const Size n = kDim == 0 ? dim : kDim;
  if (step.decay != 0.0F) {
    for (Size i = 0; i < n; ++i) row[i] -= row[i] * step.decay * step.decay_rate;
  }
  float* __restrict const first = row + n;
  float* __restrict const second = first + n;
  float* __restrict const third = second + n;
  for (Size i = 0; i < n; ++i) {
    if constexpr (kSlots == 0) kRule(step, gradient[i], row[i]);
    if constexpr (kSlots == 1) kRule(step, gradient[i], row[i], first[i]);
    if constexpr (kSlots == 2) kRule(step, gradient[i], row[i], first[i], second[i]);
    if constexpr (kSlots == 3) kRule(step, gradient[i], row[i], first[i], second[i], third[i]);
  }
}

template <auto kRule>
Update for_dim(Size dim) {
  switch (dim) {
    case 1: return update<kRule, 1>;
    case 8: return update<kRule, 8>;
    case 16: return update<kRule, 16>;
    case 32: return update<kRule, 32>;
    case 64: return update<kRule, 64>;
    default: return update<kRule, 0>;
  }
}

// Multiplies a row of FTRL by the share of it that the group lasso leaves. The squares of floats are exact in doubles, and
// their sum has an order: NumPy has the same bits.
void shrink(const Step& step, float* __restrict row, Size dim) {
  const float* const linear = row + 2 * dim;
  double sum = 0.0;
  for (Size i = 0; i < dim; ++i) {
    const double part = static_cast<double>(pull(step, linear[i]));
    sum += part * part;
  }
  const float kept = 1.0F - step.group / larger(static_cast<float>(__builtin_sqrt(sum)), step.group);
  for (Size i = 0; i < dim; ++i) row[i] *= kept;
}

// FTRL divides by the rate; one of 0 moves nothing.
template <auto kRule>
void update_ftrl(const Step& step, float* row, const float* gradient, Size dim) {
  if (step.rate == 0.0F) return;
  for_dim<kRule>(dim)(step, row, gradient, dim);
  if (step.group > 0.0F) shrink(step, row, dim);
}

template <auto kRule>
Rule rule(Size dim) {
  return {for_dim<kRule>(dim), count_slots(kRule)};
}

Rule choose(Optimizer optimizer, Size dim) {
  switch (optimizer) {
    case Optimizer::sgd: return rule<sgd>(dim);
    case Optimizer::momentum: return rule<momentum>(dim);
    case Optimizer::nesterov: return rule<nesterov>(dim);
    case Optimizer::adagrad: return rule<adagrad>(dim);
    case Optimizer::adam: return rule<adam>(dim);
    case Optimizer::amsgrad: return rule<amsgrad>(dim);
    case Optimizer::adamax: return rule<adamax>(dim);
    case Optimizer::nadam: return rule<nadam>(dim);
    case Optimizer::rmsprop: return rule<rmsprop>(dim);
    case Optimizer::rmsprop_momentum: return rule<rmsprop_momentum>(dim);
    case Optimizer::centered: return rule<centered>(dim);
    case Optimizer::centered_momentum: return rule<centered_momentum>(dim);
    case Optimizer::adadelta: return rule<adadelta>(dim);
    case Optimizer::lion: return rule<lion>(dim);
    case Optimizer::ftrl: return {update_ftrl<ftrl<by_root>>, count_slots(ftrl<by_root>)};
    default: return {update_ftrl<ftrl<by_power>>, count_slots(ftrl<by_power>)};
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

// Standard normal (Box and Muller); a draw takes `2 * dim` places of a row's stream.
[[gnu::always_inline]] inline double gaussian(U64 stream, U64 draw, U64 place, U64 dim) {
  const U64 at = draw * 2 * dim + place;
  return __builtin_sqrt(-2.0 * log_of(fraction(stream, at))) * cos_of_turns(fraction(stream, at + dim));
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
      for (Size i = 0; i < dim; ++i) values[i] = static_cast<float>(how.a + how.b * gaussian(stream, 0, i, dim));
      return;
    case Distribution::truncated_normal:
      for (Size i = 0; i < dim; ++i) {
        double value;
        U64 draw = 0;
        do value = gaussian(stream, draw++, i, dim);
        while (value < -2.0 || value > 2.0);
        values[i] = static_cast<float>(how.a + how.b * value);
      }
  }
}

void add(float* __restrict sum, const float* __restrict term, Size dim) {
  for (Size i = 0; i < dim; ++i) sum[i] += term[i];
}

void copy(float* __restrict to, const float* __restrict from, Size dim) {
  switch (dim) {
    case 1: *to = *from; return;
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
