// WebAssembly with 128-bit vectors: 4 groups per block, 3 x 8 tiles. There is no product of bytes:
// they are widened, and i32x4.dot_i16x8 adds up pairs.
#pragma once
#include <wasm_simd128.h>

#include "lanes.h"

namespace cod {
namespace {

struct Wasm : Lanes<4> {
  static constexpr const char *kName = "wasm-simd128";
  // A module with instructions that a machine lacks does not load there.
  static bool runs_here() { return true; }

  COD_INLINE bool any(Ints x) { return wasm_v128_any_true((v128_t)x); }
  COD_INLINE bool all_at_most(Floats x, Floats y) {
    return wasm_i32x4_all_true(wasm_f32x4_le((v128_t)x, (v128_t)y));
  }
  COD_INLINE Floats min(Floats x, Floats y) {
    return (Floats)wasm_f32x4_pmin((v128_t)y, (v128_t)x);
  }
  COD_INLINE Floats max(Floats x, Floats y) {
    return (Floats)wasm_f32x4_pmax((v128_t)y, (v128_t)x);
  }
  COD_INLINE Floats round(Floats x) { return (Floats)wasm_f32x4_nearest((v128_t)x); }
  COD_INLINE Ints nearest(Floats x) {
    return (Ints)wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_nearest((v128_t)x));
  }
  COD_INLINE Ints unsigned_max(Ints x, Ints y) {
    return (Ints)wasm_u32x4_max((v128_t)x, (v128_t)y);
  }
  COD_INLINE Ints key_min(Ints x, Ints y) { return (Ints)wasm_u32x4_min((v128_t)x, (v128_t)y); }
  COD_INLINE Ints key_max(Ints x, Ints y) { return unsigned_max(x, y); }
  COD_INLINE int32_t sum(Ints x) { return x[0] + x[1] + x[2] + x[3]; }
  COD_INLINE Ints pairs(Ints sum, Ints x, Ints y) {
    return (Ints)wasm_i32x4_add((v128_t)sum, wasm_i32x4_dot_i16x8((v128_t)x, (v128_t)y));
  }

  COD_INLINE Half half_sqrt(Half x) { return (Half)wasm_f64x2_sqrt((v128_t)x); }
  COD_INLINE v128_t upper(v128_t x) { return wasm_i64x2_shuffle(x, x, 1, 1); }
  COD_INLINE Doubles wide(Floats x) {
    const v128_t v = (v128_t)x;
    return {(Half)wasm_f64x2_promote_low_f32x4(v), (Half)wasm_f64x2_promote_low_f32x4(upper(v))};
  }
  COD_INLINE Floats narrow(Doubles x) {
    const v128_t low = wasm_f32x4_demote_f64x2_zero((v128_t)x.a);
    const v128_t high = wasm_f32x4_demote_f64x2_zero((v128_t)x.b);
    return (Floats)wasm_i64x2_shuffle(low, high, 0, 2);
  }
  COD_INLINE Ints less(Doubles x, Doubles y) {
    const v128_t low = wasm_f64x2_lt((v128_t)x.a, (v128_t)y.a);
    const v128_t high = wasm_f64x2_lt((v128_t)x.b, (v128_t)y.b);
    return (Ints)wasm_i32x4_shuffle(low, high, 0, 2, 4, 6);
  }

  // x * y is exact in double, and so is the sum's rounding error: a sum that lost something is made
  // odd in its last bit, which tells the second rounding on which side of a tie it was.
  COD_INLINE Half odd_sum(Half xy, Half z) {
    const Half sum = xy + z, part = sum - xy;
    const Half error = (xy - (sum - part)) + (z - part);
    const v128_t bits = (v128_t)sum, zero = wasm_i64x2_splat(0), one = wasm_i64x2_splat(1);
    const v128_t more = wasm_f64x2_gt((v128_t)error, zero);
    const v128_t less = wasm_f64x2_lt((v128_t)error, zero);
    const v128_t negative = wasm_i64x2_lt(bits, zero);
    const v128_t even = wasm_i64x2_eq(wasm_v128_and(bits, one), zero);
    // one up in magnitude where the error points away from zero, else one down
    const v128_t away =
        wasm_v128_or(wasm_v128_andnot(more, negative), wasm_v128_and(less, negative));
    const v128_t step = wasm_v128_bitselect(one, wasm_i64x2_splat(-1), away);
    const v128_t moved = wasm_v128_and(wasm_v128_and(wasm_v128_or(more, less), even), step);
    return (Half)wasm_i64x2_add(bits, moved);
  }
  static __attribute__((noinline)) Floats fused_with_care(Doubles xy, Doubles z) {
    return narrow({odd_sum(xy.a, z.a), odd_sum(xy.b, z.b)});
  }
  // Two roundings, of which the first may make a tie for the second: doubles whose 29 bits beyond a
  // float are 100...0. Where floats have fewer bits, next to zero, ties look different.
  COD_INLINE Floats fused_lanes(Floats x, Floats y, Floats z) {
    const Doubles xy = wide(x) * wide(y), to = wide(z), sum = xy + to;
    const Floats found = narrow(sum);
    const v128_t words = wasm_i32x4_shuffle((v128_t)sum.a, (v128_t)sum.b, 0, 2, 4, 6);
    const v128_t beyond = wasm_v128_and(words, wasm_i32x4_splat(0x1fffffff));
    const v128_t tie = wasm_i32x4_eq(beyond, wasm_i32x4_splat(0x10000000));
    const v128_t small = wasm_i32x4_lt((v128_t)magnitude(found), wasm_i32x4_splat(0x00800000));
    if (__builtin_expect(wasm_v128_any_true(wasm_v128_or(tie, small)), 0))
      return fused_with_care(xy, to);
    return found;
  }

  COD_INLINE void transpose4(const float *const *rows, int offset, Floats *v) {
    v128_t r[4], t[4];
    for (int i = 0; i < 4; i++) r[i] = wasm_v128_load(rows[i] + offset);
    for (int i = 0; i < 2; i++) {
      t[2 * i] = wasm_i32x4_shuffle(r[i], r[i + 2], 0, 4, 1, 5);
      t[2 * i + 1] = wasm_i32x4_shuffle(r[i], r[i + 2], 2, 6, 3, 7);
    }
    for (int i = 0; i < 2; i++) {
      v[2 * i] = (Floats)wasm_i32x4_shuffle(t[i], t[i + 2], 0, 4, 1, 5);
      v[2 * i + 1] = (Floats)wasm_i32x4_shuffle(t[i], t[i + 2], 2, 6, 3, 7);
    }
  }

  template <int DISTANCE>
  COD_INLINE Floats swap(Floats x) {
    const v128_t v = (v128_t)x;
    if constexpr (DISTANCE == 1) return (Floats)wasm_i32x4_shuffle(v, v, 1, 0, 3, 2);
    return (Floats)wasm_i32x4_shuffle(v, v, 2, 3, 0, 1);
  }
  COD_INLINE Floats picked(const float *x, int64_t, const int32_t *at) {
    v128_t v = wasm_v128_load32_zero(x + at[0]);
    v = wasm_v128_load32_lane(x + at[1], v, 1);
    v = wasm_v128_load32_lane(x + at[2], v, 2);
    return (Floats)wasm_v128_load32_lane(x + at[3], v, 3);
  }

  COD_INLINE Floats codes_as_floats(const int8_t *codes) {
    const v128_t wide = wasm_i16x8_extend_low_i8x16(wasm_v128_load32_zero(codes));
    return (Floats)wasm_f32x4_convert_i32x4(wasm_i32x4_extend_low_i16x8(wide));
  }
  static constexpr int kPiece = 4;
  COD_INLINE void store_piece(const Ints *q, int8_t *to) {
    const v128_t low = wasm_i16x8_narrow_i32x4((v128_t)q[0], (v128_t)q[1]);
    const v128_t high = wasm_i16x8_narrow_i32x4((v128_t)q[2], (v128_t)q[3]);
    wasm_v128_store(to, wasm_i8x16_narrow_i16x8(low, high));
  }

  // Of the 16 registers that some machines have: 12 sums, one of carriers, one of weights. A sum
  // holds two columns, the two pairs of a quad apart.
  static constexpr int kCarrierRows = 3;
  using Apart = v128_t[kCarrierRows][4];

  COD_INLINE void quad(Apart &apart, const v128_t (&x)[kCarrierRows], const uint8_t *w) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
      const v128_t own = wasm_i16x8_load8x8(w + 8 * v);
#pragma GCC unroll 3
      for (int r = 0; r < kCarrierRows; r++)
        apart[r][v] = wasm_i32x4_add(apart[r][v], wasm_i32x4_dot_i16x8(own, x[r]));
    }
  }

  template <bool BYTES>
  COD_INLINE void carrier_dot(const int8_t *const *x, const int32_t *const *, const uint8_t *w,
                              const int32_t *, int64_t depth, int, Ints (&d)[kCarrierRows][2]) {
    Apart apart;
    v128_t four[kCarrierRows];
#pragma GCC unroll 3
    for (int r = 0; r < kCarrierRows; r++)
#pragma GCC unroll 4
      for (int v = 0; v < 4; v++) apart[r][v] = wasm_i32x4_splat(0);
    const int8_t *const own[] = {x[0], x[1], x[2]};
    const int32_t last = (int32_t)depth;
    for (int32_t k = 0; k < last; k += 4, w += 8 * kWidth) {
#pragma GCC unroll 3
      for (int r = 0; r < kCarrierRows; r++)
        four[r] = wasm_i16x8_extend_low_i8x16(wasm_v128_load32_splat(own[r] + k));
      quad(apart, four, w);
    }
#pragma GCC unroll 3
    for (int r = 0; r < kCarrierRows; r++)
#pragma GCC unroll 2
      for (int v = 0; v < 2; v++) {
        const v128_t a = apart[r][2 * v], b = apart[r][2 * v + 1];
        const v128_t first = wasm_i32x4_shuffle(a, b, 0, 2, 4, 6);
        d[r][v] += (Ints)wasm_i32x4_add(first, wasm_i32x4_shuffle(a, b, 1, 3, 5, 7));
      }
  }
};

}  // namespace
}  // namespace cod
