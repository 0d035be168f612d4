// What is done to the floats of a row. Compiled once for each instruction set, with equal results: no operation is
// contracted or reordered, so each does what NumPy's float32 (float64 in initializers) does.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edl {

enum class Optimizer : std::uint8_t {
  sgd, momentum, nesterov, adagrad, adam, amsgrad, adamax, nadam, rmsprop, rmsprop_momentum, centered, centered_momentum,
  adadelta, lion, ftrl, ftrl_power
};

// One step of an optimizer. Fields that an optimizer has no use for are not read.
struct Step {
  float rate = 0.0F;           // learning rate, with the bias corrections that do not depend on the row
  float decay = 0.0F;          // weight decay; 0 for none
  float decay_rate = 0.0F;     // learning rate of the weight decay
  float momentum = 0.0F;       // of the velocity; nadam: of the first moment
  float epsilon = 0.0F;
  float first_weight = 0.0F;   // of a sample in the mean gradient: 1 - beta_1
  float second_weight = 0.0F;  // of a sample in the mean square (lion: in the mean): 1 - beta_2 or 1 - rho
  float first_keep = 0.0F;     // of the mean so far, where it is not one less the weight in float32: beta_1
  float second_keep = 0.0F;    // beta_2 or rho
  float of_gradient = 0.0F;    // nadam: factor of the gradient
  float correction = 0.0F;     // nadam: of the second moment's bias
  float shrinkage = 0.0F;      // ftrl: twice the L2 shrinkage
  float curvature = 0.0F;      // ftrl: what L2 and beta add to it
  float l1 = 0.0F;             // ftrl
  float group = 0.0F;          // ftrl: how long a row's pull must be for it not to be zero; 0 for no group lasso
  float power = 0.0F;          // ftrl_power: of the sum of squares
};

enum class Distribution : std::uint8_t { constant, uniform, normal, truncated_normal };

// Initial values: constant `a`; uniform from `a` to `b`; normal with mean `a` and deviation `b`; the same without what is
// more than two deviations from the mean.
struct Initializer {
  Distribution distribution;
  double a;
  double b;
  std::uint64_t seed;  // mixed
};

// `row` points to `dim` values, and behind them to the slot variables in the optimizer's order.
using Update = void (*)(const Step&, float* row, const float* gradient, std::size_t dim);

// What an optimizer does to a row, and how many slot variables the row must have for it.
struct Rule {
  Update update;
  std::size_t slots;
};

struct Kernels {
  const char* isa;
  Rule (*rule)(Optimizer, std::size_t dim);
  void (*initialize)(const Initializer&, std::uint64_t id, float* values, std::size_t dim);
  void (*add)(float* sum, const float* term, std::size_t dim);
  void (*copy)(float* to, const float* from, std::size_t dim);
};

// The best that this processor has, or the one that is named. Throws std::invalid_argument if it has none of that name.
const Kernels& kernels(const char* isa);

}  // namespace edl
