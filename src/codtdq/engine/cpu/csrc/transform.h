// What is done to a row before it is quantized: order, shift, scale, Hadamard rotation.
#pragma once
#include "lanes.h"

namespace cod {
namespace {

template <class Isa>
struct Transform {
  using Floats = typename Isa::Floats;
  static constexpr int W = Isa::kWidth;

  template <int DISTANCE>
  struct Signs {
    float of[W];
    constexpr Signs() : of() {
      for (int l = 0; l < W; l++) of[l] = l & DISTANCE ? -1.0f : 1.0f;
    }
  };
  template <int DISTANCE>
  static constexpr Signs<DISTANCE> kSigns{};

  template <int DISTANCE>
  COD_INLINE void butterfly(Floats *v) {
    constexpr int kCount = 32 / W;
    if constexpr (DISTANCE >= W) {
      for (int i = 0; i < kCount; i++) {
        if (i & (DISTANCE / W)) continue;
        const Floats a = v[i], b = v[i + DISTANCE / W];
        v[i] = a + b, v[i + DISTANCE / W] = a - b;
      }
    } else {
      const Floats sign = Isa::load(kSigns<DISTANCE>.of);
      for (int i = 0; i < kCount; i++)
        v[i] = Isa::fma(v[i], sign, Isa::template swap<DISTANCE>(v[i]));
    }
  }

  // What is done to W channels, the same for all rows. left: how many of them there are.
  struct Column {
    Floats shift, scale, inverse;
    const int32_t *order;
    alignas(64) int32_t last[W];  // the order, if it has no W indices any more
    int left;
    inline __attribute__((always_inline)) void set(const cod_transform &t, int64_t i, int64_t n) {
      left = n - i < W ? (int)(n - i) : W;
      shift = t.shift ? some(t.shift + i, left) : Floats{};
      scale = t.scale ? some(t.scale + i, left) : Floats{};
      inverse = t.scale ? some(t.inverse + i, left) : Floats{};
      order = t.order ? t.order + i : nullptr;
      if (left == W || !order) return;
      __builtin_memset(last, 0, sizeof last);
      __builtin_memcpy(last, order, (size_t)left * sizeof(int32_t));
      order = last;
    }
  };
  COD_INLINE Floats some(const float *x, int left) {
    return left == W ? Isa::load(x) : Isa::load_some(x, left);
  }
  // (x[order] - shift) / scale. A shift of zero leaves a value as it is.
  template <bool ORDER, bool SCALE>
  COD_INLINE Floats moved(const float *x, int64_t i, int64_t n, const Column &c) {
    Floats v;
    if constexpr (ORDER)
      v = Isa::picked(x, n, c.order);
    else
      v = some(x + i, c.left);
    v -= c.shift;
    if constexpr (SCALE)  // the guess of a quotient wants an inverse, which lanes beyond lack
      v = c.left == W ? quotient<Isa>(v, c.scale, c.inverse) : v / c.scale;
    return v;
  }

  template <bool ORDER, bool SCALE>
  static void rows(const float *const *x, int count, int64_t n, const cod_transform &t, float *y,
                   int64_t stride) {
    const int64_t rotated = t.hadamard ? n / 32 * 32 : 0;
    for (int64_t i = rotated; i < n; i += W) {
      Column c;
      c.set(t, i, n);
      for (int r = 0; r < count; r++) {
        const Floats v = moved<ORDER, SCALE>(x[r], i, n, c);
        if (c.left == W)
          Isa::store(v, y + r * stride + i);
        else
          Isa::store_some(v, y + r * stride + i, c.left);
      }
    }
    constexpr float kRoot = 5.656854249492381f;  // of 32
    for (int64_t at = 0; at < rotated; at += 32) {
      Column c[32 / W];
      for (int j = 0; j < 32 / W; j++) c[j].set(t, at + j * W, n);
      for (int r = 0; r < count; r++) {
        Floats v[32 / W];
#pragma GCC unroll 8
        for (int j = 0; j < 32 / W; j++) v[j] = moved<ORDER, SCALE>(x[r], at + j * W, n, c[j]);
        butterfly<1>(v);
        butterfly<2>(v);
        butterfly<4>(v);
        butterfly<8>(v);
        butterfly<16>(v);
        for (int j = 0; j < 32 / W; j++)
          Isa::store(quotient<Isa>(v[j], Isa::all(kRoot), Isa::all(1.0f / kRoot)),
                     y + r * stride + at + j * W);
      }
    }
  }

  // y = R((x[order] - shift) / scale) of `count` rows with shift and scale in the new order; R
  // rotates whole blocks of 32 values. Same operations in the same order as torch's, so that no bit
  // differs.
  static void run(const float *const *x, int count, int64_t n, const cod_transform &t, float *y,
                  int64_t stride) {
    if (t.order)
      t.scale ? rows<true, true>(x, count, n, t, y, stride)
              : rows<true, false>(x, count, n, t, y, stride);
    else
      t.scale ? rows<false, true>(x, count, n, t, y, stride)
              : rows<false, false>(x, count, n, t, y, stride);
  }
};

}  // namespace
}  // namespace cod
