// One tile of a product: Isa::kRows rows times two vectors of columns. The integer sums of a group
// are the instruction set's business (Isa::dot), everything around them stands here.
#pragma once
#include "lanes.h"

namespace cod {
namespace {

// How groups of weights are scaled: not at all, by any floats, by such that their products with
// 1.5 * 2^23 are exact.
enum { kNoScales, kScales, kExactScales };

template <class Isa>
struct Tile {
  using Floats = typename Isa::Floats;
  using Ints = typename Isa::Ints;
  using Bytes = typename Isa::Bytes;
  static constexpr int W = Isa::kWidth, kRows = Isa::kRows, kColumns = 2 * W;
  static_assert(COD_WEIGHT_OFFSET == 8, "a shift by 3");

  // Where the sums of groups begin: at what the offset of the weights adds to them, taken off. A
  // sum for exact scales begins at the bits of kMagic as well: as a float it is kMagic + sum, and
  // one fma takes that off and multiplies.
  template <int SCALES>
  struct Beginnings {
    static constexpr int32_t kZero = SCALES == kExactScales ? kMagicBits : 0;
    alignas(64) int32_t of[Isa::kMasks ? kRows : 1][W];

    // With masks those of W groups at once: loads broadcast them for nothing.
    inline __attribute__((always_inline)) void prepare(const int32_t *const *sums, int64_t g,
                                                       int64_t groups) {
      if constexpr (Isa::kMasks)
        if (g % W == 0) {
#pragma GCC unroll 6
          for (int r = 0; r < kRows; r++)
            Isa::store(kZero - (Isa::load_some_ints(sums[r] + g, groups - g) << 3), of[r]);
        }
    }
    inline __attribute__((always_inline)) Ints at(const int32_t *const *sums, int r,
                                                  int64_t g) const {
      if constexpr (Isa::kMasks) return Isa::all_ints(of[r][g % W]);
      return Isa::all_ints(kZero - COD_WEIGHT_OFFSET * sums[r][g]);
    }
  };

  // Adds sums times step and scale to f; offset: -kMagic times the scale.
  template <int SCALES>
  COD_INLINE void add_scaled(Ints sum, Floats step, Floats scale, Floats offset, Floats &f) {
    if constexpr (SCALES == kNoScales)
      f = Isa::fma(Isa::converted(sum), step, f);
    else if constexpr (Isa::kStepFirst)
      f = Isa::fma(Isa::converted(sum) * step, scale, f);
    else if constexpr (SCALES == kExactScales)
      f = Isa::fma(Isa::fma(Isa::as_floats(sum), scale, offset), step, f);
    else
      f = Isa::fma(Isa::converted(sum) * scale, step, f);
  }

  // GROUP 0: any group.
  template <int GROUP, int SCALES>
  static void run(const TileInput &in, const Epilogue &out) {
    constexpr bool kLast = Isa::kBeginsLast && GROUP != 0;
    const int group = GROUP ? GROUP : in.group;
    const int8_t *const *x = in.x;
    const float *const *steps = in.steps, *scales = in.scales;
    const int32_t *const *sums = in.sums;
    const uint8_t *w = in.w;
    const int64_t groups = in.groups, step_stride = in.step_stride;
    Beginnings<SCALES> begin;
    Floats f[kRows][2];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; r++) f[r][0] = f[r][1] = Floats{};
    for (int64_t t = 0; t < in.taps; t++, x += kRows, steps += kRows, sums += kRows)
      for (int64_t g = 0; g < groups; g++, w += (int64_t)group * kColumns) {
        begin.prepare(sums, g, groups);
        Ints d[kRows][2];
#pragma GCC unroll 6
        for (int r = 0; r < kRows; r++) d[r][0] = d[r][1] = kLast ? Ints{} : begin.at(sums, r, g);
        Isa::template dot<GROUP>(x, g * group, w, group, in.wide, d);
        Floats s0{}, s1{};
        if constexpr (SCALES != kNoScales) {
          s0 = Isa::load(scales), s1 = Isa::load(scales + W);
          scales += kColumns;
        }
        const Floats o0 = s0 * -kMagic, o1 = s1 * -kMagic;
#pragma GCC unroll 6
        for (int r = 0; r < kRows; r++) {
          if constexpr (kLast) {
            const Ints first = begin.at(sums, r, g);
            d[r][0] += first, d[r][1] += first;
          }
          const Floats step = Isa::all(steps[r][g * step_stride]);
          add_scaled<SCALES>(d[r][0], step, s0, o0, f[r][0]);
          add_scaled<SCALES>(d[r][1], step, s1, o1, f[r][1]);
        }
      }
    leave(f, out);
  }

  COD_INLINE void leave(const Floats (&f)[kRows][2], const Epilogue &out) {
    if constexpr (!Isa::kMasks)
      if (out.columns < kColumns) {
#pragma GCC unroll 6
        for (int r = 0; r < kRows; r++) {
          Isa::store(f[r][0], out.acc + r * kColumns);
          Isa::store(f[r][1], out.acc + r * kColumns + W);
        }
        return store_some(out);
      }
    const int n0 = out.columns < W ? out.columns : W, n1 = out.columns - n0;
    const Floats one = Isa::all(1.0f);
    const Floats a0 = out.scale ? Isa::load(out.scale) : one;
    const Floats a1 = out.scale ? Isa::load(out.scale + W) : one;
    const Floats b0 = out.bias ? values(out.bias, n0) : Floats{};
    const Floats b1 = out.bias ? values(out.bias + W, n1) : Floats{};
#pragma GCC unroll 6
    for (int r = 0; r < kRows; r++) {
      if (r >= out.rows) break;
      float *y = out.y + r * out.stride;
      put(Isa::fma(f[r][0], a0, b0), y, n0);
      put(Isa::fma(f[r][1], a1, b1), y + W, n1);
    }
  }

  COD_INLINE Floats values(const float *x, int n) {
    if constexpr (Isa::kMasks) return Isa::load_some(x, n);
    return Isa::load(x);
  }
  COD_INLINE void put(Floats v, float *y, int n) {
    if constexpr (Isa::kMasks) return Isa::store_some(v, y, n);
    Isa::store(v, y);
  }

  // Any number of columns, from sums in `acc`.
  static void store_some(const Epilogue &out) {
    for (int r = 0; r < out.rows; r++) {
      const float *acc = out.acc + r * kColumns;
      float *y = out.y + r * out.stride;
      for (int j = 0; j < out.columns; j++) {
        float value = acc[j];
        if (out.scale) value *= out.scale[j];
        if (out.bias) value += out.bias[j];
        y[j] = value;
      }
    }
  }

  template <int SCALES>
  COD_INLINE void of_group(const TileInput &in, const Epilogue &out) {
    if constexpr (Isa::kGroup != 0)
      if (in.group == Isa::kGroup) return run<Isa::kGroup, SCALES>(in, out);
    run<0, SCALES>(in, out);
  }

  static void tile(const TileInput &in, const Epilogue &out) {
    if (!in.scales) return of_group<kNoScales>(in, out);
    if constexpr (!Isa::kStepFirst)
      if (in.exact) return of_group<kExactScales>(in, out);
    of_group<kScales>(in, out);
  }

  // Two vectors of bytes from the nibbles of one: low ones first.
  static void unpack(const uint8_t *packed, int64_t n, uint8_t *bytes) {
    for (int64_t i = 0; i < n; i += sizeof(Bytes)) {
      Bytes v;
      __builtin_memcpy(&v, packed + i, sizeof v);
      const Bytes low = v & 15, high = v >> 4;
      __builtin_memcpy(bytes + 2 * i, &low, sizeof low);
      __builtin_memcpy(bytes + 2 * i + sizeof low, &high, sizeof high);
    }
  }
};

}  // namespace
}  // namespace cod
