// Order statistics of W groups at once, one group per lane, on keys in whose order the magnitudes
// come. The including file defines kmin, kmax, key_of(magnitude, omit), magnitude_of(key, omit),
// and kLastKey, which no magnitude exceeds. omit: 1 puts an exact zero, which
// is no evidence, above everything, 0 counts it. No value may be NaN.

namespace {

constexpr int kChunk = 8;  // keys that are ordered inside registers

static inline void order(VI &a, VI &b) {
  VI low = kmin(a, b);
  b = kmax(a, b);
  a = low;
}

// Batcher's odd-even merge sort, 19 comparisons.
ALWAYS_INLINE void sort_chunk(VI *v) {
  order(v[0], v[1]), order(v[2], v[3]), order(v[4], v[5]), order(v[6], v[7]);
  order(v[0], v[2]), order(v[1], v[3]), order(v[4], v[6]), order(v[5], v[7]);
  order(v[1], v[2]), order(v[5], v[6]);
  order(v[0], v[4]), order(v[1], v[5]), order(v[2], v[6]), order(v[3], v[7]);
  order(v[2], v[4]), order(v[3], v[5]);
  order(v[1], v[2]), order(v[3], v[4]), order(v[5], v[6]);
}

// Order of a bitonic chunk: first rising, then falling, or the other way round.
ALWAYS_INLINE void clean_chunk(VI *v) {
  order(v[0], v[4]), order(v[1], v[5]), order(v[2], v[6]), order(v[3], v[7]);
  order(v[0], v[2]), order(v[1], v[3]), order(v[4], v[6]), order(v[5], v[7]);
  order(v[0], v[1]), order(v[2], v[3]), order(v[4], v[5]), order(v[6], v[7]);
}

ALWAYS_INLINE void clean(VI *list, int size) {
  for (int stride = size / 2; stride >= kChunk; stride /= 2)
    for (int at = 0; at < size; at += 2 * stride)
      for (int i = 0; i < stride; i++) order(list[at + i], list[at + i + stride]);
  for (int at = 0; at < size; at += kChunk) {
    VI v[kChunk];
#pragma GCC unroll 8
    for (int i = 0; i < kChunk; i++) v[i] = list[at + i];
    clean_chunk(v);
#pragma GCC unroll 8
    for (int i = 0; i < kChunk; i++) list[at + i] = v[i];
  }
}

// a: the lowest `size` of two ordered lists of that size, in order.
ALWAYS_INLINE void keep_lowest(VI *a, const VI *b, int size) {
#pragma GCC unroll 8
  for (int i = 0; i < size; i++) a[i] = kmin(a[i], b[size - 1 - i]);
  clean(a, size);
}

// The lowest `keep` keys (a power of two, at least 8) of each half of the n values, or of all of
// them if keep = size: ordered lists at keys[0] and keys[size / 2]. size: the power of two that n
// is filled up to. omit: 1 leaves zeros out, 0 counts them.
ALWAYS_INLINE void lowest_lists(const VF *values, int n, int size, int keep, int omit, VI *keys) {
  for (int at = 0; at < size; at += kChunk) {
    VI v[kChunk];
#pragma GCC unroll 8
    for (int i = 0; i < kChunk; i++)
      v[i] = at + i < n ? key_of(as_int(values[at + i]) & 0x7fffffff, omit) : VI{} + kLastKey;
    sort_chunk(v);
#pragma GCC unroll 8
    for (int i = 0; i < kChunk; i++) keys[at + i] = v[i];
  }
  int length = kChunk;
  for (; length < keep; length *= 2)
    for (int at = 0; at < size; at += 2 * length) {
      VI *a = keys + at, *b = a + length;
      for (int i = 0; i < length; i++) order(a[i], b[length - 1 - i]);
      clean(a, length);
      clean(b, length);
    }
  for (; 2 * length < size; length *= 2)
    for (int at = 0; at < size; at += 2 * length) keep_lowest(keys + at, keys + at + length, keep);
}

static __attribute__((noinline)) void lowest_of_32(const VF *values, int omit, VI *keys) {
  lowest_lists(values, 32, 32, 8, omit, keys);
}

static __attribute__((noinline)) void lowest_of_16(const VF *values, int omit, VI *keys) {
  lowest_lists(values, 16, 16, 8, omit, keys);
}

static __attribute__((noinline)) void lowest_of_any(const VF *values, int n, int size, int keep,
                                                    int omit, VI *keys) {
  lowest_lists(values, n, size, keep, omit, keys);
}

// The rank-th smallest magnitude of each lane as its bits. rank: the same for all lanes, or by
// lane if `ranks` is given (then `rank` is the largest). Any number where nothing is left.
static VI select(const VF *values, int n, int rank, const VI *ranks, int omit) {
  alignas(64) VI keys[COD_MAX_GROUP];
  int size = 16, keep = kChunk;
  while (size < n) size *= 2;
  while (keep < rank) keep *= 2;
  if (n == 32 && keep == kChunk) lowest_of_32(values, omit, keys);
  else if (n == 16 && keep == kChunk) lowest_of_16(values, omit, keys);
  else lowest_of_any(values, n, size, keep, omit, keys);
  VI *a = keys, *b = keys + size / 2;
  if (!ranks) {
    if (keep == size) return magnitude_of(a[rank - 1], omit);
    // the lowest `rank` are i of one list and rank - i of the other, for some i
    VI best = kmin(a[rank - 1], b[rank - 1]);
    for (int i = 1; i < rank; i++) best = kmin(best, kmax(a[i - 1], b[rank - i - 1]));
    return magnitude_of(best, omit);
  }
  if (keep < size) keep_lowest(a, b, keep);
  VI found = a[0];
  for (int r = 2; r <= rank; r++) found = choose(*ranks == r, a[r - 1], found);
  return magnitude_of(found, omit);
}

// The M-th largest magnitude of each lane.
template <int M>
static VI select_top(const VF *values, int n) {
  VI top[M] = {};
  for (int k = 0; k < n; k++) {
    VI x = as_int(values[k]) & 0x7fffffff;
#pragma GCC unroll 4
    for (int i = 0; i < M; i++) order(x, top[i]);
  }
  return top[M - 1];
}

}  // namespace
