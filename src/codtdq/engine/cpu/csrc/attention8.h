// Attention of one head with products of 8-bit integers. Queries, and keys less the mean key (which
// changes no softmax), are rounded to 127 multiples of a unit of their row, values to those of a
// unit of their column. Exponentials get 8 bits in each block of keys, relative to the largest of
// that block: weights that are small beside one far away are kept. Integer sums are exact, so that
// every instruction set gives the same bits. Numbers lie in lanes of 32 bits: four bytes where a
// set multiplies those (Isa::kQuads), else two words of 16 bits. Those of a lane: channels a part
// of all apart; keys 16 apart, or a part of the rest.
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
// 2^f = 1 + f P(f) on |f| <= 1 / 2. Least squares, reweighted until the error was level at 2.8e-6.
constexpr float kPowerP[] = {6.931241401e-01f, 2.402410216e-01f, 5.590689932e-02f,
                             9.582807588e-03f};

template <class Isa>
struct Attention8 {
  using Floats = typename Isa::Floats;
  using Ints = typename Isa::Ints;
  static constexpr int W = Isa::kWidth, V = Isa::kPairVectors;
  static constexpr int G = Isa::kQuads ? 4 : 2;  // numbers of a lane
  static constexpr int kRows = 6, kMixed = 2;    // of a tile: rows; vectors of values
  static constexpr int kLanes = 16;              // in which sums of exponentials add up
  static constexpr int64_t kNear = 5 * 1024;     // scores that stay near
  static constexpr int64_t kMostRows = 48;

  COD_INLINE int64_t whole(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
  COD_INLINE int64_t rows_of(int64_t keys) {
    const int64_t rows = kNear / keys / kRows * kRows;
    return rows < kRows ? kRows : rows > kMostRows ? kMostRows : rows;
  }

  // Where things lie in the scratch memory, in words of four bytes.
  struct Room {
    int64_t depth, columns, lanes, blocks, width, rows;  // of a packed key; a row of scores; ...
    int64_t mean, keys, key_units, values, value_units, scores, tops, weights, shares, queries,
        total;
    explicit Room(const AttentionUnit &in)
        : depth((in.depth + G - 1) / G),
          columns(whole(in.keys, 16 * G)),
          lanes(in.keys / (16 * G) * 16 + (in.keys % (16 * G) + G - 1) / G),
          blocks((in.keys + kBlockKeys - 1) / kBlockKeys),
          width(whole(in.width, kMixed * W)),
          rows(rows_of(in.keys)) {
      mean = 0;
      keys = mean + whole(in.depth, 16);
      key_units = keys + whole(in.keys, W) * depth;
      values = key_units + whole(in.keys, W);
      value_units = values + lanes * width;
      scores = value_units + width;
      tops = scores + rows * columns;
      weights = tops + whole(rows, kRows) * blocks * W;
      shares = weights + rows * whole(lanes, 16);
      queries = shares + rows * blocks;
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

  // W keys from j on: [depth][W] lanes of channels. Those behind the last one are copies of it.
  // Bytes are lifted by 128, so that they have no sign.
  static __attribute__((noinline)) void pack_keys(const AttentionUnit &in, int64_t j,
                                                  const float *mean, const Room &room, int32_t *to,
                                                  float *units) {
    const float *rows[G][W];
    alignas(64) Floats each[W];
    for (int l = 0; l < W; l++) {
      const float *row = in.k[j + l < in.keys ? j + l : in.keys - 1];
      for (int g = 0; g < G; g++) rows[g][l] = row + g * room.depth;
      each[l] = Isa::as_floats(largest_of(row, mean, in.depth));
    }
    Floats unit, inverse;
    units_of(Isa::across(each, larger_float), unit, inverse);
    Isa::store(unit, units + j);
    const Ints lift = Isa::all_ints(G == 4 ? (int32_t)0x80808080 : 0);
    const auto code = [&](Floats x, int64_t c) { return coded(x - Isa::all(mean[c]), inverse); };
    int64_t c = 0;
    for (; c + 4 <= in.depth - (G - 1) * room.depth; c += 4) {
      Floats x[G][4];
#pragma GCC unroll 4
      for (int g = 0; g < G; g++) Isa::transpose4(rows[g], (int)c, x[g]);
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) {
        Ints codes[G];
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) codes[g] = code(x[g][i], c + i + g * room.depth);
        Isa::store(joined(codes) ^ lift, to + (c + i) * W);
      }
    }
    for (; c < room.depth; c++) {
      Ints codes[G];
      for (int g = 0; g < G; g++) {
        const int64_t channel = c + g * room.depth;
        codes[g] = Ints{};
        if (channel >= in.depth) continue;
        Floats x{};
        for (int l = 0; l < W; l++) x[l] = rows[g][l][c];
        codes[g] = code(x, channel);
      }
      Isa::store(joined(codes) ^ lift, to + c * W);
    }
  }

  // How far apart the keys of a lane of weights lie, and the first one's place among its group's.
  COD_INLINE int64_t apart(int64_t lane, int64_t keys) {
    const int64_t left = keys - lane / 16 * 16 * G;
    return left >= 16 * G ? 16 : (left + G - 1) / G;
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
        const int64_t step = apart(i, in.keys), first = i / 16 * 16 * G + i % 16;
        Ints codes[G];
        for (int g = 0; g < G; g++) {
          const int64_t j = first + g * step;
          codes[g] = j < in.keys ? coded(some(in.v[j] + c, left), inverse) : Ints{};
        }
        Isa::store(joined(codes), to + i * room.width + c);
      }
    }
  }

  // Queries from r to r + W - 1 of a block of `rows`: lanes of channels, units with the scale, and
  // what the lift of keys adds to their products.
  static __attribute__((noinline)) void pack_queries(const AttentionUnit &in, int64_t first,
                                                     int64_t r, int64_t rows, int32_t *to,
                                                     float *units, int32_t *lifts) {
    alignas(64) Floats each[W];
    const float *q[W];
    for (int l = 0; l < W; l++) {
      q[l] = in.q[first + (r + l < rows ? r + l : rows - 1)];
      each[l] = Isa::as_floats(largest_of(q[l], nullptr, in.depth));
    }
    Floats unit, inverse;
    units_of(Isa::across(each, larger_float), unit, inverse);
    Isa::store(unit * in.scale, units + r);
    const int64_t part = (in.depth + G - 1) / G;
    const Ints lift = Isa::all_ints(G == 4 ? (int32_t)0x80808080 : 0);
    for (int l = 0; l < W; l++) {
      const Floats own = Isa::all(inverse[l]);
      Ints sum{};
      for (int64_t c = 0; c < part; c += W) {
        Ints codes[G];
        for (int g = 0; g < G; g++) {
          const int64_t left = in.depth - g * part - c;
          codes[g] = coded(some(q[l] + g * part + c, part - c < left ? part - c : left), own);
        }
        const Ints lanes = joined(codes);
        sum = dot(sum, lift, lanes);
        put(lanes, to + (r + l) * part + c, part - c);
      }
      lifts[r + l] = 0;
      if constexpr (G == 4) lifts[r + l] = -Isa::sum(sum);
    }
  }

  // ---- scores

  struct Scored {
    const AttentionUnit &in;
    const Room &room;
    const int32_t *keys, *queries;
    const float *key_units;
    float unit[kMostRows];    // of queries, the scale in it
    int32_t lift[kMostRows];  // that their sums begin with
    float *tops;              // [rows][blocks][W]: largest scores, lane by lane
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
      for (int v = 0; v < N; v++) d[i][v] = Isa::all_ints(s.lift[r + i]);
    for (int64_t c = 0; c < depth; c++) {
      Ints key[N];
#pragma GCC unroll 3
      for (int v = 0; v < N; v++) __builtin_memcpy(&key[v], k + (v * depth + c) * W, sizeof key[v]);
#pragma GCC unroll 6
      for (int i = 0; i < kRows; i++) {
        const Ints one = Isa::all_ints(q[i * depth + c]);
#pragma GCC unroll 3
        for (int v = 0; v < N; v++) d[i][v] = dot(d[i][v], key[v], one);
      }
    }
    Floats unit[N];
#pragma GCC unroll 3
    for (int v = 0; v < N; v++) unit[v] = Isa::load(s.key_units + j + v * W);
#pragma GCC unroll 6
    for (int i = 0; i < kRows; i++) {
      if (r + i >= s.rows) break;
      const Floats own = Isa::all(s.unit[r + i]);
      float *tops = s.tops + ((r + i) * s.room.blocks + j / kBlockKeys) * W;
      Floats top = Isa::load(tops);
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
      Isa::store(top, tops);
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

  // 2^t as a number of [1 / sqrt 2, sqrt 2] and bits of its power of two, from t >= -100 on.
  COD_INLINE Floats power(Floats t, Ints &exponent) {
    const Floats magic = Isa::all(kMagic);
    t = Isa::max(Isa::all(-100.0f), t);
    const Floats shifted = t + magic, f = t - (shifted - magic);
    Floats p = Isa::all(kPowerP[3]);
    p = fused<Isa>(p, f, Isa::all(kPowerP[2]));
    p = fused<Isa>(p, f, Isa::all(kPowerP[1]));
    p = fused<Isa>(p, f, Isa::all(kPowerP[0]));
    exponent = Isa::as_ints(shifted) << 23;
    return fused<Isa>(p, f, Isa::all(1.0f));
  }
  // 255 exp(x - top) for end = kWeightEnd - log2(e) top, kMagic added: whole numbers, low bits.
  COD_INLINE Floats weight(Floats x, Floats end) {
    Ints exponent;
    const Floats p = power(fused<Isa>(x, Isa::all(kLog2E), end), exponent);
    return fused<Isa>(p, Isa::as_floats(exponent + ((127 + kWeightBits) << 23)), Isa::all(kMagic));
  }

  static constexpr int N = kLanes / W;  // vectors of 16 lanes

  // Weights of the keys of one block: lanes of numbers; returns their sum. x: -infinity behind the
  // last key.
  COD_INLINE Floats soften_block(const float *x, int64_t keys, Floats end, int32_t *lanes) {
    const Floats magic = Isa::all(kMagic);
    Floats sum[N];
#pragma GCC unroll 4
    for (int i = 0; i < N; i++) sum[i] = Floats{};
    int64_t j = 0;
    for (; j + 16 * G <= keys; j += 16 * G, lanes += 16)
#pragma GCC unroll 4
      for (int i = 0; i < N; i++) {
        Ints codes[G];
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) {
          const Floats one = weight(Isa::load(x + j + g * 16 + i * W), end);
          sum[i] = sum[i] + (one - magic);
          codes[g] = Isa::as_ints(one);
        }
        Isa::store(joined(codes), lanes + i * W);
      }
    if (j < keys) {
      alignas(64) int32_t rest[16 * G];
      const int64_t left = keys - j, apart = (left + G - 1) / G;
      for (int i = 0; i < G * N && i * W < left; i++) {
        const Floats one = weight(Isa::load(x + j + i * W), end);
        sum[i % N] = sum[i % N] + (one - magic);
        Isa::store(Isa::as_ints(one), rest + i * W);
      }
      constexpr int32_t kMask = G == 4 ? 0xff : 0xffff;
      for (int64_t i = 0; i < apart; i++) {
        uint32_t lane = 0;
        for (int64_t g = 0; g < G && i + g * apart < left; g++)
          lane |= (uint32_t)(rest[i + g * apart] & kMask) << (g * 32 / G);
        lanes[i] = (int32_t)lane;
      }
    }
    return over_16_lanes<Isa>(sum, [](Floats a, Floats b) { return a + b; });
  }

  // Weights of a row of scores, block by block, and the share of each block in the sum of all: what
  // its sums of values are multiplied with. A NaN makes all of them NaN.
  static __attribute__((noinline)) void soften(const float *x, int64_t keys, const float *tops,
                                               int32_t *lanes, float *shares) {
    const auto over_lanes = [](Floats x) {
      Floats most[N];
      for (int i = 0; i < N; i++) most[i] = x;
      return over_16_lanes<Isa>(most, [](Floats a, Floats b) { return Isa::max(a, b); });
    };
    const int64_t blocks = (keys + kBlockKeys - 1) / kBlockKeys;
    Floats most = Isa::load(tops), total{};
    for (int64_t b = 1; b < blocks; b++) most = Isa::max(Isa::load(tops + b * W), most);
    const Floats top = over_lanes(most) * -kLog2E;
    for (int64_t b = 0; b < blocks; b++) {
      const int64_t j = b * kBlockKeys, n = keys - j < kBlockKeys ? keys - j : kBlockKeys;
      const Floats own = over_lanes(Isa::load(tops + b * W));
      const Floats end = fused<Isa>(own, Isa::all(-kLog2E), Isa::all(kWeightEnd));
      const Floats sum = soften_block(x + j, n, end, lanes + j / G);
      Ints exponent;
      const Floats p = power(fused<Isa>(own, Isa::all(kLog2E), top), exponent);
      const Floats share = p * Isa::as_floats(exponent + (127 << 23));
      total = fused<Isa>(sum, share, total);
      shares[b] = share[0];
    }
    const float inverse = 1.0f / total[0];
    for (int64_t b = 0; b < blocks; b++) shares[b] *= inverse;
  }

  // ---- mix

  // Rows of weights and their shares, with two vectors of values: sums over all lanes.
  static __attribute__((noinline)) void mix(const int32_t *p, int64_t stride, const float *shares,
                                            int64_t blocks, const int32_t *values, int64_t width,
                                            int64_t lanes, Floats (&y)[kRows][kMixed]) {
    constexpr int64_t kBlockLanes = kBlockKeys / G;
#pragma GCC unroll 6
    for (int r = 0; r < kRows; r++) y[r][0] = y[r][1] = Floats{};
    for (int64_t b = 0, begin = 0; begin < lanes; b++, begin += kBlockLanes) {
      const int64_t end = begin + kBlockLanes < lanes ? begin + kBlockLanes : lanes;
      Ints d[kRows][kMixed];
#pragma GCC unroll 6
      for (int r = 0; r < kRows; r++) d[r][0] = d[r][1] = Ints{};
      for (int64_t i = begin; i < end; i++) {
        Ints v[kMixed];
        __builtin_memcpy(v, values + i * width, sizeof v);
#pragma GCC unroll 6
        for (int r = 0; r < kRows; r++) {
          const Ints one = Isa::all_ints(p[r * stride + i]);
          d[r][0] = dot(d[r][0], one, v[0]);
          d[r][1] = dot(d[r][1], one, v[1]);
        }
      }
#pragma GCC unroll 6
      for (int r = 0; r < kRows; r++) {
        const Floats share = Isa::all(shares[r * blocks + b]);
        y[r][0] = fused<Isa>(Isa::converted(d[r][0]), share, y[r][0]);
        y[r][1] = fused<Isa>(Isa::converted(d[r][1]), share, y[r][1]);
      }
    }
  }

  static void run(const AttentionUnit &in, float *memory) {
    const Room room(in);
    auto *words = reinterpret_cast<int32_t *>(memory);
    find_mean(in, memory + room.mean);
    for (int64_t j = 0; j < in.keys; j += W)
      pack_keys(in, j, memory + room.mean, room, words + room.keys + j * room.depth,
                memory + room.key_units);
    int32_t *values = words + room.values, *weights = words + room.weights;
    float *shares = memory + room.shares;
    pack_values(in, room, values, memory + room.value_units);
    Scored s{in, room, words + room.keys,  words + room.queries, memory + room.key_units,
             {}, {},   memory + room.tops, memory + room.scores, 0,
             0};
    const int64_t stride = whole(room.lanes, 16);
    for (s.first = 0; s.first < in.queries; s.first += room.rows) {
      s.rows = in.queries - s.first < room.rows ? in.queries - s.first : room.rows;
      for (int64_t r = 0; r < whole(s.rows, kRows); r += W)
        pack_queries(in, s.first, r, s.rows, words + room.queries, s.unit, s.lift);
      for (int64_t i = 0; i < s.rows * room.blocks; i++)
        Isa::store(Isa::all(kLowest), s.tops + i * W);
      score_all(s);
      for (int64_t r = 0; r < s.rows; r++)
        soften(s.scores + r * room.columns, in.keys, s.tops + r * room.blocks * W,
               weights + r * stride, shares + r * room.blocks);
      for (int64_t r = 0; r < s.rows; r += kRows)
        for (int64_t c = 0; c < in.width; c += kMixed * W) {
          Floats y[kRows][kMixed];
          mix(weights + r * stride, stride, shares + r * room.blocks, room.blocks, values + c,
              room.width, room.lanes, y);
#pragma GCC unroll 6
          for (int i = 0; i < kRows; i++) {
            if (r + i >= s.rows) break;
            float *to = in.y[s.first + r + i] + c;
            for (int v = 0; v < kMixed; v++) {
              const Floats unit = Isa::load(memory + room.value_units + c + v * W);
              put(Isa::as_ints(y[i][v] * unit), reinterpret_cast<int32_t *>(to) + v * W,
                  in.width - c - v * W);
            }
          }
        }
    }
  }
};

}  // namespace
}  // namespace cod
