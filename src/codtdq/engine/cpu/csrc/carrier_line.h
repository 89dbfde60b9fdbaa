// Depthwise convolution of carriers, channels across lanes. Numbers of four bytes hold those of a
// pixel and channel: a float, or, where a set multiplies four bytes at once (Isa::kQuads), those of
// four taps, lifted by 128 because their factor has no sign. Sums are exact either way.
#pragma once
#include "lanes.h"

namespace cod {
namespace {

template <class Isa>
struct CarrierLine {
  using Floats = typename Isa::Floats;
  using Ints = typename Isa::Ints;
  static constexpr int W = Isa::kWidth;
  static constexpr int kTaps = Isa::kQuads ? 4 : 1;  // of a number

  // Numbers of `count` pixels, n channels each, `step` apart; their taps lie `far` pixels apart.
  // There is room for whole vectors.
  static void spread(const int8_t *const *pixels, int64_t count, int64_t far, int64_t n, float *x,
                     int64_t step) {
    for (int64_t p = 0; p < count; p++, x += step) {
      const int8_t *rows[kTaps];
      for (int j = 0; j < kTaps; j++) rows[j] = pixels[p + j * far];
      int64_t i = 0;
      for (; i + W <= n; i += W) {
        if constexpr (Isa::kQuads)
          Isa::store(Isa::lifted_quads(rows, i, W), x + i);
        else
          Isa::store(Isa::codes_as_floats(rows[0] + i), x + i);
      }
      if (i < n) {
        if constexpr (Isa::kQuads) {
          Isa::store(Isa::lifted_quads(rows, i, (int)(n - i)), x + i);
        } else {
          int8_t some[W] = {};
          __builtin_memcpy(some, rows[0] + i, (size_t)(n - i));
          Isa::store(Isa::codes_as_floats(some), x + i);
        }
      }
    }
  }

  // Numbers of weights, from `kTaps` rows of them.
  static void weights(const int8_t *const *rows, int64_t n, float *w) {
    spread(rows, 1, 1, n, w, n);
    for (int64_t i = 0; i < n && Isa::kQuads; i += W)
      Isa::store(Isa::as_ints(Isa::load(w + i)) ^ Isa::all_ints((int32_t)0x80808080), w + i);
  }

  // M vectors of channels of N pixels: a weight is loaded once for all pixels. n: channels from the
  // c-th on.
  template <int N, int M>
  static inline void tile(const DepthwiseLine &line, int64_t p, int64_t c, int64_t n) {
    Floats sum[N][M], taken[M];  // taken: what the lifted factors have too much
#pragma GCC unroll 4
    for (int j = 0; j < M; j++) {
      taken[j] = Floats{};
#pragma GCC unroll 8
      for (int i = 0; i < N; i++) sum[i][j] = Floats{};
    }
    for (int t = 0; t < line.taps; t++) {
      const float *x = line.x[t] + p * line.x_step + c, *w = line.weight[t] + c;
#pragma GCC unroll 4
      for (int j = 0; j < M; j++) {
        const Floats weight = Isa::load(w + j * W);
        if constexpr (Isa::kQuads)
          taken[j] = add(taken[j], Isa::as_floats(Isa::all_ints((int32_t)0x80808080)), weight);
#pragma GCC unroll 8
        for (int i = 0; i < N; i++)
          sum[i][j] = add(sum[i][j], Isa::load(x + i * line.x_step + j * W), weight);
      }
    }
    float *y = line.y + p * line.y_step + c;
#pragma GCC unroll 4
    for (int j = 0; j < M; j++) {
      const int left = n - j * W < W ? (int)(n - j * W) : W;
      const Floats scale = some(line.scale + c + j * W, left);
      const Floats bias = line.bias ? some(line.bias + c + j * W, left) : Floats{};
#pragma GCC unroll 8
      for (int i = 0; i < N; i++) {
        Floats v = sum[i][j];
        if constexpr (Isa::kQuads) v = Isa::converted(Isa::as_ints(v) - Isa::as_ints(taken[j]));
        v = v * scale;
        if (line.bias) v = v + bias;
        if (left == W)
          Isa::store(v, y + i * line.y_step + j * W);
        else
          Isa::store_some(v, y + i * line.y_step + j * W, left);
      }
    }
  }

  // All pixels of M vectors of channels: few weights are in use at once.
  template <int M>
  static inline void strip(const DepthwiseLine &line, int64_t c, int64_t n) {
    int64_t p = 0;
    for (; p + 8 <= line.pixels; p += 8) {
#pragma GCC unroll 4
      for (int j = 0; j < M; j++) tile<8, 1>(line, p, c + j * W, n - j * W);
    }
    for (; p + 4 <= line.pixels; p += 4) tile<4, M>(line, p, c, n);
    for (; p < line.pixels; p++) tile<1, M>(line, p, c, n);
  }

  static void run(const DepthwiseLine &line, int64_t n) {
    int64_t c = 0;
    for (; c + W < n; c += 2 * W) strip<2>(line, c, n - c);
    for (; c < n; c += W) strip<1>(line, c, n - c);
  }

 private:
  COD_INLINE Floats some(const float *x, int left) {
    return left == W ? Isa::load(x) : Isa::load_some(x, left);
  }

  // sum + x * weight, in integers where numbers are four bytes.
  COD_INLINE Floats add(Floats sum, Floats x, Floats weight) {
    if constexpr (Isa::kQuads)
      return Isa::as_floats(Isa::quads(Isa::as_ints(sum), Isa::as_ints(x), Isa::as_ints(weight)));
    return Isa::fma(x, weight, sum);
  }
};

}  // namespace
}  // namespace cod
