// What the convolutions share.
#pragma once
#include "codtdq_native.h"

namespace cod {

constexpr int64_t kWorthSharing = 1 << 20;  // products; waking another thread takes about as long

inline bool fits(const cod_geometry *g) {
  return g && g->batch >= 0 && g->in_h >= 0 && g->in_w >= 0 && g->out_h >= 0 && g->out_w >= 0 &&
         g->kernel_h > 0 && g->kernel_w > 0 && g->stride_h > 0 && g->stride_w > 0 &&
         g->dilation_h > 0 && g->dilation_w > 0 && g->pad_h >= 0 && g->pad_w >= 0;
}

}  // namespace cod
