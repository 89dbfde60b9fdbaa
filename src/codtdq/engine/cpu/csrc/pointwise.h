// Elementwise loops.
#pragma once
#include "lanes.h"

namespace cod {
namespace {

// erf(x / sqrt 2) = x P(x^2) / Q(x^2) on |x| <= 4 sqrt 2, beyond which it is 1 in float32. Least
// squares, reweighted until the error was level at 2.2e-8.
constexpr float kErfEnd = 5.65685425f;
constexpr float kErfP[] = {7.978844047e-01f, 6.938393414e-02f, 9.451763704e-03f,
                           3.538687888e-04f, 1.272959980e-05f, 4.363782224e-08f};
constexpr float kErfQ[] = {
    1.0f, 2.536254525e-01f, 2.911893837e-02f, 1.930534258e-03f, 7.602109690e-05f, 1.171268650e-06f};

template <class Isa>
struct Pointwise {
  using Floats = typename Isa::Floats;
  using Ints = typename Isa::Ints;
  static constexpr int W = Isa::kWidth;

  // x Phi(x), within 2.5e-7 |x| of it. Zero below -4 sqrt 2; NaN for NaN and -infinity. Every
  // set gives the same bits.
  COD_INLINE Floats gelu_lanes(Floats x) {
    const Ints below = x < -kErfEnd;
    const Floats c = Isa::min(Isa::choose(below, Isa::all(-kErfEnd), x), Isa::all(kErfEnd));
    const Floats z = c * c, half = x * 0.5f;
    Floats p = Isa::all(kErfP[5]), q = Isa::all(kErfQ[5]);
#pragma GCC unroll 5
    for (int i = 4; i >= 0; i--) {
      p = fused<Isa>(p, z, Isa::all(kErfP[i]));
      q = fused<Isa>(q, z, Isa::all(kErfQ[i]));
    }
    return Isa::choose(below, x * 0.0f, fused<Isa>(half, c * p / q, half));
  }

  static void gelu(const float *x, int64_t n, float *y) {
    int64_t i = 0;
    for (; i + W <= n; i += W) Isa::store(gelu_lanes(Isa::load(x + i)), y + i);
    if (i < n) Isa::store_some(gelu_lanes(Isa::load_some(x + i, n - i)), y + i, n - i);
  }

  COD_INLINE Floats relu_lanes(Floats x) { return Isa::choose(x < 0.0f, Floats{}, x); }

  static void activate(float *y, int64_t n, int activation) {
    if (activation == COD_ACT_GELU)
      gelu(y, n, y);
    else if (activation == COD_ACT_RELU)
      for (int64_t i = 0; i < n; i++) y[i] = y[i] < 0.0f ? 0.0f : y[i];
  }

  COD_INLINE int32_t magnitude(const float *x) {
    int32_t bits;
    __builtin_memcpy(&bits, x, sizeof bits);
    return bits & kMagnitude;
  }

  static void magnitudes(const float *x, int64_t n, bool each, int32_t *best) {
    if (each) {
      for (int64_t i = 0; i < n; i++) {
        const int32_t bits = magnitude(x + i);
        best[i] = bits > best[i] ? bits : best[i];
      }
      return;
    }
    int32_t largest = best[0];
    for (int64_t i = 0; i < n; i++) {
      const int32_t bits = magnitude(x + i);
      largest = bits > largest ? bits : largest;
    }
    best[0] = largest;
  }

  static void multiply(float *y, const float *x, int64_t n) {
    int64_t i = 0;
    for (; i + W <= n; i += W) Isa::store(Isa::load(y + i) * Isa::load(x + i), y + i);
    for (; i < n; i++) y[i] *= x[i];
  }

  // Rounded once with every set, the rest too: sets of any width give the same bits.
  static void blend(const float *const *x, const float *share, int count, int64_t n, float *y) {
    for (int64_t i = 0; i < n; i += W) {
      const int64_t left = n - i;
      Floats sum{};
      for (int j = 0; j < count; j++) {
        const Floats own = left >= W ? Isa::load(x[j] + i) : Isa::load_some(x[j] + i, left);
        sum = fused<Isa>(own, Isa::all(share[j]), sum);
      }
      if (left >= W)
        Isa::store(sum, y + i);
      else
        Isa::store_some(sum, y + i, left);
    }
  }
};

}  // namespace
}  // namespace cod
