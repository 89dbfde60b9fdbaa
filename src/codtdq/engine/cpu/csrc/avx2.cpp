// AVX2 with FMA: 8 groups per block, 3 x 16 tiles, vpmaddubsw with 16-bit sums inside a group.
#include <immintrin.h>

#include <cmath>

#include "kernels.h"

#define W 8
typedef float VF __attribute__((vector_size(32)));
typedef int32_t VI __attribute__((vector_size(32)));

static inline VI kmin(VI a, VI b) { return (VI)_mm256_min_epu32((__m256i)a, (__m256i)b); }
static inline VI umax(VI a, VI b) { return (VI)_mm256_max_epu32((__m256i)a, (__m256i)b); }
static inline VI kmax(VI a, VI b) { return umax(a, b); }
// One less than the bits of a magnitude: as unsigned numbers, zero comes last.
static constexpr int32_t kLastKey = -1;
static inline VI key_of(VI magnitude, int omit) { return magnitude - omit; }
static inline VI magnitude_of(VI key, int omit) { return key + omit; }
static inline bool vany(VI x) { return !_mm256_testz_si256((__m256i)x, (__m256i)x); }
static inline VF vround(VF x) { return (VF)_mm256_round_ps((__m256)x, 8); }
static inline VF vfma(VF x, VF y, VF z) { return (VF)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)z); }
static inline VF vfnma(VF x, VF y, VF z) { return (VF)_mm256_fnmadd_ps((__m256)x, (__m256)y, (__m256)z); }
static inline VF fmin_lanes(VF x, VF y) { return (VF)_mm256_min_ps((__m256)x, (__m256)y); }
static inline VF fmax_lanes(VF x, VF y) { return (VF)_mm256_max_ps((__m256)x, (__m256)y); }
struct VD {
  __m256d a, b;
};
static inline VD wide(VF x) {
  const __m256 v = (__m256)x;
  return {_mm256_cvtps_pd(_mm256_castps256_ps128(v)), _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1))};
}
static inline VF narrow(VD x) {
  return (VF)_mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(x.a)), _mm256_cvtpd_ps(x.b), 1);
}
static inline VD dset(double x) { return {_mm256_set1_pd(x), _mm256_set1_pd(x)}; }
static inline VD dadd(VD x, VD y) { return {x.a + y.a, x.b + y.b}; }
static inline VD dsub(VD x, VD y) { return {x.a - y.a, x.b - y.b}; }
static inline VD dmul(VD x, VD y) { return {x.a * y.a, x.b * y.b}; }
static inline VD ddiv(VD x, VD y) { return {x.a / y.a, x.b / y.b}; }
static inline VD dfma(VD x, VD y, VD z) {
  return {_mm256_fmadd_pd(x.a, y.a, z.a), _mm256_fmadd_pd(x.b, y.b, z.b)};
}
static inline VD dsqrt(VD x) { return {_mm256_sqrt_pd(x.a), _mm256_sqrt_pd(x.b)}; }
// the second operand is returned for NaN
static inline VD dmin(VD x, VD y) { return {_mm256_min_pd(x.a, y.a), _mm256_min_pd(x.b, y.b)}; }
static inline VD dclamp(VD x) {
  const __m256d zero = _mm256_setzero_pd();
  return {_mm256_max_pd(zero, x.a), _mm256_max_pd(zero, x.b)};
}
static inline VI dless(VD x, VD y) {
  const __m256i low = _mm256_castpd_si256(_mm256_cmp_pd(x.a, y.a, _CMP_LT_OQ));
  const __m256i high = _mm256_castpd_si256(_mm256_cmp_pd(x.b, y.b, _CMP_LT_OQ));
  const __m256i both = _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(low), _mm256_castsi256_ps(high), 0x88));
  return (VI)_mm256_permute4x64_epi64(both, 0xd8);
}

// Four columns of eight rows: rows i and i + 4 share a register from the load on, so that no shuffle
// has to cross its halves.
static inline void transpose4(const float *const *rows, int offset, VF *v) {
  __m256 r[4], t[4];
  for (int i = 0; i < 4; i++)
    r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(rows[i] + offset)),
                                _mm_loadu_ps(rows[i + 4] + offset), 1);
  for (int i = 0; i < 4; i += 2) {
    t[i] = (__m256)_mm256_unpacklo_epi32((__m256i)r[i], (__m256i)r[i + 1]);  // faster than for floats
    t[i + 1] = (__m256)_mm256_unpackhi_epi32((__m256i)r[i], (__m256i)r[i + 1]);
  }
  for (int i = 0; i < 2; i++) {
    v[2 * i] = (VF)_mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    v[2 * i + 1] = (VF)_mm256_shuffle_ps(t[i], t[i + 2], 0xee);
  }
}

static inline void load_transposed(const float *const *rows, int group, VF *v) {
  int k = 0;
  for (; k + 4 <= group; k += 4) transpose4(rows, k, v + k);
  for (; k < group; k++)
    for (int l = 0; l < W; l++) v[k][l] = rows[l][k];
}

static inline int8_t code_of(float x, float radius, float step) {
  if (!(step == step && x == x)) return 0;  // a NaN has no code
  x = x > radius ? radius : x;
  x = x < -radius ? -radius : x;
  return (int8_t)__builtin_nearbyintf(x / step);
}

// x * (1 / step) is one rounding away from x / step: only next to a tie can the code differ, and
// there the true quotient is taken. min and max return their second operand for NaN: it stays one,
// fails the test for a tie as well and gets code 0 there.
static inline __m256i codes8(const float *x, __m256 radius, __m256 low, __m256 step, __m256 inverse,
                             __m256 near) {
  const __m256 c = _mm256_max_ps(low, _mm256_min_ps(radius, _mm256_loadu_ps(x)));
  const __m256 y = _mm256_mul_ps(c, inverse);
  const __m256i q = _mm256_cvtps_epi32(y);
  const __m256 off = _mm256_sub_ps(y, _mm256_cvtepi32_ps(q));
  const __m256 away = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), off);
  if (__builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(away, near, _CMP_NLE_UQ)) != 0, 0)) {
    const __m256 number = _mm256_cmp_ps(c, c, _CMP_ORD_Q);
    return _mm256_cvtps_epi32(_mm256_and_ps(_mm256_div_ps(c, step), number));
  }
  return q;
}

// |x| <= radius = q_max * step after clipping, so no code leaves the grid.
static inline int32_t encode_group(const float *x, int n, float radius, float step, int bits,
                                   int8_t *codes) {
  if (__builtin_expect(!(step == step), 0)) {
    __builtin_memset(codes, 0, (size_t)n);
    return 0;
  }
  const __m256 r = _mm256_set1_ps(radius), low = _mm256_set1_ps(-radius), s = _mm256_set1_ps(step);
  const __m256 inverse = _mm256_set1_ps(1.0f / step);
  const __m256 near = _mm256_set1_ps(0.5f - (float)(1 << bits) * 2.5e-7f);
  int32_t sum = 0;
  int i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m256i a = codes8(x + i, r, low, s, inverse, near);
    const __m256i b = codes8(x + i + 8, r, low, s, inverse, near);
    const __m256i c = codes8(x + i + 16, r, low, s, inverse, near);
    const __m256i d = codes8(x + i + 24, r, low, s, inverse, near);
    __m256i p = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    p = _mm256_permutevar8x32_epi32(p, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(codes + i), p);
    // bytes to sums: add 128, sum eight at a time, take it off again
    const __m256i lifted = _mm256_sad_epu8(_mm256_xor_si256(p, _mm256_set1_epi8((char)-128)),
                                           _mm256_setzero_si256());
    const __m128i two = _mm_add_epi64(_mm256_castsi256_si128(lifted), _mm256_extracti128_si256(lifted, 1));
    sum += (int32_t)(_mm_cvtsi128_si64(two) + _mm_extract_epi64(two, 1)) - 32 * 128;
  }
  for (; i < n; i++) sum += codes[i] = code_of(x[i], radius, step);
  return sum;
}

static __attribute__((noinline)) void divide(const float *x, int n, float radius, float step,
                                             int8_t *codes) {
  for (int i = 0; i < n; i++) codes[i] = code_of(x[i], radius, step);
}

// x / step to the nearest integer for 8 values, or bits in `differ` where only a division can tell:
// hi and lo are 1 / step rounded up and down, the sum with 1.5 * 2^23 rounds to an integer, and
// both have to agree.
static inline __m256i plain8(const float *x, __m256 hi, __m256 lo, __m256i &differ) {
  const __m256 magic = _mm256_set1_ps(12582912.0f), value = _mm256_loadu_ps(x);
  const __m256i up = _mm256_castps_si256(_mm256_fmadd_ps(value, hi, magic));
  const __m256i down = _mm256_castps_si256(_mm256_fmadd_ps(value, lo, magic));
  differ = _mm256_or_si256(differ, _mm256_xor_si256(up, down));
  return _mm256_sub_epi32(up, _mm256_castps_si256(magic));
}

// 32 codes in -q_max..q_max; false if one of the values has to be divided.
static inline bool plain32(const float *x, __m256 hi, __m256 lo, __m256i qmax, __m256i &codes) {
  __m256i differ = _mm256_setzero_si256();
  const __m256i a = plain8(x, hi, lo, differ), b = plain8(x + 8, hi, lo, differ);
  const __m256i c = plain8(x + 16, hi, lo, differ), d = plain8(x + 24, hi, lo, differ);
  __m256i p = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
  p = _mm256_max_epi8(_mm256_min_epi8(p, qmax), _mm256_sub_epi8(_mm256_setzero_si256(), qmax));
  codes = _mm256_permutevar8x32_epi32(p, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  return _mm256_testz_si256(differ, differ);
}

static inline bool plain16(const float *x, __m256 hi, __m256 lo, __m128i qmax, __m128i &codes) {
  __m256i differ = _mm256_setzero_si256();
  const __m256i a = plain8(x, hi, lo, differ), b = plain8(x + 8, hi, lo, differ);
  const __m256i p = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
  codes = _mm_packs_epi16(_mm256_castsi256_si128(p), _mm256_extracti128_si256(p, 1));
  codes = _mm_max_epi8(_mm_min_epi8(codes, qmax), _mm_sub_epi8(_mm_setzero_si128(), qmax));
  return _mm256_testz_si256(differ, differ);
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

// Groups of finite values below 2^20 steps, in pieces of 32 and 16.
static inline bool encode_plain(const cod::GroupBlock &block, int from, int to, int n, int qmax,
                                cod::GroupResult &out) {
  if (n % 16 != 0) return false;
  alignas(32) float hi[W], lo[W];
  const __m256 inverse = _mm256_div_ps(_mm256_set1_ps(1.0f), _mm256_load_ps(out.step + from));
  _mm256_store_ps(hi, _mm256_mul_ps(inverse, _mm256_set1_ps(1.0f + 0x1p-22f)));
  _mm256_store_ps(lo, _mm256_mul_ps(inverse, _mm256_set1_ps(1.0f - 0x1p-22f)));
  const __m256i top = _mm256_set1_epi8((char)qmax), zero = _mm256_setzero_si256();
  // bytes to sums: add 128, sum eight at a time, take it off again
  const __m256i lift = _mm256_set1_epi8((char)-128);
  __m256i partial[W];
  for (int l = 0; l < W; l++) partial[l] = zero;
  for (int l = from; l < to; l++) {
    const __m256 up = _mm256_broadcast_ss(hi + l - from);
    const __m256 down = _mm256_broadcast_ss(lo + l - from);
    const float *x = block.values[l];
    int8_t *codes = block.codes[l];
    __m256i sum = zero;
    int i = 0;
    for (; i + 32 <= n; i += 32) {
      __m256i p;
      const bool certain = plain32(x + i, up, down, top, p);
      _mm256_storeu_si256((__m256i *)(codes + i), p);
      if (__builtin_expect(!certain, 0)) {
        divide(x + i, 32, out.radius[l], out.step[l], codes + i);
        p = _mm256_loadu_si256((const __m256i *)(codes + i));
      }
      sum = _mm256_add_epi64(sum, _mm256_sad_epu8(_mm256_xor_si256(p, lift), zero));
    }
    if (i < n) {
      __m128i p;
      const bool certain = plain16(x + i, up, down, _mm256_castsi256_si128(top), p);
      _mm_storeu_si128((__m128i *)(codes + i), p);
      if (__builtin_expect(!certain, 0)) {
        divide(x + i, 16, out.radius[l], out.step[l], codes + i);
        p = _mm_loadu_si128((const __m128i *)(codes + i));
      }
      const __m128i lifted = _mm_xor_si128(p, _mm256_castsi256_si128(lift));
      sum = _mm256_add_epi64(sum, _mm256_zextsi128_si256(_mm_sad_epu8(lifted, _mm_setzero_si128())));
    }
    partial[l - from] = sum;
  }
  const __m256i sums = _mm256_sub_epi32(reduce8(partial), _mm256_set1_epi32(128 * n));
  _mm256_store_si256((__m256i *)(out.sums + from), sums);
  return true;
}

#include "epilogue.inl"
#include "project.inl"

namespace {

void encode_each(const float *x, int n, const float *radius, const float *step, int,
                 int8_t *codes) {
  for (int i = 0; i < n; i++) codes[i] = code_of(x[i], radius[i], step[i]);
}

constexpr int MR = 3, NR = 16;

// gcc reassociates the 16-bit additions of the intrinsic and spills everything.
inline void add16(__m256i &a, __m256i b) {
  __asm__("vpaddw %1, %0, %0" : "+x"(a) : "x"(b));
}

inline void leave(const __m256 (&f)[MR][2], const cod::Epilogue &out) {
  if (out.columns < NR) {
#pragma GCC unroll 3
    for (int r = 0; r < MR; r++) {
      _mm256_store_ps(out.acc + r * NR, f[r][0]);
      _mm256_store_ps(out.acc + r * NR + 8, f[r][1]);
    }
    return store_tile(out, NR);
  }
  const __m256 one = _mm256_set1_ps(1.0f), zero = _mm256_setzero_ps();
  const __m256 a0 = out.scale ? _mm256_load_ps(out.scale) : one;
  const __m256 a1 = out.scale ? _mm256_load_ps(out.scale + 8) : one;
  const __m256 b0 = out.bias ? _mm256_loadu_ps(out.bias) : zero;
  const __m256 b1 = out.bias ? _mm256_loadu_ps(out.bias + 8) : zero;
#pragma GCC unroll 3
  for (int r = 0; r < MR; r++) {
    if (r >= out.rows) break;
    float *y = out.y + r * out.stride;
    _mm256_storeu_ps(y, _mm256_fmadd_ps(f[r][0], a0, b0));
    _mm256_storeu_ps(y + 8, _mm256_fmadd_ps(f[r][1], a1, b1));
  }
}

// One run of quads into 16-bit sums; QUADS 0: as many as `quads` says.
template <int QUADS>
inline __attribute__((always_inline)) void run_of(const int8_t *x0, const int8_t *x1,
                                                  const int8_t *x2, const uint8_t *w, int quads,
                                                  __m256i (&d)[MR][2]) {
#pragma GCC unroll 8
  for (int q = 0; q < (QUADS ? QUADS : quads); q++, w += 4 * NR) {
    const __m256i w0 = _mm256_load_si256((const __m256i *)w);
    const __m256i w1 = _mm256_load_si256((const __m256i *)(w + 32));
    __m256i b = _mm256_castps_si256(_mm256_broadcast_ss((const float *)(x0 + 4 * q)));
    add16(d[0][0], _mm256_maddubs_epi16(w0, b));
    add16(d[0][1], _mm256_maddubs_epi16(w1, b));
    b = _mm256_castps_si256(_mm256_broadcast_ss((const float *)(x1 + 4 * q)));
    add16(d[1][0], _mm256_maddubs_epi16(w0, b));
    add16(d[1][1], _mm256_maddubs_epi16(w1, b));
    b = _mm256_castps_si256(_mm256_broadcast_ss((const float *)(x2 + 4 * q)));
    add16(d[2][0], _mm256_maddubs_epi16(w0, b));
    add16(d[2][1], _mm256_maddubs_epi16(w1, b));
  }
}

// Adds sums [8] times their steps to f. A brief sum began at the bits of kMagic: as a float it is
// kMagic + sum, and one fma takes that off and multiplies; kMagic times the scale is exact.
template <int SCALES>
ALWAYS_INLINE void add_scaled(__m256i sum, __m256 sx, const float *ws, __m256 &f) {
  __m256 a;
  if (SCALES == cod::kBriefScales) {
    const __m256 scale = _mm256_load_ps(ws);
    a = _mm256_fmsub_ps(_mm256_castsi256_ps(sum), scale, _mm256_mul_ps(scale, _mm256_set1_ps(kMagic)));
  } else {
    a = _mm256_cvtepi32_ps(sum);
    if (SCALES == cod::kScales) a = _mm256_mul_ps(a, _mm256_load_ps(ws));
  }
  f = _mm256_fmadd_ps(a, sx, f);
}

// Where the sums of a group begin.
template <int SCALES>
ALWAYS_INLINE __m256i beginning(int32_t code_sum) {
  const int32_t zero = SCALES == cod::kBriefScales ? 0x4b400000 /* the bits of kMagic */ : 0;
  return _mm256_set1_epi32(zero - COD_WEIGHT_OFFSET * code_sum);
}

// Groups of 32: eight quads always fit the 16-bit sums, at 4 and at 8 bits.
template <int SCALES>
void tile32(const int8_t *const *x, const float *const *s, const int32_t *const *c,
            const uint8_t *w, const float *ws, int64_t taps, int64_t groups, int step_stride,
            const cod::Epilogue &out) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256 f[MR][2];
#pragma GCC unroll 3
  for (int r = 0; r < MR; r++) f[r][0] = f[r][1] = _mm256_setzero_ps();
  for (int64_t t = 0; t < taps; t++, x += MR, s += MR, c += MR) {
    const int8_t *x0 = x[0], *x1 = x[1], *x2 = x[2];
    const float *s0 = s[0], *s1 = s[1], *s2 = s[2];
    const int32_t *c0 = c[0], *c1 = c[1], *c2 = c[2];
    for (int64_t g = 0; g < groups; g++, x0 += 32, x1 += 32, x2 += 32, w += 32 * NR) {
      __m256i d[MR][2];
#pragma GCC unroll 3
      for (int r = 0; r < MR; r++) d[r][0] = d[r][1] = _mm256_setzero_si256();
      run_of<8>(x0, x1, x2, w, 8, d);
      const int32_t sums[MR] = {c0[g], c1[g], c2[g]};
      const float steps[MR] = {*s0, *s1, *s2};
      s0 += step_stride, s1 += step_stride, s2 += step_stride;
#pragma GCC unroll 3
      for (int r = 0; r < MR; r++) {
        const __m256i begin = beginning<SCALES>(sums[r]);
        const __m256 sx = _mm256_set1_ps(steps[r]);
        const __m256i a = _mm256_add_epi32(_mm256_madd_epi16(d[r][0], ones), begin);
        const __m256i b = _mm256_add_epi32(_mm256_madd_epi16(d[r][1], ones), begin);
        add_scaled<SCALES>(a, sx, ws, f[r][0]);
        add_scaled<SCALES>(b, sx, ws + 8, f[r][1]);
      }
      if (SCALES) ws += NR;
    }
  }
  leave(f, out);
}

// Any group: runs of 8 quads (8-bit codes) or 32 (4-bit codes) fit the 16-bit sums.
template <int SCALES>
void tile_any(const int8_t *const *x, const float *const *s, const int32_t *const *c,
              const uint8_t *w, const float *ws, int64_t taps, int64_t groups, int group,
              int step_stride, int run, const cod::Epilogue &out) {
  const __m256i ones = _mm256_set1_epi16(1);
  const int quads = group / 4;
  __m256 f[MR][2];
#pragma GCC unroll 3
  for (int r = 0; r < MR; r++) f[r][0] = f[r][1] = _mm256_setzero_ps();
  for (int64_t t = 0; t < taps; t++, x += MR, s += MR, c += MR)
    for (int64_t g = 0; g < groups; g++) {
      const int64_t at = g * group;
      __m256i sum[MR][2];
#pragma GCC unroll 3
      for (int r = 0; r < MR; r++)
        sum[r][0] = sum[r][1] = beginning<SCALES>(c[r][g]);
      for (int begin = 0; begin < quads; begin += run) {
        const int n = quads - begin < run ? quads - begin : run;
        __m256i d[MR][2];
#pragma GCC unroll 3
        for (int r = 0; r < MR; r++) d[r][0] = d[r][1] = _mm256_setzero_si256();
        run_of<0>(x[0] + at + 4 * begin, x[1] + at + 4 * begin, x[2] + at + 4 * begin, w, n, d);
        w += (int64_t)n * 4 * NR;
#pragma GCC unroll 3
        for (int r = 0; r < MR; r++) {
          sum[r][0] = _mm256_add_epi32(sum[r][0], _mm256_madd_epi16(d[r][0], ones));
          sum[r][1] = _mm256_add_epi32(sum[r][1], _mm256_madd_epi16(d[r][1], ones));
        }
      }
#pragma GCC unroll 3
      for (int r = 0; r < MR; r++) {
        const __m256 sx = _mm256_set1_ps(s[r][g * step_stride]);
        add_scaled<SCALES>(sum[r][0], sx, ws, f[r][0]);
        add_scaled<SCALES>(sum[r][1], sx, ws + 8, f[r][1]);
      }
      if (SCALES) ws += NR;
    }
  leave(f, out);
}

void tile(const int8_t *const *x, const float *const *s, const int32_t *const *c, const uint8_t *w,
          const float *ws, int64_t taps, int64_t groups, int group, int step_stride, int wide,
          bool brief, const cod::Epilogue &out) {
  if (group == 32) {
    auto call = tile32<cod::kNoScales>;
    if (ws) call = brief ? tile32<cod::kBriefScales> : tile32<cod::kScales>;
    return call(x, s, c, w, ws, taps, groups, step_stride, out);
  }
  auto call = tile_any<cod::kNoScales>;
  if (ws) call = brief ? tile_any<cod::kBriefScales> : tile_any<cod::kScales>;
  call(x, s, c, w, ws, taps, groups, group, step_stride, wide ? 8 : 32, out);
}

void unpack(const uint8_t *packed, int64_t n, uint8_t *bytes) {
  const __m256i low = _mm256_set1_epi8(15);
  for (int64_t i = 0; i < n; i += 32) {
    const __m256i v = _mm256_loadu_si256((const __m256i *)(packed + i));
    _mm256_store_si256((__m256i *)(bytes + 2 * i), _mm256_and_si256(v, low));
    _mm256_store_si256((__m256i *)(bytes + 2 * i + 32),
                       _mm256_and_si256(_mm256_srli_epi16(v, 4), low));
  }
}

bool runs_here() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

}  // namespace

static inline VF codes_as_floats(const int8_t *codes) {
  return (VF)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)codes)));
}

// The lane at a distance of a power of two.
template <int DISTANCE>
static inline VF swap_lanes(VF x) {
  const __m256 v = (__m256)x;
  if (DISTANCE == 1) return (VF)_mm256_permute_ps(v, 0xb1);
  if (DISTANCE == 2) return (VF)_mm256_permute_ps(v, 0x4e);
  return (VF)_mm256_permute2f128_ps(v, v, 1);
}

static inline VF reciprocal(VF x) { return 1.0f / x; }

// x / y: a guess and what is left of x give the rounded quotient.
static inline VF quotient(VF x, VF y, VF inverse) {
  const VF guess = x * inverse;
  return vfma(vfnma(guess, y, x), inverse, guess);
}

static inline void store_codes(VI codes, int8_t *to) {
  const __m256i q = (__m256i)codes;
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
  _mm_storel_epi64((__m128i *)to, _mm_packs_epi16(words, words));
}

// As `encode_plain`, each group between bounds of its own.
static inline bool encode_between(const cod::GroupBlock &block, int from, int to, int n,
                                  cod::WeighedResult &out) {
  if (n != 32) return false;
  const __m256 magic = _mm256_set1_ps(12582912.0f), above = _mm256_set1_ps(1.0f + cod::kMargin);
  const __m256 below = _mm256_set1_ps(1.0f - cod::kMargin);
  const __m256i lift = _mm256_set1_epi8((char)-128), zero = _mm256_setzero_si256();
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  __m256i partial[W];
  for (int l = 0; l < W; l++) partial[l] = zero;
  uint32_t careful = 0;
  for (int l = from; l < to; l++) {
    const __m256 inverse = _mm256_set1_ps(out.inverse[l]);
    const __m256 up = _mm256_mul_ps(inverse, above), down = _mm256_mul_ps(inverse, below);
    const __m256 bottom = _mm256_set1_ps(out.bottom[l]), top = _mm256_set1_ps(out.top[l]);
    const float *x = block.values[l];
    __m256i q[4], differ = zero;
    for (int i = 0; i < 4; i++) {
      const __m256 value = _mm256_loadu_ps(x + 8 * i);
      const __m256 a = _mm256_fmadd_ps(value, up, magic), b = _mm256_fmadd_ps(value, down, magic);
      differ = _mm256_or_si256(differ, _mm256_xor_si256(_mm256_castps_si256(a), _mm256_castps_si256(b)));
      const __m256 code = _mm256_max_ps(_mm256_min_ps(_mm256_sub_ps(a, magic), top), bottom);
      q[i] = _mm256_cvtps_epi32(code);
    }
    const __m256i p = _mm256_permutevar8x32_epi32(
        _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3])), order);
    _mm256_storeu_si256((__m256i *)block.codes[l], p);
    partial[l - from] = _mm256_sad_epu8(_mm256_xor_si256(p, lift), zero);
    careful |= (uint32_t)!_mm256_testz_si256(differ, differ) << (l - from);
  }
  const __m256i sums = _mm256_sub_epi32(reduce8(partial), _mm256_set1_epi32(128 * 32));
  _mm256_store_si256((__m256i *)(out.sums + from), sums);
  for (; __builtin_expect(careful != 0, 0); careful &= careful - 1) {
    const int l = from + __builtin_ctz(careful);
    int32_t sum = 0;
    for (int i = 0; i < 32; i++) {
      float code = nearbyintf(block.values[l][i] / out.step[l]);
      code = code < out.bottom[l] ? out.bottom[l] : code > out.top[l] ? out.top[l] : code;
      sum += block.codes[l][i] = (int8_t)code;
    }
    out.sums[l] = sum;
  }
  return true;
}

#include "depthwise.inl"
#include "pointwise.inl"
#include "weigh.inl"

extern const cod::Kernels kAvx2;
const cod::Kernels kAvx2 = {"avx2",    runs_here, kLanes, quantize_block, encode_group, encode_each,
                            gelu,      MR,        NR, tile,          unpack, activate,
                            dequantize, depthwise, multiply, blend, magnitudes, widest, weigh, widest_pixels, weigh_pixels,
                               transform, dequantize_each};
