// Nested loops over strided views of one shape: axes of length 1 vanish, axes that lie side by
// side in all views become one, and the view that is written runs innermost.
#pragma once
#include <algorithm>

#include "program.h"

namespace cod {

constexpr int kMostViews = 6;

struct Loops : Prepared {
  int axes = 0, views = 0;
  int64_t shape[COD_MAX_AXES];
  int64_t stride[kMostViews][COD_MAX_AXES];
  int64_t inner = 1, outer = 1;  // elements of the last axis; of all others

  // False if shapes differ; the first view is the one that is written. rows: the last axis is not
  // walked over, a body is given whole rows.
  bool set(const Operand *const *all, int count, bool rows = false) {
    views = count;
    for (int i = 1; i < count; i++)
      if (!same_shape(*all[0], *all[i])) return false;
    int order[COD_MAX_AXES];
    for (int d = 0; d < all[0]->ndim - (rows ? 1 : 0); d++)
      if (all[0]->shape[d] > 1) order[axes++] = d;
    std::stable_sort(order, order + axes,
                     [&](int a, int b) { return all[0]->stride[a] > all[0]->stride[b]; });
    int kept = 0;
    for (int at = 0; at < axes; at++) {
      const int d = order[at];
      bool joins = kept > 0;
      for (int i = 0; i < count && joins; i++)
        joins = stride[i][kept - 1] == all[i]->stride[d] * all[0]->shape[d];
      if (!joins) shape[kept++] = 1;
      shape[kept - 1] *= all[0]->shape[d];
      for (int i = 0; i < count; i++) stride[i][kept - 1] = all[i]->stride[d];
    }
    axes = kept;
    if (axes == 0 || rows) {
      shape[axes++] = 1;
      for (int i = 0; i < count; i++) stride[i][axes - 1] = 1;
    }
    inner = shape[axes - 1];
    for (int d = 0; d + 1 < axes; d++) outer *= shape[d];
    return true;
  }

  int64_t step(int view) const { return stride[view][axes - 1]; }

  // Calls body(offsets of the views) for the outer elements [begin, end).
  template <typename F>
  void each(int64_t begin, int64_t end, const F &body) const {
    int64_t index[COD_MAX_AXES] = {}, at[kMostViews] = {};
    int64_t left = begin;
    for (int d = axes - 2; d >= 0; d--) {
      index[d] = left % shape[d];
      left /= shape[d];
      for (int i = 0; i < views; i++) at[i] += index[d] * stride[i][d];
    }
    for (int64_t n = begin; n < end; n++) {
      body(at);
      for (int d = axes - 2; d >= 0; d--) {
        for (int i = 0; i < views; i++) at[i] += stride[i][d];
        if (++index[d] < shape[d]) break;
        for (int i = 0; i < views; i++) at[i] -= shape[d] * stride[i][d];
        index[d] = 0;
      }
    }
  }

  // Outer elements that one thread takes at once: enough to be worth it.
  int64_t grain() const { return std::max<int64_t>((1 << 15) / inner, 1); }
};

}  // namespace cod
