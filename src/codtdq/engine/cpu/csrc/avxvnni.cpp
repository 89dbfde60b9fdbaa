// AVX-VNNI: what AVX2 has, and vpdpbusd on 256 bits for products of carriers, 6 x 16 tiles. Weights
// are lifted by 128, as with AVX-512. COD_AVXVNNI_EVEX: the same code in the encoding of AVX-512,
// for tests on processors that have only that.
#include <cpuid.h>

#include "avx2.h"
#include "table.h"

namespace cod {
namespace {

struct AvxVnni : Avx2 {
#ifdef COD_AVXVNNI_EVEX
  static constexpr const char *kName = "avx-vnni-evex";
  static bool runs_here() {
    return Avx2::runs_here() && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
  }
  COD_INLINE __m256i four_products(__m256i sum, __m256i w, __m256i x) {
    return _mm256_dpbusd_epi32(sum, w, x);
  }
#else
  static constexpr const char *kName = "avx-vnni";
  static bool runs_here() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return Avx2::runs_here() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
  }
  COD_INLINE __m256i four_products(__m256i sum, __m256i w, __m256i x) {
    return _mm256_dpbusd_avx_epi32(sum, w, x);
  }
#endif

  static constexpr bool kQuads = true;
  COD_INLINE Ints quads(Ints sum, Ints x, Ints y) {
    return (Ints)four_products((__m256i)sum, (__m256i)x, (__m256i)y);
  }
  // The i-th byte, and those after it, of four rows side by side, lifted by 128.
  COD_INLINE Ints lifted_quads(const int8_t *const *rows, int64_t i, int left) {
    __m128i r[4];
    for (int j = 0; j < 4; j++) {
      int64_t eight = 0;
      __builtin_memcpy(&eight, rows[j] + i, left == 8 ? 8 : (size_t)left);
      r[j] = _mm_cvtsi64_si128(eight);
    }
    const __m128i a = _mm_unpacklo_epi8(r[0], r[1]), b = _mm_unpacklo_epi8(r[2], r[3]);
    const __m256i v = _mm256_set_m128i(_mm_unpackhi_epi16(a, b), _mm_unpacklo_epi16(a, b));
    return (Ints)_mm256_xor_si256(v, _mm256_set1_epi8((char)-128));
  }

  static constexpr int kCarrierRows = 6, kCarrierLift = 128;
  static constexpr bool kCarrierBytesDiffer = false, kCarrierFolds = true;
  static constexpr bool kCarrierNarrow = true;
  static int64_t carrier_sum_count(int64_t, int) { return 1; }
  static void carrier_sums(const int8_t *x, int64_t stride, int64_t rows, int64_t depth, int,
                           int32_t *sums) {
    for (int64_t r = 0; r < rows; r++, x += stride) {
      int32_t total = 0;
      int64_t k = 0;
      Ints sum{};
      for (; k + 32 <= depth; k += 32)
        sum = (Ints)four_products((__m256i)sum, _mm256_set1_epi8(1),
                                  _mm256_loadu_si256((const __m256i *)(x + k)));
      for (; k < depth; k++) total += x[k];
      sums[r] = -kCarrierLift * (total + Avx2::sum(sum));
    }
  }

  COD_INLINE __m256i four(const int8_t *x) {
    return _mm256_castps_si256(_mm256_broadcast_ss((const float *)x));
  }
  template <bool BYTES>
  COD_INLINE void carrier_dot(const int8_t *const *x, const int32_t *const *, const uint8_t *w,
                              const int32_t *, int64_t depth, int,
                              Ints (&d)[kCarrierRows][kCarrierVectors]) {
    for (int64_t k = 0; k < depth; k += 4, w += 8 * kWidth) {
      const __m256i w0 = _mm256_load_si256((const __m256i *)w);
      const __m256i w1 = _mm256_load_si256((const __m256i *)(w + 32));
#pragma GCC unroll 6
      for (int r = 0; r < kCarrierRows; r++) {
        const __m256i b = four(x[r] + k);
        d[r][0] = (Ints)four_products((__m256i)d[r][0], w0, b);
        d[r][1] = (Ints)four_products((__m256i)d[r][1], w1, b);
      }
    }
  }
  // Of the first vector of columns alone, in two sums.
  COD_INLINE void carrier_dot_narrow(const int8_t *const *x, const uint8_t *w, int64_t depth,
                                     Ints (&d)[kCarrierRows][kCarrierVectors]) {
    int64_t k = 0;
    for (; k + 8 <= depth; k += 8, w += 16 * kWidth) {
      const __m256i w0 = _mm256_load_si256((const __m256i *)w);
      const __m256i w1 = _mm256_load_si256((const __m256i *)(w + 64));
#pragma GCC unroll 6
      for (int r = 0; r < kCarrierRows; r++) {
        d[r][0] = (Ints)four_products((__m256i)d[r][0], w0, four(x[r] + k));
        d[r][1] = (Ints)four_products((__m256i)d[r][1], w1, four(x[r] + k + 4));
      }
    }
    for (; k < depth; k += 4, w += 8 * kWidth) {
      const __m256i w0 = _mm256_load_si256((const __m256i *)w);
#pragma GCC unroll 6
      for (int r = 0; r < kCarrierRows; r++)
        d[r][0] = (Ints)four_products((__m256i)d[r][0], w0, four(x[r] + k));
    }
  }
};

}  // namespace

#ifdef COD_AVXVNNI_EVEX
extern const Kernels kAvxVnniEvex;
constexpr Kernels kAvxVnniEvex = table_of<AvxVnni>();
#else
extern const Kernels kAvxVnni;
constexpr Kernels kAvxVnni = table_of<AvxVnni>();
#endif

}  // namespace cod
