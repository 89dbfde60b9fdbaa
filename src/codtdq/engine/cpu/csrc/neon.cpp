// ARM NEON with the dot product: 4 groups per block, 6 x 8 tiles. The nibbles 0..15 are valid
// signed bytes, so sdot takes weights and activations alike.
#include <arm_neon.h>
#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <cmath>

#include "kernels.h"

#define W 4
typedef float VF __attribute__((vector_size(16)));
typedef int32_t VI __attribute__((vector_size(16)));

static inline VI kmin(VI a, VI b) { return (VI)vminq_u32((uint32x4_t)a, (uint32x4_t)b); }
static inline VI umax(VI a, VI b) { return (VI)vmaxq_u32((uint32x4_t)a, (uint32x4_t)b); }
static inline VI kmax(VI a, VI b) { return umax(a, b); }
// One less than the bits of a magnitude: as unsigned numbers, zero comes last.
static constexpr int32_t kLastKey = -1;
static inline VI key_of(VI magnitude, int omit) { return magnitude - omit; }
static inline VI magnitude_of(VI key, int omit) { return key + omit; }
static inline bool vany(VI x) { return vmaxvq_u32((uint32x4_t)x) != 0; }
static inline VF vfma(VF x, VF y, VF z) { return (VF)vfmaq_f32((float32x4_t)z, (float32x4_t)x, (float32x4_t)y); }
static inline VF vfnma(VF x, VF y, VF z) { return (VF)vfmsq_f32((float32x4_t)z, (float32x4_t)x, (float32x4_t)y); }
static inline VF fmin_lanes(VF x, VF y) { return (VF)vminq_f32((float32x4_t)x, (float32x4_t)y); }
static inline VF fmax_lanes(VF x, VF y) { return (VF)vmaxq_f32((float32x4_t)x, (float32x4_t)y); }
static inline VF vround(VF x) { return (VF)vrndnq_f32((float32x4_t)x); }
struct VD {
  float64x2_t a, b;
};
static inline VD wide(VF x) {
  const float32x4_t v = (float32x4_t)x;
  return {vcvt_f64_f32(vget_low_f32(v)), vcvt_high_f64_f32(v)};
}
static inline VF narrow(VD x) { return (VF)vcvt_high_f32_f64(vcvt_f32_f64(x.a), x.b); }
static inline VD dset(double x) { return {vdupq_n_f64(x), vdupq_n_f64(x)}; }
static inline VD dadd(VD x, VD y) { return {vaddq_f64(x.a, y.a), vaddq_f64(x.b, y.b)}; }
static inline VD dsub(VD x, VD y) { return {vsubq_f64(x.a, y.a), vsubq_f64(x.b, y.b)}; }
static inline VD dmul(VD x, VD y) { return {vmulq_f64(x.a, y.a), vmulq_f64(x.b, y.b)}; }
static inline VD ddiv(VD x, VD y) { return {vdivq_f64(x.a, y.a), vdivq_f64(x.b, y.b)}; }
static inline VD dfma(VD x, VD y, VD z) {
  return {vfmaq_f64(z.a, x.a, y.a), vfmaq_f64(z.b, x.b, y.b)};
}
static inline VD dsqrt(VD x) { return {vsqrtq_f64(x.a), vsqrtq_f64(x.b)}; }
// A comparison and a choice, not vminq: the second operand has to come back for NaN.
static inline VD dmin(VD x, VD y) {
  return {vbslq_f64(vcltq_f64(x.a, y.a), x.a, y.a), vbslq_f64(vcltq_f64(x.b, y.b), x.b, y.b)};
}
static inline VD dclamp(VD x) {
  const float64x2_t zero = vdupq_n_f64(0);
  return {vbslq_f64(vcltzq_f64(x.a), zero, x.a), vbslq_f64(vcltzq_f64(x.b), zero, x.b)};
}
static inline VI dless(VD x, VD y) {
  const uint32x2_t low = vmovn_u64(vcltq_f64(x.a, y.a)), high = vmovn_u64(vcltq_f64(x.b, y.b));
  return (VI)vcombine_u32(low, high);
}

static inline void transpose4(const float *const *rows, int offset, VF *v) {
  float32x4_t r[4], t[4];
  for (int i = 0; i < 4; i++) r[i] = vld1q_f32(rows[i] + offset);
  for (int i = 0; i < 2; i++) {
    t[2 * i] = vzip1q_f32(r[i], r[i + 2]);
    t[2 * i + 1] = vzip2q_f32(r[i], r[i + 2]);
  }
  for (int i = 0; i < 2; i++) {
    v[2 * i] = (VF)vzip1q_f32(t[i], t[i + 2]);
    v[2 * i + 1] = (VF)vzip2q_f32(t[i], t[i + 2]);
  }
}

static inline void load_transposed(const float *const *rows, int group, VF *v) {
  int k = 0;
  for (; k + 4 <= group; k += 4) transpose4(rows, k, v + k);
  for (; k < group; k++)
    for (int l = 0; l < W; l++) v[k][l] = rows[l][k];
}

// The conversions of this set turn NaN into 0, which is its code.
static inline int8_t code_of(float x, float radius, float step) {
  x = x > radius ? radius : x;
  x = x < -radius ? -radius : x;
  return (int8_t)vcvtns_s32_f32(x / step);
}

static inline int8x16_t narrow16(const int32x4_t *q) {
  const int16x8_t low = vcombine_s16(vqmovn_s32(q[0]), vqmovn_s32(q[1]));
  const int16x8_t high = vcombine_s16(vqmovn_s32(q[2]), vqmovn_s32(q[3]));
  return vcombine_s8(vqmovn_s16(low), vqmovn_s16(high));
}

// x * (1 / step) is one rounding away from x / step: only next to a tie can the code differ, and
// there the true quotients are taken. min, max and the test below carry a NaN along.
static inline int8x16_t codes16(const float *x, float32x4_t radius, float32x4_t low,
                                float32x4_t step, float32x4_t inverse, float near) {
  float32x4_t c[4], away[4];
  int32x4_t q[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    c[i] = vmaxq_f32(vminq_f32(vld1q_f32(x + 4 * i), radius), low);
    const float32x4_t y = vmulq_f32(c[i], inverse);
    q[i] = vcvtnq_s32_f32(y);
    away[i] = vabdq_f32(y, vcvtq_f32_s32(q[i]));
  }
  const float32x4_t most = vmaxq_f32(vmaxq_f32(away[0], away[1]), vmaxq_f32(away[2], away[3]));
  if (__builtin_expect(!(vmaxvq_f32(most) <= near), 0))
    for (int i = 0; i < 4; i++) q[i] = vcvtnq_s32_f32(vdivq_f32(c[i], step));
  return narrow16(q);
}

// |x| <= radius = q_max * step after clipping, so no code leaves the grid.
static inline int32_t encode_group(const float *x, int n, float radius, float step, int bits,
                                   int8_t *codes) {
  if (__builtin_expect(!(step == step), 0)) {  // a NaN has no code
    __builtin_memset(codes, 0, (size_t)n);
    return 0;
  }
  const float32x4_t r = vdupq_n_f32(radius), low = vdupq_n_f32(-radius), s = vdupq_n_f32(step);
  const float32x4_t inverse = vdupq_n_f32(1.0f / step);
  const float near = 0.5f - (float)(1 << bits) * 2.5e-7f;
  int32_t sum = 0;
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    const int8x16_t q = codes16(x + i, r, low, s, inverse, near);
    vst1q_s8(codes + i, q);
    sum += vaddlvq_s8(q);
  }
  for (; i < n; i++) sum += codes[i] = code_of(x[i], radius, step);
  return sum;
}

static inline bool encode_plain(const cod::GroupBlock &, int, int, int, int, cod::GroupResult &) {
  return false;  // encode_group is as fast here: its conversions round and its sums are one step
}

#include "epilogue.inl"
#include "project.inl"

namespace {

void encode_each(const float *x, int n, const float *radius, const float *step, int,
                 int8_t *codes) {
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    int32x4_t q[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
      const float32x4_t r = vld1q_f32(radius + i + 4 * j);
      const float32x4_t c = vmaxq_f32(vminq_f32(vld1q_f32(x + i + 4 * j), r), vnegq_f32(r));
      q[j] = vcvtnq_s32_f32(vdivq_f32(c, vld1q_f32(step + i + 4 * j)));
    }
    vst1q_s8(codes + i, narrow16(q));
  }
  for (; i < n; i++) codes[i] = code_of(x[i], radius[i], step[i]);
}

// Of 32 registers: 12 integer and 12 float sums, 6 rows of 16 codes, 2 of weights.
constexpr int MR = 6, NR = 8;

template <int LANE>
inline __attribute__((always_inline)) void quad(int32x4_t (&d)[MR][2], const int8x16_t *b,
                                                const uint8_t *w) {
  const int8x16_t w0 = vreinterpretq_s8_u8(vld1q_u8(w + LANE * 4 * NR));
  const int8x16_t w1 = vreinterpretq_s8_u8(vld1q_u8(w + LANE * 4 * NR + 16));
#pragma GCC unroll 6
  for (int r = 0; r < MR; r++) {
    d[r][0] = vdotq_laneq_s32(d[r][0], w0, b[r], LANE);
    d[r][1] = vdotq_laneq_s32(d[r][1], w1, b[r], LANE);
  }
}

inline void leave(const float32x4_t (&f)[MR][2], const cod::Epilogue &out) {
  if (out.columns < NR) {
#pragma GCC unroll 6
    for (int r = 0; r < MR; r++) {
      vst1q_f32(out.acc + r * NR, f[r][0]);
      vst1q_f32(out.acc + r * NR + 4, f[r][1]);
    }
    return store_tile(out, NR);
  }
  const float32x4_t one = vdupq_n_f32(1.0f), zero = vdupq_n_f32(0.0f);
#pragma GCC unroll 2
  for (int h = 0; h < 2; h++) {
    const float32x4_t scale = out.scale ? vld1q_f32(out.scale + 4 * h) : one;
    const float32x4_t bias = out.bias ? vld1q_f32(out.bias + 4 * h) : zero;
#pragma GCC unroll 6
    for (int r = 0; r < MR; r++)
      if (r < out.rows)
        vst1q_f32(out.y + r * out.stride + 4 * h, vfmaq_f32(bias, f[r][h], scale));
  }
}

template <bool SCALED>
void tile_of(const int8_t *const *x, const float *const *s, const int32_t *const *c,
             const uint8_t *w, const float *ws, int64_t taps, int64_t groups, int group,
             int step_stride, const cod::Epilogue &out) {
  float32x4_t f[MR][2];
#pragma GCC unroll 6
  for (int r = 0; r < MR; r++) f[r][0] = f[r][1] = vdupq_n_f32(0);
  for (int64_t t = 0; t < taps; t++, x += MR, s += MR, c += MR)
    for (int64_t g = 0; g < groups; g++) {
      const int64_t at = g * group;
      int32x4_t d[MR][2];
      int8x16_t b[MR];
#pragma GCC unroll 6
      for (int r = 0; r < MR; r++) d[r][0] = d[r][1] = vdupq_n_s32(-COD_WEIGHT_OFFSET * c[r][g]);
      int k = 0;
      for (; k + 16 <= group; k += 16, w += 16 * NR) {
#pragma GCC unroll 6
        for (int r = 0; r < MR; r++) b[r] = vld1q_s8(x[r] + at + k);
        quad<0>(d, b, w);
        quad<1>(d, b, w);
        quad<2>(d, b, w);
        quad<3>(d, b, w);
      }
      for (; k < group; k += 4, w += 4 * NR) {
#pragma GCC unroll 6
        for (int r = 0; r < MR; r++) {
          int32_t four;
          __builtin_memcpy(&four, x[r] + at + k, 4);
          b[r] = vreinterpretq_s8_s32(vdupq_n_s32(four));
        }
        quad<0>(d, b, w);
      }
#pragma GCC unroll 6
      for (int r = 0; r < MR; r++) {
        const float sx = s[r][g * step_stride];
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
          const float32x4_t dot = vcvtq_f32_s32(d[r][h]);
          f[r][h] = SCALED ? vfmaq_f32(f[r][h], vmulq_n_f32(dot, sx), vld1q_f32(ws + 4 * h))
                           : vfmaq_n_f32(f[r][h], dot, sx);
        }
      }
      if (SCALED) ws += NR;
    }
  leave(f, out);
}

// 32-bit sums hold any code: wide activations need no path of their own.
void tile(const int8_t *const *x, const float *const *s, const int32_t *const *c, const uint8_t *w,
          const float *ws, int64_t taps, int64_t groups, int group, int step_stride, int,
          bool, const cod::Epilogue &out) {
  auto call = ws ? tile_of<true> : tile_of<false>;
  call(x, s, c, w, ws, taps, groups, group, step_stride, out);
}

// 16 packed bytes hold the 32 bytes of one quad: low nibbles first.
void unpack(const uint8_t *packed, int64_t n, uint8_t *bytes) {
  for (int64_t i = 0; i < n; i += 2 * NR) {
    const uint8x16_t v = vld1q_u8(packed + i);
    vst1q_u8(bytes + 2 * i, vandq_u8(v, vdupq_n_u8(15)));
    vst1q_u8(bytes + 2 * i + 16, vshrq_n_u8(v, 4));
  }
}

bool runs_here() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  return false;  // no way to ask is known here: the generic set serves
#endif
}

}  // namespace

static inline VF codes_as_floats(const int8_t *codes) {
  int32_t four;
  __builtin_memcpy(&four, codes, 4);
  const int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
  return (VF)vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}

#include "plain.inl"

#include "depthwise.inl"
#include "pointwise.inl"
#include "weigh.inl"

extern const cod::Kernels kNeon;
const cod::Kernels kNeon = {"neon-dotprod", runs_here, kLanes,  quantize_block, encode_group, encode_each,
                            gelu,           MR,        NR, tile,          unpack, activate,
                            dequantize, depthwise, multiply, blend, magnitudes, widest, weigh, widest_pixels, weigh_pixels,
                               transform, dequantize_each};
