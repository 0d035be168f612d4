// The optimizers: how one value `w` and its slot variables move, given the gradient `g`. The formulas of
// edl.numerics.optimizers, and its operations in its order, so that the bits are NumPy's. Part of kernels.cpp.
#pragma once

#include "elementary.hpp"
#include "kernels.hpp"

namespace edl::EDL_ISA {
namespace {

inline float root(float x) { return __builtin_sqrtf(x); }
inline float magnitude(float x) { return __builtin_fabsf(x); }
// Of what is no number, these make none, as NumPy's do.
inline float larger(float a, float b) { return a > b || a != a ? a : b; }
inline float smaller(float a, float b) { return a < b || a != a ? a : b; }
inline float sign(float x) { return x > 0.0F ? 1.0F : x < 0.0F ? -1.0F : x != x ? x : 0.0F; }

// A running mean takes a sample in, in each of the two ways in which Keras writes it.
inline void approach(float& mean, float sample, float weight) { mean += (sample - mean) * weight; }
inline void average(float& mean, float sample, float keep, float weight) { mean = mean * keep + sample * weight; }

inline void sgd(const Step& s, float g, float& w) { w -= g * s.rate; }

inline void momentum(const Step& s, float g, float& w, float& speed) {
  speed = speed * s.momentum - g * s.rate;
  w += speed;
}

inline void nesterov(const Step& s, float g, float& w, float& speed) {
  const float change = g * s.rate;
  speed = speed * s.momentum - change;
  w += speed * s.momentum - change;
}

inline void lion(const Step& s, float g, float& w, float& mean) {
  w -= sign(mean * s.first_keep + g * s.first_weight) * s.rate;
  average(mean, g, s.second_keep, s.second_weight);
}

inline void adagrad(const Step& s, float g, float& w, float& total) {
  total += g * g;
  w -= g * s.rate / root(total + s.epsilon);
}

inline void rmsprop(const Step& s, float g, float& w, float& square) {
  average(square, g * g, s.second_keep, s.second_weight);
  w -= g * s.rate / root(square + s.epsilon);
}

inline void rmsprop_momentum(const Step& s, float g, float& w, float& square, float& speed) {
  average(square, g * g, s.second_keep, s.second_weight);
  speed = speed * s.momentum + g * s.rate / root(square + s.epsilon);
  w -= speed;
}

inline float spread(const Step& s, float g, float& square, float& mean) {
  average(square, g * g, s.second_keep, s.second_weight);
  average(mean, g, s.second_keep, s.second_weight);
  return root(larger(square - mean * mean, 0.0F) + s.epsilon);
}

inline void centered(const Step& s, float g, float& w, float& square, float& mean) {
  w -= g * s.rate / spread(s, g, square, mean);
}

inline void centered_momentum(const Step& s, float g, float& w, float& square, float& speed, float& mean) {
  speed = speed * s.momentum + g * s.rate / spread(s, g, square, mean);
  w -= speed;
}

inline void adadelta(const Step& s, float g, float& w, float& square, float& steps) {
  average(square, g * g, s.second_keep, s.second_weight);
  const float change = root(steps + s.epsilon) * g / root(square + s.epsilon);
  average(steps, change * change, s.second_keep, s.second_weight);
  w -= change * s.rate;
}

inline void adam(const Step& s, float g, float& w, float& m, float& v) {
  approach(m, g, s.first_weight);
  approach(v, g * g, s.second_weight);
  w -= m * s.rate / (root(v) + s.epsilon);
}

inline void amsgrad(const Step& s, float g, float& w, float& m, float& v, float& largest) {
  approach(m, g, s.first_weight);
  approach(v, g * g, s.second_weight);
  largest = larger(largest, v);
  w -= m * s.rate / (root(largest) + s.epsilon);
}

inline void adamax(const Step& s, float g, float& w, float& m, float& largest) {
  approach(m, g, s.first_weight);
  largest = larger(largest * s.second_keep, magnitude(g));
  w -= m * s.rate / (largest + s.epsilon);
}

inline void nadam(const Step& s, float g, float& w, float& m, float& v) {
  approach(m, g, s.first_weight);
  approach(v, g * g, s.second_weight);
  const float ahead = m * s.momentum + g * s.of_gradient;
  w -= ahead * s.rate / (root(v / s.correction) + s.epsilon);
}

// What FTRL's L1 leaves of the linear term, with the other sign.
inline float pull(const Step& s, float linear) { return smaller(larger(linear, -s.l1), s.l1) - linear; }

template <float (*kPower)(const Step&, float)>
void ftrl(const Step& s, float g, float& w, float& total, float& linear) {
  const float before = kPower(s, total);
  total += g * g;
  const float after = kPower(s, total);
  linear = linear + g - ((after - before) / s.rate - s.shrinkage) * w;
  const float curvature = after / s.rate + s.curvature;
  w = curvature > 0.0F ? pull(s, linear) / curvature : w;
}

inline float by_root(const Step&, float total) { return root(total); }
inline float by_power(const Step& s, float total) { return power(total, static_cast<double>(s.power)); }

}  // namespace
}  // namespace edl::EDL_ISA
