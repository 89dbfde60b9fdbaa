// One tile of a product of carriers (signed bytes) and expanded weights. The integer sums are the
// instruction set's business (Isa::carrier_dot); nothing here rounds before the three float
// operations at the end, so that every set gives the same bits.
#pragma once
#include "lanes.h"
#include "pointwise.h"

namespace cod {
namespace {

template <class Isa>
struct Carrier {
  using Floats = typename Isa::Floats;
  using Ints = typename Isa::Ints;
  using Bytes = typename Isa::Bytes;
  using Shorts = typename Vector<uint16_t, sizeof(Bytes)>::Type;
  using Small = typename Vector<int8_t, Isa::kWidth>::Type;
  static constexpr int W = Isa::kWidth, kRows = Isa::kCarrierRows, V = Isa::kCarrierVectors;
  static constexpr int kColumns = V * W, kUnit = Isa::kCarrierUnit;
  static_assert(V % 2 == 0 && COD_WEIGHT_OFFSET == 8, "nibbles of two vectors share bytes");

  // Multipliers of the columns that one vector of bytes covers, one in each 32-bit lane.
  COD_INLINE Ints spread(const int8_t *p) {
    if constexpr (kUnit == 4) {
      Small some;
      __builtin_memcpy(&some, p, sizeof some);
      return __builtin_convertvector(some, Ints);
    } else {
      Ints v{};
      for (int l = 0; l < W; l++) v[l] = p[4 * l / kUnit];
      return v;
    }
  }

  // What nibbles become: nibble * times + plus, byte by byte. (r + 8) |p| is below 256, so 16-bit
  // multiplications serve two bytes at once. Where p is negative the nibble is 7 - r.
  struct Scaling {
    Shorts times;
    Bytes plus;
    explicit Scaling(Ints p) {
      const Ints negative = p < 0, size = Isa::choose(negative, -p, p);
      const Ints off = Isa::kCarrierLift - (size << 3) + (size & negative);
      times = (Shorts)(size | size << 16);
      plus = (Bytes)((typename Isa::Words)(off & 255) * 0x01010101u);
    }
    inline __attribute__((always_inline)) Bytes operator()(Shorts nibbles) const {
      return (Bytes)(nibbles * times) + plus;
    }
  };

  // [runs][run / unit][V / 2] vectors of nibble pairs, low ones first, to bytes.
  static void expand(const uint8_t *packed, const int8_t *p, int64_t runs, int run, uint8_t *bytes,
                     int32_t *) {
    constexpr int kBytes = sizeof(Bytes), kVectors = V * kUnit / 4;  // of one unit of depth
    const int units = run / kUnit;
    const Ints one = Isa::all_ints(1);
    for (int64_t at = 0; at < runs; at++) {
      for (int i = 0; i < kVectors; i += 2) {
        const int8_t *own = p + i * 4 * W / kUnit;
        const Scaling low(p ? spread(own) : one), high(p ? spread(own + 4 * W / kUnit) : one);
        for (int u = 0; u < units; u++) {
          Shorts v;
          __builtin_memcpy(&v, packed + (u * kVectors + i) / 2 * kBytes, sizeof v);
          const Bytes a = low(v & 0x0f0f), b = high(v >> 4 & 0x0f0f);
          uint8_t *to = bytes + (u * kVectors + i) * kBytes;
          __builtin_memcpy(to, &a, sizeof a);
          __builtin_memcpy(to + kBytes, &b, sizeof b);
        }
      }
      if (p) p += kColumns;
      packed += (int64_t)units * kVectors / 2 * kBytes;
      bytes += (int64_t)units * kVectors * kBytes;
    }
  }

  // What becomes of sums, in registers: three roundings, of unit * factor, of the product, of the
  // sum with the bias; then activation, gain and what is added, each one more.
  struct Leave {
    const CarrierTile &tile;
    Floats factor[V], bias[V], gain[V];
    explicit Leave(const CarrierTile &in) : tile(in) {
      for (int v = 0; v < V; v++) {
        factor[v] = Isa::load(in.factor + v * W);
        bias[v] = in.bias ? Isa::load(in.bias + v * W) : Floats{};
        gain[v] = in.gain ? some(in.gain, v) : Floats{};
      }
    }
    inline __attribute__((always_inline)) Floats some(const float *x, int v) const {
      const int left = tile.columns - v * W;
      return left >= W  ? Isa::load(x + v * W)
             : left > 0 ? Isa::load_some(x + v * W, left)
                        : Floats{};
    }
    template <bool GELU, int USED>
    inline __attribute__((always_inline)) void row(int r, const Ints (&sums)[V]) const {
      const Floats unit = Isa::all(tile.unit[r]);
      float *y = tile.y + r * tile.stride;
#pragma GCC unroll 4
      for (int v = 0; v < USED; v++) {
        Floats value = Isa::converted(sums[v]) * (unit * factor[v]);
        if (tile.bias) value = value + bias[v];
        if (GELU)
          value = Pointwise<Isa>::gelu_lanes(value);
        else if (tile.activation == COD_ACT_RELU)
          value = Pointwise<Isa>::relu_lanes(value);
        if (tile.gain) value = value * gain[v];
        if (tile.added) value = value + some(tile.added + r * tile.added_stride, v);
        const int left = tile.columns - v * W;
        if (left >= W)
          Isa::store(value, y + v * W);
        else if (left > 0)
          Isa::store_some(value, y + v * W, left);
      }
    }
    template <bool GELU, int USED>
    inline __attribute__((always_inline)) void rows(const Ints (&sums)[kRows][V]) const {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; r++)
        if (r < tile.rows) row<GELU, USED>(r, sums[r]);
    }
  };

  // NARROW: only the first vector of columns is there.
  template <bool BYTES, bool NARROW>
  static void run(const CarrierTile &in) {
    const int8_t *const *x = in.x;
    const int32_t *const *sums = in.sums;
    const int64_t tap_bytes = in.depth * kColumns, tap_runs = in.depth / in.run * kColumns;
    Ints d[kRows][V];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++)
#pragma GCC unroll 4
      for (int v = 0; v < V; v++)  // may wrap meanwhile: what is added below takes it back
        d[r][v] = Isa::kCarrierLift && !(NARROW && v) ? Isa::all_ints(in.totals[r]) : Ints{};
    for (int64_t t = 0; t < in.taps; t++, x += kRows) {
      const uint8_t *w = in.w + in.places[t] * tap_bytes;
      const int32_t *p = in.multipliers ? in.multipliers + in.places[t] * tap_runs : nullptr;
      if constexpr (NARROW)
        Isa::carrier_dot_narrow(x, w, in.depth, d);
      else
        Isa::template carrier_dot<BYTES>(x, sums ? sums + t * kRows : nullptr, w, p, in.depth,
                                         in.run, d);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows && NARROW; r++)
      d[r][0] = (Ints)((typename Isa::Words)d[r][0] + (typename Isa::Words)d[r][1]);
    const Leave leave(in);
    constexpr int kUsed = NARROW ? 1 : V;
    if (in.activation == COD_ACT_GELU)
      leave.template rows<true, kUsed>(d);
    else
      leave.template rows<false, kUsed>(d);
  }

  // Sums that lie in memory, [kRows][kColumns]: of sets that pack rows.
  static void leave(const CarrierTile &in, const int32_t *sums) {
    const Leave leave(in);
    for (int r = 0; r < in.rows; r++) {
      Ints d[V];
      __builtin_memcpy(d, sums + r * kColumns, sizeof d);
      if (in.activation == COD_ACT_GELU)
        leave.template row<true, V>(r, d);
      else
        leave.template row<false, V>(r, d);
    }
  }

  static void tile(const CarrierTile &in) {
    if constexpr (Isa::kCarrierNarrow)
      if (in.columns <= W) return run<false, true>(in);
    if constexpr (Isa::kCarrierBytesDiffer)
      if (in.bytes) return run<true, false>(in);
    run<false, false>(in);
  }
};

}  // namespace
}  // namespace cod
