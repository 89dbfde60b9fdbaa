// Float products row by row: weights in panels, rows through pointers. Sums run over k ascending,
// lanes over columns, so that neither threads nor the width of vectors change a bit.
#pragma once
#include <algorithm>
#include <cstring>
#include <vector>

#include "aligned.h"
#include "geometry.h"
#include "kernels.h"

namespace cod {

// K x N weights as panels [K][columns]: whole ones, then one of as many vectors as are left over.
struct Panels {
  int64_t depth, outputs, columns, whole;
  int left_vectors;
  Panels(int64_t k, int64_t n) : depth(k), outputs(n) {
    const auto &f = kernels().floats;
    columns = (int64_t)f.width * f.vectors;
    whole = n / columns;
    left_vectors = (int)((n % columns + f.width - 1) / f.width);
  }
  int64_t count() const { return whole + (left_vectors ? 1 : 0); }
  int vectors(int64_t panel) const {
    return panel < whole ? kernels().floats.vectors : left_vectors;
  }
  int64_t begin(int64_t panel) const { return panel * depth * columns; }  // in floats
  int64_t floats() const {
    return depth * (whole * columns + (int64_t)left_vectors * kernels().floats.width);
  }

  void pack(const float *w, int64_t k_stride, int64_t n_stride, float *to) const {
    for (int64_t p = 0; p < count(); p++) {
      const int64_t wide = (int64_t)vectors(p) * kernels().floats.width;
      const int64_t n = std::min(wide, outputs - p * columns);
      const float *from = w + p * columns * n_stride;
      float *own = to + begin(p);
      if (n < wide) std::fill_n(own, depth * wide, 0.0f);
      if (n_stride == 1)
        for (int64_t k = 0; k < depth; k++)
          std::memcpy(own + k * wide, from + k * k_stride, (size_t)n * sizeof(float));
      else if (k_stride == 1)
        kernels().turn(from, n, n_stride, depth, own, wide);
      else
        for (int64_t k = 0; k < depth; k++)
          for (int64_t j = 0; j < n; j++) own[k * wide + j] = from[k * k_stride + j * n_stride];
    }
  }

  // Back to [depth, outputs] without gaps.
  void unpack(const float *from, float *w) const {
    for (int64_t p = 0; p < count(); p++) {
      const int64_t wide = (int64_t)vectors(p) * kernels().floats.width;
      const int64_t n = std::min(wide, outputs - p * columns);
      for (int64_t k = 0; k < depth; k++)
        std::memcpy(w + k * outputs + p * columns, from + begin(p) + k * wide,
                    (size_t)n * sizeof(float));
    }
  }
};

// Rows [0, rows) of a block: x[(tile * taps + t) * tile rows + r].
struct RowBlock {
  const float *const *x;
  int64_t rows, taps, depth;  // depth: of a tap
};

struct RowResult {
  float *y;
  int64_t stride;
  const float *bias, *residual;  // or NULL
  int64_t residual_stride;
  int activation;  // a UnaryOp; kCopyOp: none
};

inline void finish(const RowResult &out, float *y, int64_t row, int64_t column, int64_t n) {
  const auto &f = kernels().floats;
  if (out.activation != kCopyOp) f.unary(out.activation, 0.0f, 0.0f, y, n, y);
  if (out.residual)
    f.binary(kAdd, y, 1, out.residual + row * out.residual_stride + column, 1, n, y);
}

// Panels [first, last) of a block.
inline void multiply(const RowBlock &in, const Panels &panels, const float *packed, int64_t first,
                     int64_t last, const RowResult &out) {
  const auto &f = kernels().floats;
  for (int64_t p = first; p < last; p++) {
    const int64_t column = p * panels.columns;
    FloatTile tile{};
    tile.w = packed + panels.begin(p);
    tile.taps = in.taps, tile.depth = in.depth;
    tile.vectors = panels.vectors(p);
    tile.columns = (int)std::min(panels.columns, panels.outputs - column);
    tile.stride = out.stride;
    tile.bias = out.bias ? out.bias + column : nullptr;
    for (int64_t row = 0; row < in.rows; row += f.rows) {
      tile.x = in.x + row * in.taps;
      tile.rows = (int)std::min<int64_t>(f.rows, in.rows - row);
      tile.y = out.y + row * out.stride + column;
      f.tile(tile);
      if (out.activation != kCopyOp || out.residual)
        for (int r = 0; r < tile.rows; r++)
          finish(out, tile.y + r * out.stride, row + r, column, tile.columns);
    }
  }
}

constexpr int64_t kMostSide = 1 << 22;  // of a matrix: products of sides cannot overflow
constexpr int64_t kFloatBlock = 48;     // rows: whole tiles of every set

// Pointers to n rows at a distance, padded to whole tiles with the first one.
inline void point(const float *x, int64_t stride, int64_t n, const float **to) {
  const int64_t rows = kernels().floats.rows;
  for (int64_t i = 0; i < (n + rows - 1) / rows * rows; i++) to[i] = x + (i < n ? i : 0) * stride;
}

}  // namespace cod
