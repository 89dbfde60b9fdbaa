// ARM NEON with the dot product: 4 groups per block, 6 x 8 tiles.
#pragma once
#include <arm_neon.h>
#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "lanes.h"

namespace cod {
namespace {

struct Neon : Lanes<4> {
  static constexpr const char *kName = "neon-dotprod";
  static bool runs_here() {
#if defined(__linux__)
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
    return false;  // no way to ask is known here: the generic set serves
#endif
  }

  COD_INLINE bool any(Ints x) { return vmaxvq_u32((uint32x4_t)x) != 0; }
  COD_INLINE bool all_at_most(Floats x, Floats y) {
    return vminvq_u32(vcleq_f32((float32x4_t)x, (float32x4_t)y)) != 0;
  }
  COD_INLINE Floats fma(Floats x, Floats y, Floats z) {
    return (Floats)vfmaq_f32((float32x4_t)z, (float32x4_t)x, (float32x4_t)y);
  }
  COD_INLINE Floats fnma(Floats x, Floats y, Floats z) {
    return (Floats)vfmsq_f32((float32x4_t)z, (float32x4_t)x, (float32x4_t)y);
  }
  COD_INLINE Floats min(Floats x, Floats y) {
    return (Floats)vminq_f32((float32x4_t)x, (float32x4_t)y);
  }
  COD_INLINE Floats max(Floats x, Floats y) {
    return (Floats)vmaxq_f32((float32x4_t)x, (float32x4_t)y);
  }
  COD_INLINE Floats round(Floats x) { return (Floats)vrndnq_f32((float32x4_t)x); }
  COD_INLINE Ints nearest(Floats x) { return (Ints)vcvtnq_s32_f32((float32x4_t)x); }
  COD_INLINE Ints unsigned_max(Ints x, Ints y) {
    return (Ints)vmaxq_u32((uint32x4_t)x, (uint32x4_t)y);
  }
  COD_INLINE Ints key_min(Ints x, Ints y) { return (Ints)vminq_u32((uint32x4_t)x, (uint32x4_t)y); }
  COD_INLINE Ints key_max(Ints x, Ints y) { return unsigned_max(x, y); }
  COD_INLINE int32_t sum(Ints x) { return vaddvq_s32((int32x4_t)x); }

  COD_INLINE Half half_fma(Half x, Half y, Half z) {
    return (Half)vfmaq_f64((float64x2_t)z, (float64x2_t)x, (float64x2_t)y);
  }
  COD_INLINE Half half_sqrt(Half x) { return (Half)vsqrtq_f64((float64x2_t)x); }
  COD_INLINE Doubles wide(Floats x) {
    const float32x4_t v = (float32x4_t)x;
    return {(Half)vcvt_f64_f32(vget_low_f32(v)), (Half)vcvt_high_f64_f32(v)};
  }
  COD_INLINE Floats narrow(Doubles x) {
    return (Floats)vcvt_high_f32_f64(vcvt_f32_f64((float64x2_t)x.a), (float64x2_t)x.b);
  }
  COD_INLINE Ints less(Doubles x, Doubles y) {
    const uint64x2_t low = vcltq_f64((float64x2_t)x.a, (float64x2_t)y.a);
    const uint64x2_t high = vcltq_f64((float64x2_t)x.b, (float64x2_t)y.b);
    return (Ints)vcombine_u32(vmovn_u64(low), vmovn_u64(high));
  }

  COD_INLINE void transpose4(const float *const *rows, int offset, Floats *v) {
    float32x4_t r[4], t[4];
    for (int i = 0; i < 4; i++) r[i] = vld1q_f32(rows[i] + offset);
    for (int i = 0; i < 2; i++) {
      t[2 * i] = vzip1q_f32(r[i], r[i + 2]);
      t[2 * i + 1] = vzip2q_f32(r[i], r[i + 2]);
    }
    for (int i = 0; i < 2; i++) {
      v[2 * i] = (Floats)vzip1q_f32(t[i], t[i + 2]);
      v[2 * i + 1] = (Floats)vzip2q_f32(t[i], t[i + 2]);
    }
  }

  COD_INLINE Floats codes_as_floats(const int8_t *codes) {
    int32_t four;
    __builtin_memcpy(&four, codes, 4);
    const int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
    return (Floats)vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
  }
  // Faster than codes between certain bounds: conversions round here.
  static constexpr int kPiece = 4;
  COD_INLINE void store_piece(const Ints *q, int8_t *to) {
    const int16x8_t low = vcombine_s16(vqmovn_s32((int32x4_t)q[0]), vqmovn_s32((int32x4_t)q[1]));
    const int16x8_t high = vcombine_s16(vqmovn_s32((int32x4_t)q[2]), vqmovn_s32((int32x4_t)q[3]));
    vst1q_s8(to, vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)));
  }

  // Of 32 registers: 12 sums, 6 rows of 16 carriers, 2 of weights.
  static constexpr int kCarrierRows = 6;

  template <int LANE>
  COD_INLINE void quad(Ints (&d)[kCarrierRows][2], const int8x16_t *b, const uint8_t *w) {
    const int8x16_t w0 = vreinterpretq_s8_u8(vld1q_u8(w + LANE * 8 * kWidth));
    const int8x16_t w1 = vreinterpretq_s8_u8(vld1q_u8(w + LANE * 8 * kWidth + 16));
#pragma GCC unroll 6
    for (int r = 0; r < kCarrierRows; r++) {
      d[r][0] = (Ints)vdotq_laneq_s32((int32x4_t)d[r][0], w0, b[r], LANE);
      d[r][1] = (Ints)vdotq_laneq_s32((int32x4_t)d[r][1], w1, b[r], LANE);
    }
  }

  template <bool BYTES>
  COD_INLINE void carrier_dot(const int8_t *const *x, const int32_t *const *, const uint8_t *w,
                              const int32_t *, int64_t depth, int, Ints (&d)[kCarrierRows][2]) {
    int8x16_t b[kCarrierRows];
    int64_t k = 0;
    for (; k + 16 <= depth; k += 16, w += 32 * kWidth) {
#pragma GCC unroll 6
      for (int r = 0; r < kCarrierRows; r++) b[r] = vld1q_s8(x[r] + k);
      quad<0>(d, b, w);
      quad<1>(d, b, w);
      quad<2>(d, b, w);
      quad<3>(d, b, w);
    }
    for (; k < depth; k += 4, w += 8 * kWidth) {
#pragma GCC unroll 6
      for (int r = 0; r < kCarrierRows; r++) {
        int32_t four;
        __builtin_memcpy(&four, x[r] + k, 4);
        b[r] = vreinterpretq_s8_s32(vdupq_n_s32(four));
      }
      quad<0>(d, b, w);
    }
  }
};

}  // namespace
}  // namespace cod
