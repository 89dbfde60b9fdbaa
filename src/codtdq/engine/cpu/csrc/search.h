// Ranges that are searched for: the scale with the least error, groups across lanes.
#pragma once
#include "lanes.h"

namespace cod {
namespace {

constexpr int kE4M3Bias = (127 - 7) * 8;  // between the codes of E4M3 and the top bits of a float
constexpr int kLargestCode = 126;         // 448

template <class Isa>
struct Search {
  using Floats = typename Isa::Floats;
  using Ints = typename Isa::Ints;
  static constexpr int W = Isa::kWidth;
  static constexpr int kBlocks = kMaxLanes / W;

  // The smallest E4M3 number that is not below a scale (to one part in a million), as its code.
  COD_INLINE Ints covering_code(Floats scale) {
    const Floats wanted = scale * 0.999999f;
    const Ints normal = ((Isa::as_ints(wanted) + 0xfffff) >> 20) - kE4M3Bias;
    const Floats fixed = wanted * 512.0f, near = Isa::round(fixed);
    const Ints small = __builtin_convertvector(near, Ints) - (near < fixed);
    Ints code = Isa::choose(wanted < 0x1p-6f, small, normal);
    code = Isa::choose(code < 1, Isa::all_ints(1), code);
    return Isa::choose(code > kLargestCode, Isa::all_ints(kLargestCode), code);
  }

  COD_INLINE Floats value_of_code(Ints code) {
    const Floats normal = Isa::as_floats((code + kE4M3Bias) << 20);
    return Isa::choose(code < 8, Isa::converted(code) * 0x1p-9f, normal);
  }

  COD_INLINE Floats within(Floats x, float low, float high) {
    return Isa::min(Isa::max(x, Isa::all(low)), Isa::all(high));
  }

  COD_INLINE Floats over(Floats x, float y) {
    return quotient<Isa>(x, Isa::all(y), Isa::all(1.0f / y));
  }

  // The step that covers [low, high].
  COD_INLINE Floats full_step(Floats low, Floats high, float levels, int zero_point) {
    if (zero_point == COD_ZERO_WIDE) {
      const Floats near = Isa::max(over(low, -COD_WIDE_LOWEST), over(low, -COD_WIDE_HIGHEST));
      return Isa::max(over(high - low, levels), near);
    }
    low = Isa::min(low, Floats{}), high = Isa::max(high, Floats{});
    if (zero_point == COD_ZERO_NONE) return over(Isa::max(-low, high) * 2.0f, levels);
    return over(high - low, levels);
  }

  struct Grid {
    Floats step, inverse, bottom, top;  // codes q - z lie in bottom .. top
  };

  static constexpr int kTogether = 4;  // candidates that are tried in one walk over the values

  // Adds the squared errors of T candidates. SAME: they share their bounds, and the first one's
  // codes begin at the lower one by themselves.
  template <int T, bool SAME>
  COD_INLINE void add_losses(const Floats *v, int n, const Grid *grid, Floats *loss) {
    Floats low[T], high[T];
    for (int t = 0; t < T; t++) low[t] = grid[t].bottom + kMagic, high[t] = grid[t].top + kMagic;
    for (int k = 0; k < n; k++) {
      const Floats x = v[k];
#pragma GCC unroll 4
      for (int t = 0; t < T; t++) {
        const Floats rounded = Isa::fma(x, grid[t].inverse, Isa::all(kMagic));
        const int own = SAME ? 0 : t;
        const Floats raised = SAME && t == 0 ? rounded : Isa::max(rounded, low[own]);
        const Floats code = Isa::min(raised, high[own]) - kMagic;
        const Floats error = Isa::fnma(code, grid[t].step, x);
        loss[t] = Isa::fma(error, error, loss[t]);
      }
    }
  }

  // The same where a value that falls to zero counts more.
  COD_INLINE void add_weighted_loss(const Floats *v, int n, const Grid &grid, float extra,
                                    Floats &loss) {
    for (int k = 0; k < n; k++) {
      const Floats rounded = Isa::fma(v[k], grid.inverse, Isa::all(kMagic)) - kMagic;
      const Floats code = Isa::min(Isa::max(rounded, grid.bottom), grid.top);
      const Floats error = Isa::fnma(code, grid.step, v[k]);
      loss += error * error * Isa::choose(code == 0.0f, Isa::all(1.0f + extra), Isa::all(1.0f));
    }
  }

  struct Range {
    Floats low, high, zero;
    Ints code;  // of the next scale to try
  };

  // NaN where a value is not finite, else 0.
  COD_INLINE Floats poison_of(const Floats *v, int n) {
    Floats bad{}, other{};
    for (int k = 0; k + 1 < n; k += 2)
      bad = Isa::fma(v[k], Floats{}, bad), other = Isa::fma(v[k + 1], Floats{}, other);
    if (n % 2) bad = Isa::fma(v[n - 1], Floats{}, bad);
    return bad + other;
  }

  // Several chains, so that none waits for its last link.
  COD_INLINE void range_of(const Floats *v, int n, Floats &low, Floats &high) {
    Floats lows[4], highs[4];
    for (int i = 0; i < 4; i++) lows[i] = highs[i] = v[i < n ? i : 0];
    int k = 4;
    for (; k + 4 <= n; k += 4)
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) {
        lows[i] = Isa::min(lows[i], v[k + i]);
        highs[i] = Isa::max(highs[i], v[k + i]);
      }
    for (; k < n; k++) lows[0] = Isa::min(lows[0], v[k]), highs[0] = Isa::max(highs[0], v[k]);
    low = Isa::min(Isa::min(lows[0], lows[1]), Isa::min(lows[2], lows[3]));
    high = Isa::max(Isa::max(highs[0], highs[1]), Isa::max(highs[2], highs[3]));
  }

  // The scale that covers [low, high] and the zero-point that goes with it.
  COD_INLINE void cover(const SearchPlan &w, Range &r) {
    Floats full = full_step(r.low, r.high, w.levels, w.zero_point);
    if (w.given)
      full = Isa::min(full, Isa::all(w.unit * 448.0f));  // the quotient must not overflow
    r.code = covering_code(over(full, w.unit));
    const Floats start = w.zero_point == COD_ZERO_NONE ? full * w.levels / -2.0f : r.low;
    r.zero = within(Isa::round(-start / (value_of_code(r.code) * w.unit)), 0.0f, w.levels);
  }

  // The grid of the next smaller scale.
  COD_INLINE Grid next_grid(const SearchPlan &w, Range &r) {
    Grid grid;
    grid.step = value_of_code(r.code) * w.unit, grid.inverse = Isa::reciprocal(grid.step);
    Floats zero = r.zero;
    if (w.zero_point == COD_ZERO_WIDE) {  // shrink around the middle of the group, not around zero
      const Floats middle = w.levels / 2.0f - (r.low + r.high) / (2.0f * grid.step);
      zero = within(Isa::round(middle), COD_WIDE_LOWEST, COD_WIDE_HIGHEST);
    }
    grid.bottom = -zero, grid.top = w.levels - zero;
    r.code = Isa::choose(r.code > 1, r.code - 1, Isa::all_ints(1));
    return grid;
  }

  // The grids with the least squared error among the scales that are tried, for `blocks` times W
  // groups. Step by step over all of them: the numbers of one group depend on each other, those of
  // the groups do not, and the processor always has some to work on.
  static void search_blocks(Floats *v, int blocks, const SearchPlan &w, Grid *best) {
    const int n = w.group;
    Floats poison[kBlocks]{};
    for (int b = 0; b < blocks && w.given; b++) {
      poison[b] = poison_of(v + b * n, n);
      const Ints sound = poison[b] == 0.0f;
      if (Isa::any(~sound))  // such a group gets a step of NaN; its grid must be one all the same
        for (int k = b * n; k < b * n + n; k++) v[k] = Isa::choose(sound, v[k], Floats{});
    }
    Range range[kBlocks];
    Grid grid[kBlocks][kTogether];
    Floats least[kBlocks];
    for (int b = 0; b < blocks; b++) range_of(v + b * n, n, range[b].low, range[b].high);
    for (int b = 0; b < blocks; b++) cover(w, range[b]);
    for (int done = 0; done < w.trials; done += kTogether) {
      const int count = w.trials - done < kTogether ? w.trials - done : kTogether;
      for (int b = 0; b < blocks; b++)
        for (int t = 0; t < count; t++) grid[b][t] = next_grid(w, range[b]);
      for (int b = 0; b < blocks; b++) {
        Floats loss[kTogether]{};
        if (w.trials == 1) {
          best[b] = grid[b][0];
          continue;
        } else if (w.zero_weight != 0.0f) {
          for (int t = 0; t < count; t++)
            add_weighted_loss(v + b * n, n, grid[b][t], w.zero_weight, loss[t]);
        } else if (count > 1 && done == 0 && w.zero_point != COD_ZERO_WIDE) {
          if (count == 2) add_losses<2, true>(v + b * n, n, grid[b], loss);
          if (count == 3) add_losses<3, true>(v + b * n, n, grid[b], loss);
          if (count == 4) add_losses<4, true>(v + b * n, n, grid[b], loss);
        } else if (count == kTogether) {
          add_losses<kTogether, false>(v + b * n, n, grid[b], loss);
        } else {
          for (int t = 0; t < count; t++) add_losses<1, false>(v + b * n, n, grid[b] + t, loss + t);
        }
        for (int t = 0; t < count; t++) {
          // the first one counts even if its loss is beyond float32
          const Ints better = done + t == 0 ? Ints{} - 1 : (Ints)(loss[t] < least[b]);
          least[b] = Isa::choose(better, loss[t], least[b]);
          best[b].step = Isa::choose(better, grid[b][t].step, best[b].step);
          best[b].inverse = Isa::choose(better, grid[b][t].inverse, best[b].inverse);
          best[b].bottom = Isa::choose(better, grid[b][t].bottom, best[b].bottom);
          best[b].top = Isa::choose(better, grid[b][t].top, best[b].top);
        }
      }
    }
    for (int b = 0; b < blocks; b++) best[b].step += poison[b];
  }

  // Adds the largest step of these lanes to `largest`; NaN where a value is not finite.
  COD_INLINE void widen(const Floats *v, int n, const SearchPlan &w, Floats &largest) {
    Floats low, high;
    range_of(v, n, low, high);
    const Floats step = full_step(low, high, w.levels, w.zero_point) + poison_of(v, n);
    // as integers: a NaN is larger than anything, and stays
    largest = Isa::as_floats(Isa::unsigned_max(Isa::magnitude(step), Isa::as_ints(largest)));
  }

  template <int DISTANCE = W / 2, typename F>
  COD_INLINE Floats across(Floats x, const F &join) {
    x = join(x, Isa::template swap<DISTANCE>(x));
    if constexpr (DISTANCE > 1) return across<DISTANCE / 2>(x, join);
    return x;
  }

  // Whether no group among these values has a step above `known`; false where one is not finite.
  COD_INLINE bool none_above(Floats low, Floats high, Floats poison, const SearchPlan &w,
                             float known) {
    low = across(low, [](Floats a, Floats b) { return Isa::min(a, b); });
    high = across(high, [](Floats a, Floats b) { return Isa::max(a, b); });
    Floats bound = full_step(low, high, w.levels, w.zero_point);
    // a group's least value may be the largest of all
    if (w.zero_point == COD_ZERO_WIDE) bound = Isa::max(bound, over(high, -COD_WIDE_LOWEST));
    return !Isa::any(~(Ints)(bound + poison <= Isa::all(known)));
  }

  COD_INLINE float largest_lane(Floats largest) {
    uint32_t best = 0, one;
    for (int l = 0; l < W; l++) {
      const float lane = largest[l];
      __builtin_memcpy(&one, &lane, sizeof one);
      best = one > best ? one : best;
    }
    float found;
    __builtin_memcpy(&found, &best, sizeof found);
    return found;
  }

  COD_INLINE void load_groups(const GroupBlock &block, int at, int n, Floats *v) {
    const float *rows[W];
    for (int l = 0; l < W; l++)
      rows[l] = block.values[at + l < block.lanes ? at + l : block.lanes - 1];
    load_transposed<Isa>(rows, n, v);
  }

  // Whether none of the groups [from, to) of a block has a step above `known`: their common range
  // bounds that of each.
  COD_INLINE bool passed_over(const GroupBlock &block, int from, int to, const SearchPlan &w,
                              float known) {
    // separate chains, so that none waits for its last link
    const Floats any = Isa::load(block.values[from]);
    Floats low = any, high = any, bad{}, other_low = any, other_high = any, other_bad{};
    for (int l = from; l < to; l += 2) {
      const float *x = block.values[l], *y = block.values[l + 1 < to ? l + 1 : l];
      for (int k = 0; k < w.group; k += W) {
        const Floats a = Isa::load(x + k), b = Isa::load(y + k);
        low = Isa::min(low, a), high = Isa::max(high, a), bad = Isa::fma(a, Floats{}, bad);
        other_low = Isa::min(other_low, b), other_high = Isa::max(other_high, b);
        other_bad = Isa::fma(b, Floats{}, other_bad);
      }
    }
    return none_above(Isa::min(low, other_low), Isa::max(high, other_high), bad + other_bad, w,
                      known);
  }

  // The largest step of these groups, or `known` if none is larger.
  static float widest(const GroupBlock &block, const SearchPlan &w, float known) {
    const bool whole = w.group % W == 0;
    if (whole && passed_over(block, 0, block.lanes, w, known)) return known;
    Floats v[COD_MAX_GROUP], largest = Isa::all(known);
    for (int at = 0; at < block.lanes; at += W) {
      const int end = at + W < block.lanes ? at + W : block.lanes;
      if (whole && passed_over(block, at, end, w, known)) continue;
      load_groups(block, at, w.group, v);
      widen(v, w.group, w, largest);
      known = largest_lane(largest);
    }
    return known;
  }

  static __attribute__((noinline)) int32_t divide_group(const float *x, int n, float step,
                                                        float bottom, float top, int8_t *codes) {
    int32_t sum = 0;
    for (int i = 0; i < n; i++) {
      float q = __builtin_nearbyintf(x[i] / step);
      q = !(q >= bottom) ? bottom
          : q > top      ? top
                         : q;  // NaN has the lowest code, under a step of NaN
      sum += codes[i] = (int8_t)q;
    }
    return sum;
  }

  // Codes of groups between their bounds; false: each value has to be divided.
  COD_INLINE bool encode_between(const GroupBlock &block, int from, int to, int n, const Grid &grid,
                                 SearchResult &out) {
    CodeRange range;
    Isa::store(grid.inverse * (1.0f + kMargin), range.high);
    Isa::store(grid.inverse * (1.0f - kMargin), range.low);
    Isa::store(grid.bottom + kMagic, range.bottom);
    Isa::store(grid.top + kMagic, range.top);
    return Isa::template encode_certain<false>(block, from, to, n, range, out.sums, [&](int l) {
      return divide_group(block.values[l], n, out.step[l], out.bottom[l], out.top[l],
                          block.codes[l]);
    });
  }

  static void tokens(const GroupBlock &block, const SearchPlan &w, SearchResult &out) {
    Floats v[kBlocks * COD_MAX_GROUP];
    Grid best[kBlocks];
    const int blocks = (block.lanes + W - 1) / W;
    for (int b = 0; b < blocks; b++) load_groups(block, b * W, w.group, v + b * w.group);
    search_blocks(v, blocks, w, best);
    for (int b = 0; b < blocks; b++) {
      const int at = b * W, end = at + W < block.lanes ? at + W : block.lanes;
      Isa::store(best[b].step, out.step + at);
      Isa::store(best[b].bottom, out.bottom + at);
      Isa::store(best[b].top, out.top + at);
      if (w.divide || !encode_between(block, at, end, w.group, best[b], out))
        for (int l = at; l < end; l++)
          out.sums[l] = divide_group(block.values[l], w.group, out.step[l], out.bottom[l],
                                     out.top[l], block.codes[l]);
      if (!w.given || !Isa::any(~(Ints)(best[b].step == best[b].step))) continue;
      for (int l = at; l < end; l++)
        if (out.step[l] != out.step[l])
          out.sums[l] = 0, __builtin_memset(block.codes[l], 0, (size_t)w.group);
    }
  }

  COD_INLINE void load_pixels(const float *const *rows, int n, int64_t c, int64_t left, Floats *v) {
    if (left >= W) {
      for (int k = 0; k < n; k++) v[k] = Isa::load(rows[k] + c);
      return;
    }
    for (int k = 0; k < n; k++) v[k] = Isa::load_some(rows[k] + c, left);
  }

  static float widest_of_pixels(const float *const *rows, int64_t channels, const SearchPlan &w) {
    Floats v[COD_MAX_GROUP], largest{};
    for (int64_t c = 0; c < channels; c += W) {
      load_pixels(rows, w.group, c, channels - c, v);
      widen(v, w.group, w, largest);
    }
    return largest_lane(largest);
  }

  // Codes of W channels from c on, of the first `valid` pixels.
  COD_INLINE void encode_pixels(const Floats *v, const Grid &grid, int valid, bool divide,
                                int64_t c, int64_t left, int8_t *const *codes) {
    // x / step lies between x times these two: where both give one code, so does the quotient
    const Floats hi = grid.inverse * (1.0f + kMargin), lo = grid.inverse * (1.0f - kMargin);
    const Floats low = grid.bottom + kMagic, high = grid.top + kMagic;
    Ints differ{};
    if (left >= W && !divide) {
      for (int k = 0; k < valid; k++) {
        const Floats up = Isa::fma(v[k], hi, Isa::all(kMagic)),
                     down = Isa::fma(v[k], lo, Isa::all(kMagic));
        differ |= Isa::as_ints(up) ^ Isa::as_ints(down);
        const Floats code = Isa::min(Isa::max(up, low), high);
        Isa::store_codes(Isa::as_ints(code) - kMagicBits, codes[k] + c);
      }
      if (__builtin_expect(!Isa::any(differ), 1)) return;
    }
    for (int k = 0; k < valid; k++) {
      const Floats code = Isa::min(Isa::max(Isa::round(v[k] / grid.step), grid.bottom), grid.top);
      for (int64_t l = 0; l < W && l < left; l++) codes[k][c + l] = (int8_t)code[l];
    }
  }

  static void pixels(const float *const *rows, int64_t channels, const SearchPlan &w, int valid,
                     int8_t *const *codes, float *step) {
    Floats v[kBlocks * COD_MAX_GROUP];
    Grid best[kBlocks];
    for (int64_t from = 0; from < channels; from += kMaxLanes) {
      const int64_t lanes = channels - from < kMaxLanes ? channels - from : kMaxLanes;
      const int blocks = (int)((lanes + W - 1) / W);
      for (int b = 0; b < blocks; b++)
        load_pixels(rows, w.group, from + b * W, lanes - b * W, v + b * w.group);
      search_blocks(v, blocks, w, best);
      for (int b = 0; b < blocks; b++) {
        const int64_t c = from + b * W, left = channels - c;
        encode_pixels(v + b * w.group, best[b], valid, w.divide, c, left, codes);
        Isa::store_some(best[b].step, step + c, left < W ? left : W);
        if (!w.given || !Isa::any(~(Ints)(best[b].step == best[b].step))) continue;
        for (int64_t l = 0; l < W && l < left; l++)
          for (int k = 0; k < valid && best[b].step[l] != best[b].step[l]; k++) codes[k][c + l] = 0;
      }
    }
  }
};

}  // namespace
}  // namespace cod
