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

  // W values of (x[order] - shift) / scale, from the i-th on.
  COD_INLINE Floats moved_lanes(const float *x, int64_t i, const cod_transform &t) {
    Floats v = t.order ? Isa::gather(x, t.order + i) : Isa::load(x + i);
    if (t.shift) v -= Isa::load(t.shift + i);
    if (t.scale) v = quotient<Isa>(v, Isa::load(t.scale + i), Isa::load(t.inverse + i));
    return v;
  }

  // y = R((x[order] - shift) / scale) with shift and scale in the new order; R rotates whole blocks
  // of 32 values. Same operations in the same order as torch's, so that no bit differs.
  static void run(const float *x, int64_t n, const cod_transform &t, float *y) {
    const int64_t rotated = t.hadamard ? n / 32 * 32 : 0;
    int64_t i = rotated;
    for (; i + W <= n; i += W) Isa::store(moved_lanes(x, i, t), y + i);
    for (; i < n; i++) {
      y[i] = x[t.order ? t.order[i] : i];
      if (t.shift) y[i] -= t.shift[i];
      if (t.scale) y[i] /= t.scale[i];
    }
    constexpr float kRoot = 5.656854249492381f;  // of 32
    for (int64_t at = 0; at < rotated; at += 32) {
      Floats v[32 / W];
      for (int j = 0; j < 32 / W; j++) v[j] = moved_lanes(x, at + j * W, t);
      butterfly<1>(v);
      butterfly<2>(v);
      butterfly<4>(v);
      butterfly<8>(v);
      butterfly<16>(v);
      for (int j = 0; j < 32 / W; j++)
        Isa::store(quotient<Isa>(v[j], Isa::all(kRoot), Isa::all(1.0f / kRoot)), y + at + j * W);
    }
  }
};

}  // namespace
}  // namespace cod
