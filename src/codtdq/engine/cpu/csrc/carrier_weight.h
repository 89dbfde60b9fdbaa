// Weights of products of carriers, as they are packed.
#pragma once
#include <cstdint>

#include "kernels.h"
#include "spans.h"

namespace cod {

constexpr int64_t kMostOutputs = (int64_t)1 << 32;  // bytes of panels do not overflow

inline int64_t runs_of(const cod_carrier_weight &w) { return w.depth / w.run; }
inline int64_t groups_of(const cod_carrier_weight &w) {
  return w.group ? parts(w.inputs, w.group) : 1;
}

// Whether a description is what the set in use makes of its sizes; aligned loads read the panels.
inline bool usable(const cod_carrier_weight *w) {
  cod_carrier_weight own;
  return w && w->packed && w->factor && (uintptr_t)w->packed % 64 == 0 &&
         (uintptr_t)w->factor % 64 == 0 && (w->multiplier || !w->multiplier_bytes) &&
         cod_carrier_weight_describe(w->outputs, w->taps, w->inputs, w->bits, w->group,
                                     w->multiplier_bytes != 0, &own) == COD_OK &&
         w->columns == own.columns && w->depth == own.depth && w->run == own.run &&
         w->group == own.group && w->panels == own.panels && w->panel_bytes == own.panel_bytes &&
         w->packed_bytes == own.packed_bytes && w->multiplier_bytes == own.multiplier_bytes &&
         w->factor_count == own.factor_count;
}

// What is done to the rows of a product last: times a gain for each output, plus rows of their own;
// each may be NULL.
struct Joined {
  const float *gain, *added;
  int64_t added_stride;
};

// cod_carrier_conv with that.
int32_t carrier_conv(const cod_carrier &x, const cod_geometry &g, const cod_carrier_weight &w,
                     const cod_output &y, const Joined &joined, int32_t threads);

// cod_carrier_depthwise of so many output rows from `first` on, which y holds alone.
int32_t carrier_depthwise(const cod_carrier *x, const cod_geometry *geometry, int64_t channels,
                          const int8_t *weight, int64_t weight_count, const float *factor,
                          int64_t factor_count, const cod_output *y, int64_t first, int64_t rows,
                          int32_t threads);

}  // namespace cod
