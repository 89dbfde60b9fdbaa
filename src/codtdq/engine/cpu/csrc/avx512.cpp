// AVX-512 with VNNI: 16 groups per block, 6 x 32 tiles, vpdpbusd.
#include <immintrin.h>

#include <cmath>

#include "kernels.h"

#define W 16
typedef float VF __attribute__((vector_size(64)));
typedef int32_t VI __attribute__((vector_size(64)));

// Keys are compared as floats: twice as fast as integers with most processors.
static inline VI kmin(VI a, VI b) { return (VI)_mm512_min_ps((__m512)a, (__m512)b); }
static inline VI kmax(VI a, VI b) { return (VI)_mm512_max_ps((__m512)a, (__m512)b); }
static inline VI umax(VI a, VI b) { return (VI)_mm512_max_epu32((__m512i)a, (__m512i)b); }
static constexpr int32_t kLastKey = 0x7f800000;
static inline VI key_of(VI magnitude, int omit) {
  const __mmask16 zero = _mm512_testn_epi32_mask((__m512i)magnitude, (__m512i)magnitude);
  return (VI)_mm512_mask_set1_epi32((__m512i)magnitude, omit ? zero : 0, kLastKey);
}
static inline VI magnitude_of(VI key, int) { return key; }
static inline bool vany(VI x) { return _mm512_test_epi32_mask((__m512i)x, (__m512i)x) != 0; }
static inline VF vfma(VF x, VF y, VF z) { return (VF)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)z); }
static inline VF vfnma(VF x, VF y, VF z) { return (VF)_mm512_fnmadd_ps((__m512)x, (__m512)y, (__m512)z); }
static inline VF fmin_lanes(VF x, VF y) { return (VF)_mm512_min_ps((__m512)x, (__m512)y); }
static inline VF fmax_lanes(VF x, VF y) { return (VF)_mm512_max_ps((__m512)x, (__m512)y); }
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

// Four columns of sixteen rows: rows i, i + 4, i + 8 and i + 12 share a register from the load on,
// so that no shuffle has to cross its quarters.
static inline void transpose4(const float *const *rows, int offset, VF *v) {
  __m512 r[4], t[4];
  for (int i = 0; i < 4; i++) {
    const __m512 a = _mm512_castps128_ps512(_mm_loadu_ps(rows[i] + offset));
    const __m512 b = _mm512_mask_broadcast_f32x4(a, 0x00f0, _mm_loadu_ps(rows[i + 4] + offset));
    const __m512 c = _mm512_mask_broadcast_f32x4(b, 0x0f00, _mm_loadu_ps(rows[i + 8] + offset));
    r[i] = _mm512_mask_broadcast_f32x4(c, 0xf000, _mm_loadu_ps(rows[i + 12] + offset));
  }
  for (int i = 0; i < 4; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 2; i++) {
    v[2 * i] = (VF)_mm512_shuffle_ps(t[i], t[i + 2], 0x44);
    v[2 * i + 1] = (VF)_mm512_shuffle_ps(t[i], t[i + 2], 0xee);
  }
}

static inline void load_transposed(const float *const *rows, int group, VF *v) {
  int k = 0;
  for (; k + 4 <= group; k += 4) transpose4(rows, k, v + k);
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

// The exact integer part of x / step in -q_max..q_max, or bits in `differ` where only a division can
// tell: hi and lo are 1 / step rounded up and down, the sum with 1.5 * 2^23 rounds x / step to an
// integer, and both have to agree.
static inline __m512i plain16(const float *x, __m512 hi, __m512 lo, __m512 bottom, __m512 top,
                              __m512i &differ) {
  const __m512 magic = _mm512_set1_ps(12582912.0f), value = _mm512_loadu_ps(x);
  const __m512 up = _mm512_fmadd_ps(value, hi, magic), down = _mm512_fmadd_ps(value, lo, magic);
  differ = _mm512_ternarylogic_epi32(differ, _mm512_castps_si512(up), _mm512_castps_si512(down), 0xf6);
  return _mm512_castps_si512(_mm512_max_ps(_mm512_min_ps(up, top), bottom));
}

// Sums of eight groups from four partial sums each, as left by vpsadbw.
static inline __m256i reduce8(const __m256i *partial) {
  __m256i two[4], four[2];
  for (int i = 0; i < 4; i++)
    two[i] = _mm256_or_si256(partial[2 * i], _mm256_slli_epi64(partial[2 * i + 1], 32));
  for (int i = 0; i < 2; i++)
    four[i] = _mm256_add_epi32(_mm256_unpacklo_epi64(two[2 * i], two[2 * i + 1]),
                               _mm256_unpackhi_epi64(two[2 * i], two[2 * i + 1]));
  return _mm256_add_epi32(_mm256_permute2x128_si256(four[0], four[1], 0x20),
                          _mm256_permute2x128_si256(four[0], four[1], 0x31));
}

// Groups of finite values below 2^20 steps, in pieces of 16.
static inline bool encode_plain(const cod::GroupBlock &block, int from, int to, int n, int qmax,
                                cod::GroupResult &out) {
  if (n % 16 != 0) return false;
  alignas(64) float hi[W], lo[W];
  const __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_load_ps(out.step + from));
  _mm512_store_ps(hi, _mm512_mul_ps(inverse, _mm512_set1_ps(1.0f + 0x1p-22f)));
  _mm512_store_ps(lo, _mm512_mul_ps(inverse, _mm512_set1_ps(1.0f - 0x1p-22f)));
  const __m512 bottom = _mm512_set1_ps(12582912.0f - (float)qmax);
  const __m512 top = _mm512_set1_ps(12582912.0f + (float)qmax);
  const __m256i lift = _mm256_set1_epi8((char)-128), zero = _mm256_setzero_si256();
  __m256i partial[W];
  for (int l = 0; l < W; l++) partial[l] = zero;
  for (int l = from; l < to; l++) {
    const __m512 up = _mm512_set1_ps(hi[l - from]), down = _mm512_set1_ps(lo[l - from]);
    const float *x = block.values[l];
    int8_t *codes = block.codes[l];
    __m512i differ = _mm512_setzero_si512();
    __m256i sum = zero;
    int i = 0;
    // bytes to sums: add 128, sum eight at a time, take it off again
    for (; i + 32 <= n; i += 32) {
      const __m512i a = plain16(x + i, up, down, bottom, top, differ);
      const __m512i b = plain16(x + i + 16, up, down, bottom, top, differ);
      const __m256i p = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtepi32_epi8(a)),
                                                _mm512_cvtepi32_epi8(b), 1);
      _mm256_storeu_si256((__m256i *)(codes + i), p);
      sum = _mm256_add_epi64(sum, _mm256_sad_epu8(_mm256_xor_si256(p, lift), zero));
    }
    if (i < n) {
      const __m128i p = _mm512_cvtepi32_epi8(plain16(x + i, up, down, bottom, top, differ));
      _mm_storeu_si128((__m128i *)(codes + i), p);
      const __m128i lifted = _mm_xor_si128(p, _mm256_castsi256_si128(lift));
      sum = _mm256_add_epi64(sum, _mm256_zextsi128_si256(_mm_sad_epu8(lifted, _mm_setzero_si128())));
    }
    if (__builtin_expect(_mm512_test_epi32_mask(differ, differ) != 0, 0)) {
      const int exact = encode_group(x, n, out.radius[l], out.step[l], 8, codes);
      sum = _mm256_zextsi128_si256(_mm_cvtsi32_si128(exact + 128 * n));
    }
    partial[l - from] = sum;
  }
  for (int l = 0; l < W; l += 8)
    _mm256_store_si256((__m256i *)(out.sums + from + l),
                       _mm256_sub_epi32(reduce8(partial + l), _mm256_set1_epi32(128 * n)));
  return true;
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

template <int GROUP, int SCALES>
void tile_of(const int8_t *const *x, const float *const *s, const int32_t *const *c,
             const uint8_t *w, const float *ws, int64_t taps, int64_t groups, int group,
             int step_stride, const cod::Epilogue &out) {
  const int quads = (GROUP ? GROUP : group) / 4;
  // A brief sum begins at the bits of kMagic: as a float it is kMagic + sum, and one fma takes that
  // off and multiplies. kMagic times the scale is exact, so nothing is lost.
  const __m512 magic = _mm512_set1_ps(kMagic);
  const __m512i start = SCALES == cod::kBriefScales ? _mm512_castps_si512(magic) : _mm512_setzero_si512();
  __m512 f[MR][2];
  alignas(64) int32_t begin[MR][16];
#pragma GCC unroll 6
  for (int r = 0; r < MR; r++) f[r][0] = f[r][1] = _mm512_setzero_ps();
  for (int64_t t = 0; t < taps; t++, x += MR, s += MR, c += MR) {
    for (int64_t g = 0; g < groups; g++) {
      if (g % 16 == 0) {  // where the sums of 16 groups begin: loads broadcast them for nothing
        const __mmask16 mask = groups - g >= 16 ? 0xffff : (__mmask16)((1 << (groups - g)) - 1);
#pragma GCC unroll 6
        for (int r = 0; r < MR; r++) {
          const __m512i sums = _mm512_maskz_loadu_epi32(mask, c[r] + g);
          static_assert(COD_WEIGHT_OFFSET == 8, "a shift by 3");
          _mm512_store_si512(begin[r], _mm512_sub_epi32(start, _mm512_slli_epi32(sums, 3)));
        }
      }
      __m512i d[MR][2];
      const int64_t at = g * quads * 4;
#pragma GCC unroll 6
      for (int r = 0; r < MR; r++) d[r][0] = d[r][1] = _mm512_set1_epi32(begin[r][g % 16]);
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
      if (SCALES == cod::kNoScales) {
#pragma GCC unroll 6
        for (int r = 0; r < MR; r++) {
          const __m512 sx = _mm512_set1_ps(s[r][g * step_stride]);
          f[r][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d[r][0]), sx, f[r][0]);
          f[r][1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d[r][1]), sx, f[r][1]);
        }
        continue;
      }
      const __m512 s0 = _mm512_load_ps(ws), s1 = _mm512_load_ps(ws + 16);
      const __m512 m0 = _mm512_mul_ps(s0, magic), m1 = _mm512_mul_ps(s1, magic);
      ws += NR;
#pragma GCC unroll 6
      for (int r = 0; r < MR; r++) {
        const __m512 sx = _mm512_set1_ps(s[r][g * step_stride]);
        __m512 a, b;
        if (SCALES == cod::kBriefScales) {
          a = _mm512_fmsub_ps(_mm512_castsi512_ps(d[r][0]), s0, m0);
          b = _mm512_fmsub_ps(_mm512_castsi512_ps(d[r][1]), s1, m1);
        } else {
          a = _mm512_mul_ps(_mm512_cvtepi32_ps(d[r][0]), s0);
          b = _mm512_mul_ps(_mm512_cvtepi32_ps(d[r][1]), s1);
        }
        f[r][0] = _mm512_fmadd_ps(a, sx, f[r][0]);
        f[r][1] = _mm512_fmadd_ps(b, sx, f[r][1]);
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
          bool brief, const cod::Epilogue &out) {
  auto call = group == 32 ? tile_of<32, cod::kNoScales> : tile_of<0, cod::kNoScales>;
  if (ws && brief) call = group == 32 ? tile_of<32, cod::kBriefScales> : tile_of<0, cod::kBriefScales>;
  if (ws && !brief) call = group == 32 ? tile_of<32, cod::kScales> : tile_of<0, cod::kScales>;
  call(x, s, c, w, ws, taps, groups, group, step_stride, out);
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

static inline VF codes_as_floats(const int8_t *codes) {
  return (VF)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)codes)));
}

// The lane at a distance of a power of two.
template <int DISTANCE>
static inline VF swap_lanes(VF x) {
  const __m512 v = (__m512)x;
  if (DISTANCE == 1) return (VF)_mm512_permute_ps(v, 0xb1);
  if (DISTANCE == 2) return (VF)_mm512_permute_ps(v, 0x4e);
  return (VF)_mm512_shuffle_f32x4(v, v, DISTANCE == 4 ? 0xb1 : 0x4e);
}

static inline void store_codes(VI codes, int8_t *to) {
  _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8((__m512i)codes));
}

static inline VF reciprocal(VF x) {
  const VF guess = (VF)_mm512_rcp14_ps((__m512)x);
  return vfma(guess, vfnma(guess, x, VF{} + 1.0f), guess);
}

// x / y: a guess and what is left of x give the rounded quotient.
static inline VF quotient(VF x, VF y, VF inverse) {
  const VF guess = x * inverse;
  return vfma(vfnma(guess, y, x), inverse, guess);
}

// As `encode_plain`, each group between bounds of its own.
static inline bool encode_between(const cod::GroupBlock &block, int from, int to, int n,
                                  cod::WeighedResult &out) {
  if (n != 32) return false;
  alignas(64) float hi[W], lo[W], low[W], high[W];
  const __m512 inverse = _mm512_load_ps(out.inverse + from), magic = _mm512_set1_ps(12582912.0f);
  _mm512_store_ps(hi, _mm512_mul_ps(inverse, _mm512_set1_ps(1.0f + cod::kMargin)));
  _mm512_store_ps(lo, _mm512_mul_ps(inverse, _mm512_set1_ps(1.0f - cod::kMargin)));
  _mm512_store_ps(low, _mm512_add_ps(_mm512_load_ps(out.bottom + from), magic));
  _mm512_store_ps(high, _mm512_add_ps(_mm512_load_ps(out.top + from), magic));
  const __m256i lift = _mm256_set1_epi8((char)-128), zero = _mm256_setzero_si256();
  __m256i partial[W];
  for (int l = 0; l < W; l++) partial[l] = zero;
  __m512i differ = _mm512_setzero_si512();
  for (int l = from; l < to; l++) {
    const int i = l - from;
    const __m512 up = _mm512_set1_ps(hi[i]), down = _mm512_set1_ps(lo[i]);
    const __m512 bottom = _mm512_set1_ps(low[i]), top = _mm512_set1_ps(high[i]);
    const __m512i a = plain16(block.values[l], up, down, bottom, top, differ);
    const __m512i b = plain16(block.values[l] + 16, up, down, bottom, top, differ);
    const __m256i p = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtepi32_epi8(a)),
                                              _mm512_cvtepi32_epi8(b), 1);
    _mm256_storeu_si256((__m256i *)block.codes[l], p);
    partial[i] = _mm256_sad_epu8(_mm256_xor_si256(p, lift), zero);
  }
  if (__builtin_expect(_mm512_test_epi32_mask(differ, differ) != 0, 0)) {
    for (int l = from; l < to; l++) {
      const __m512 step = _mm512_set1_ps(out.step[l]), bottom = _mm512_set1_ps(out.bottom[l]);
      const __m512 top = _mm512_set1_ps(out.top[l]);
      __m512i total = _mm512_setzero_si512();
      for (int i = 0; i < 32; i += 16) {
        const __m512 q = _mm512_div_ps(_mm512_loadu_ps(block.values[l] + i), step);
        const __m512 inside = _mm512_max_ps(_mm512_min_ps(_mm512_roundscale_ps(q, 8), top), bottom);
        const __m512i code = _mm512_cvtps_epi32(inside);
        total = _mm512_add_epi32(total, code);
        _mm_storeu_si128((__m128i *)(block.codes[l] + i), _mm512_cvtepi32_epi8(code));
      }
      out.sums[l] = _mm512_reduce_add_epi32(total);
    }
    return true;
  }
  for (int l = 0; l < W; l += 8)
    _mm256_store_si256((__m256i *)(out.sums + from + l),
                       _mm256_sub_epi32(reduce8(partial + l), _mm256_set1_epi32(128 * 32)));
  return true;
}

#include "depthwise.inl"
#include "pointwise.inl"
#include "weigh.inl"

extern const cod::Kernels kAvx512;
const cod::Kernels kAvx512 = {"avx512-vnni", runs_here, kLanes,   quantize_block, encode_group, encode_each,
                              gelu,          MR,        NR,  tile,          unpack, activate,
                              dequantize, depthwise, multiply, blend, magnitudes, widest, weigh, widest_pixels, weigh_pixels,
                               transform, dequantize_each};
