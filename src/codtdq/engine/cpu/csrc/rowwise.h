// Functions of whole rows: layer norm, elementary functions. Sums add up in 16 lanes, whatever the
// width of vectors, and then in one tree.
#pragma once
#include "elementary.h"
#include "pointwise.h"

namespace cod {
namespace {

template <class Isa>
struct Rows {
  using Floats = typename Isa::Floats;
  static constexpr int W = Isa::kWidth, kLanes = 16, N = kLanes / W;

  COD_INLINE Floats values(const float *x, int64_t left) {
    return left >= W ? Isa::load(x) : left > 0 ? Isa::load_some(x, left) : Floats{};
  }
  COD_INLINE void put(Floats v, float *y, int64_t left) {
    if (left >= W)
      Isa::store(v, y);
    else if (left > 0)
      Isa::store_some(v, y, left);
  }

  COD_INLINE float total(const Floats (&sum)[N]) {
    return over_16_lanes<Isa>(sum, [](Floats a, Floats b) { return a + b; })[0];
  }

  // f(values, how many of them exist) of each vector, added up.
  template <typename F>
  COD_INLINE float sum_of(const float *x, int64_t n, const F &f) {
    Floats sum[N];
#pragma GCC unroll 4
    for (int i = 0; i < N; i++) sum[i] = Floats{};
    int64_t c = 0;
    for (; c + kLanes <= n; c += kLanes)
#pragma GCC unroll 4
      for (int i = 0; i < N; i++) sum[i] = sum[i] + f(Isa::load(x + c + i * W), W);
    for (int i = 0; i < N; i++)
      if (n - c > i * W) sum[i] = sum[i] + f(values(x + c + i * W, n - c - i * W), n - c - i * W);
    return total(sum);
  }

  // (x - mean) / sqrt(variance + eps) * weight + bias, the variance around the mean.
  static void layer_norm(const float *x, int64_t n, const float *weight, const float *bias,
                         float eps, float *y) {
    const float mean = sum_of(x, n, [](Floats v, int64_t) { return v; }) / (float)n;
    const Floats middle = Isa::all(mean);
    const float variance = sum_of(x, n,
                                  [&](Floats v, int64_t left) {
                                    Floats d = v - middle;
                                    if (left < W)
                                      for (int64_t l = left; l < W; l++) d[l] = 0.0f;
                                    return d * d;
                                  }) /
                           (float)n;
    const Floats inverse = Isa::all(1.0f / __builtin_sqrtf(variance + eps));
    const Floats one = Isa::all(1.0f);
    for (int64_t c = 0; c < n; c += W) {
      const int64_t left = n - c;
      const Floats scaled = (values(x + c, left) - middle) * inverse;
      const Floats w = weight ? values(weight + c, left) : one;
      put(fused<Isa>(scaled, w, bias ? values(bias + c, left) : Floats{}), y + c, left);
    }
  }

  template <typename F>
  COD_INLINE void each(const float *x, int64_t n, float *y, const F &f) {
    for (int64_t i = 0; i < n; i += W) put(f(values(x + i, n - i)), y + i, n - i);
  }

  static void elementary(const float *x, int64_t n, int function, float *y) {
    using Functions = Elementary<Isa>;
    if (function == COD_EXP)
      each(x, n, y, [](Floats v) { return Functions::exp(v); });
    else if (function == COD_SIGMOID)
      each(x, n, y, [](Floats v) { return Functions::sigmoid(v); });
    else if (function == COD_TANH)
      each(x, n, y, [](Floats v) { return Functions::tanh(v); });
    else
      each(x, n, y, [](Floats v) { return Pointwise<Isa>::gelu_lanes(v); });
  }
};

}  // namespace
}  // namespace cod
