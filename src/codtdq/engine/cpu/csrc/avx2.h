// AVX2 with FMA: 8 groups per block, 3 x 16 tiles, vpmaddubsw with 16-bit sums inside a run.
// What looks like avx512.cpp are other instructions: 256-bit ones have no masks, and shuffle inside
// halves.
#pragma once
#include "x86.h"

namespace cod {
namespace {

struct Avx2 : Lanes<8> {
  static constexpr const char *kName = "avx2";
  static bool runs_here() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  }
  static constexpr bool kGuessesQuotients = true;
  static constexpr bool kFuses = true;

  COD_INLINE bool any(Ints x) { return !_mm256_testz_si256((__m256i)x, (__m256i)x); }
  COD_INLINE bool all_at_most(Floats x, Floats y) {
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)x, (__m256)y, _CMP_NLE_UQ)) == 0;
  }
  COD_INLINE Floats fma(Floats x, Floats y, Floats z) {
    return (Floats)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)z);
  }
  COD_INLINE Floats fnma(Floats x, Floats y, Floats z) {
    return (Floats)_mm256_fnmadd_ps((__m256)x, (__m256)y, (__m256)z);
  }
  COD_INLINE Floats min(Floats x, Floats y) { return (Floats)_mm256_min_ps((__m256)x, (__m256)y); }
  COD_INLINE Floats max(Floats x, Floats y) { return (Floats)_mm256_max_ps((__m256)x, (__m256)y); }
  COD_INLINE Floats round(Floats x) { return (Floats)_mm256_round_ps((__m256)x, 8); }
  COD_INLINE Ints nearest(Floats x) { return (Ints)_mm256_cvtps_epi32((__m256)x); }
  COD_INLINE Ints unsigned_max(Ints x, Ints y) {
    return (Ints)_mm256_max_epu32((__m256i)x, (__m256i)y);
  }
  COD_INLINE Ints unsigned_min(Ints x, Ints y) {
    return (Ints)_mm256_min_epu32((__m256i)x, (__m256i)y);
  }
  COD_INLINE Ints key_min(Ints x, Ints y) { return unsigned_min(x, y); }
  COD_INLINE Ints key_max(Ints x, Ints y) { return unsigned_max(x, y); }
  template <int LEVEL>
  COD_INLINE void halves(Floats x, Floats y, Floats &first, Floats &second) {
    const __m256 a = (__m256)x, b = (__m256)y;
    if constexpr (LEVEL == 0)
      first = (Floats)_mm256_unpacklo_ps(a, b), second = (Floats)_mm256_unpackhi_ps(a, b);
    else if constexpr (LEVEL == 1)
      first = (Floats)_mm256_shuffle_ps(a, b, 0x44), second = (Floats)_mm256_shuffle_ps(a, b, 0xee);
    else
      first = (Floats)_mm256_permute2f128_ps(a, b, 0x20),
      second = (Floats)_mm256_permute2f128_ps(a, b, 0x31);
  }
  template <typename F>
  COD_INLINE Floats across(const Floats *each, const F &pick) {
    return reduced<Avx2>(each, pick);
  }
  COD_INLINE Ints pairs(Ints sum, Ints x, Ints y) {
    return (Ints)_mm256_add_epi32((__m256i)sum, _mm256_madd_epi16((__m256i)x, (__m256i)y));
  }
  COD_INLINE int count_less(Floats x, Floats y) {
    const __m256 less = _mm256_cmp_ps((__m256)x, (__m256)y, _CMP_LT_OQ);
    return __builtin_popcount((unsigned)_mm256_movemask_ps(less));
  }
  COD_INLINE int count_less_32(const Floats *x, Floats y) {
    unsigned bits = 0;
    for (int i = 3; i >= 0; i--) {
      const __m256 less = _mm256_cmp_ps((__m256)x[i], (__m256)y, _CMP_LT_OQ);
      bits = bits << 8 | (unsigned)_mm256_movemask_ps(less);
    }
    return __builtin_popcount(bits);
  }
  COD_INLINE int32_t sum(Ints x) {
    const __m256i v = (__m256i)x;
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
  }

  COD_INLINE Half half_fma(Half x, Half y, Half z) {
    return (Half)_mm256_fmadd_pd((__m256d)x, (__m256d)y, (__m256d)z);
  }
  COD_INLINE Half half_sqrt(Half x) { return (Half)_mm256_sqrt_pd((__m256d)x); }
  COD_INLINE Doubles wide(Floats x) {
    const __m256 v = (__m256)x;
    return {(Half)_mm256_cvtps_pd(_mm256_castps256_ps128(v)),
            (Half)_mm256_cvtps_pd(_mm256_extractf128_ps(v, 1))};
  }
  COD_INLINE Floats narrow(Doubles x) {
    const __m128 low = _mm256_cvtpd_ps((__m256d)x.a), high = _mm256_cvtpd_ps((__m256d)x.b);
    return (Floats)_mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1);
  }
  COD_INLINE Ints less(Doubles x, Doubles y) {
    const __m256d low = _mm256_cmp_pd((__m256d)x.a, (__m256d)y.a, _CMP_LT_OQ);
    const __m256d high = _mm256_cmp_pd((__m256d)x.b, (__m256d)y.b, _CMP_LT_OQ);
    const __m256 both = _mm256_shuffle_ps(_mm256_castpd_ps(low), _mm256_castpd_ps(high), 0x88);
    return (Ints)_mm256_permute4x64_epi64(_mm256_castps_si256(both), 0xd8);
  }

  // Four columns of eight rows: rows i and i + 4 share a register from the load on, so that no
  // shuffle has to cross its halves.
  COD_INLINE void transpose4(const float *const *rows, int offset, Floats *v) {
    __m256 r[4], t[4];
    for (int i = 0; i < 4; i++)
      r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(rows[i] + offset)),
                                  _mm_loadu_ps(rows[i + 4] + offset), 1);
    for (int i = 0; i < 4; i += 2) {  // as integers: faster than for floats
      t[i] = (__m256)_mm256_unpacklo_epi32((__m256i)r[i], (__m256i)r[i + 1]);
      t[i + 1] = (__m256)_mm256_unpackhi_epi32((__m256i)r[i], (__m256i)r[i + 1]);
    }
    for (int i = 0; i < 2; i++) {
      v[2 * i] = (Floats)_mm256_shuffle_ps(t[i], t[i + 2], 0x44);
      v[2 * i + 1] = (Floats)_mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    }
  }
  template <int DISTANCE>
  COD_INLINE Floats swap(Floats x) {
    const __m256 v = (__m256)x;
    if (DISTANCE == 1) return (Floats)_mm256_permute_ps(v, 0xb1);
    if (DISTANCE == 2) return (Floats)_mm256_permute_ps(v, 0x4e);
    return (Floats)_mm256_permute2f128_ps(v, v, 1);
  }

  COD_INLINE Floats codes_as_floats(const int8_t *codes) {
    const __m128i bytes = _mm_loadl_epi64((const __m128i *)codes);
    return (Floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
  }
  COD_INLINE __m128i packed8(Ints codes) {
    const __m256i q = (__m256i)codes;
    const __m128i w = _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
    return _mm_packs_epi16(w, w);
  }
  COD_INLINE __m256i packed32(const Ints *q) {
    const __m256i low = _mm256_packs_epi32((__m256i)q[0], (__m256i)q[1]);
    const __m256i high = _mm256_packs_epi32((__m256i)q[2], (__m256i)q[3]);
    return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high),
                                       _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }
  COD_INLINE void store_codes(Ints codes, int8_t *to) {
    _mm_storel_epi64((__m128i *)to, packed8(codes));
  }
  COD_INLINE void store_pairs(Ints x, Ints y, int8_t *to) {
    const __m256i low = _mm256_unpacklo_epi32((__m256i)x, (__m256i)y);
    const __m256i high = _mm256_unpackhi_epi32((__m256i)x, (__m256i)y);
    _mm256_storeu_si256((__m256i *)to, _mm256_permute2x128_si256(low, high, 0x20));
    _mm256_storeu_si256((__m256i *)(to + 32), _mm256_permute2x128_si256(low, high, 0x31));
  }
  static constexpr int kPiece = 4;
  COD_INLINE void store_piece(const Ints *q, int8_t *to) {
    _mm256_storeu_si256((__m256i *)to, packed32(q));
  }

  static constexpr bool kShorts = true;
  struct Shorts {  // as vpackssdw leaves them
    __m256i a, b;
  };
  COD_INLINE Shorts shorts(const Ints *q) {
    return {_mm256_packs_epi32((__m256i)q[0], (__m256i)q[1]),
            _mm256_packs_epi32((__m256i)q[2], (__m256i)q[3])};
  }
  COD_INLINE Shorts all_shorts(int32_t pair) {
    return {_mm256_set1_epi32(pair), _mm256_set1_epi32(pair)};
  }
  COD_INLINE Shorts larger(const Shorts &x, const Shorts &y) {
    return {_mm256_max_epi16(x.a, y.a), _mm256_max_epi16(x.b, y.b)};
  }
  COD_INLINE void store_carriers(const Shorts &q, const Shorts &m, int8_t *to) {
    const __m256i a = _mm256_mullo_epi16(q.a, m.a), b = _mm256_mullo_epi16(q.b, m.b);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256((__m256i *)to,
                        _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), order));
  }

  // Bounds of codes as bytes: packing saturates before.
  struct Limits {
    __m256i bottom, top;
    Limits(const float *low, const float *high)
        : bottom(_mm256_set1_epi8(*(const char *)low)),
          top(_mm256_set1_epi8(*(const char *)high)) {}
  };
  COD_INLINE Ints integers(const float *x, Floats high, Floats low, Ints &differ) {
    const Floats value = load(x), magic = all(kMagic);
    const Ints up = as_ints(fma(value, high, magic)), down = as_ints(fma(value, low, magic));
    differ |= up ^ down;
    return up - kMagicBits;
  }
  COD_INLINE __m256i codes32(const float *x, Floats high, Floats low, const Limits &limits,
                             Ints &differ) {
    Ints q[4];
    for (int i = 0; i < 4; i++) q[i] = integers(x + 8 * i, high, low, differ);
    return _mm256_max_epi8(_mm256_min_epi8(packed32(q), limits.top), limits.bottom);
  }
  COD_INLINE __m128i codes16(const float *x, Floats high, Floats low, const Limits &limits,
                             Ints &differ) {
    const Ints a = integers(x, high, low, differ), b = integers(x + 8, high, low, differ);
    __m256i words = _mm256_packs_epi32((__m256i)a, (__m256i)b);
    words = _mm256_permute4x64_epi64(words, 0xd8);
    const __m128i codes =
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    return _mm_max_epi8(_mm_min_epi8(codes, _mm256_castsi256_si128(limits.top)),
                        _mm256_castsi256_si128(limits.bottom));
  }
  template <bool SAME, typename Exact>
  COD_INLINE bool encode_certain(const GroupBlock &block, int from, int to, int n,
                                 const CodeRange &range, int32_t *sums, const Exact &exact) {
    return encode_certain_groups<Avx2, SAME>(block, from, to, n, range, sums, exact);
  }

  // gcc reassociates the 16-bit additions of the intrinsic and spills everything.
  COD_INLINE void add16(__m256i &a, __m256i b) { __asm__("vpaddw %1, %0, %0" : "+x"(a) : "x"(b)); }

  // Carriers: nibbles without a sign in the first factor of vpmaddubsw, and 16-bit sums of runs of
  // 32 values: 16 * 15 * 127 fits. The vpmaddwd that widens them multiplies by the multipliers as
  // well. What the nibbles' offset adds is taken off where sums begin, in 16-bit numbers that may
  // wrap meanwhile. Weights of 8 bits: signs go to the carriers, 2 * 127 * 127 fits.
  static constexpr int kCarrierRows = 3;
  static constexpr bool kCarrierBytesDiffer = true, kCarrierFolds = false;
  static int64_t carrier_sum_count(int64_t depth, int run) { return depth / run; }
  static void carrier_sums(const int8_t *x, int64_t stride, int64_t rows, int64_t depth, int run,
                           int32_t *sums) {
    for (int64_t r = 0; r < rows; r++, x += stride)
      for (int64_t k = 0; k < depth; k += run) *sums++ = carrier_sum(x + k, run);
  }
  // -8 times the sums of the first and of the second pairs of quads, in 16 bits each.
  COD_INLINE int32_t carrier_sum(const int8_t *x, int run) {
    __m128i sum = _mm_setzero_si128();
    if (run == 32) {
      const __m256i all = _mm256_maddubs_epi16(_mm256_set1_epi8(COD_WEIGHT_OFFSET),
                                               _mm256_loadu_si256((const __m256i *)x));
      sum = _mm_add_epi16(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
    } else {
      for (int i = 0; i < run; i += 4)
        sum = _mm_add_epi16(
            sum, _mm_maddubs_epi16(_mm_set1_epi8(COD_WEIGHT_OFFSET), _mm_loadu_si32(x + i)));
    }
    sum = _mm_add_epi16(sum, _mm_unpackhi_epi64(sum, sum));
    sum = _mm_add_epi16(sum, _mm_shuffle_epi32(sum, 0x55));
    return _mm_cvtsi128_si32(_mm_sub_epi16(_mm_setzero_si128(), sum));
  }

  static void carrier_expand(const uint8_t *packed, const int8_t *p, int64_t runs, int run,
                             uint8_t *bytes, int32_t *multipliers) {
    const __m256i low = _mm256_set1_epi8(15);
    const int64_t size = runs * run * kWidth;
    for (int64_t i = 0; i < size; i += 32) {
      const __m256i v = _mm256_loadu_si256((const __m256i *)(packed + i));
      _mm256_store_si256((__m256i *)(bytes + 2 * i), _mm256_and_si256(v, low));
      _mm256_store_si256((__m256i *)(bytes + 2 * i + 32),
                         _mm256_and_si256(_mm256_srli_epi16(v, 4), low));
    }
    if (p)
      for (int64_t i = 0; i < runs * 2 * kWidth; i++)
        multipliers[i] = (p[i] & 0xffff) | (int32_t)((uint32_t)p[i] << 16);
  }

  // One run; QUADS 0: as many as `quads` says. p: multipliers, two columns of vectors.
  template <int QUADS>
  COD_INLINE void carrier_run(const int8_t *const (&x)[kCarrierRows],
                              const int32_t (&begin)[kCarrierRows], const uint8_t *w,
                              const int32_t *p, int quads, Ints (&sum)[kCarrierRows][2]) {
    __m256i d[kCarrierRows][2];
#pragma GCC unroll 3
    for (int r = 0; r < kCarrierRows; r++) d[r][0] = d[r][1] = _mm256_set1_epi32(begin[r]);
#pragma GCC unroll 8
    for (int q = 0; q < (QUADS ? QUADS : quads); q++, w += 8 * kWidth) {
      const __m256i w0 = _mm256_load_si256((const __m256i *)w);
      const __m256i w1 = _mm256_load_si256((const __m256i *)(w + 32));
#pragma GCC unroll 3
      for (int r = 0; r < kCarrierRows; r++) {
        const __m256 four = _mm256_broadcast_ss((const float *)(x[r] + 4 * q));
        add16(d[r][0], _mm256_maddubs_epi16(w0, _mm256_castps_si256(four)));
        add16(d[r][1], _mm256_maddubs_epi16(w1, _mm256_castps_si256(four)));
      }
    }
    const __m256i p0 = _mm256_loadu_si256((const __m256i *)p);
    const __m256i p1 = _mm256_loadu_si256((const __m256i *)(p + kWidth));
#pragma GCC unroll 3
    for (int r = 0; r < kCarrierRows; r++) {
      sum[r][0] += (Ints)_mm256_madd_epi16(d[r][0], p0);
      sum[r][1] += (Ints)_mm256_madd_epi16(d[r][1], p1);
    }
  }

  COD_INLINE Ints signed_dot(Ints sum, __m256i w, __m256i size, __m256i four) {
    const __m256i pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(four, w));
    return sum + (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }

  template <bool BYTES>
  COD_INLINE void carrier_dot(const int8_t *const *x, const int32_t *const *sums, const uint8_t *w,
                              const int32_t *p, int64_t depth, int run,
                              Ints (&d)[kCarrierRows][kCarrierVectors]) {
    if constexpr (BYTES) {
      for (int64_t k = 0; k < depth; k += 4, w += 8 * kWidth) {
        const __m256i w0 = _mm256_load_si256((const __m256i *)w);
        const __m256i w1 = _mm256_load_si256((const __m256i *)(w + 32));
        const __m256i s0 = _mm256_abs_epi8(w0), s1 = _mm256_abs_epi8(w1);
#pragma GCC unroll 3
        for (int r = 0; r < kCarrierRows; r++) {
          const __m256i four = _mm256_castps_si256(_mm256_broadcast_ss((const float *)(x[r] + k)));
          d[r][0] = signed_dot(d[r][0], w0, s0, four);
          d[r][1] = signed_dot(d[r][1], w1, s1, four);
        }
      }
      return;
    }
    alignas(32) static constexpr int32_t kOnes[2 * kWidth] = {
        0x10001, 0x10001, 0x10001, 0x10001, 0x10001, 0x10001, 0x10001, 0x10001,
        0x10001, 0x10001, 0x10001, 0x10001, 0x10001, 0x10001, 0x10001, 0x10001};
    const int64_t step = p ? 2 * kWidth : 0;
    if (!p) p = kOnes;
    for (int64_t k = 0, at = 0; k < depth; k += run, at++, p += step, w += 2 * kWidth * run) {
      const int32_t begin[] = {sums[0][at], sums[1][at], sums[2][at]};
      if (run == 32)
        carrier_run<8>({x[0] + k, x[1] + k, x[2] + k}, begin, w, p, 8, d);
      else
        carrier_run<0>({x[0] + k, x[1] + k, x[2] + k}, begin, w, p, run / 4, d);
    }
  }
};

}  // namespace
}  // namespace cod
