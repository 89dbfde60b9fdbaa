// Lengths of buffers against what a call reads and writes. Sizes may be any numbers: nothing
// overflows.
#pragma once
#include <initializer_list>

#include "codtdq_native.h"

namespace cod {

// One axis of a view: how many steps, and how far apart.
struct Axis {
  int64_t size, stride;
};

// Elements from the first to the last that these axes reach; 0 if there is none, -1 if they reach
// backwards or too far to count.
template <int N>
int64_t reach(const Axis (&axes)[N]) {
  int64_t last = 0;
  for (const Axis &axis : axes)
    if (axis.size == 0) return 0;
  for (const Axis &axis : axes) {
    int64_t far;
    if (axis.size < 0 || (axis.size > 1 && axis.stride < 0)) return -1;
    if (axis.size == 1) continue;
    if (__builtin_mul_overflow(axis.size - 1, axis.stride, &far) ||
        __builtin_add_overflow(last, far, &last))
      return -1;
  }
  return last == INT64_MAX ? -1 : last + 1;
}

template <int N>
bool holds(int64_t count, const Axis (&axes)[N]) {
  const int64_t needed = reach(axes);
  return needed >= 0 && needed <= count;
}

// The product of sizes, or -1 where it does not fit.
template <typename... Sizes>
int64_t product(Sizes... sizes) {
  int64_t all = 1;
  bool bad = false;
  for (const int64_t size : {(int64_t)sizes...})
    bad |= size < 0 || __builtin_mul_overflow(all, size, &all);
  return bad ? -1 : all;
}

// Whether so many sizes lie in a buffer.
template <typename... Sizes>
bool fills(int64_t count, Sizes... sizes) {
  const int64_t needed = product(sizes...);
  return needed >= 0 && needed <= count;
}

constexpr int64_t kMostRepeats = 1 << 20;  // of an axis without a stride: no memory bounds it

inline bool holds(const cod_rows &x) {
  return x.rows >= 0 && x.channels >= 1 && (x.data || x.rows == 0) &&
         (x.row_stride || x.rows <= kMostRepeats) &&
         (x.channel_stride || x.channels <= kMostRepeats) &&
         holds(x.count, {{x.rows, x.row_stride}, {x.channels, x.channel_stride}});
}

inline int64_t parts(int64_t whole, int64_t each) { return whole / each + (whole % each != 0); }

// Bytes and units of so many rows of carriers; `width` bytes of each are read or written.
template <typename Carriers>
bool holds(const Carriers &c, int64_t rows, int64_t width) {
  if (rows == 0) return true;
  if (!c.data || !c.unit || c.unit_rows < 1 || c.stride < width || c.unit_stride < 0) return false;
  return holds(c.bytes, {{rows, c.stride}, {width, 1}}) &&
         fills(c.unit_count, parts(rows, c.unit_rows), c.unit_stride ? c.unit_stride : 1);
}

inline bool holds(const cod_output &y, int64_t rows, int64_t columns, int64_t biases) {
  return (y.data || rows == 0) && y.activation >= COD_ACT_NONE &&
         y.activation <= COD_ACT_GATED_GELU && (rows < 2 || y.row_stride >= columns) &&
         holds(y.count, {{rows, y.row_stride}, {columns, 1}}) &&
         (!y.bias || y.bias_count >= biases);
}

// Vectors of a transform: as many values as channels, and indices of them.
inline bool holds(const cod_transform &t, int64_t channels) {
  if (!t.shift && !t.scale && !t.order) return true;
  if (t.count < channels || (t.scale && !t.inverse)) return false;
  for (int64_t i = 0; t.order && i < channels; i++)
    if (t.order[i] < 0 || t.order[i] >= channels) return false;
  return true;
}

}  // namespace cod
