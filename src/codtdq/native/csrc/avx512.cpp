// AVX-512 with VNNI: 16 groups per block, 6 x 32 tiles, vpdpbusd.
#include <immintrin.h>

#include "kernels.h"

#define W 16
typedef float VF __attribute__((vector_size(64)));
typedef int32_t VI __attribute__((vector_size(64)));

static inline VI vmin(VI a, VI b) { return (VI)_mm512_min_epi32((__m512i)a, (__m512i)b); }
static inline VI vmax(VI a, VI b) { return (VI)_mm512_max_epi32((__m512i)a, (__m512i)b); }
static inline VF vround(VF x) { return (VF)_mm512_roundscale_ps((__m512)x, 8); }
struct VD {
  __m512d a, b;
};
static inline VD wide(VF x) {
  const __m512 v = (__m512)x;
  return {_mm512_cvtps_pd(_mm512_castps512_ps256(v)), _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1))};
}
static inline VF narrow(VD x) {
  return (VF)_mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(x.a)), _mm512_cvtpd_ps(x.b), 1);
}
static inline VD dset(double x) { return {_mm512_set1_pd(x), _mm512_set1_pd(x)}; }
static inline VD dadd(VD x, VD y) { return {x.a + y.a, x.b + y.b}; }
static inline VD dsub(VD x, VD y) { return {x.a - y.a, x.b - y.b}; }
static inline VD dmul(VD x, VD y) { return {x.a * y.a, x.b * y.b}; }
static inline VD ddiv(VD x, VD y) { return {x.a / y.a, x.b / y.b}; }
static inline VD dfma(VD x, VD y, VD z) {
  return {_mm512_fmadd_pd(x.a, y.a, z.a), _mm512_fmadd_pd(x.b, y.b, z.b)};
}
static inline VD dsqrt(VD x) { return {_mm512_sqrt_pd(x.a), _mm512_sqrt_pd(x.b)}; }
// the second operand is returned for NaN
static inline VD dmin(VD x, VD y) { return {_mm512_min_pd(x.a, y.a), _mm512_min_pd(x.b, y.b)}; }
static inline VD dclamp(VD x) {
  const __m512d zero = _mm512_setzero_pd();
  return {_mm512_max_pd(zero, x.a), _mm512_max_pd(zero, x.b)};
}
static inline VI dless(VD x, VD y) {
  const __mmask8 low = _mm512_cmp_pd_mask(x.a, y.a, _CMP_LT_OQ);
  const __mmask8 high = _mm512_cmp_pd_mask(x.b, y.b, _CMP_LT_OQ);
  return (VI)_mm512_movm_epi32((__mmask16)(low | high << 8));
}

// 16 x 16 transpose of rows into v[0..15].
static inline void transpose16(const float *const *rows, int offset, VF *v) {
  __m512 r[16], t[16];
  for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_ps(rows[i] + offset);
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = (__m512)_mm512_unpacklo_pd((__m512d)t[i], (__m512d)t[i + 2]);
    r[i + 1] = (__m512)_mm512_unpackhi_pd((__m512d)t[i], (__m512d)t[i + 2]);
    r[i + 2] = (__m512)_mm512_unpacklo_pd((__m512d)t[i + 1], (__m512d)t[i + 3]);
    r[i + 3] = (__m512)_mm512_unpackhi_pd((__m512d)t[i + 1], (__m512d)t[i + 3]);
  }
  for (int i = 0; i < 4; i++) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; i++) {
    v[i] = (VF)_mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
    v[i + 8] = (VF)_mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
    v[i + 4] = (VF)_mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
    v[i + 12] = (VF)_mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

static void load_transposed(const cod::GroupBlock &block, int group, VF *v) {
  const float *rows[W];
  for (int l = 0; l < W; l++) rows[l] = block.values[l < block.lanes ? l : 0];
  int k = 0;
  for (; k + 16 <= group; k += 16) transpose16(rows, k, v + k);
  for (; k < group; k++)
    for (int l = 0; l < W; l++) v[k][l] = rows[l][k];
}

// x * (1 / step) is one rounding away from x / step: only next to a tie can the code differ, and
// there the true quotient is taken. min and max return their second operand for NaN: it stays one,
// fails the test for a tie as well and gets code 0 there.
static inline __m512i codes16(__m512 x, __m512 radius, __m512 low, __m512 step, __m512 inverse,
                              __m512 near) {
  const __m512 c = _mm512_max_ps(low, _mm512_min_ps(radius, x));
  const __m512 y = _mm512_mul_ps(c, inverse);
  const __m512i q = _mm512_cvtps_epi32(y);
  const __m512 away = _mm512_abs_ps(_mm512_sub_ps(y, _mm512_cvtepi32_ps(q)));
  if (__builtin_expect(_mm512_cmp_ps_mask(away, near, _CMP_NLE_UQ) != 0, 0))
    return _mm512_maskz_cvtps_epi32(_mm512_cmp_ps_mask(c, c, _CMP_ORD_Q), _mm512_div_ps(c, step));
  return q;
}

// |x| <= radius = q_max * step after clipping, so no code leaves the grid.
static inline int32_t encode_group(const float *x, int n, float radius, float step, int bits,
                                   int8_t *codes) {
  if (__builtin_expect(!(step == step), 0)) {  // a NaN has no code
    __builtin_memset(codes, 0, (size_t)n);
    return 0;
  }
  const __m512 r = _mm512_set1_ps(radius), low = _mm512_set1_ps(-radius), s = _mm512_set1_ps(step);
  const __m512 inverse = _mm512_set1_ps(1.0f / step);
  const __m512 near = _mm512_set1_ps(0.5f - (float)(1 << bits) * 2.5e-7f);
  __m512i total = _mm512_setzero_si512();
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512i q = codes16(_mm512_loadu_ps(x + i), r, low, s, inverse, near);
    total = _mm512_add_epi32(total, q);
    _mm_storeu_si128((__m128i *)(codes + i), _mm512_cvtepi32_epi8(q));
  }
  if (i < n) {
    const __mmask16 mask = (__mmask16)((1 << (n - i)) - 1);
    const __m512i q = codes16(_mm512_maskz_loadu_ps(mask, x + i), r, low, s, inverse, near);
    total = _mm512_add_epi32(total, q);
    _mm_mask_storeu_epi8(codes + i, mask, _mm512_cvtepi32_epi8(q));
  }
  return _mm512_reduce_add_epi32(total);
}

#include "project.inl"

namespace {

void encode_each(const float *x, int n, const float *radius, const float *step, int,
                 int8_t *codes) {
  for (int i = 0; i < n; i += 16) {
    const __mmask16 mask = n - i >= 16 ? 0xffff : (__mmask16)((1 << (n - i)) - 1);
    const __m512 r = _mm512_maskz_loadu_ps(mask, radius + i);
    const __m512 s = _mm512_mask_loadu_ps(_mm512_set1_ps(1.0f), mask, step + i);
    __m512 v = _mm512_maskz_loadu_ps(mask, x + i);
    v = _mm512_max_ps(_mm512_sub_ps(_mm512_setzero_ps(), r), _mm512_min_ps(r, v));
    const __mmask16 good = _mm512_cmp_ps_mask(s, v, _CMP_ORD_Q);  // a NaN has no code
    const __m512i q = _mm512_maskz_cvtps_epi32(good, _mm512_div_ps(v, s));
    _mm_mask_storeu_epi8(codes + i, mask, _mm512_cvtepi32_epi8(q));
  }
}

constexpr int MR = 6, NR = 32;

template <int GROUP, bool SCALED>
void tile_of(const int8_t *const *x, const float *const *s, const int32_t *const *c,
             const uint8_t *w, const float *ws, int64_t taps, int64_t groups, int group,
             int step_stride, const cod::Epilogue &out) {
  const int quads = (GROUP ? GROUP : group) / 4;
  __m512 f[MR][2];
#pragma GCC unroll 6
  for (int r = 0; r < MR; r++) f[r][0] = f[r][1] = _mm512_setzero_ps();
  for (int64_t t = 0; t < taps; t++, x += MR, s += MR, c += MR) {
    for (int64_t g = 0; g < groups; g++) {
      __m512i d[MR][2];
      const int64_t at = g * quads * 4;
#pragma GCC unroll 6
      for (int r = 0; r < MR; r++)
        d[r][0] = d[r][1] = _mm512_set1_epi32(-COD_WEIGHT_OFFSET * c[r][g]);
#pragma GCC unroll 8
      for (int q = 0; q < quads; q++, w += 4 * NR) {
        const __m512i w0 = _mm512_load_si512(w), w1 = _mm512_load_si512(w + 64);
#pragma GCC unroll 6
        for (int r = 0; r < MR; r++) {
          int32_t four;
          __builtin_memcpy(&four, x[r] + at + 4 * q, 4);
          const __m512i b = _mm512_set1_epi32(four);
          d[r][0] = _mm512_dpbusd_epi32(d[r][0], w0, b);
          d[r][1] = _mm512_dpbusd_epi32(d[r][1], w1, b);
        }
      }
      if (SCALED) {
        const __m512 s0 = _mm512_load_ps(ws), s1 = _mm512_load_ps(ws + 16);
        ws += NR;
#pragma GCC unroll 6
        for (int r = 0; r < MR; r++) {
          const __m512 sx = _mm512_set1_ps(s[r][g * step_stride]);
          f[r][0] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(d[r][0]), sx), s0, f[r][0]);
          f[r][1] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(d[r][1]), sx), s1, f[r][1]);
        }
      } else {
#pragma GCC unroll 6
        for (int r = 0; r < MR; r++) {
          const __m512 sx = _mm512_set1_ps(s[r][g * step_stride]);
          f[r][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d[r][0]), sx, f[r][0]);
          f[r][1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d[r][1]), sx, f[r][1]);
        }
      }
    }
  }
  const __m512 one = _mm512_set1_ps(1.0f), zero = _mm512_setzero_ps();
  const uint32_t all = out.columns >= NR ? 0xffffffffu : (1u << out.columns) - 1;
  const __mmask16 m0 = (__mmask16)all, m1 = (__mmask16)(all >> 16);
  const __m512 a0 = out.scale ? _mm512_load_ps(out.scale) : one;
  const __m512 a1 = out.scale ? _mm512_load_ps(out.scale + 16) : one;
  const __m512 b0 = out.bias ? _mm512_maskz_loadu_ps(m0, out.bias) : zero;
  const __m512 b1 = out.bias ? _mm512_maskz_loadu_ps(m1, out.bias + 16) : zero;
#pragma GCC unroll 6
  for (int r = 0; r < MR; r++) {
    if (r >= out.rows) break;
    float *y = out.y + r * out.stride;
    _mm512_mask_storeu_ps(y, m0, _mm512_fmadd_ps(f[r][0], a0, b0));
    _mm512_mask_storeu_ps(y + 16, m1, _mm512_fmadd_ps(f[r][1], a1, b1));
  }
}

void tile(const int8_t *const *x, const float *const *s, const int32_t *const *c, const uint8_t *w,
          const float *ws, int64_t taps, int64_t groups, int group, int step_stride, int,
          const cod::Epilogue &out) {
  if (group == 32 && ws == nullptr)
    tile_of<32, false>(x, s, c, w, ws, taps, groups, group, step_stride, out);
  else if (group == 32)
    tile_of<32, true>(x, s, c, w, ws, taps, groups, group, step_stride, out);
  else if (ws == nullptr)
    tile_of<0, false>(x, s, c, w, ws, taps, groups, group, step_stride, out);
  else
    tile_of<0, true>(x, s, c, w, ws, taps, groups, group, step_stride, out);
}

// 64 packed bytes hold the 128 bytes of one quad: low nibbles first.
void unpack(const uint8_t *packed, int64_t n, uint8_t *bytes) {
  const __m512i low = _mm512_set1_epi8(15);
  for (int64_t i = 0; i < n; i += 64) {
    const __m512i v = _mm512_loadu_si512(packed + i);
    _mm512_store_si512(bytes + 2 * i, _mm512_and_si512(v, low));
    _mm512_store_si512(bytes + 2 * i + 64, _mm512_and_si512(_mm512_srli_epi16(v, 4), low));
  }
}

bool runs_here() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}

}  // namespace

#include "pointwise.inl"

extern const cod::Kernels kAvx512;
const cod::Kernels kAvx512 = {"avx512-vnni", runs_here, W,   quantize_block, encode_group, encode_each,
                              gelu,          MR,        NR,  tile,          unpack, activate,
                              multiply_add,  magnitudes};
