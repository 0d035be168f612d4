// What is done to the floats of a row. Compiled once for each instruction set, with equal results: no operation is
// contracted or reordered, so each does what NumPy's float32 (float64 in initializers) does.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edl {

enum class Optimizer : std::uint8_t { sgd, momentum, nesterov, adagrad, adam, amsgrad };

// One step of an optimizer. Fields that an optimizer has no use for are not read.
struct Step {
  float rate;           // learning rate; adam, amsgrad: with both bias corrections
  float decay;          // weight decay; 0 for none
  float decay_rate;     // learning rate of the weight decay
  float momentum;       // momentum, nesterov
  float epsilon;        // adagrad, adam, amsgrad
  float first_weight;   // 1 - beta_1
  float second_weight;  // 1 - beta_2
};

enum class Distribution : std::uint8_t { constant, uniform, normal };

// Initial values: constant `a`; uniform from `a` to `b`; normal with mean `a` and deviation `b`.
struct Initializer {
  Distribution distribution;
  double a;
  double b;
  std::uint64_t seed;  // mixed
};

// `row` points to `dim` values, and behind them to the slot variables in the optimizer's order.
using Update = void (*)(const Step&, float* row, const float* gradient, std::size_t dim);

struct Kernels {
  const char* isa;
  Update (*update)(Optimizer, std::size_t dim);
  void (*initialize)(const Initializer&, std::uint64_t id, float* values, std::size_t dim);
  void (*add)(float* sum, const float* term, std::size_t dim);
  void (*copy)(float* to, const float* from, std::size_t dim);
};

// The best that this processor has, or the one that is named. Throws std::invalid_argument if it has none of that name.
const Kernels& kernels(const char* isa);

}  // namespace edl
