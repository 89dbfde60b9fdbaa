// Order statistics of W groups at once, one group per lane, on keys in whose order the magnitudes
// come: Isa::key_min, key_max, key_of(magnitude, omit), magnitude_of(key, omit) and kLastKey, which
// no magnitude exceeds. omit: 1 puts an exact zero, which is no evidence, above everything, 0
// counts it. No value may be NaN.
#pragma once
#include "lanes.h"

namespace cod {
namespace {

constexpr int kChunk = 8;  // keys that are ordered inside registers

template <class Isa>
struct Select {
  using Floats = typename Isa::Floats;
  using Ints = typename Isa::Ints;
  static constexpr int W = Isa::kWidth;

  static inline void order(Ints &a, Ints &b) {
    Ints low = Isa::key_min(a, b);
    b = Isa::key_max(a, b);
    a = low;
  }

  // Batcher's odd-even merge sort, 19 comparisons.
  COD_INLINE void sort_chunk(Ints *v) {
    order(v[0], v[1]), order(v[2], v[3]), order(v[4], v[5]), order(v[6], v[7]);
    order(v[0], v[2]), order(v[1], v[3]), order(v[4], v[6]), order(v[5], v[7]);
    order(v[1], v[2]), order(v[5], v[6]);
    order(v[0], v[4]), order(v[1], v[5]), order(v[2], v[6]), order(v[3], v[7]);
    order(v[2], v[4]), order(v[3], v[5]);
    order(v[1], v[2]), order(v[3], v[4]), order(v[5], v[6]);
  }

  // Order of a bitonic chunk: first rising, then falling, or the other way round.
  COD_INLINE void clean_chunk(Ints *v) {
    order(v[0], v[4]), order(v[1], v[5]), order(v[2], v[6]), order(v[3], v[7]);
    order(v[0], v[2]), order(v[1], v[3]), order(v[4], v[6]), order(v[5], v[7]);
    order(v[0], v[1]), order(v[2], v[3]), order(v[4], v[5]), order(v[6], v[7]);
  }

  COD_INLINE void clean(Ints *list, int size) {
    for (int stride = size / 2; stride >= kChunk; stride /= 2)
      for (int at = 0; at < size; at += 2 * stride)
        for (int i = 0; i < stride; i++) order(list[at + i], list[at + i + stride]);
    for (int at = 0; at < size; at += kChunk) {
      Ints v[kChunk];
#pragma GCC unroll 8
      for (int i = 0; i < kChunk; i++) v[i] = list[at + i];
      clean_chunk(v);
#pragma GCC unroll 8
      for (int i = 0; i < kChunk; i++) list[at + i] = v[i];
    }
  }

  // a: the lowest `size` of two ordered lists of that size, in order.
  COD_INLINE void keep_lowest(Ints *a, const Ints *b, int size) {
#pragma GCC unroll 8
    for (int i = 0; i < size; i++) a[i] = Isa::key_min(a[i], b[size - 1 - i]);
    clean(a, size);
  }

  // The lowest `keep` keys (a power of two, at least 8) of each half of the n values, or of all of
  // them if keep = size: ordered lists at keys[0] and keys[size / 2]. size: the power of two that n
  // is filled up to. omit: 1 leaves zeros out, 0 counts them.
  COD_INLINE void lowest_lists(const Floats *values, int n, int size, int keep, int omit,
                               Ints *keys) {
    for (int at = 0; at < size; at += kChunk) {
      Ints v[kChunk];
#pragma GCC unroll 8
      for (int i = 0; i < kChunk; i++)
        v[i] = at + i < n ? Isa::key_of(Isa::magnitude(values[at + i]), omit)
                          : Isa::all_ints(Isa::kLastKey);
      sort_chunk(v);
#pragma GCC unroll 8
      for (int i = 0; i < kChunk; i++) keys[at + i] = v[i];
    }
    int length = kChunk;
    for (; length < keep; length *= 2)
      for (int at = 0; at < size; at += 2 * length) {
        Ints *a = keys + at, *b = a + length;
        for (int i = 0; i < length; i++) order(a[i], b[length - 1 - i]);
        clean(a, length);
        clean(b, length);
      }
    for (; 2 * length < size; length *= 2)
      for (int at = 0; at < size; at += 2 * length)
        keep_lowest(keys + at, keys + at + length, keep);
  }

  static __attribute__((noinline)) void lowest_of_32(const Floats *values, int omit, Ints *keys) {
    lowest_lists(values, 32, 32, 8, omit, keys);
  }

  static __attribute__((noinline)) void lowest_of_16(const Floats *values, int omit, Ints *keys) {
    lowest_lists(values, 16, 16, 8, omit, keys);
  }

  static __attribute__((noinline)) void lowest_of_any(const Floats *values, int n, int size,
                                                      int keep, int omit, Ints *keys) {
    lowest_lists(values, n, size, keep, omit, keys);
  }

  // The rank-th smallest magnitude of each lane as its bits. rank: the same for all lanes, or by
  // lane if `ranks` is given (then `rank` is the largest). Any number where nothing is left.
  static Ints smallest(const Floats *values, int n, int rank, const Ints *ranks, int omit) {
    alignas(64) Ints keys[COD_MAX_GROUP];
    int size = 16, keep = kChunk;
    while (size < n) size *= 2;
    while (keep < rank) keep *= 2;
    if (n == 32 && keep == kChunk)
      lowest_of_32(values, omit, keys);
    else if (n == 16 && keep == kChunk)
      lowest_of_16(values, omit, keys);
    else
      lowest_of_any(values, n, size, keep, omit, keys);
    Ints *a = keys, *b = keys + size / 2;
    if (!ranks) return Isa::magnitude_of(keep == size ? a[rank - 1] : of_both(a, b, rank), omit);
    if (keep < size) keep_lowest(a, b, keep);
    Ints found = a[0];
    for (int r = 2; r <= rank; r++) found = Isa::choose(*ranks == r, a[r - 1], found);
    return Isa::magnitude_of(found, omit);
  }

  // The rank-th key of two ordered lists: the lowest `rank` are i of one list and rank - i of the
  // other, for some i.
  COD_INLINE Ints of_both(const Ints *a, const Ints *b, int rank) {
    Ints best = Isa::key_min(a[rank - 1], b[rank - 1]);
    for (int i = 1; i < rank; i++)
      best = Isa::key_min(best, Isa::key_max(a[i - 1], b[rank - i - 1]));
    return best;
  }

  // The lowest 8 keys of every 16 of N magnitudes in each of W rows: ordered lists at keys[0] and
  // keys[16]. Columns are ordered as they come from memory.
  template <int N, int OMIT>
  COD_INLINE void lists_of(const float *const *rows, Ints *keys) {
#pragma GCC unroll 1
    for (int at = 0; at < N; at += kChunk) {
      Floats x[kChunk];
      Ints v[kChunk];
      Isa::transpose4(rows, at, x);
      Isa::transpose4(rows, at + 4, x + 4);
#pragma GCC unroll 8
      for (int i = 0; i < kChunk; i++) {
        v[i] = Isa::magnitude(x[i]);
        if (OMIT) v[i] = Isa::key_of(v[i], OMIT);
      }
      sort_chunk(v);
#pragma GCC unroll 8
      for (int i = 0; i < kChunk; i++) keys[at + i] = v[i];
    }
    for (int at = 0; at < N; at += 16) keep_lowest(keys + at, keys + at + kChunk, kChunk);
  }

  // The rank-th smallest, up to the 8th, of 32 magnitudes in each of W rows; zeros count.
  static __attribute__((noinline)) Ints smallest_of_32(const float *const *rows, int rank) {
    alignas(64) Ints keys[32];
    lists_of<32, 0>(rows, keys);
    return of_both(keys, keys + 16, rank);
  }
  // The same of 16 or 32 without zeros, and ranks of the rows' own.
  template <int N>
  static __attribute__((noinline)) Ints smallest_of(const float *const *rows, Ints ranks) {
    alignas(64) Ints keys[N];
    lists_of<N, 1>(rows, keys);
    if (N == 32) keep_lowest(keys, keys + N / 2, kChunk);
    Ints found = keys[0];
    for (int r = 2; r <= kChunk; r++) found = Isa::choose(ranks == r, keys[r - 1], found);
    return Isa::magnitude_of(found, 1);
  }

  // The M-th largest magnitude of each lane.
  template <int M>
  static Ints largest(const Floats *values, int n) {
    Ints top[M] = {};
    for (int k = 0; k < n; k++) {
      Ints x = Isa::magnitude(values[k]);
#pragma GCC unroll 4
      for (int i = 0; i < M; i++) order(x, top[i]);
    }
    return top[M - 1];
  }
};

}  // namespace
}  // namespace cod
