// What the convolutions share.
#pragma once
#include "spans.h"

namespace cod {

constexpr int64_t kWorthSharing = 1 << 20;  // products; waking another thread takes about as long

constexpr int64_t kMostTokens = (int64_t)1 << 40;  // no product with a count of bytes overflows

constexpr int32_t kMostStep = 1 << 15;  // of kernels, strides and the like: no 32-bit sum overflows

inline bool fits(const cod_geometry *g) {
  if (!g) return false;
  for (const int32_t one : {g->kernel_h, g->kernel_w, g->stride_h, g->stride_w, g->dilation_h,
                            g->dilation_w, g->pad_h, g->pad_w})
    if (one > kMostStep) return false;
  return g->batch >= 0 && g->in_h >= 0 && g->in_w >= 0 && g->out_h >= 0 && g->out_w >= 0 &&
         g->kernel_h > 0 && g->kernel_w > 0 && g->stride_h > 0 && g->stride_w > 0 &&
         g->dilation_h > 0 && g->dilation_w > 0 && g->pad_h >= 0 && g->pad_w >= 0 &&
         fills(kMostTokens, g->batch, g->in_h, g->in_w) &&
         fills(kMostTokens, g->batch, g->out_h, g->out_w);
}

// Every output token reads the input token of its number.
inline bool is_direct(const cod_geometry &g) {
  return g.kernel_h == 1 && g.kernel_w == 1 && g.stride_h == 1 && g.stride_w == 1 && g.pad_h == 0 &&
         g.pad_w == 0;
}

// Walks over output rows and tells which input row each of its taps reads, -1 in the padding.
// Divisions only to begin with: they would cost more than the products of a narrow convolution.
struct Walk {
  const cod_geometry &g;
  int64_t ox, oy, b;
  Walk(const cod_geometry &geometry, int64_t row)
      : g(geometry), ox(row % g.out_w), oy(row / g.out_w % g.out_h), b(row / g.out_w / g.out_h) {}
  void next() {
    if (++ox < g.out_w) return;
    ox = 0;
    if (++oy == g.out_h) oy = 0, b++;
  }
  template <typename F>
  void taps(const F &visit) const {
    int64_t tap = 0, y = oy * g.stride_h - g.pad_h;
    for (int32_t ky = 0; ky < g.kernel_h; ky++, y += g.dilation_h) {
      const bool row_inside = y >= 0 && y < g.in_h;
      const int64_t line = (b * g.in_h + y) * g.in_w;
      int64_t x = ox * g.stride_w - g.pad_w;
      for (int32_t kx = 0; kx < g.kernel_w; kx++, x += g.dilation_w, tap++)
        visit(tap, row_inside && x >= 0 && x < g.in_w ? line + x : -1);
    }
  }
};

}  // namespace cod
