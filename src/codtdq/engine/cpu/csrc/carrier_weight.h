// Weights of products of carriers, as they are packed.
#pragma once
#include <cstdint>

#include "kernels.h"

namespace cod {

inline int64_t runs_of(const cod_carrier_weight &w) { return w.depth / w.run; }

// Aligned loads read the panels.
inline bool usable(const cod_carrier_weight *w) {
  return w && w->packed && w->factor && (uintptr_t)w->packed % 64 == 0 &&
         (uintptr_t)w->factor % 64 == 0 && (w->multiplier || !w->multiplier_bytes) &&
         w->columns == kernels().carrier_columns;
}

}  // namespace cod
