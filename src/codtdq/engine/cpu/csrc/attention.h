// Attention of one head over one set of tokens, in cache: scores of a few queries with all keys,
// softmax, mix of values. Every sum has one order, whatever the width of vectors: products add up
// with fused multiplications in the order of channels or keys, exponentials in 16 lanes.
#pragma once
#include "floats.h"

namespace cod {
namespace {

template <class Isa>
struct Attention {
  using Floats = typename Isa::Floats;
  static constexpr int W = Isa::kWidth, V = 2;
  static constexpr int kRows = 6, kColumns = V * W;  // of a tile
  static constexpr int kLanes = 16;                  // in which sums of exponentials add up
  static constexpr int64_t kNear = 8 * 1024;         // floats of scores that stay near
  static constexpr int64_t kMostRows = 48;

  COD_INLINE int64_t whole(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
  static int64_t rows_of(int64_t keys) {
    const int64_t rows = kNear / whole(keys, kLanes) / kRows * kRows;
    return rows < kRows ? kRows : rows > kMostRows ? kMostRows : rows;
  }

  // Where things lie in the scratch memory, in floats.
  struct Room {
    int64_t keys, values, scores, queries, total;  // total: of all
    int64_t columns, width, rows;                  // scores and values of a row; queries of a block
    explicit Room(const AttentionUnit &in)
        : columns(whole(in.keys, kLanes > kColumns ? kLanes : kColumns)),
          width(whole(in.width, kColumns)),
          rows(rows_of(in.keys)) {
      keys = 0;
      values = keys + columns * in.depth;
      scores = values + in.keys * width;
      queries = scores + rows * columns;
      total = queries + rows * whole(in.depth, 16);
    }
  };
  static int64_t memory(const AttentionUnit &in) { return Room(in).total; }

  // Panels of keys, [depth][kColumns] each; those behind the last one are copies of it.
  static void pack_keys(const AttentionUnit &in, float *to) {
    for (int64_t j = 0; j < in.keys; j += kColumns)
      for (int v = 0; v < V; v++) {
        const float *rows[W];
        for (int l = 0; l < W; l++) {
          const int64_t key = j + v * W + l;
          rows[l] = in.k[key < in.keys ? key : in.keys - 1];
        }
        float *panel = to + j * in.depth + v * W;
        int64_t c = 0;
        for (; c + 4 <= in.depth; c += 4) {
          Floats four[4];
          Isa::transpose4(rows, (int)c, four);
          for (int i = 0; i < 4; i++) Isa::store(four[i], panel + (c + i) * kColumns);
        }
        for (; c < in.depth; c++)
          for (int l = 0; l < W; l++) panel[c * kColumns + l] = rows[l][c];
      }
  }

  static void pack_values(const AttentionUnit &in, int64_t width, float *to) {
    for (int64_t j = 0; j < in.keys; j++, to += width) {
      int64_t c = 0;
      for (; c + W <= in.width; c += W) Isa::store(Isa::load(in.v[j] + c), to + c);
      if (c < in.width) {
        Isa::store(Isa::load_some(in.v[j] + c, in.width - c), to + c);
        c += W;
      }
      for (; c < width; c += W) Isa::store(Floats{}, to + c);
    }
  }

  // Six queries with one panel of keys.
  static void score(const float *q, int64_t stride, const float *panel, int64_t depth,
                    Floats (&d)[kRows][V]) {
#pragma GCC unroll 6
    for (int r = 0; r < kRows; r++) d[r][0] = d[r][1] = Floats{};
    for (int64_t c = 0; c < depth; c++, panel += kColumns) {
      const Floats k0 = Isa::load(panel), k1 = Isa::load(panel + W);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; r++) {
        const Floats one = Isa::all(q[r * stride + c]);
        d[r][0] = fused<Isa>(one, k0, d[r][0]);
        d[r][1] = fused<Isa>(one, k1, d[r][1]);
      }
    }
  }

  COD_INLINE Floats some(const float *x, int64_t n) {
    return n >= W ? Isa::load(x) : n > 0 ? Isa::load_some(x, n) : Floats{};
  }

  // Scores of queries [first, first + rows), rows of `columns`: -infinity behind the last key.
  static void scores_of(const AttentionUnit &in, int64_t first, int64_t rows, const Room &room,
                        const float *keys, const float *queries, float *to) {
    const Floats never = Isa::all(-__builtin_inff());
    for (int64_t j = 0; j < in.keys; j += kColumns)
      for (int64_t r = 0; r < rows; r += kRows) {
        Floats d[kRows][V];
        score(queries + r * in.depth, in.depth, keys + j * in.depth, in.depth, d);
        const int64_t left = in.keys - j;
#pragma GCC unroll 6
        for (int i = 0; i < kRows; i++) {
          if (r + i >= rows) break;
          float *out = to + (r + i) * room.columns + j;
#pragma GCC unroll 2
          for (int v = 0; v < V; v++) {
            Floats s = d[i][v];
            for (int t = 0; t < 2; t++)
              if (in.bias[t])
                s = s + some(in.bias[t] + (first + r + i) * in.bias_stride[t] + j + v * W,
                             left - v * W);
            Isa::store(s, out + v * W);
          }
          if (left < kColumns)
            for (int64_t l = left; l < kColumns; l++) out[l] = never[0];
        }
      }
    const int64_t done = whole(in.keys, kColumns);
    for (int64_t r = 0; r < rows; r++)
      for (int64_t j = done; j < room.columns; j++) to[r * room.columns + j] = never[0];
  }

  // x[0..columns) becomes exp(x - largest); returns 1 / their sum. A NaN makes all of it NaN.
  static float soften(float *x, int64_t columns) {
    constexpr int N = kLanes / W;
    Floats most[N], sum[N];
#pragma GCC unroll 4
    for (int i = 0; i < N; i++) most[i] = Isa::all(-__builtin_inff()), sum[i] = Floats{};
    for (int64_t j = 0; j < columns; j += kLanes)
#pragma GCC unroll 4
      for (int i = 0; i < N; i++) most[i] = Isa::max(Isa::load(x + j + i * W), most[i]);
    const Floats top = over_16_lanes<Isa>(most, [](Floats a, Floats b) { return Isa::max(a, b); });
    for (int64_t j = 0; j < columns; j += kLanes)
#pragma GCC unroll 4
      for (int i = 0; i < N; i++) {
        const Floats e = FloatLoops<Isa>::exponential(Isa::load(x + j + i * W) - top);
        Isa::store(e, x + j + i * W);
        sum[i] = sum[i] + e;
      }
    return 1.0f / over_16_lanes<Isa>(sum, [](Floats a, Floats b) { return a + b; })[0];
  }

  // Six rows of exponentials times V vectors of all values.
  static void mix(const float *p, int64_t columns, const float *values, int64_t width, int64_t keys,
                  Floats (&d)[kRows][V]) {
#pragma GCC unroll 6
    for (int r = 0; r < kRows; r++) d[r][0] = d[r][1] = Floats{};
    for (int64_t j = 0; j < keys; j++, values += width) {
      const Floats v0 = Isa::load(values), v1 = Isa::load(values + W);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; r++) {
        const Floats one = Isa::all(p[r * columns + j]);
        d[r][0] = fused<Isa>(one, v0, d[r][0]);
        d[r][1] = fused<Isa>(one, v1, d[r][1]);
      }
    }
  }

  static void run(const AttentionUnit &in, float *memory) {
    const Room room(in);
    float *keys = memory + room.keys, *values = memory + room.values;
    float *scores = memory + room.scores, *queries = memory + room.queries;
    pack_keys(in, keys);
    pack_values(in, room.width, values);
    float share[kMostRows];
    for (int64_t first = 0; first < in.queries; first += room.rows) {
      const int64_t rows = in.queries - first < room.rows ? in.queries - first : room.rows;
      for (int64_t r = 0; r < whole(rows, kRows); r++) {
        const float *q = in.q[first + (r < rows ? r : rows - 1)];
        for (int64_t c = 0; c < in.depth; c++) queries[r * in.depth + c] = q[c] * in.scale;
      }
      scores_of(in, first, rows, room, keys, queries, scores);
      for (int64_t r = 0; r < rows; r++) share[r] = soften(scores + r * room.columns, room.columns);
      for (int64_t r = 0; r < rows; r += kRows)
        for (int64_t c = 0; c < in.width; c += kColumns) {
          Floats d[kRows][V];
          mix(scores + r * room.columns, room.columns, values + c, room.width, in.keys, d);
#pragma GCC unroll 6
          for (int i = 0; i < kRows; i++) {
            if (r + i >= rows) break;
            const Floats one = Isa::all(share[r + i]);
            float *y = in.y[first + r + i] + c;
            for (int v = 0; v < V; v++) {
              const int64_t left = in.width - c - v * W;
              if (left >= W)
                Isa::store(d[i][v] * one, y + v * W);
              else if (left > 0)
                Isa::store_some(d[i][v] * one, y + v * W, left);
            }
          }
        }
    }
  }
};

}  // namespace
}  // namespace cod
