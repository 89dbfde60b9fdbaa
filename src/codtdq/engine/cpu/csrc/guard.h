// Guarded projection: between base and bound, the fixed fraction with the least squared error.
#pragma once
#include "lanes.h"

namespace cod {
namespace {

constexpr int kFractions = 5;
constexpr float kFraction[kFractions] = {1.0f, 0.75f, 0.5f, 0.25f, 0.0f};

template <class Isa>
struct Guard {
  using Floats = typename Isa::Floats;
  using Ints = typename Isa::Ints;
  static constexpr int W = Isa::kWidth;
  using Doubles = typename Isa::Doubles;

  static inline Floats step_for(Floats radius, float qmax) {
    return Isa::at_least(radius / qmax, COD_EPS);
  }

  static Doubles squared_error(const Floats *v, int n, Floats radius, Floats step, float low,
                               float high) {
    Doubles total = Isa::all_doubles(0);
    for (int k = 0; k < n; k++) {
      const Floats x = v[k];
      Floats y = Isa::choose(x < -radius, -radius, Isa::choose(x > radius, radius, x)) / step;
      y = Isa::round(y);
      y = Isa::choose(y < low, Isa::all(low), Isa::choose(y > high, Isa::all(high), y));
      const Doubles error = Isa::wide(x - y * step);
      total = fma<Isa>(error, error, total);
    }
    return total;
  }

  // The definition: errors as the codes make them, summed in float64; ties to the bound.
  static __attribute__((noinline)) Floats least_error(const Floats *v, int n, const Floats *radius,
                                                      const Floats *step, float qmax) {
    Floats best = radius[0];
    Doubles least = Isa::all_doubles(__builtin_inf());
    for (int c = 0; c < kFractions; c++) {
      const Doubles total = squared_error(v, n, radius[c], step[c], -qmax - 1, qmax);
      const Ints better = Isa::less(total, least);
      least = min<Isa>(total, least);
      best = Isa::choose(better, radius[c], best);
    }
    return best;
  }

  // The same in float32, without divisions and on magnitudes, which is enough unless two candidates
  // come close: `unsure` marks the lanes where the sums differ by less than their possible error.
  // A code next to a tie may be off by one; its squared error is then off by 4 q_max 2^-23 at most.
  static inline Floats quick_least_error(const Floats *v, int n, const Floats *radius,
                                         const Floats *step, Floats squares, float qmax,
                                         Ints &unsure) {
    Floats inverse[kFractions], total[kFractions];
    for (int c = 0; c < kFractions; c++) inverse[c] = 1.0f / step[c], total[c] = Floats{};
    const Floats magic = Isa::all(kMagic), top = Isa::all(kMagic + qmax);
    for (int k = 0; k < n; k++) {
      const Floats x = Isa::as_floats(Isa::magnitude(v[k]));
#pragma GCC unroll 5
      for (int c = 0; c < kFractions; c++) {
        const Floats code = Isa::min(Isa::fma(x, inverse[c], magic), top) - magic;
        const Floats error = Isa::fnma(code, step[c], x);
        total[c] = Isa::fma(error, error, total[c]);
      }
    }
    Floats best = radius[0], least = total[0], second = Isa::all(__builtin_inff());
    for (int c = 1; c < kFractions; c++) {
      const Ints better = total[c] < least;
      second = Isa::choose(better, least, Isa::choose(total[c] < second, total[c], second));
      least = Isa::choose(better, total[c], least);
      best = Isa::choose(better, radius[c], best);
    }
    const float relative = (qmax + 2) / 65536;
    const Floats margin = least * relative + squares * 0x1p-27f + 1e-30f;
    unsure = ~(second - least > margin);
    return best;
  }

  // Groups whose bound `low` lies under their base: the radius with the least error.
  static inline Floats guard_lanes(const Floats *v, int n, Floats base, Floats low, Floats squares,
                                   const Plan &plan) {
    Floats candidates[kFractions], steps[kFractions];
    for (int c = 0; c < kFractions; c++) {
      const float f = kFraction[c];
      const Floats between = f == 1 ? low : f == 0 ? base : base + (low - base) * f;
      candidates[c] = Isa::at_least(between, COD_EPS);
      steps[c] = step_for(candidates[c], plan.qmax);
    }
    Ints unsure;
    const Floats best = quick_least_error(v, n, candidates, steps, squares, plan.qmax, unsure);
    // a step at its floor has fewer codes than the grid
    if (!Isa::any(unsure | (low < plan.floor))) return best;
    return least_error(v, n, candidates, steps, plan.qmax);
  }

  // All groups of a block with a bound under their base, W at a time: they are few with most data.
  static void block(const GroupBlock &groups, const Plan &plan, const float *base,
                    const float *squares, GroupResult &out) {
    const int n = plan.spec.group;
    int chosen[kMaxLanes + W], count = 0;
    for (int l = 0; l < groups.lanes; l++) {
      chosen[count] = l;
      count += out.radius[l] < base[l];
    }
    for (int at = 0; at < count; at += W) {
      for (int l = count; l < at + W; l++) chosen[l] = chosen[at];
      const float *rows[W];
      Floats high, low, square;
      for (int l = 0; l < W; l++) {
        const int from = chosen[at + l];
        rows[l] = groups.values[from];
        high[l] = base[from], low[l] = out.radius[from], square[l] = squares[from];
      }
      alignas(64) Floats v[COD_MAX_GROUP];
      load_transposed<Isa>(rows, n, v);
      const Floats best = guard_lanes(v, n, high, low, square, plan);
      const Ints moved = best > Isa::at_least(low, COD_EPS);
      for (int l = 0; l < W && at + l < count; l++) {
        out.radius[chosen[at + l]] = best[l];
        if (moved[l]) out.active[chosen[at + l]] = COD_ACTIVE_GUARDED;
      }
    }
  }
};

}  // namespace
}  // namespace cod
