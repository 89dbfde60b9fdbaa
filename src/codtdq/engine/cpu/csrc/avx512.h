// AVX-512 with VNNI: 16 groups per block, 6 x 32 tiles, vpdpbusd. Its first factor has no sign:
// weights are lifted by 128, and 128 times the sum of a row's carriers is taken off.
#pragma once
#include "x86.h"

namespace cod {
namespace {

struct Avx512 : Lanes<16> {
  static constexpr const char *kName = "avx512-vnni";
  static bool runs_here() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
  }
  static constexpr bool kGuessesQuotients = true;
  static constexpr bool kFuses = true;

  static constexpr bool kMasks = true;
  COD_INLINE __mmask16 first(int64_t n) { return (__mmask16)(n >= 16 ? 0xffff : (1 << n) - 1); }
  COD_INLINE Floats load_some(const float *x, int64_t n) {
    return (Floats)_mm512_maskz_loadu_ps(first(n), x);
  }
  COD_INLINE void store_some(Floats v, float *x, int64_t n) {
    _mm512_mask_storeu_ps(x, first(n), (__m512)v);
  }

  COD_INLINE bool any(Ints x) { return _mm512_test_epi32_mask((__m512i)x, (__m512i)x) != 0; }
  COD_INLINE bool all_at_most(Floats x, Floats y) {
    return _mm512_cmp_ps_mask((__m512)x, (__m512)y, _CMP_NLE_UQ) == 0;
  }
  COD_INLINE Floats fma(Floats x, Floats y, Floats z) {
    return (Floats)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)z);
  }
  COD_INLINE Floats fnma(Floats x, Floats y, Floats z) {
    return (Floats)_mm512_fnmadd_ps((__m512)x, (__m512)y, (__m512)z);
  }
  COD_INLINE Floats min(Floats x, Floats y) { return (Floats)_mm512_min_ps((__m512)x, (__m512)y); }
  COD_INLINE Floats max(Floats x, Floats y) { return (Floats)_mm512_max_ps((__m512)x, (__m512)y); }
  COD_INLINE Floats round(Floats x) { return (Floats)_mm512_roundscale_ps((__m512)x, 8); }
  COD_INLINE Ints nearest(Floats x) { return (Ints)_mm512_cvtps_epi32((__m512)x); }
  COD_INLINE Ints unsigned_max(Ints x, Ints y) {
    return (Ints)_mm512_max_epu32((__m512i)x, (__m512i)y);
  }
  COD_INLINE Ints unsigned_min(Ints x, Ints y) {
    return (Ints)_mm512_min_epu32((__m512i)x, (__m512i)y);
  }
  template <int LEVEL>
  COD_INLINE void halves(Floats x, Floats y, Floats &first, Floats &second) {
    const __m512 a = (__m512)x, b = (__m512)y;
    if constexpr (LEVEL == 0)
      first = (Floats)_mm512_unpacklo_ps(a, b), second = (Floats)_mm512_unpackhi_ps(a, b);
    else if constexpr (LEVEL == 1)
      first = (Floats)_mm512_shuffle_ps(a, b, 0x44), second = (Floats)_mm512_shuffle_ps(a, b, 0xee);
    else
      first = (Floats)_mm512_shuffle_f32x4(a, b, 0x88),
      second = (Floats)_mm512_shuffle_f32x4(a, b, 0xdd);
  }
  template <typename F>
  COD_INLINE Floats across(const Floats *each, const F &pick) {
    return reduced<Avx512>(each, pick);
  }
  COD_INLINE int count_less(Floats x, Floats y) {
    return __builtin_popcount(_mm512_cmp_ps_mask((__m512)x, (__m512)y, _CMP_LT_OQ));
  }
  COD_INLINE int count_less_32(const Floats *x, Floats y) {
    const __mmask16 low = _mm512_cmp_ps_mask((__m512)x[0], (__m512)y, _CMP_LT_OQ);
    const __mmask16 high = _mm512_cmp_ps_mask((__m512)x[1], (__m512)y, _CMP_LT_OQ);
    return __builtin_popcount(_mm512_kunpackw(high, low));
  }
  COD_INLINE int32_t sum(Ints x) { return _mm512_reduce_add_epi32((__m512i)x); }

  // Keys are compared as floats and as integers: most processors are faster with one or the other,
  // and none is slower with both in turn.
  static constexpr int32_t kLastKey = kInf;
  COD_INLINE Ints key_min(Ints x, Ints y) { return (Ints)_mm512_min_ps((__m512)x, (__m512)y); }
  COD_INLINE Ints key_max(Ints x, Ints y) { return unsigned_max(x, y); }
  COD_INLINE Ints key_of(Ints magnitude, int omit) {
    const __mmask16 zero = _mm512_testn_epi32_mask((__m512i)magnitude, (__m512i)magnitude);
    return (Ints)_mm512_mask_set1_epi32((__m512i)magnitude, omit ? zero : 0, kLastKey);
  }
  COD_INLINE Ints magnitude_of(Ints key, int) { return key; }

  COD_INLINE Half half_fma(Half x, Half y, Half z) {
    return (Half)_mm512_fmadd_pd((__m512d)x, (__m512d)y, (__m512d)z);
  }
  COD_INLINE Half half_sqrt(Half x) { return (Half)_mm512_sqrt_pd((__m512d)x); }
  COD_INLINE Doubles wide(Floats x) {
    const __m512 v = (__m512)x;
    return {(Half)_mm512_cvtps_pd(_mm512_castps512_ps256(v)),
            (Half)_mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1))};
  }
  COD_INLINE Floats narrow(Doubles x) {
    const __m256 low = _mm512_cvtpd_ps((__m512d)x.a), high = _mm512_cvtpd_ps((__m512d)x.b);
    return (Floats)_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
  }
  COD_INLINE Ints less(Doubles x, Doubles y) {
    const __mmask8 low = _mm512_cmp_pd_mask((__m512d)x.a, (__m512d)y.a, _CMP_LT_OQ);
    const __mmask8 high = _mm512_cmp_pd_mask((__m512d)x.b, (__m512d)y.b, _CMP_LT_OQ);
    return (Ints)_mm512_movm_epi32((__mmask16)(low | high << 8));
  }

  // Four columns of sixteen rows: rows i, i + 4, i + 8 and i + 12 share a register from the load
  // on, so that no shuffle has to cross its quarters.
  COD_INLINE void transpose4(const float *const *rows, int offset, Floats *v) {
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
      v[2 * i] = (Floats)_mm512_shuffle_ps(t[i], t[i + 2], 0x44);
      v[2 * i + 1] = (Floats)_mm512_shuffle_ps(t[i], t[i + 2], 0xee);
    }
  }
  template <int DISTANCE>
  COD_INLINE Floats swap(Floats x) {
    const __m512 v = (__m512)x;
    if (DISTANCE == 1) return (Floats)_mm512_permute_ps(v, 0xb1);
    if (DISTANCE == 2) return (Floats)_mm512_permute_ps(v, 0x4e);
    return (Floats)_mm512_shuffle_f32x4(v, v, DISTANCE == 4 ? 0xb1 : 0x4e);
  }
  // From registers while that takes less time than from memory.
  COD_INLINE Floats picked(const float *x, int64_t n, const int32_t *at) {
    const __m512i index = _mm512_loadu_si512(at);
    if (n > 256) return (Floats)_mm512_i32gather_ps(index, x, 4);
    const __m512i block = _mm512_srli_epi32(index, 5);
    __m512 v = _mm512_setzero_ps();
    for (int64_t i = 0; i < n; i += 32) {
      const __m512 a = (__m512)load_some(x + i, n - i);
      const __m512 b = n - i > 16 ? (__m512)load_some(x + i + 16, n - i - 16) : a;
      const __mmask16 own = _mm512_cmpeq_epi32_mask(block, _mm512_set1_epi32((int)(i / 32)));
      v = _mm512_mask_mov_ps(v, own, _mm512_permutex2var_ps(a, index, b));
    }
    return (Floats)v;
  }
  COD_INLINE Floats codes_as_floats(const int8_t *codes) {
    const __m128i bytes = _mm_loadu_si128((const __m128i *)codes);
    return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
  }
  // The i-th byte, and those after it, of four rows side by side, lifted by 128.
  COD_INLINE Ints lifted_quads(const int8_t *const *rows, int64_t i, int left) {
    __m128i r[4];
    for (int j = 0; j < 4; j++)
      r[j] = left == 16 ? _mm_loadu_si128((const __m128i *)(rows[j] + i))
                        : _mm_maskz_loadu_epi8(first(left), rows[j] + i);
    __m512i v = _mm512_castsi128_si512(r[0]);
    v = _mm512_mask_broadcast_i32x4(v, 0x00f0, r[1]);
    v = _mm512_mask_broadcast_i32x4(v, 0x0f00, r[2]);
    v = _mm512_mask_broadcast_i32x4(v, 0xf000, r[3]);
    const __m512i four = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i turned =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    v = _mm512_shuffle_epi8(_mm512_permutexvar_epi32(four, v), turned);
    return (Ints)_mm512_xor_si512(v, _mm512_set1_epi8((char)-128));
  }
  COD_INLINE void store_codes(Ints codes, int8_t *to) {
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8((__m512i)codes));
  }
  COD_INLINE void store_some_codes(Ints codes, int8_t *to, int64_t n) {
    _mm_mask_storeu_epi8(to, first(n), _mm512_cvtepi32_epi8((__m512i)codes));
  }
  COD_INLINE void store_pairs(Ints x, Ints y, int8_t *to) {
    const __m512i low = _mm512_unpacklo_epi32((__m512i)x, (__m512i)y);
    const __m512i high = _mm512_unpackhi_epi32((__m512i)x, (__m512i)y);
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi64(low, first, high));
    _mm512_storeu_si512(to + 64, _mm512_permutex2var_epi64(low, second, high));
  }
  static constexpr int kPiece = 1;
  COD_INLINE void store_piece(const Ints *q, int8_t *to) { store_codes(*q, to); }

  static constexpr bool kShorts = true;
  using Shorts = __m512i;  // as vpackssdw leaves them
  COD_INLINE Shorts shorts(const Ints *q) {
    return _mm512_packs_epi32((__m512i)q[0], (__m512i)q[1]);
  }
  COD_INLINE Shorts all_shorts(int32_t pair) { return _mm512_set1_epi32(pair); }
  COD_INLINE Shorts larger(Shorts x, Shorts y) { return _mm512_max_epi16(x, y); }
  COD_INLINE void store_carriers(Shorts q, Shorts m, int8_t *to) {
    const __m512i a = _mm512_mullo_epi16(q, m);
    const __m256i bytes =
        _mm256_packs_epi16(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
    const __m256i order = _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7);
    _mm256_storeu_si256((__m256i *)to, _mm256_permutevar8x32_epi32(bytes, order));
  }

  // Bounds of codes plus kMagic, as floats: a code is the lowest byte of such a number.
  struct Limits {
    Floats bottom, top;
    Limits(const float *low, const float *high) : bottom(all(*low)), top(all(*high)) {}
  };
  COD_INLINE __m128i codes16(const float *x, Floats high, Floats low, const Limits &limits,
                             Ints &differ) {
    const Floats value = load(x), magic = all(kMagic);
    const Floats up = fma(value, high, magic), down = fma(value, low, magic);
    differ = (Ints)_mm512_ternarylogic_epi32((__m512i)differ, (__m512i)up, (__m512i)down, 0xf6);
    return _mm512_cvtepi32_epi8((__m512i)max(min(up, limits.top), limits.bottom));
  }
  COD_INLINE __m256i codes32(const float *x, Floats high, Floats low, const Limits &limits,
                             Ints &differ) {
    const __m128i a = codes16(x, high, low, limits, differ);
    const __m128i b = codes16(x + 16, high, low, limits, differ);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
  }
  template <bool SAME, typename Exact>
  COD_INLINE bool encode_certain(const GroupBlock &block, int from, int to, int n,
                                 const CodeRange &range, int32_t *sums, const Exact &exact) {
    return encode_certain_groups<Avx512, SAME>(block, from, to, n, range, sums, exact);
  }

  using Flags = __mmask16;
  COD_INLINE Flags unordered(Flags so_far, Floats x, Floats y) {
    return (Flags)(so_far | _mm512_cmp_ps_mask((__m512)x, (__m512)y, _CMP_UNORD_Q));
  }
  COD_INLINE bool any(Flags flags) { return flags != 0; }

  static constexpr int kPairVectors = 2;
  static constexpr int kMixVectors = 2;
  static constexpr bool kQuads = true;
  COD_INLINE Ints quads(Ints sum, Ints x, Ints y) {
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)x, (__m512i)y);
  }
  COD_INLINE Ints pairs(Ints sum, Ints x, Ints y) {
    return (Ints)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)x, (__m512i)y);
  }

  static constexpr int kCarrierRows = 6, kCarrierLift = 128;
  static constexpr bool kCarrierNarrow = true;
  static int64_t carrier_sum_count(int64_t, int) { return 1; }
  // Lanes of partial sums of one row.
  COD_INLINE __m512i carrier_quads(const int8_t *x, int64_t depth) {
    __m512i sum = _mm512_setzero_si512();
    const __m512i lift = _mm512_set1_epi8((char)-kCarrierLift);
    int64_t k = 0;
    for (; k + 64 <= depth; k += 64)
      sum = _mm512_dpbusd_epi32(sum, lift, _mm512_loadu_si512(x + k));
    if (k < depth) {
      const __mmask64 some = ~0ull >> (64 - (depth - k));
      sum = _mm512_dpbusd_epi32(sum, lift, _mm512_maskz_loadu_epi8(some, x + k));
    }
    return sum;
  }
  static void carrier_sums(const int8_t *x, int64_t stride, int64_t rows, int64_t depth, int,
                           int32_t *sums) {
    int64_t r = 0;
    for (; r + kWidth <= rows; r += kWidth) {
      Floats each[kWidth];
      for (int l = 0; l < kWidth; l++) each[l] = (Floats)carrier_quads(x + (r + l) * stride, depth);
      store(-(Ints)across(each, [](Floats a, Floats b) { return (Floats)((Ints)a + (Ints)b); }),
            sums + r);
    }
    for (; r < rows; r++) sums[r] = -_mm512_reduce_add_epi32(carrier_quads(x + r * stride, depth));
  }

  template <bool BYTES>
  COD_INLINE void carrier_dot(const int8_t *const *x, const int32_t *const *, const uint8_t *w,
                              const int32_t *, int64_t depth, int,
                              Ints (&d)[kCarrierRows][kCarrierVectors]) {
    for (int64_t k = 0; k < depth; k += 4, w += 8 * kWidth) {
      const __m512i w0 = _mm512_load_si512(w), w1 = _mm512_load_si512(w + 64);
#pragma GCC unroll 6
      for (int r = 0; r < kCarrierRows; r++) {
        const __m512i b = _mm512_set1_epi32(four(x[r] + k));
        d[r][0] = (Ints)_mm512_dpbusd_epi32((__m512i)d[r][0], w0, b);
        d[r][1] = (Ints)_mm512_dpbusd_epi32((__m512i)d[r][1], w1, b);
      }
    }
  }
  // Of the first vector of columns alone, in two sums.
  COD_INLINE void carrier_dot_narrow(const int8_t *const *x, const uint8_t *w, int64_t depth,
                                     Ints (&d)[kCarrierRows][kCarrierVectors]) {
    int64_t k = 0;
    for (; k + 8 <= depth; k += 8, w += 16 * kWidth) {
      const __m512i w0 = _mm512_load_si512(w), w1 = _mm512_load_si512(w + 128);
#pragma GCC unroll 6
      for (int r = 0; r < kCarrierRows; r++) {
        d[r][0] =
            (Ints)_mm512_dpbusd_epi32((__m512i)d[r][0], w0, _mm512_set1_epi32(four(x[r] + k)));
        d[r][1] =
            (Ints)_mm512_dpbusd_epi32((__m512i)d[r][1], w1, _mm512_set1_epi32(four(x[r] + k + 4)));
      }
    }
    for (; k < depth; k += 4, w += 8 * kWidth) {
#pragma GCC unroll 6
      for (int r = 0; r < kCarrierRows; r++)
        d[r][0] = (Ints)_mm512_dpbusd_epi32((__m512i)d[r][0], _mm512_load_si512(w),
                                            _mm512_set1_epi32(four(x[r] + k)));
    }
  }

 private:
  COD_INLINE int32_t four(const int8_t *x) {
    int32_t bytes;
    __builtin_memcpy(&bytes, x, sizeof bytes);
    return bytes;
  }
};

}  // namespace
}  // namespace cod
