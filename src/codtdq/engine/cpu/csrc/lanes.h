// Vectors of W lanes, without intrinsics. An instruction set is a struct that derives from Lanes<W>
// and hides what it has instructions for; the kernels are templates over that struct.
//
// Everything in the headers of kernels is in an unnamed namespace, and uses no function of the
// standard library: each instruction set is compiled with flags of its own, and the linker must not
// take one set's copy of a function for all of them.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels.h"

#define COD_INLINE static inline __attribute__((always_inline))
#define COD_ALWAYS __attribute__((always_inline))  // of a lambda

namespace cod {
namespace {

constexpr int kInf = 0x7f800000;        // bits of infinity; those of a NaN are larger
constexpr int kMagnitude = 0x7fffffff;  // bits of a float without its sign
constexpr float kMagic = 12582912.0f;   // 1.5 * 2^23: adding it rounds to an integer, ties to even
constexpr int kMagicBits = 0x4b400000;

template <typename T, int BYTES>
struct Vector {
  typedef T Type __attribute__((vector_size(BYTES)));
};

template <int W>
struct Lanes {
  static constexpr int kWidth = W;
  using Floats = typename Vector<float, 4 * W>::Type;
  using Ints = typename Vector<int32_t, 4 * W>::Type;
  using Words = typename Vector<uint32_t, 4 * W>::Type;
  using Bytes = typename Vector<uint8_t, 4 * W>::Type;
  using Half = typename Vector<double, 4 * W>::Type;

  // One double for each lane, in two registers.
  struct Doubles {
    Half a, b;
    friend Doubles operator+(Doubles x, Doubles y) { return {x.a + y.a, x.b + y.b}; }
    friend Doubles operator-(Doubles x, Doubles y) { return {x.a - y.a, x.b - y.b}; }
    friend Doubles operator*(Doubles x, Doubles y) { return {x.a * y.a, x.b * y.b}; }
    friend Doubles operator/(Doubles x, Doubles y) { return {x.a / y.a, x.b / y.b}; }
  };

  COD_INLINE Floats as_floats(Ints x) {
    Floats y;
    __builtin_memcpy(&y, &x, sizeof y);
    return y;
  }
  COD_INLINE Ints as_ints(Floats x) {
    Ints y;
    __builtin_memcpy(&y, &x, sizeof y);
    return y;
  }
  COD_INLINE Ints magnitude(Floats x) { return as_ints(x) & kMagnitude; }
  COD_INLINE Floats converted(Ints x) { return __builtin_convertvector(x, Floats); }
  COD_INLINE Floats choose(Ints mask, Floats a, Floats b) { return mask ? a : b; }
  COD_INLINE Ints choose(Ints mask, Ints a, Ints b) { return mask ? a : b; }
  COD_INLINE Floats at_least(Floats x, float floor) { return choose(x < floor, all(floor), x); }

  // Taking a zero off leaves every number as it is, -0 too, and costs nothing.
  COD_INLINE Floats all(float x) { return x - Floats{}; }
  COD_INLINE Ints all_ints(int32_t x) { return x - Ints{}; }
  COD_INLINE Doubles all_doubles(double x) { return {x - Half{}, x - Half{}}; }

  COD_INLINE Floats load(const float *x) {
    Floats v;
    __builtin_memcpy(&v, x, sizeof v);
    return v;
  }
  template <typename V, typename T>
  COD_INLINE void store(V v, T *x) {
    static_assert(sizeof(T) * W == sizeof(V), "one element per lane");
    __builtin_memcpy(x, &v, sizeof v);
  }
  // The first n values, then zeros.
  COD_INLINE Floats load_some(const float *x, int64_t n) {
    Floats v{};
    __builtin_memcpy(&v, x, (size_t)n * sizeof(float));
    return v;
  }
  COD_INLINE void store_some(Floats v, float *x, int64_t n) {
    __builtin_memcpy(x, &v, (size_t)n * sizeof(float));
  }

  static const char *refusal() { return nullptr; }

  // From here on: what sets have instructions for, lane by lane.

  COD_INLINE bool any(Ints x) {
    int32_t bits = 0;
    for (int l = 0; l < W; l++) bits |= x[l];
    return bits != 0;
  }
  // Not fused: x * y is rounded.
  COD_INLINE Floats fma(Floats x, Floats y, Floats z) { return x * y + z; }
  COD_INLINE Floats fnma(Floats x, Floats y, Floats z) { return z - x * y; }
  // Rounded once, where `fma` is not.
  COD_INLINE Floats fused_lanes(Floats x, Floats y, Floats z) {
    for (int l = 0; l < W; l++) z[l] = __builtin_fmaf(x[l], y[l], z[l]);
    return z;
  }
  COD_INLINE Half half_fma(Half x, Half y, Half z) { return x * y + z; }
  COD_INLINE Half half_sqrt(Half x) {
    for (int l = 0; l < W / 2; l++) x[l] = __builtin_sqrt(x[l]);
    return x;
  }
  // The second operand where one is NaN; ARM: NaN.
  COD_INLINE Floats min(Floats x, Floats y) { return choose(x < y, x, y); }
  COD_INLINE Floats max(Floats x, Floats y) { return choose(x > y, x, y); }
  COD_INLINE Ints unsigned_max(Ints x, Ints y) { return choose((Ints)((Words)x > (Words)y), x, y); }
  COD_INLINE Ints unsigned_min(Ints x, Ints y) { return choose((Ints)((Words)x < (Words)y), x, y); }
  COD_INLINE Floats round(Floats x) {
    for (int l = 0; l < W; l++) x[l] = __builtin_nearbyintf(x[l]);
    return x;
  }

  COD_INLINE Doubles wide(Floats x) {
    Half low{}, high{};
    for (int l = 0; l < W / 2; l++) low[l] = (double)x[l], high[l] = (double)x[l + W / 2];
    return {low, high};
  }
  COD_INLINE Floats narrow(Doubles x) {
    Floats y{};
    for (int l = 0; l < W / 2; l++) y[l] = (float)x.a[l], y[l + W / 2] = (float)x.b[l];
    return y;
  }
  COD_INLINE Ints less(Doubles x, Doubles y) {
    Ints mask{};
    for (int l = 0; l < W / 2; l++)
      mask[l] = x.a[l] < y.a[l] ? -1 : 0, mask[l + W / 2] = x.b[l] < y.b[l] ? -1 : 0;
    return mask;
  }

  // Four columns of W rows.
  COD_INLINE void transpose4(const float *const *rows, int offset, Floats *v) {
    for (int k = 0; k < 4; k++) {
      Floats column{};
      for (int l = 0; l < W; l++) column[l] = rows[l][offset + k];
      v[k] = column;
    }
  }
  // The lane at a distance of a power of two.
  template <int DISTANCE>
  COD_INLINE Floats swap(Floats x) {
    Floats y{};
    for (int l = 0; l < W; l++) y[l] = x[l ^ DISTANCE];
    return y;
  }
  // x[at[0]], x[at[1]], ... of n values
  COD_INLINE Floats picked(const float *x, int64_t, const int32_t *at) {
    Floats v{};
    for (int l = 0; l < W; l++) v[l] = x[at[l]];
    return v;
  }

  COD_INLINE Floats codes_as_floats(const int8_t *codes) {
    Floats v{};
    for (int l = 0; l < W; l++) v[l] = (float)codes[l];
    return v;
  }
  COD_INLINE void store_codes(Ints codes, int8_t *to) {
    for (int l = 0; l < W; l++) to[l] = (int8_t)codes[l];
  }
  COD_INLINE void store_some_codes(Ints codes, int8_t *to, int64_t n) {
    for (int64_t l = 0; l < n; l++) to[l] = (int8_t)codes[l];
  }

  // x[0], y[0], x[1], y[1], ...
  COD_INLINE void store_pairs(Ints x, Ints y, int8_t *to) {
    for (int l = 0; l < W; l++) {
      const int32_t pair[2] = {x[l], y[l]};
      __builtin_memcpy(to + 8 * l, pair, sizeof pair);
    }
  }

  // Keys: integers in whose order magnitudes come (select.h). One less than the bits of a
  // magnitude: as unsigned numbers, zero comes last.
  static constexpr int32_t kLastKey = -1;
  COD_INLINE Ints key_min(Ints x, Ints y) { return choose((Ints)((Words)x < (Words)y), x, y); }
  COD_INLINE Ints key_max(Ints x, Ints y) { return choose((Ints)((Words)x > (Words)y), x, y); }
  COD_INLINE Ints key_of(Ints magnitude, int omit) { return magnitude - omit; }
  COD_INLINE Ints magnitude_of(Ints key, int omit) { return key + omit; }

  // Whether a division takes longer than a guess and two fused multiplications, which give the
  // same.
  static constexpr bool kGuessesQuotients = false;
  // Whether `fma` rounds once.
  static constexpr bool kFuses = false;
  // Whether the first n lanes are loaded and stored as fast as all of them.
  static constexpr bool kMasks = false;
  // Vectors whose codes are found at once (encode.h); 0: codes one by one, by definition.
  static constexpr int kPiece = 0;
  // Whether carriers are made 32 at a time in 16-bit numbers: Shorts, shorts(32 whole numbers),
  // all_shorts(twice the same number), larger(x, y), store_carriers(q, m): bytes q m.
  static constexpr bool kShorts = false;

  // Whether there was a NaN, for `any`: `unordered` notes those of two vectors.
  using Flags = Ints;
  COD_INLINE Flags unordered(Flags so_far, Floats x, Floats y) {
    return so_far | (Ints)(x != x) | (Ints)(y != y);
  }

  // One step of a tree that reduces W vectors to one (`reduced`): both halves of x and of y, so
  // that what comes together stands in the same lane. Values 2 apart first, then neighbours, then
  // those that are further away.
  template <int LEVEL>
  COD_INLINE void halves(Floats x, Floats y, Floats &first, Floats &second) {
    static_assert(W == 4, "wider sets have their own");
    if constexpr (LEVEL == 0)
      first = Floats{x[0], y[0], x[1], y[1]}, second = Floats{x[2], y[2], x[3], y[3]};
    else
      first = Floats{x[0], x[1], y[0], y[1]}, second = Floats{x[2], x[3], y[2], y[3]};
  }
  // Lane l of the result: pick() over all lanes of each[l].
  template <typename F>
  COD_INLINE Floats across(const Floats *each, const F &pick);
  // In how many lanes x is less than y.
  COD_INLINE int count_less(Floats x, Floats y) {
    int found = 0;
    for (int l = 0; l < W; l++) found += x[l] < y[l];
    return found;
  }
  // In how many of 32 lanes.
  COD_INLINE int count_less_32(const Floats *x, Floats y) {
    int found = 0;
    for (int i = 0; i < 32 / W; i++) found += count_less(x[i], y);
    return found;
  }

  // Of a product of carriers (carrier.h): rows and vectors of columns of a tile, values of depth
  // that lie side by side, what weights have added to them, whether 8-bit weights go another way.
  static constexpr int kCarrierRows = 4, kCarrierVectors = 2, kCarrierUnit = 4, kCarrierLift = 0;
  static constexpr bool kCarrierBytesDiffer = false;
  // Whether weights are multiplied before they meet carriers, or sums of runs after it.
  static constexpr bool kCarrierFolds = true;
  // Whether the rows of a tile are packed side by side first; a set that does so has a tile of its
  // own (carrier_pack.h).
  static constexpr bool kCarrierPacks = false;
  static int64_t carrier_sum_count(int64_t, int) { return 0; }
  static void carrier_sums(const int8_t *, int64_t, int64_t, int64_t, int, int32_t *) {}
  // Whether `carrier_dot_narrow` takes tiles of one vector of columns.
  static constexpr bool kCarrierNarrow = false;

  // One tap: adds x[r][k] w[k][column] to d.
  template <bool BYTES, int R, int V>
  COD_INLINE void carrier_dot(const int8_t *const *x, const int32_t *const *, const uint8_t *w,
                              const int32_t *, int64_t depth, int, Ints (&d)[R][V]) {
    for (int r = 0; r < R; r++)
      for (int v = 0; v < V; v++)
        for (int l = 0; l < W; l++) {
          const int8_t *own = (const int8_t *)w + 4 * (v * W + l);
          int32_t sum = 0;
          for (int64_t k = 0; k < depth; k++) sum += x[r][k] * own[k / 4 * 4 * V * W + k % 4];
          d[r][v][l] += sum;
        }
  }

  // Of attention (attention8.h): sum + what the 16-bit integers of each lane give, the vectors of
  // columns of a tile, and whether there is the same for bytes, `quads`, those of x without a sign.
  static constexpr int kPairVectors = 2;
  static constexpr int kMixVectors = 2;  // vectors of values of a tile
  static constexpr bool kQuads = false;
  COD_INLINE Ints pairs(Ints sum, Ints x, Ints y) {
    for (int l = 0; l < W; l++)
      sum[l] += (int16_t)x[l] * (int16_t)y[l] + (x[l] >> 16) * (y[l] >> 16);
    return sum;
  }

  // Groups whose values times two bounds of 1 / step round alike (x86.h); false: no faster way.
  // SAME: their codes have the same bounds.
  template <bool SAME, typename Exact>
  COD_INLINE bool encode_certain(const GroupBlock &, int, int, int, const CodeRange &, int32_t *,
                                 const Exact &) {
    return false;
  }
};

// N numbers of each of W leaves: leaf(l, vectors) gives N vectors, pick(first, second, vectors)
// puts two halves together, and lane l of the results has the numbers of leaf l. Depth first: few
// registers are in use at once.
template <class Isa, int LEVELS, int N, typename Leaf, typename Pick>
COD_INLINE void reduce(const Leaf &leaf, const Pick &pick, int l, typename Isa::Floats (&out)[N]) {
  if constexpr (LEVELS == 0) {
    leaf(l, out);
  } else {
    typename Isa::Floats x[N], y[N], first[N], second[N];
    reduce<Isa, LEVELS - 1, N>(leaf, pick, l, x);
    reduce<Isa, LEVELS - 1, N>(leaf, pick, l + (1 << (LEVELS - 1)), y);
    for (int i = 0; i < N; i++) Isa::template halves<LEVELS - 1>(x[i], y[i], first[i], second[i]);
    pick(first, second, out);
  }
}
template <class Isa>
constexpr int kLevels = Isa::kWidth == 16  ? 4
                        : Isa::kWidth == 8 ? 3
                                           : 2;

template <class Isa, typename F, typename Floats = typename Isa::Floats>
COD_INLINE Floats reduced(const Floats *each, const F &pick) {
  Floats found[1];
  reduce<Isa, kLevels<Isa>, 1>([&](int l, Floats(&out)[1]) COD_ALWAYS { out[0] = each[l]; },
                               [&](const Floats(&a)[1], const Floats(&b)[1], Floats(&out)[1])
                                   COD_ALWAYS { out[0] = pick(a[0], b[0]); },
                               0, found);
  return found[0];
}
template <int W>
template <typename F>
inline __attribute__((always_inline)) typename Lanes<W>::Floats Lanes<W>::across(const Floats *each,
                                                                                 const F &pick) {
  return reduced<Lanes<W>>(each, pick);
}

// x / y, given 1 / y: a guess and what is left of x give the rounded quotient.
template <class Isa>
COD_INLINE typename Isa::Floats quotient(typename Isa::Floats x, typename Isa::Floats y,
                                         typename Isa::Floats inverse) {
  if constexpr (!Isa::kGuessesQuotients) return x / y;
  const typename Isa::Floats guess = x * inverse;
  return Isa::fma(Isa::fnma(guess, y, x), inverse, guess);
}

// x * y + z, rounded once with every set.
template <class Isa, typename Floats = typename Isa::Floats>
COD_INLINE Floats fused(Floats x, Floats y, Floats z) {
  if constexpr (Isa::kFuses) return Isa::fma(x, y, z);
  return Isa::fused_lanes(x, y, z);
}

// pick() over 16 lanes that lie in 16 / W vectors, in all lanes: always the same tree.
template <class Isa, typename F, typename Floats = typename Isa::Floats>
COD_INLINE Floats over_16_lanes(const Floats *lanes, const F &pick) {
  Floats x;
  if constexpr (Isa::kWidth == 16) {
    x = pick(lanes[0], Isa::template swap<8>(lanes[0]));
    x = pick(x, Isa::template swap<4>(x));
  } else if constexpr (Isa::kWidth == 8) {
    x = pick(lanes[0], lanes[1]);
    x = pick(x, Isa::template swap<4>(x));
  } else {
    static_assert(Isa::kWidth == 4, "16 lanes in whole vectors");
    x = pick(pick(lanes[0], lanes[2]), pick(lanes[1], lanes[3]));
  }
  x = pick(x, Isa::template swap<2>(x));
  return pick(x, Isa::template swap<1>(x));
}

template <class Isa, typename Doubles = typename Isa::Doubles>
COD_INLINE Doubles fma(Doubles x, Doubles y, Doubles z) {
  return {Isa::half_fma(x.a, y.a, z.a), Isa::half_fma(x.b, y.b, z.b)};
}
template <class Isa, typename Doubles = typename Isa::Doubles>
COD_INLINE Doubles sqrt(Doubles x) {
  return {Isa::half_sqrt(x.a), Isa::half_sqrt(x.b)};
}
// The second operand where one is NaN.
template <class Isa, typename Doubles = typename Isa::Doubles>
COD_INLINE Doubles min(Doubles x, Doubles y) {
  return {x.a < y.a ? x.a : y.a, x.b < y.b ? x.b : y.b};
}
// Zero for negative numbers; a NaN stays.
template <class Isa, typename Doubles = typename Isa::Doubles>
COD_INLINE Doubles clamp(Doubles x) {
  const typename Isa::Half zero{};
  return {x.a < zero ? zero : x.a, x.b < zero ? zero : x.b};
}

// v[k][l] = rows[l][k] for k < n.
template <class Isa>
COD_INLINE void load_transposed(const float *const *rows, int n, typename Isa::Floats *v) {
  int k = 0;
  for (; k + 4 <= n; k += 4) Isa::transpose4(rows, k, v + k);
  for (; k < n; k++)
    for (int l = 0; l < Isa::kWidth; l++) v[k][l] = rows[l][k];
}

}  // namespace
}  // namespace cod
