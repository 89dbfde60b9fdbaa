// Depthwise convolution of floats, channels across lanes.
#pragma once
#include "lanes.h"

namespace cod {
namespace {

constexpr int kSideBySide = 8;  // pixels that are summed at once: adding has its latency

template <class Isa>
struct Line {
  using Floats = typename Isa::Floats;
  static constexpr int W = Isa::kWidth;

  // M vectors of channels of N pixels: a weight is loaded once for all pixels.
  template <int N, int M>
  static inline void depthwise_tile(const DepthwiseLine &line, int64_t p, int64_t c) {
    Floats sum[N][M];
#pragma GCC unroll 8
    for (int i = 0; i < N; i++)
#pragma GCC unroll 4
      for (int j = 0; j < M; j++) sum[i][j] = Floats{};
    for (int t = 0; t < line.taps; t++) {
      const float *x = line.x[t] + p * line.x_step + c, *w = line.weight[t] + c;
#pragma GCC unroll 4
      for (int j = 0; j < M; j++) {
        const Floats weight = Isa::load(w + j * W);
#pragma GCC unroll 8
        for (int i = 0; i < N; i++)
          sum[i][j] = Isa::fma(Isa::load(x + i * line.x_step + j * W), weight, sum[i][j]);
      }
    }
    float *y = line.y + p * line.y_step + c;
#pragma GCC unroll 8
    for (int i = 0; i < N; i++)
#pragma GCC unroll 4
      for (int j = 0; j < M; j++) {
        if (line.bias) sum[i][j] = sum[i][j] + Isa::load(line.bias + c + j * W);
        Isa::store(sum[i][j], y + i * line.y_step + j * W);
      }
  }

  template <int N, int M>
  static inline void depthwise_strip(const DepthwiseLine &line, int64_t p, int64_t n) {
    int64_t c = 0;
    for (; c + M * W <= n; c += M * W) depthwise_tile<N, M>(line, p, c);
    for (; c + W <= n; c += W) depthwise_tile<N, 1>(line, p, c);
    for (; c < n; c++)
      for (int i = 0; i < N; i++) {
        float sum = 0.0f;
        for (int t = 0; t < line.taps; t++)
          sum += line.x[t][(p + i) * line.x_step + c] * line.weight[t][c];
        if (line.bias) sum += line.bias[c];
        line.y[(p + i) * line.y_step + c] = sum;
      }
  }

  static void run(const DepthwiseLine &line, int64_t n) {
    int64_t p = 0;
    for (; p + kSideBySide <= line.pixels; p += kSideBySide)
      depthwise_strip<kSideBySide, 1>(line, p, n);
    for (; p < line.pixels; p++) depthwise_strip<1, 4>(line, p, n);  // at the edges of a map
  }
};

}  // namespace
}  // namespace cod
