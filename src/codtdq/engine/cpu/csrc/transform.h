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

  static constexpr int kParts = 32 / W;              // vectors of a block of 32 values
  static constexpr int kTogether = W == 16 ? 4 : 1;  // rows whose steps do not wait for each other

  template <int DISTANCE>
  COD_INLINE void butterfly(Floats (&v)[kTogether][kParts]) {
    if constexpr (DISTANCE >= W) {
      for (int i = 0; i < kParts; i++) {
        if (i & (DISTANCE / W)) continue;
#pragma GCC unroll 4
        for (auto &row : v) {
          const Floats a = row[i], b = row[i + DISTANCE / W];
          row[i] = a + b, row[i + DISTANCE / W] = a - b;
        }
      }
    } else {
      const Floats sign = Isa::load(kSigns<DISTANCE>.of);
#pragma GCC unroll 4
      for (auto &row : v)
#pragma GCC unroll 8
        for (Floats &part : row) part = Isa::fma(part, sign, Isa::template swap<DISTANCE>(part));
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
    for (int r = 0; r < count && rotated; r += kTogether) {
      const float *some[kTogether];
      for (int i = 0; i < kTogether; i++) some[i] = x[r + i < count ? r + i : r];
      for (int64_t at = 0; at < rotated; at += 32) {
        Floats v[kTogether][kParts];
#pragma GCC unroll 8
        for (int j = 0; j < kParts; j++) {
          Column c;
          c.set(t, at + j * W, n);
#pragma GCC unroll 4
          for (int i = 0; i < kTogether; i++)
            v[i][j] = moved<ORDER, SCALE>(some[i], at + j * W, n, c);
        }
        rotate(v);
        for (int i = 0; i < kTogether && r + i < count; i++)
          for (int j = 0; j < kParts; j++) Isa::store(v[i][j], y + (r + i) * stride + at + j * W);
      }
    }
  }

  COD_INLINE void rotate(Floats (&v)[kTogether][kParts]) {
    constexpr float kRoot = 5.656854249492381f;  // of 32
    butterfly<1>(v);
    butterfly<2>(v);
    butterfly<4>(v);
    butterfly<8>(v);
    butterfly<16>(v);
#pragma GCC unroll 4
    for (auto &row : v)
#pragma GCC unroll 8
      for (Floats &part : row) part = quotient<Isa>(part, Isa::all(kRoot), Isa::all(1.0f / kRoot));
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
