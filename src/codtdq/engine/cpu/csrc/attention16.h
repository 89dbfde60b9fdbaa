// Attention of one head with products of 16-bit integers, twice as fast as those of floats. Queries
// and keys are rounded to whole multiples of a unit of their row (13 bits and a sign for 32
// channels, 11 for 256), exponentials to 14 bits, values to 11 bits and a sign of a unit of their
// column; integer sums are exact, so that every instruction set gives the same bits. Pairs that one
// instruction adds up: channels c and c + half; keys j and j + 16 of 32, or half of the rest apart.
#pragma once
#include "lanes.h"

namespace cod {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr int kProbabilityBits = 14;
constexpr float kValueReach = 2047.0f;  // 64 products with 2^14 stay below 2^31
constexpr int64_t kMixedPairs = 32;     // pairs of keys that one 32-bit sum takes
// 2^f = 1 + f P(f) on |f| <= 1 / 2. Least squares, reweighted until the error was level at 2.8e-6.
constexpr float kPowerP[] = {6.931241401e-01f, 2.402410216e-01f, 5.590689932e-02f,
                             9.582807588e-03f};

template <class Isa>
struct Attention16 {
  using Floats = typename Isa::Floats;
  using Ints = typename Isa::Ints;
  static constexpr int W = Isa::kWidth, V = Isa::kPairVectors;
  static constexpr int kRows = 6, kMixed = 2;  // of a tile: rows; vectors of values
  static constexpr int kLanes = 16;            // in which sums of exponentials add up
  static constexpr int64_t kNear = 5 * 1024;   // scores that stay near
  static constexpr int64_t kMostRows = 48;

  COD_INLINE int64_t whole(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
  COD_INLINE int64_t rows_of(int64_t keys) {
    const int64_t rows = kNear / keys / kRows * kRows;
    return rows < kRows ? kRows : rows > kMostRows ? kMostRows : rows;
  }

  // Where things lie in the scratch memory, in words of four bytes.
  struct Room {
    int64_t depth, columns, pairs, width, rows;  // of a packed key; a row of scores; ...
    int64_t keys, key_units, values, value_units, scores, shares, queries, total;
    explicit Room(const AttentionUnit &in)
        : depth((in.depth + 1) / 2),
          columns(whole(in.keys, 32)),
          pairs((in.keys + 1) / 2),
          width(whole(in.width, kMixed * W)),
          rows(rows_of(in.keys)) {
      keys = 0;
      key_units = keys + columns * depth;
      values = key_units + columns;
      value_units = values + pairs * width;
      scores = value_units + width;
      shares = scores + rows * columns;
      queries = shares + rows * whole(pairs, 16);
      total = queries + kMostRows * depth;
    }
  };
  static int64_t memory(const AttentionUnit &in) { return Room(in).total; }

  // ---- whole numbers

  // The largest multiples for which sums of `depth` products stay in 32 bits.
  static float reach_of(int64_t depth) {
    int reach = 8191;
    while ((int64_t)reach * reach * depth > 0x7fffffff) reach--;
    return (float)reach;
  }

  COD_INLINE Ints larger(Ints x, Ints y) { return Isa::unsigned_max(x, y); }
  COD_INLINE Floats larger_float(Floats x, Floats y) {  // of magnitudes
    return Isa::as_floats(larger(Isa::as_ints(x), Isa::as_ints(y)));
  }
  // Units for the largest magnitudes, and their inverses: NaN and 0 if one is not finite; 0 and 0
  // under zeros.
  COD_INLINE void units_of(Floats most, float reach, Floats &unit, Floats &inverse) {
    const Ints finite = Isa::as_ints(most) < kInf;
    unit = Isa::choose(finite, most * (1.0f / reach), Isa::all(__builtin_nanf("")));
    // smaller units have no inverse: what is so small becomes zero
    inverse = Isa::choose(finite & (Ints)(unit > 1e-36f), 1.0f / unit, Floats{});
  }
  // kMagic is added: the low half of the bits is the whole number.
  COD_INLINE Ints coded(Floats x, Floats inverse) {
    // a NaN times 0 stays one: codes of what is not finite have no meaning, but those of the sets
    // agree
    const Floats product = x * inverse;
    return Isa::as_ints(Isa::choose(product == product, product, Floats{}) + kMagic);
  }
  COD_INLINE Ints paired(Ints low, Ints high) { return (low & 0xffff) | high << 16; }

  COD_INLINE Floats some(const float *x, int64_t n) {
    return n >= W ? Isa::load(x) : n > 0 ? Isa::load_some(x, n) : Floats{};
  }
  COD_INLINE Ints largest_of(const float *x, int64_t n) {
    Ints most{};
    for (int64_t c = 0; c < n; c += W) most = larger(most, Isa::magnitude(some(x + c, n - c)));
    return most;
  }
  COD_INLINE void put(Ints v, int32_t *to, int64_t n) {
    if (n >= W)
      Isa::store(v, to);
    else if (n > 0)
      Isa::store_some(Isa::as_floats(v), reinterpret_cast<float *>(to), n);
  }

  // ---- packing

  // W keys from j on: [depth][W] pairs of channels. Those behind the last one are copies of it.
  static __attribute__((noinline)) void pack_keys(const AttentionUnit &in, int64_t j, float reach,
                                                  const Room &room, int32_t *to, float *units) {
    const float *rows[W], *far[W];
    alignas(64) Floats each[W];
    for (int l = 0; l < W; l++) {
      rows[l] = in.k[j + l < in.keys ? j + l : in.keys - 1];
      far[l] = rows[l] + room.depth;
      each[l] = Isa::as_floats(largest_of(rows[l], in.depth));
    }
    Floats unit, inverse;
    units_of(Isa::across(each, larger_float), reach, unit, inverse);
    Isa::store(unit, units + j);
    int64_t c = 0;
    for (; c + 4 <= in.depth - room.depth; c += 4) {
      Floats low[4], high[4];
      Isa::transpose4(rows, (int)c, low);
      Isa::transpose4(far, (int)c, high);
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++)
        Isa::store(paired(coded(low[i], inverse), coded(high[i], inverse)), to + (c + i) * W);
    }
    for (; c < room.depth; c++) {
      Floats low{}, high{};
      for (int l = 0; l < W; l++) {
        low[l] = rows[l][c];
        if (c + room.depth < in.depth) high[l] = far[l][c];
      }
      Isa::store(paired(coded(low, inverse), coded(high, inverse)), to + c * W);
    }
  }

  // Keys of pair i.
  COD_INLINE int64_t first_of(int64_t i, int64_t) { return i / 16 * 32 + i % 16; }
  COD_INLINE int64_t second_of(int64_t i, int64_t keys) {
    const int64_t left = keys - i / 16 * 32;
    return first_of(i, keys) + (left >= 32 ? 16 : (left + 1) / 2);
  }

  static __attribute__((noinline)) void pack_values(const AttentionUnit &in, const Room &room,
                                                    int32_t *to, float *units) {
    for (int64_t c = 0; c < room.width; c += W) {
      const int64_t left = in.width - c;
      Ints most{};
      for (int64_t j = 0; j < in.keys; j++)
        most = larger(most, Isa::magnitude(some(in.v[j] + c, left)));
      Floats unit, inverse;
      units_of(Isa::as_floats(most), kValueReach, unit, inverse);
      Isa::store(unit, units + c);
      for (int64_t i = 0; i < room.pairs; i++) {
        const int64_t second = second_of(i, in.keys);
        const Floats low = some(in.v[first_of(i, in.keys)] + c, left);
        const Floats high = second < in.keys ? some(in.v[second] + c, left) : Floats{};
        Isa::store(paired(coded(low, inverse), coded(high, inverse)), to + i * room.width + c);
      }
    }
  }

  // Queries from r to r + W - 1 of a block of `rows`: pairs of channels, and units with the scale.
  static __attribute__((noinline)) void pack_queries(const AttentionUnit &in, int64_t first,
                                                     int64_t r, int64_t rows, float reach,
                                                     int32_t *to, float *units) {
    alignas(64) Floats each[W];
    const float *q[W];
    for (int l = 0; l < W; l++) {
      q[l] = in.q[first + (r + l < rows ? r + l : rows - 1)];
      each[l] = Isa::as_floats(largest_of(q[l], in.depth));
    }
    Floats unit, inverse;
    units_of(Isa::across(each, larger_float), reach, unit, inverse);
    Isa::store(unit * in.scale, units + r);
    const int64_t half = (in.depth + 1) / 2;
    for (int l = 0; l < W; l++) {
      const Floats own = Isa::all(inverse[l]);
      for (int64_t c = 0; c < half; c += W) {
        const Floats low = some(q[l] + c, half - c);
        const Floats high = some(q[l] + half + c, in.depth - half - c);
        put(paired(coded(low, own), coded(high, own)), to + (r + l) * half + c, half - c);
      }
    }
  }

  // ---- scores

  struct Scored {
    const AttentionUnit &in;
    const Room &room;
    const int32_t *keys, *queries;
    const float *key_units;
    float unit[kMostRows];                // of queries, the scale in it
    alignas(64) float top[kMostRows][W];  // largest scores, lane by lane
    float *scores;
    int64_t first, rows;  // queries of this block
  };

  // Queries r to r + 5 with N vectors of keys from j on.
  template <int N>
  static __attribute__((noinline)) void score(Scored &s, int64_t r, int64_t j) {
    const int64_t depth = s.room.depth;
    const int32_t *q = s.queries + r * depth, *k = s.keys + j * depth;
    // tables come from far away: asked for before the products
    for (int t = 0; t < 2; t++)
      for (int i = 0; i < kRows && s.in.bias[t]; i++)
        for (int64_t c = 0; c < N * W; c += 16)
          __builtin_prefetch(s.in.bias[t] + (s.first + r + i) * s.in.bias_stride[t] + j + c);
    Ints d[kRows][N];
#pragma GCC unroll 6
    for (int i = 0; i < kRows; i++)
#pragma GCC unroll 3
      for (int v = 0; v < N; v++) d[i][v] = Ints{};
    for (int64_t c = 0; c < depth; c++) {
      Ints key[N];
#pragma GCC unroll 3
      for (int v = 0; v < N; v++) __builtin_memcpy(&key[v], k + (v * depth + c) * W, sizeof key[v]);
#pragma GCC unroll 6
      for (int i = 0; i < kRows; i++) {
        const Ints one = Isa::all_ints(q[i * depth + c]);
#pragma GCC unroll 3
        for (int v = 0; v < N; v++) d[i][v] = Isa::pairs(d[i][v], key[v], one);
      }
    }
    Floats unit[N];
#pragma GCC unroll 3
    for (int v = 0; v < N; v++) unit[v] = Isa::load(s.key_units + j + v * W);
#pragma GCC unroll 6
    for (int i = 0; i < kRows; i++) {
      if (r + i >= s.rows) break;
      const Floats own = Isa::all(s.unit[r + i]);
      Floats top = Isa::load(s.top[r + i]);
      float *to = s.scores + (r + i) * s.room.columns + j;
#pragma GCC unroll 3
      for (int v = 0; v < N; v++) {
        const int64_t at = j + v * W, left = s.in.keys - at;
        Floats x = Isa::converted(d[i][v]) * unit[v];
        if (s.in.bias[0])
          x = fused<Isa>(x, own,
                         some(s.in.bias[0] + (s.first + r + i) * s.in.bias_stride[0] + at, left));
        else
          x = x * own;
        if (s.in.bias[1])
          x = x + some(s.in.bias[1] + (s.first + r + i) * s.in.bias_stride[1] + at, left);
        if (left < W)
          for (int64_t l = left > 0 ? left : 0; l < W; l++) x[l] = -__builtin_inff();
        top = Isa::max(x, top);
        Isa::store(x, to + v * W);
      }
      Isa::store(top, s.top[r + i]);
    }
  }

  static void score_all(Scored &s) {
    const int64_t vectors = (s.in.keys + W - 1) / W;
    for (int64_t at = 0; at < vectors; at += V)
      for (int64_t r = 0; r < s.rows; r += kRows) {
        const int64_t left = vectors - at;
        if (left >= V)
          score<V>(s, r, at * W);
        else if (left == 1)
          score<1>(s, r, at * W);
        else
          score<2>(s, r, at * W);
      }
    for (int64_t r = 0; r < s.rows; r++)
      for (int64_t j = vectors * W; j < s.room.columns; j++)
        s.scores[r * s.room.columns + j] = -__builtin_inff();
  }

  // ---- softmax

  // 2^14 exp(x - top), kMagic added: whole numbers in the low bits.
  COD_INLINE Floats weight(Floats x, Floats top) {
    const Floats magic = Isa::all(kMagic);
    const Floats t = Isa::max(Isa::all(-100.0f), fused<Isa>(x, Isa::all(kLog2E), top));
    const Floats shifted = t + magic, f = t - (shifted - magic);
    Floats p = Isa::all(kPowerP[3]);
    p = fused<Isa>(p, f, Isa::all(kPowerP[2]));
    p = fused<Isa>(p, f, Isa::all(kPowerP[1]));
    p = fused<Isa>(p, f, Isa::all(kPowerP[0]));
    p = fused<Isa>(p, f, Isa::all(1.0f));
    const Ints power = (Isa::as_ints(shifted) << 23) + ((127 + kProbabilityBits) << 23);
    return fused<Isa>(p, Isa::as_floats(power), magic);
  }

  // Pairs of weights of a row of scores; returns 1 / their sum. A NaN makes that NaN.
  static __attribute__((noinline)) float soften(const float *x, int64_t keys, const float *tops,
                                                int32_t *pairs) {
    constexpr int N = kLanes / W;
    Floats most[N];
    for (int i = 0; i < N; i++) most[i] = Isa::load(tops);
    const Floats largest =
        over_16_lanes<Isa>(most, [](Floats a, Floats b) { return Isa::max(a, b); });
    const Floats top = largest * -kLog2E, magic = Isa::all(kMagic);
    Floats sum[N];
#pragma GCC unroll 4
    for (int i = 0; i < N; i++) sum[i] = Floats{};
    int64_t j = 0;
    for (; j + 32 <= keys; j += 32, pairs += 16)
#pragma GCC unroll 4
      for (int i = 0; i < N; i++) {
        const Floats low = weight(Isa::load(x + j + i * W), top);
        const Floats high = weight(Isa::load(x + j + 16 + i * W), top);
        sum[i] = sum[i] + (low - magic) + (high - magic);
        Isa::store(paired(Isa::as_ints(low), Isa::as_ints(high)), pairs + i * W);
      }
    if (j < keys) {
      alignas(64) int32_t rest[32];
      for (int i = 0; i < 2 * N; i++) {
        const Floats some = weight(Isa::load(x + j + i * W), top);
        sum[i % N] = sum[i % N] + (some - magic);
        Isa::store(Isa::as_ints(some), rest + i * W);
      }
      const int64_t left = keys - j, half = (left + 1) / 2;
      for (int64_t i = 0; i < half; i++)
        pairs[i] =
            (rest[i] & 0xffff) | (i + half < left ? (int32_t)((uint32_t)rest[i + half] << 16) : 0);
    }
    return 1.0f / over_16_lanes<Isa>(sum, [](Floats a, Floats b) { return a + b; })[0];
  }

  // ---- mix

  static __attribute__((noinline)) void mix(const int32_t *p, int64_t stride, const int32_t *values,
                                            int64_t width, int64_t pairs,
                                            Floats (&y)[kRows][kMixed]) {
#pragma GCC unroll 6
    for (int r = 0; r < kRows; r++) y[r][0] = y[r][1] = Floats{};
    for (int64_t begin = 0; begin < pairs; begin += kMixedPairs) {
      const int64_t end = begin + kMixedPairs < pairs ? begin + kMixedPairs : pairs;
      Ints d[kRows][kMixed];
#pragma GCC unroll 6
      for (int r = 0; r < kRows; r++) d[r][0] = d[r][1] = Ints{};
      for (int64_t i = begin; i < end; i++) {
        Ints v[kMixed];
        __builtin_memcpy(v, values + i * width, sizeof v);
#pragma GCC unroll 6
        for (int r = 0; r < kRows; r++) {
          const Ints one = Isa::all_ints(p[r * stride + i]);
          d[r][0] = Isa::pairs(d[r][0], v[0], one);
          d[r][1] = Isa::pairs(d[r][1], v[1], one);
        }
      }
#pragma GCC unroll 6
      for (int r = 0; r < kRows; r++) {
        y[r][0] = y[r][0] + Isa::converted(d[r][0]);
        y[r][1] = y[r][1] + Isa::converted(d[r][1]);
      }
    }
  }

  static void run(const AttentionUnit &in, float *memory) {
    const Room room(in);
    auto *words = reinterpret_cast<int32_t *>(memory);
    const float reach = reach_of(in.depth);
    for (int64_t j = 0; j < in.keys; j += W)
      pack_keys(in, j, reach, room, words + room.keys + j * room.depth, memory + room.key_units);
    int32_t *values = words + room.values, *shares = words + room.shares;
    pack_values(in, room, values, memory + room.value_units);
    Scored s{in,
             room,
             words + room.keys,
             words + room.queries,
             memory + room.key_units,
             {},
             {},
             memory + room.scores,
             0,
             0};
    const int64_t stride = whole(room.pairs, 16);
    float inverse[kMostRows];
    for (s.first = 0; s.first < in.queries; s.first += room.rows) {
      s.rows = in.queries - s.first < room.rows ? in.queries - s.first : room.rows;
      for (int64_t r = 0; r < whole(s.rows, kRows); r += W)
        pack_queries(in, s.first, r, s.rows, reach, words + room.queries, s.unit);
      for (int64_t r = 0; r < s.rows; r++) Isa::store(Isa::all(-__builtin_inff()), s.top[r]);
      score_all(s);
      for (int64_t r = 0; r < s.rows; r++)
        inverse[r] = soften(s.scores + r * room.columns, in.keys, s.top[r], shares + r * stride);
      for (int64_t r = 0; r < s.rows; r += kRows)
        for (int64_t c = 0; c < in.width; c += kMixed * W) {
          Floats y[kRows][kMixed];
          mix(shares + r * stride, stride, values + c, room.width, room.pairs, y);
#pragma GCC unroll 6
          for (int i = 0; i < kRows; i++) {
            if (r + i >= s.rows) break;
            const Floats one = Isa::all(inverse[r + i]);
            float *to = in.y[s.first + r + i] + c;
            for (int v = 0; v < kMixed; v++) {
              const int64_t left = in.width - c - v * W;
              const Floats unit = Isa::load(memory + room.value_units + c + v * W);
              put(Isa::as_ints(y[i][v] * (unit * one)), reinterpret_cast<int32_t *>(to) + v * W,
                  left);
            }
          }
        }
    }
  }
};

}  // namespace
}  // namespace cod
