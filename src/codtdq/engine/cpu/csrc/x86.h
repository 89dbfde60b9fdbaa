// What the x86 sets share: codes as 32 bytes, and their sums.
#pragma once
// gcc 12 says of its own 512-bit functions that they read what is not set; what they do with it is
// masked out.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include "lanes.h"

namespace cod {
namespace {

// Bytes to sums: add 128, sum eight at a time (vpsadbw); `sums_of_groups` takes it off again.
COD_INLINE __m256i lifted_sums(__m256i codes) {
  const __m256i lifted = _mm256_xor_si256(codes, _mm256_set1_epi8((char)-128));
  return _mm256_sad_epu8(lifted, _mm256_setzero_si256());
}
COD_INLINE __m256i lifted_sums(__m128i codes) {
  const __m128i lifted = _mm_xor_si128(codes, _mm_set1_epi8((char)-128));
  return _mm256_zextsi128_si256(_mm_sad_epu8(lifted, _mm_setzero_si128()));
}

// Sums of eight groups of n codes from four partial sums each.
COD_INLINE __m256i sums_of_groups(const __m256i *partial, int n) {
  __m256i two[4], four[2];
  for (int i = 0; i < 4; i++)
    two[i] = _mm256_or_si256(partial[2 * i], _mm256_slli_epi64(partial[2 * i + 1], 32));
  for (int i = 0; i < 2; i++)
    four[i] = _mm256_add_epi32(_mm256_unpacklo_epi64(two[2 * i], two[2 * i + 1]),
                               _mm256_unpackhi_epi64(two[2 * i], two[2 * i + 1]));
  const __m256i lifted = _mm256_add_epi32(_mm256_permute2x128_si256(four[0], four[1], 0x20),
                                          _mm256_permute2x128_si256(four[0], four[1], 0x31));
  return _mm256_sub_epi32(lifted, _mm256_set1_epi32(128 * n));
}

// Codes of the groups [from, to), n values each. The sum of x / step and 1.5 * 2^23 rounds it to an
// integer; x times two bounds of 1 / step is cheaper than the quotient, and where both round alike,
// so does it. Where they do not, exact(group) finds the codes and returns their sum. Isa::Limits of
// a group, and Isa::codes32 and codes16(x, high, low, limits, differ): codes of so many values, and
// bits in `differ` where both do not agree.
// SIZE: n, if it is known; else 0.
template <class Isa, bool SAME, int SIZE, typename Exact>
COD_INLINE void encode_certain_size(const GroupBlock &block, int from, int to, int size,
                                    const CodeRange &range, int32_t *sums, const Exact &exact) {
  constexpr int W = Isa::kWidth;
  const int n = SIZE ? SIZE : size;
  __m256i partial[W];
  for (int l = 0; l < W; l++) partial[l] = _mm256_setzero_si256();
  for (int l = from; l < to; l++) {
    const auto high = Isa::all(range.high[l - from]), low = Isa::all(range.low[l - from]);
    const int own = SAME ? 0 : l - from;
    const typename Isa::Limits limits(range.bottom + own, range.top + own);
    const float *x = block.values[l];
    int8_t *codes = block.codes[l];
    typename Isa::Ints differ{};
    __m256i sum = _mm256_setzero_si256();
    int i = 0;
    for (; i + 32 <= n; i += 32) {
      const __m256i q = Isa::codes32(x + i, high, low, limits, differ);
      _mm256_storeu_si256((__m256i *)(codes + i), q);
      sum = _mm256_add_epi64(sum, lifted_sums(q));
    }
    if (i < n) {
      const __m128i q = Isa::codes16(x + i, high, low, limits, differ);
      _mm_storeu_si128((__m128i *)(codes + i), q);
      sum = _mm256_add_epi64(sum, lifted_sums(q));
    }
    if (__builtin_expect(Isa::any(differ), 0))
      sum = _mm256_zextsi128_si256(_mm_cvtsi32_si128(exact(l) + 128 * n));
    partial[l - from] = sum;
  }
  for (int l = 0; l < W; l += 8)
    _mm256_store_si256((__m256i *)(sums + from + l), sums_of_groups(partial + l, n));
}

template <class Isa, bool SAME, typename Exact>
COD_INLINE bool encode_certain_groups(const GroupBlock &block, int from, int to, int n,
                                      const CodeRange &range, int32_t *sums, const Exact &exact) {
  if (n % 16 != 0) return false;
  if (n == 32)
    encode_certain_size<Isa, SAME, 32>(block, from, to, n, range, sums, exact);
  else
    encode_certain_size<Isa, SAME, 0>(block, from, to, n, range, sums, exact);
  return true;
}

}  // namespace
}  // namespace cod
