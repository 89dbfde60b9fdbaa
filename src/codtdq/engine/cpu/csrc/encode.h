// Codes of values under a known radius and step.
#pragma once
#include "lanes.h"

namespace cod {
namespace {

// The definition.
COD_INLINE int8_t code_of(float x, float radius, float step, float qmax) {
  if (!(step == step && x == x)) return 0;  // a NaN has no code
  x = x > radius ? radius : x;
  x = x < -radius ? -radius : x;
  float q = __builtin_nearbyintf(x / step);
  q = q > qmax ? qmax : q;
  q = q < -qmax - 1 ? -qmax - 1 : q;
  return (int8_t)q;
}

template <class Isa>
struct Encode {
  using Floats = typename Isa::Floats;
  using Ints = typename Isa::Ints;
  static constexpr int W = Isa::kWidth;

  // W values, or the `left` that there are and zeros.
  template <bool WHOLE>
  COD_INLINE Floats values(const float *x, int left) {
    if constexpr (WHOLE) return Isa::load(x);
    if constexpr (Isa::kMasks) return Isa::load_some(x, left);
    return left == W ? Isa::load(x) : Isa::load_some(x, left);
  }

  // The nearest integers; 0 for NaN.
  COD_INLINE Ints divided(Floats x, Floats step) {
    const Floats q = x / step;
    return Isa::nearest(Isa::choose(q == q, q, Floats{}));
  }

  // One radius and step for all values. x * (1 / step) is one rounding away from x / step: only
  // next to a tie can the code differ, and there the true quotient is taken. A NaN stays one, fails
  // the test for a tie as well and gets code 0 there. |x| <= radius = q_max * step after clipping,
  // so no code leaves the grid.
  struct Uniform {
    const float *x;
    Floats radius, low, step, inverse, near;
    Uniform(const float *values, float clip, float width, int bits)
        : x(values),
          radius(Isa::all(clip)),
          low(Isa::all(-clip)),
          step(Isa::all(width)),
          inverse(Isa::all(1.0f / width)),
          near(Isa::all(0.5f - (float)(1 << bits) * 2.5e-7f)) {}

    template <bool WHOLE, int COUNT>
    inline __attribute__((always_inline)) void find(int at, int left, Ints (&q)[COUNT]) const {
      Floats clipped[COUNT];
      Ints away{};  // bits of the distances: those of a NaN are the largest
#pragma GCC unroll 4
      for (int j = 0; j < COUNT; j++) {
        const Floats value = values<WHOLE>(x + at + j * W, left);
        clipped[j] = Isa::max(low, Isa::min(radius, value));
        const Floats y = clipped[j] * inverse;
        q[j] = Isa::nearest(y);
        const Ints off = Isa::magnitude(y - Isa::converted(q[j]));
        away = COUNT == 1 ? off : Isa::unsigned_max(off, away);
      }
      if (__builtin_expect(!Isa::all_at_most(Isa::as_floats(away), near), 0))
        for (int j = 0; j < COUNT; j++) q[j] = divided(clipped[j], step);
    }
  };

  // Codes of n values and their sum.
  template <class Finder>
  COD_INLINE int32_t codes_of(const Finder &finder, int n, int8_t *codes) {
    constexpr int kPiece = Isa::kPiece;
    Ints total{};
    int i = 0;
    for (; i + kPiece * W <= n; i += kPiece * W) {
      Ints q[kPiece];
      finder.template find<true>(i, n, q);
      Isa::store_piece(q, codes + i);
#pragma GCC unroll 4
      for (int j = 0; j < kPiece; j++) total += q[j];
    }
    for (; i < n; i += W) {
      const int left = n - i < W ? n - i : W;
      Ints q[1];
      finder.template find<false>(i, left, q);
      Isa::store_some_codes(q[0], codes + i, left);
      total += q[0];
    }
    return Isa::sum(total);
  }

  static inline int32_t group(const float *x, int n, float radius, float step, int bits,
                              int8_t *codes) {
    if constexpr (Isa::kPiece > 0) {
      if (__builtin_expect(step == step, 1))
        return codes_of(Uniform(x, radius, step, bits), n, codes);
      __builtin_memset(codes, 0, (size_t)n);
      return 0;
    } else {
      const float qmax = (float)((1 << (bits - 1)) - 1);
      int32_t total = 0;
      for (int i = 0; i < n; i++) total += codes[i] = code_of(x[i], radius, step, qmax);
      return total;
    }
  }
};

}  // namespace
}  // namespace cod
