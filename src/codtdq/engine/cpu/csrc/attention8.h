// Attention of one head with products of 8-bit integers. Queries, and keys less the mean key (which
// changes no softmax), are rounded to 127 multiples of a unit of their row, values to those of a
// unit of their column. Exponentials get 8 bits in each block of keys, relative to the largest of
// that block: weights that are small beside one far away are kept. Integer sums are exact, so that
// every instruction set gives the same bits. Numbers lie in lanes of 32 bits: four bytes where a
// set multiplies those (Isa::kQuads), else two words of 16 bits. Those of a lane: channels a part
// of all apart; keys 16 apart, neighbours in the rest.
#pragma once
#include "lanes.h"

namespace cod {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr float kReach = 127.0f;
constexpr int kWeightBits = 8;
constexpr float kWeightEnd = -0.00564656f;  // log2(255 / 256): the largest weight is 255
constexpr float kLowest = -1e38f;           // of blocks that are masked: above -infinity
constexpr int64_t kBlockKeys = 192;         // whole tiles of scores, whole groups of lanes
// 2^f = 1 + f P(f) on |f| <= 1 / 2. Least squares, reweighted until the error was level at 1.0e-4:
// a twentieth of what rounding to 8 bits leaves.
constexpr float kPowerP[] = {6.932829004e-01f, 2.422103736e-01f, 5.500858113e-02f};

// A weight where so many of them share a lane.
template <int COUNT>
struct Weight {
  using Type = uint8_t;
};
template <>
struct Weight<2> {
  using Type = uint16_t;
};

template <class Isa>
struct Attention8 {
  using Floats = typename Isa::Floats;
  using Ints = typename Isa::Ints;
  static constexpr int W = Isa::kWidth, V = Isa::kPairVectors;
  static constexpr int G = Isa::kQuads ? 4 : 2;  // numbers of a lane
  static constexpr int kRows = 6, kMixed = 2;    // of a tile: rows; vectors of values, at least
  static constexpr int kLanes = 16;              // in which sums of exponentials add up
  static constexpr int64_t kNear = 9 * 1024;     // scores that stay near
  static constexpr int64_t kMostRows = 48;

  COD_INLINE int64_t whole(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
  COD_INLINE int64_t rows_of(int64_t keys) {
    const int64_t rows = kNear / keys / kRows * kRows;
    return rows < kRows ? kRows : rows > kMostRows ? kMostRows : rows;
  }

  // Where things lie in the scratch memory, in words of four bytes. Scores and weights are those of
  // one block of keys; products with values are kept until it is known what each block weighs.
  struct Room {
    int64_t depth, lanes, blocks, width;  // of a packed key; of values; blocks of keys; ...
    int64_t columns, kept, rows, listed;  // scores of a row, words of weights; rows, in vectors
    int64_t mean, keys, key_units, values, value_units, scores, tops, weights, ends, shares, sums,
        products, queries, total;
    explicit Room(const AttentionUnit &in)
        : depth((in.depth + G - 1) / G),
          lanes(in.keys / (16 * G) * 16 + (in.keys % (16 * G) + G - 1) / G),
          blocks((in.keys + kBlockKeys - 1) / kBlockKeys),
          width(whole(in.width, kMixed * W)),
          columns(whole(blocks > 1 ? kBlockKeys : in.keys, 16 * G)),
          kept(whole(columns / G, 16)),
          rows(rows_of(columns)),
          listed(whole(rows, W)) {
      mean = 0;
      keys = mean + whole(in.depth, 16);
      key_units = keys + whole(in.keys, W) * depth;
      values = key_units + whole(in.keys, W);
      value_units = values + lanes * width;
      scores = value_units + width;
      tops = scores + rows * columns;
      weights = tops + listed * W;
      ends = weights + rows * kept;
      shares = ends + listed;
      sums = shares + listed * blocks;
      products = sums + listed * blocks;
      queries = products + (blocks - 1) * rows * width;
      total = queries + kMostRows * depth;
    }
  };
  static int64_t memory(const AttentionUnit &in) { return Room(in).total; }

  // ---- whole numbers

  COD_INLINE Ints larger(Ints x, Ints y) { return Isa::unsigned_max(x, y); }
  COD_INLINE Floats larger_float(Floats x, Floats y) {  // of magnitudes
    return Isa::as_floats(larger(Isa::as_ints(x), Isa::as_ints(y)));
  }
  // Units for the largest magnitudes, and their inverses: NaN and 0 if one is not finite; 0 and 0
  // under zeros.
  COD_INLINE void units_of(Floats most, Floats &unit, Floats &inverse) {
    const Ints finite = Isa::as_ints(most) < kInf;
    unit = Isa::choose(finite, most * (1.0f / kReach), Isa::all(__builtin_nanf("")));
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
  // The low bits of G numbers in a lane.
  COD_INLINE Ints joined(const Ints (&x)[G]) {
    if constexpr (G == 4)
      return (x[0] & 0xff) | (x[1] & 0xff) << 8 | (x[2] & 0xff) << 16 | x[3] << 24;
    return (x[0] & 0xffff) | x[1] << 16;
  }
  // sum + the products of two lanes; bytes of the first factor have no sign.
  COD_INLINE Ints dot(Ints sum, Ints x, Ints y) {
    if constexpr (G == 4) return Isa::quads(sum, x, y);
    return Isa::pairs(sum, x, y);
  }

  COD_INLINE Floats some(const float *x, int64_t n) {
    return n >= W ? Isa::load(x) : n > 0 ? Isa::load_some(x, n) : Floats{};
  }
  COD_INLINE Ints largest_of(const float *x, const float *mean, int64_t n) {
    Ints most{};
    for (int64_t c = 0; c < n; c += W) {
      Floats v = some(x + c, n - c);
      if (mean) v = v - some(mean + c, n - c);
      most = larger(most, Isa::magnitude(v));
    }
    return most;
  }
  COD_INLINE void put(Ints v, int32_t *to, int64_t n) {
    if (n >= W)
      Isa::store(v, to);
    else if (n > 0)
      Isa::store_some(Isa::as_floats(v), reinterpret_cast<float *>(to), n);
  }

  // ---- packing

  static void find_mean(const AttentionUnit &in, float *mean) {
    const float share = 1.0f / (float)in.keys;
    for (int64_t c = 0; c < in.depth; c += W) {
      Floats sum{};
      for (int64_t j = 0; j < in.keys; j++) sum = sum + some(in.k[j] + c, in.depth - c);
      put(Isa::as_ints(sum * share), reinterpret_cast<int32_t *>(mean) + c, in.depth - c);
    }
  }

  // Four channels of W rows from c on, and zeros beyond the last one.
  COD_INLINE void four(const float *const *rows, int64_t c, int64_t depth, Floats *x) {
    if (c + 4 <= depth) return Isa::transpose4(rows, (int)c, x);
    for (int i = 0; i < 4; i++) x[i] = Floats{};
    if (c >= depth) return;
    if (depth >= 4) {
      Floats last[4];
      Isa::transpose4(rows, (int)depth - 4, last);
      for (int64_t i = c; i < depth; i++) x[i - c] = last[i - (depth - 4)];
      return;
    }
    for (int64_t i = c; i < depth; i++)
      for (int l = 0; l < W; l++) x[i - c][l] = rows[l][i];
  }

  // W rows less their mean, if there is one: units, and lanes of channels, `apart` words from one
  // to the next. Bytes are lifted. Returns what the lift of others adds to products with them.
  template <bool MEAN>
  COD_INLINE Ints pack_rows(const float *const *rows, const float *mean, const Room &room,
                            int64_t depth, int32_t lift, int32_t *to, int64_t apart, Floats &unit) {
    alignas(64) Floats each[W];
    for (int l = 0; l < W; l++) each[l] = Isa::as_floats(largest_of(rows[l], mean, depth));
    Floats inverse;
    units_of(Isa::across(each, larger_float), unit, inverse);
    Ints sum{};
    for (int64_t c = 0; c < room.depth; c += 4) {
      Floats x[G][4];
#pragma GCC unroll 4
      for (int g = 0; g < G; g++) {
        four(rows, c + g * room.depth, depth, x[g]);
      }
      const int64_t left = room.depth - c < 4 ? room.depth - c : 4;
#pragma GCC unroll 4
      for (int64_t i = 0; i < 4; i++) {
        if (i >= left) break;
        Ints codes[G];
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) {
          const int64_t channel = c + i + g * room.depth;
          Floats v = x[g][i];
          if (MEAN && channel < depth) v = v - Isa::all(mean[channel]);
          codes[g] = coded(v, inverse);
        }
        const Ints lanes = joined(codes);
        sum = dot(sum, Isa::all_ints((int32_t)0x80808080), lanes);
        Isa::store(lanes ^ lift, to + (c + i) * apart);
      }
    }
    return sum;
  }

  static constexpr int32_t kLift = G == 4 ? (int32_t)0x80808080 : 0;

  // W keys from j on: [depth][W]. Those behind the last one are copies of it.
  static __attribute__((noinline)) void pack_keys(const AttentionUnit &in, int64_t j,
                                                  const float *mean, const Room &room, int32_t *to,
                                                  float *units) {
    const float *rows[W];
    for (int l = 0; l < W; l++) rows[l] = in.k[j + l < in.keys ? j + l : in.keys - 1];
    Floats unit;
    pack_rows<true>(rows, mean, room, in.depth, kLift, to, W, unit);
    Isa::store(unit, units + j);
  }

  static __attribute__((noinline)) void pack_values(const AttentionUnit &in, const Room &room,
                                                    int32_t *to, float *units) {
    for (int64_t c = 0; c < room.width; c += W) {
      const int64_t left = in.width - c;
      Ints most{};
      for (int64_t j = 0; j < in.keys; j++)
        most = larger(most, Isa::magnitude(some(in.v[j] + c, left)));
      Floats unit, inverse;
      units_of(Isa::as_floats(most), unit, inverse);
      Isa::store(unit, units + c);
      for (int64_t i = 0; i < room.lanes; i++) {
        const int64_t group = i / 16 * 16 * G;
        const bool spread = group + 16 * G <= in.keys;
        const int64_t step = spread ? 16 : 1, first = spread ? group + i % 16 : i * G;
        Ints codes[G];
        for (int g = 0; g < G; g++) {
          const int64_t j = first + g * step;
          codes[g] = j < in.keys ? coded(some(in.v[j] + c, left), inverse) : Ints{};
        }
        Isa::store(joined(codes), to + i * room.width + c);
      }
    }
  }

  // Queries from r to r + W - 1 of a block of `rows`: [depth][kMostRows], units with the scale, and
  // what the lift of keys adds to their products.
  static __attribute__((noinline)) void pack_queries(const AttentionUnit &in, const Room &room,
                                                     int64_t first, int64_t r, int64_t rows,
                                                     int32_t *to, float *units, int32_t *lifts) {
    const float *q[W];
    for (int l = 0; l < W; l++) q[l] = in.q[first + (r + l < rows ? r + l : rows - 1)];
    Floats unit;
    const Ints sums = pack_rows<false>(q, nullptr, room, in.depth, 0, to + r, kMostRows, unit);
    Isa::store(unit * in.scale, units + r);
    Isa::store(G == 4 ? -sums : Ints{}, lifts + r);
  }

  // ---- scores

  struct Scored {
    const AttentionUnit &in;
    const Room &room;
    const int32_t *keys, *queries;
    const float *key_units;
    const float *table[2];  // that are added to scores: those that there are, first ones first
    int64_t table_stride[2];
    float *tops;                       // [rows][W]: largest scores, lane by lane
    float *scores;                     // [rows][columns]
    int64_t first = 0, rows = 0;       // queries of this block
    float unit[kMostRows + W] = {};    // of queries, the scale in it
    int32_t lift[kMostRows + W] = {};  // that their sums begin with
  };

  template <bool VALUE>
  struct Choice {
    static constexpr bool value = VALUE;
  };

  // What N sums of products become: scores, from the place `at` of a row on.
  template <int N, int TABLES, bool WHOLE>
  COD_INLINE void leave_scores(const Ints (&d)[N], const Floats (&unit)[N], Floats own,
                               const float *const *table, int64_t at, int64_t left, float *tops,
                               float *to) {
    Floats top = Isa::load(tops);
#pragma GCC unroll 3
    for (int v = 0; v < N; v++, left -= W) {
      const auto of_table = [&](int t) {
        const float *x = table[t] + at + v * W;
        return WHOLE ? Isa::load(x) : some(x, left);
      };
      Floats x = Isa::converted(d[v]) * unit[v];
      x = TABLES > 0 ? fused<Isa>(x, own, of_table(0)) : x * own;
      if constexpr (TABLES > 1) x = x + of_table(1);
      if (!WHOLE && left < W)
        for (int64_t l = left > 0 ? left : 0; l < W; l++) x[l] = -__builtin_inff();
      top = Isa::max(x, top);
      Isa::store(x, to + v * W);
    }
    Isa::store(top, tops);
  }

  // Queries r to r + 5 with N vectors of keys from j on, in the block from `begin` on.
  template <int N, int TABLES>
  static __attribute__((noinline)) void score(const Scored &s, int64_t r, int64_t j,
                                              int64_t begin) {
    const int64_t depth = s.room.depth, apart = s.room.columns;
    const int32_t *q = s.queries + r, *k = s.keys + j * depth;
    const int64_t strides[2] = {s.table_stride[0], s.table_stride[1]};
    const float *table[2] = {};
    for (int t = 0; t < TABLES; t++) {
      table[t] = s.table[t] + (s.first + r) * strides[t];
      // they come from far away: asked for before the products
      for (int i = 0; i < kRows; i++)
        for (int64_t c = 0; c < N * W; c += 16)
          __builtin_prefetch(table[t] + i * strides[t] + j + c);
    }
    Ints d[kRows][N];
#pragma GCC unroll 6
    for (int i = 0; i < kRows; i++)
#pragma GCC unroll 3
      for (int v = 0; v < N; v++) d[i][v] = Isa::all_ints(s.lift[r + i]);
#pragma GCC unroll 4
    for (int64_t c = 0; c < depth; c++) {
      Ints key[N];
#pragma GCC unroll 3
      for (int v = 0; v < N; v++) __builtin_memcpy(&key[v], k + (v * depth + c) * W, sizeof key[v]);
#pragma GCC unroll 6
      for (int i = 0; i < kRows; i++) {
        const Ints one = Isa::all_ints(q[c * kMostRows + i]);
#pragma GCC unroll 3
        for (int v = 0; v < N; v++) d[i][v] = dot(d[i][v], key[v], one);
      }
    }
    Floats unit[N];
#pragma GCC unroll 3
    for (int v = 0; v < N; v++) unit[v] = Isa::load(s.key_units + j + v * W);
    const int64_t left = s.in.keys - j, last = s.rows - r - 1;
    float *tops = s.tops + r * W, *to = s.scores + r * apart + j - begin;
    // rows behind the last one have places, too: what lies there is not read
    const auto leave = [&](auto whole) __attribute__((always_inline)) {
#pragma GCC unroll 6
      for (int i = 0; i < kRows; i++) {
        const float *own[2];
        for (int t = 0; t < TABLES; t++) own[t] = table[t] + (i < last ? i : last) * strides[t];
        leave_scores<N, TABLES, decltype(whole)::value>(d[i], unit, Isa::all(s.unit[r + i]), own, j,
                                                        left, tops + i * W, to + i * apart);
      }
    };
    if (left >= N * W)
      leave(Choice<true>{});
    else
      leave(Choice<false>{});
  }

  // All queries with keys [begin, end).
  template <int TABLES>
  static void score_block(const Scored &s, int64_t begin, int64_t end) {
    for (int64_t i = 0; i < whole(s.rows, W); i++) Isa::store(Isa::all(kLowest), s.tops + i * W);
    const int64_t stop = begin + whole(end - begin, W);
    for (int64_t j = begin; j < stop; j += V * W)
      for (int64_t r = 0; r < s.rows; r += kRows) {
        const int64_t left = stop - j;
        if (left >= V * W)
          score<V, TABLES>(s, r, j, begin);
        else if (left == W)
          score<1, TABLES>(s, r, j, begin);
        else
          score<2, TABLES>(s, r, j, begin);
      }
    for (int64_t r = 0; r < s.rows; r++)
      for (int64_t j = stop - begin; j < s.room.columns; j++)
        s.scores[r * s.room.columns + j] = -__builtin_inff();
  }

  // ---- softmax

  // 2^t = p 2^n, from t >= -100 on; exponent: bits of 2^(n + bias).
  template <int BIAS>
  COD_INLINE Floats power(Floats t, Ints &exponent) {
    // the low bits of such a number are n + 127 + bias
    const Floats magic = Isa::all(kMagic + (float)(127 + BIAS));
    t = Isa::max(Isa::all(-100.0f), t);
    const Floats shifted = t + magic, f = t - (shifted - magic);
    Floats p = Isa::all(kPowerP[2]);
    p = fused<Isa>(p, f, Isa::all(kPowerP[1]));
    p = fused<Isa>(p, f, Isa::all(kPowerP[0]));
    exponent = Isa::as_ints(shifted) << 23;
    return fused<Isa>(p, f, Isa::all(1.0f));
  }
  // 255 exp(x - top) for t = log2(e) (x - top) + kWeightEnd, kMagic added: whole numbers, low bits.
  COD_INLINE Floats weight(Floats t) {
    Ints exponent;
    const Floats p = power<kWeightBits>(t, exponent);
    return fused<Isa>(p, Isa::as_floats(exponent), Isa::all(kMagic));
  }
  // Weights in a lane. Shifted by 16 or more, nothing is left of the bits of kMagic.
  COD_INLINE Ints joined_weights(const Floats (&x)[G]) {
    const auto bits = [&](int g) { return Isa::as_ints(x[g]); };
    if constexpr (G == 4)
      return bits(0) ^ bits(1) << 8 ^ bits(2) << 16 ^ bits(3) << 24 ^
             (int32_t)(kMagicBits ^ (uint32_t)kMagicBits << 8);
    return bits(0) ^ bits(1) << 16 ^ kMagicBits;
  }

  static constexpr int N = kLanes / W;  // vectors of 16 lanes
  using Numbers = typename Vector<typename Weight<G>::Type, W * 4 / G>::Type;

  // Weights of the keys of one block: lanes of numbers; returns parts of their sum, NaN if one is.
  // x: -infinity behind the last key.
  COD_INLINE Floats soften_block(const float *x, int64_t keys, Floats end, int32_t *lanes) {
    const Ints ones = Isa::all_ints(G == 4 ? 0x01010101 : 0x00010001);
    typename Isa::Flags bad{};
    Ints sum{};
    int64_t j = 0;
    for (; j + 16 * G <= keys; j += 16 * G, lanes += 16)
#pragma GCC unroll 4
      for (int i = 0; i < N; i++) {
        Floats t[G], weights[G];
#pragma GCC unroll 4
        for (int g = 0; g < G; g++)
          t[g] = fused<Isa>(Isa::load(x + j + g * 16 + i * W), Isa::all(kLog2E), end);
#pragma GCC unroll 2
        for (int g = 0; g < G; g += 2) bad = Isa::unordered(bad, t[g], t[g + 1]);
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) weights[g] = weight(t[g]);
        const Ints all = joined_weights(weights);
        sum = dot(sum, all, ones);
        Isa::store(all, lanes + i * W);
      }
    // neighbours share a lane: sixteen keys need four of them, not sixteen
    for (int64_t i = 0; j + i < keys; i += W) {
      const Floats t = fused<Isa>(Isa::load(x + j + i), Isa::all(kLog2E), end);
      bad = Isa::unordered(bad, t, t);
      const auto codes = __builtin_convertvector(Isa::as_ints(weight(t)) ^ kMagicBits, Numbers);
      __builtin_memcpy(lanes + i / G, &codes, sizeof codes);
      Ints all{};
      __builtin_memcpy(&all, &codes, sizeof codes);
      sum = dot(sum, all, ones);
    }
    return Isa::any(bad) ? Isa::all(__builtin_nanf("")) : Isa::converted(sum);
  }

  // Of W rows from r on, a row for each lane: the largest score of a block, and where its weights
  // end.
  static __attribute__((noinline)) void find_ends(const float *tops, int64_t r, float *top,
                                                  float *ends) {
    alignas(64) Floats each[W];
    for (int l = 0; l < W; l++) each[l] = Isa::load(tops + (r + l) * W);
    const Floats most = Isa::across(each, [](Floats x, Floats y) { return Isa::max(x, y); });
    Isa::store(most, top + r);
    Isa::store(fused<Isa>(most, Isa::all(-kLog2E), Isa::all(kWeightEnd)), ends + r);
  }

  // Weights of W rows from r on, and their sums.
  static __attribute__((noinline)) void soften(const Room &room, const float *scores, int64_t keys,
                                               int64_t r, int64_t rows, const float *ends,
                                               int32_t *weights, float *sums) {
    alignas(64) Floats each[W];
    for (int l = 0; l < W; l++) {
      const int64_t row = r + l < rows ? r + l : r;
      each[l] = l && row == r ? each[0]
                              : soften_block(scores + row * room.columns, keys, Isa::all(ends[row]),
                                             weights + row * room.kept);
    }
    // whole numbers below 2^24: exact in any order
    Isa::store(Isa::across(each, [](Floats x, Floats y) { return x + y; }), sums + r);
  }

  // Of W rows from r on: largest scores of blocks become their shares in the sum of all, which
  // their products are multiplied with; a NaN makes all of them NaN.
  static __attribute__((noinline)) void share(const Room &room, const float *sums, int64_t r,
                                              float *shares) {
    Floats most = Isa::all(kLowest), total{};
    for (int64_t b = 0; b < room.blocks; b++)
      most = Isa::max(Isa::load(shares + b * room.listed + r), most);
    for (int64_t b = 0; b < room.blocks; b++) {
      float *own = shares + b * room.listed + r;
      Ints exponent;
      const Floats p = power<0>((Isa::load(own) - most) * kLog2E, exponent);
      const Floats part = p * Isa::as_floats(exponent);
      Isa::store(part, own);
      total = fused<Isa>(Isa::load(sums + b * room.listed + r), part, total);
    }
    const Floats inverse = 1.0f / total;
    for (int64_t b = 0; b < room.blocks; b++) {
      float *own = shares + b * room.listed + r;
      Isa::store(Isa::load(own) * inverse, own);
    }
  }

  // ---- mix

  // Weights of one block, values, and what becomes of their products.
  struct Mixed {
    const Room &room;
    const int32_t *weights, *values;
    int32_t *products;            // of the blocks so far: [blocks - 1][rows][width]
    const float *shares, *units;  // [blocks][listed]; of columns
    float *const *to;             // rows of the output
    int64_t rows, columns;
  };

  // Rows r to r + 5 of a block with M vectors of values from column c on. LAST: sums over all
  // blocks.
  template <int M, bool LAST>
  static __attribute__((noinline)) void mix(const Mixed &in, int64_t block, int64_t r, int64_t c) {
    constexpr int64_t kBlockLanes = kBlockKeys / G;
    const Room &room = in.room;
    const int64_t stride = room.kept, width = room.width, begin = block * kBlockLanes;
    const int64_t left = room.lanes - begin, lanes = left < kBlockLanes ? left : kBlockLanes;
    const int32_t *weights = in.weights + r * stride, *values = in.values + begin * width + c;
    Ints d[kRows][M];
#pragma GCC unroll 6
    for (int i = 0; i < kRows; i++)
#pragma GCC unroll 4
      for (int v = 0; v < M; v++) d[i][v] = Ints{};
#pragma GCC unroll 4
    for (int64_t k = 0; k < lanes; k++, values += width) {
      Ints value[M];
#pragma GCC unroll 4
      for (int v = 0; v < M; v++) __builtin_memcpy(&value[v], values + v * W, sizeof value[v]);
#pragma GCC unroll 6
      for (int i = 0; i < kRows; i++) {
        const Ints one = Isa::all_ints(weights[i * stride + k]);
#pragma GCC unroll 4
        for (int v = 0; v < M; v++) d[i][v] = dot(d[i][v], one, value[v]);
      }
    }
    const int64_t apart = room.rows * width;  // of the products of two blocks
    int32_t *products = in.products + r * width + c;
    if constexpr (!LAST) {
#pragma GCC unroll 6
      for (int i = 0; i < kRows; i++)
#pragma GCC unroll 4
        for (int v = 0; v < M; v++)
          Isa::store(d[i][v], products + block * apart + i * width + v * W);
      return;
    }
#pragma GCC unroll 6
    for (int i = 0; i < kRows; i++) {
      if (r + i >= in.rows) break;
      const float *share = in.shares + r + i;
      Floats y[M];
#pragma GCC unroll 4
      for (int v = 0; v < M; v++) y[v] = Floats{};
      for (int64_t b = 0; b < block; b++)
#pragma GCC unroll 4
        for (int v = 0; v < M; v++) {
          Ints sum;
          __builtin_memcpy(&sum, products + b * apart + i * width + v * W, sizeof sum);
          y[v] = fused<Isa>(Isa::converted(sum), Isa::all(share[b * room.listed]), y[v]);
        }
#pragma GCC unroll 4
      for (int v = 0; v < M; v++) {
        y[v] = fused<Isa>(Isa::converted(d[i][v]), Isa::all(share[block * room.listed]), y[v]);
        put(Isa::as_ints(y[v] * Isa::load(in.units + c + v * W)),
            reinterpret_cast<int32_t *>(in.to[r + i]) + c + v * W, in.columns - c - v * W);
      }
    }
  }

  template <bool LAST>
  static void mix_block(const Mixed &in, int64_t block) {
    for (int64_t r = 0; r < in.rows; r += kRows) {
      int64_t c = 0;
      if constexpr (Isa::kMixVectors > kMixed)
        for (; c + Isa::kMixVectors * W <= in.room.width; c += Isa::kMixVectors * W)
          mix<Isa::kMixVectors, LAST>(in, block, r, c);
      for (; c < in.room.width; c += kMixed * W) mix<kMixed, LAST>(in, block, r, c);
    }
  }

  static void run(const AttentionUnit &in, float *memory) {
    const Room room(in);
    auto *words = reinterpret_cast<int32_t *>(memory);
    find_mean(in, memory + room.mean);
    for (int64_t j = 0; j < in.keys; j += W)
      pack_keys(in, j, memory + room.mean, room, words + room.keys + j * room.depth,
                memory + room.key_units);
    pack_values(in, room, words + room.values, memory + room.value_units);
    float *ends = memory + room.ends, *shares = memory + room.shares, *sums = memory + room.sums;
    int32_t *weights = words + room.weights;
    Scored s{in, room, words + room.keys,  words + room.queries, memory + room.key_units,
             {}, {},   memory + room.tops, memory + room.scores};
    int tables = 0;
    for (int t = 0; t < 2; t++)
      if (in.bias[t]) s.table[tables] = in.bias[t], s.table_stride[tables++] = in.bias_stride[t];
    const auto score = tables == 0 ? score_block<0> : tables == 1 ? score_block<1> : score_block<2>;
    for (; s.first < in.queries; s.first += room.rows) {
      s.rows = in.queries - s.first < room.rows ? in.queries - s.first : room.rows;
      const Mixed mixed{room,
                        weights,
                        words + room.values,
                        words + room.products,
                        shares,
                        memory + room.value_units,
                        in.y + s.first,
                        s.rows,
                        in.width};
      for (int64_t r = 0; r < whole(s.rows, kRows); r += W)
        pack_queries(in, room, s.first, r, s.rows, words + room.queries, s.unit, s.lift);
      for (int64_t b = 0; b < room.blocks; b++) {
        const int64_t begin = b * kBlockKeys, left = in.keys - begin;
        const int64_t keys = left < kBlockKeys ? left : kBlockKeys, at = b * room.listed;
        score(s, begin, begin + keys);
        for (int64_t r = 0; r < s.rows; r += W) {
          find_ends(s.tops, r, shares + at, ends);
          soften(room, s.scores, keys, r, s.rows, ends, weights, sums + at);
        }
        if (b + 1 < room.blocks) mix_block<false>(mixed, b);
      }
      for (int64_t r = 0; r < s.rows; r += W) share(room, sums, r, shares);
      mix_block<true>(mixed, room.blocks - 1);
    }
  }
};

}  // namespace
}  // namespace cod
