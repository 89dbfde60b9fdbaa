// From values to carriers: steps of groups, whole multipliers of a unit, signed bytes. Float32
// operations one by one, none fused: the reference in Python gives the same bits.
#pragma once
#include "project.h"

namespace cod {
namespace {

template <class Isa>
struct Carry {
  using Floats = typename Isa::Floats;
  using Ints = typename Isa::Ints;
  using Range = Project<Isa>;
  static constexpr int W = Isa::kWidth;

  // ---- steps

  COD_INLINE Floats values(const float *x, int left) {
    return left >= W ? Isa::load(x) : Isa::load_some(x, left);
  }

  COD_INLINE Floats larger_magnitude(Floats a, Floats b) {  // of magnitudes; a NaN is the largest
    return Isa::as_floats(Isa::unsigned_max(Isa::as_ints(a), Isa::as_ints(b)));
  }

  // A step that is not finite is NaN.
  COD_INLINE Floats checked(Floats step, Ints largest) {
    const Ints finite = (largest < kInf) & (Isa::as_ints(step) < kInf);
    return Isa::choose(finite, step, Isa::all(__builtin_nanf("")));
  }

  // Groups of SIZE values (0: as many as `valid` says) under their largest magnitudes.
  template <int SIZE>
  COD_INLINE void largest_of(const GroupBlock &block, int at, const CarryPlan &plan,
                             GroupSteps &out) {
    alignas(64) Floats each[W];
    for (int l = 0; l < W; l++) {
      const int from = at + l < block.lanes ? at + l : at;
      const float *x = block.values[from];
      const int n = SIZE ? SIZE : block.valid[from];
      Ints largest{};
#pragma GCC unroll 8
      for (int i = 0; i < n; i += W)
        largest = Isa::unsigned_max(largest, Isa::magnitude(values(x + i, SIZE ? W : n - i)));
      each[l] = Isa::as_floats(largest);
    }
    const Floats largest =
        Isa::across(each, [](Floats a, Floats b) { return larger_magnitude(a, b); });
    const Floats step = Isa::at_least(largest / plan.range.qmax, COD_EPS);
    Isa::store(checked(step, Isa::as_ints(largest)), out.step + at);
  }

  // The same with the ranges that asymmetric codes span; zero is always inside.
  template <int SIZE>
  COD_INLINE void spans_of(const GroupBlock &block, int at, const CarryPlan &plan,
                           GroupSteps &out) {
    alignas(64) Floats each[W], least[W], greatest[W];
    for (int l = 0; l < W; l++) {
      const int from = at + l < block.lanes ? at + l : at;
      const float *x = block.values[from];
      const int n = SIZE ? SIZE : block.valid[from];
      Ints largest{};
      Floats low{}, high{};
#pragma GCC unroll 8
      for (int i = 0; i < n; i += W) {
        const Floats v = values(x + i, SIZE ? W : n - i);
        largest = Isa::unsigned_max(largest, Isa::magnitude(v));
        low = Isa::min(v, low);
        high = Isa::max(v, high);
      }
      each[l] = Isa::as_floats(largest), least[l] = low, greatest[l] = high;
    }
    const Floats low = Isa::across(least, [](Floats a, Floats b) { return Isa::min(a, b); });
    const Floats high = Isa::across(greatest, [](Floats a, Floats b) { return Isa::max(a, b); });
    const Floats largest =
        Isa::across(each, [](Floats a, Floats b) { return larger_magnitude(a, b); });
    const Floats step = Isa::at_least((high - low) / plan.levels, COD_EPS);
    Isa::store(checked(step, Isa::as_ints(largest)), out.step + at);
    Isa::store(low, out.least + at);
  }

  // Lanes whose C2 bound lies under the radius: exactly those where at least k bounds of single
  // values do. Counting is far cheaper than ordering.
  COD_INLINE Ints may_bind(const typename Range::Loaded &in, Floats radius, const Plan &plan) {
    const int n = plan.spec.group;
    Ints below{}, evidence{};
    const bool zeros = !plan.spec.literal && Isa::any(in.s.smallest == 0);
    for (int k = 0; k < n; k++) {
      const Floats size = Isa::as_floats(Isa::magnitude(in.v[k]));
      below -= (Ints)(size * plan.zero_factor < radius);
    }
    if (!zeros) return below >= plan.zero_rank[n];
    for (int k = 0; k < n; k++) evidence -= (Ints)(in.v[k] != 0.0f);
    Ints ranks{};
    for (int l = 0; l < W; l++) ranks[l] = plan.zero_rank[evidence[l]];
    // zeros, whose bounds are zero, were counted as well; no bound lies under a radius of zero
    below = Isa::choose(radius > 0.0f, below - (n - evidence), below);
    return (below >= ranks) & (evidence > 0);
  }

  // What the passes over a block hand on.
  struct Found {
    GroupResult result;
    typename Range::Scratch scratch;
    int waiting[kMaxLanes + W], count = 0;  // groups that need an order statistic
  };

  // DCRP as Project has it; order statistics only of the groups that need one, W at a time.
  static void projected(const GroupBlock &groups, const CarryPlan &carry, GroupSteps &out) {
    const Plan &plan = carry.range;
    bool whole = plan.spec.group == 32 && !plan.spec.use_percentile && !plan.spec.literal;
    for (int l = 0; l < groups.lanes; l++) whole &= groups.valid[l] == 32;
    Found found;
    for (int at = 0; at < groups.lanes; at += W)
      if (whole)
        look_quickly(groups, at, plan, found);
      else
        look(groups, at, plan, found);
    for (int at = 0; at < found.count; at += W) bind(groups, plan, at, found);
    if (plan.spec.guarded)
      Guard<Isa>::block(groups, plan, found.scratch.base, found.scratch.squares, found.result);
    for (int at = 0; at < groups.lanes; at += W) {
      const Floats radius = Isa::at_least(Isa::load(found.result.radius + at), COD_EPS);
      const Floats step = Guard<Isa>::step_for(radius, plan.qmax);
      const Ints largest = Isa::as_ints(Isa::load(found.scratch.largest + at));
      Isa::store(checked(step, largest), out.step + at);
      for (int l = at; l < at + W; l++)
        out.bounded[l] =
            found.result.active[l] == COD_ACTIVE_C1 || found.result.active[l] == COD_ACTIVE_C2;
    }
  }

  COD_INLINE void keep(int at, Ints largest, Floats base, Floats squares, Floats radius,
                       Ints active, Found &found) {
    Isa::store(largest, found.scratch.largest + at);
    Isa::store(base, found.scratch.base + at);
    Isa::store(squares, found.scratch.squares + at);
    Isa::store(radius, found.result.radius + at);
    Isa::store(active, found.result.active + at);
  }

  // W groups from `at` on, one per lane.
  static __attribute__((noinline)) void look(const GroupBlock &groups, int at, const Plan &plan,
                                             Found &found) {
    int chosen[W];
    for (int l = 0; l < W; l++) chosen[l] = at + l < groups.lanes ? at + l : at;
    typename Range::Loaded in;
    Range::load_lanes(groups, chosen, plan, in);
    const Floats base = Range::base_of(in, plan);
    Floats radius = base;
    Ints active{}, infeasible{};
    Range::bound_by_deviation(in, base, plan, radius, active, infeasible);
    if (plan.bound_zero) {
      alignas(64) int32_t needed[W];
      Isa::store(may_bind(in, radius, plan), needed);
      for (int l = 0; l < W; l++) {
        found.waiting[found.count] = at + l;
        found.count += needed[l] != 0 && at + l < groups.lanes;
      }
    }
    keep(at, in.s.largest, base, in.s.squares, radius, active, found);
  }

  // The same of whole groups of 32 under their largest magnitudes, where C1 is certainly far away:
  // values stay as they lie in memory.
  static inline void look_quickly(const GroupBlock &groups, int at, const Plan &plan,
                                  Found &found) {
    constexpr int N = 32;
    alignas(64) Floats largest[W], total[W], squares[W];
    for (int l = 0; l < W; l++) {
      const float *x = groups.values[at + l < groups.lanes ? at + l : at];
      Ints most{};
      Floats sum{}, square{};
#pragma GCC unroll 8
      for (int i = 0; i < N; i += W) {
        const Floats v = Isa::load(x + i);
        most = Isa::unsigned_max(most, Isa::magnitude(v));
        sum = sum + v;
        square = Isa::fma(v, v, square);
      }
      largest[l] = Isa::as_floats(most), total[l] = sum, squares[l] = square;
    }
    typename Range::Summary s{};
    const Floats base =
        Isa::across(largest, [](Floats a, Floats b) { return larger_magnitude(a, b); });
    s.largest = Isa::as_ints(base);
    if (plan.bound_tau || plan.spec.guarded) {
      s.total = Isa::across(total, [](Floats a, Floats b) { return a + b; });
      s.squares = Isa::across(squares, [](Floats a, Floats b) { return a + b; });
      if (!Range::deviation_is_large(s, Isa::all((float)N), base, plan) && plan.bound_tau)
        return look(groups, at, plan, found);
    }
    keep(at, s.largest, base, s.squares, base, Ints{}, found);
    if (!plan.bound_zero) return;
    // A hair above the largest magnitude whose bound lies under the radius: whether that is so,
    // `bind` finds out exactly.
    alignas(64) float limit[W];
    const Floats least = Isa::all(0x1p-149f);  // only zero is less
    Isa::store(base * (1.0f / plan.zero_factor) * (1.0f + 0x1p-20f), limit);
    for (int l = 0; l < W && at + l < groups.lanes; l++) {
      const float *x = groups.values[at + l];
      const Floats below = Isa::all(limit[l]);
      int few = 0, zeros = 0;
#pragma GCC unroll 8
      for (int i = 0; i < N; i += W) {
        const Floats size = Isa::as_floats(Isa::magnitude(Isa::load(x + i)));
        few += Isa::count_less(size, below);
        zeros += Isa::count_less(size, least);
      }
      found.waiting[found.count] = at + l;
      found.count += few - zeros >= plan.zero_rank[N - zeros] && zeros < N;
    }
  }

  // C2 of W of the waiting groups, from `at` on.
  static __attribute__((noinline)) void bind(const GroupBlock &groups, const Plan &plan, int at,
                                             Found &found) {
    int *waiting = found.waiting + at;
    const int count = found.count - at < W ? found.count - at : W;
    for (int l = count; l < W; l++) waiting[l] = waiting[0];
    typename Range::Loaded in;
    Range::load_lanes(groups, waiting, plan, in);
    Floats radius{};
    Ints active{}, infeasible{};
    for (int l = 0; l < W; l++) {
      radius[l] = found.result.radius[waiting[l]];
      active[l] = found.result.active[waiting[l]];
    }
    Range::bound_by(Range::zero_bin_bound(in.v, in.s, plan), plan, COD_ACTIVE_C2, COD_INFEASIBLE_C2,
                    radius, active, infeasible);
    for (int l = 0; l < count; l++) {
      found.result.radius[waiting[l]] = radius[l];
      found.result.active[waiting[l]] = active[l];
    }
  }

  static void steps(const GroupBlock &block, const CarryPlan &plan, GroupSteps &out) {
    if (block.lanes < 1) return;
    if (plan.projected) return projected(block, plan, out);
    __builtin_memset(out.bounded, 0, sizeof out.bounded);
    bool whole = plan.range.spec.group == 32;
    for (int l = 0; l < block.lanes; l++) whole &= block.valid[l] == 32;
    for (int at = 0; at < block.lanes; at += W) {
      if (plan.asymmetric)
        whole ? spans_of<32>(block, at, plan, out) : spans_of<0>(block, at, plan, out);
      else
        whole ? largest_of<32>(block, at, plan, out) : largest_of<0>(block, at, plan, out);
    }
  }

  // ---- multipliers

  // m = ceil(step / unit), or floor where the step may not grow, within 1..most; n entries, and
  // room for a vector more. What comes of a unit that is NaN has no meaning.
  static void table(const float *step, const float *least, const int32_t *bounded,
                    const float *units, int64_t n, const CarryPlan &plan, const CarryTable &out) {
    for (int64_t i = 0; i < n; i += W) {
      const int left = n - i < W ? (int)(n - i) : W;
      const Floats unit = values(units + i, left), ratio = values(step + i, left) * (1.0f / unit);
      const Floats near = Isa::round(ratio);
      Floats m = Isa::choose(near < ratio, near + 1.0f, near);
      if (bounded) {
        Ints hold{};
        __builtin_memcpy(&hold, bounded + i, (size_t)left * sizeof(int32_t));
        m = Isa::choose(hold != 0, Isa::choose(near > ratio, near - 1.0f, near), m);
      }
      m = Isa::min(Isa::max(m, Isa::all(1.0f)), Isa::all(plan.most));
      const Floats inverse = 1.0f / (m * unit);
      Floats low = Isa::all(plan.low), high = Isa::all(plan.high);
      if (plan.asymmetric) {
        const Floats zero = Isa::round(-values(least + i, left) * inverse);
        const Floats top = Isa::all(plan.levels);
        low = -Isa::min(Isa::max(zero, Floats{}), top);
        high = low + top;
      }
      Isa::store(inverse, out.inverse + i);
      Isa::store(low, out.low + i);
      Isa::store(high, out.high + i);
      Isa::store(m, out.m + i);
    }
  }

  // ---- trials

  // What one value adds to the loss of a grid.
  COD_INLINE Floats loss_of(Floats x, Floats inverse, Floats low, Floats high, Floats step,
                            const CarryPlan &plan) {
    const Floats q = Isa::round(Isa::min(Isa::max(x * inverse, low), high));
    const Floats error = x - q * step, square = error * error;
    if (plan.zero_weight == 0.0f) return square;
    return Isa::choose(q == 0.0f, square * (1.0f + plan.zero_weight), square);
  }

  // Sums of 16 partial sums of W groups, always in the same order: 2 apart, neighbours, 4, 8.
  COD_INLINE Floats joined(const Floats (*parts)[W]) {
    constexpr int V = 16 / W;
    const auto add = [](Floats a, Floats b) { return a + b; };
    Floats sums[V];
    for (int v = 0; v < V; v++) sums[v] = Isa::across(parts[v], add);
    for (int n = V; n > 1; n /= 2)
      for (int i = 0; i < n / 2; i++) sums[i] = sums[2 * i] + sums[2 * i + 1];
    return sums[0];
  }

  template <int SIZE>
  COD_INLINE Floats losses(const GroupBlock &block, int at, int count, const CarryTable &first,
                           Floats step, Floats inverse, const CarryPlan &plan) {
    constexpr int V = 16 / W;
    const int n = SIZE ? SIZE : plan.range.spec.group;
    alignas(64) float steps[W], inverses[W];
    Isa::store(step, steps);
    Isa::store(inverse, inverses);
    alignas(64) Floats parts[V][W];
    for (int l = 0; l < W; l++) {
      const int from = l < count ? l : 0;
      const float *x = block.values[at + from];
      const Floats low = Isa::all(first.low[at + from]), high = Isa::all(first.high[at + from]);
      const Floats own = Isa::all(steps[from]), over = Isa::all(inverses[from]);
      Floats sum[V]{};
#pragma GCC unroll 2
      for (int i = 0; i < n; i += 16)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) {
          const int left = n - i - v * W;
          if (!SIZE && left <= 0) break;
          sum[v] =
              sum[v] + loss_of(values(x + i + v * W, SIZE ? W : left), over, low, high, own, plan);
        }
      for (int v = 0; v < V; v++) parts[v][l] = sum[v];
    }
    return joined(parts);
  }

  static void try_groups(const GroupBlock &block, const float *units, const CarryPlan &plan,
                         const CarryTable &table) {
    for (int at = 0; at < block.lanes; at += W) {
      const int count = block.lanes - at < W ? block.lanes - at : W;
      const Floats unit = values(units + at, count), first = values(table.m + at, count);
      Floats best = first, least{}, inverse = values(table.inverse + at, count), kept = inverse;
      for (int t = 0; t < plan.trials; t++) {
        const Floats m = Isa::max(first - (float)t, Isa::all(1.0f));
        const Floats step = m * unit;
        if (t) inverse = 1.0f / step;
        const Floats loss = plan.range.spec.group == 32
                                ? losses<32>(block, at, count, table, step, inverse, plan)
                                : losses<0>(block, at, count, table, step, inverse, plan);
        const Ints better = t ? (Ints)(loss < least) : Ints{} - 1;
        least = Isa::choose(better, loss, least);
        best = Isa::choose(better, m, best);
        kept = Isa::choose(better, inverse, kept);
      }
      Isa::store_some(best, table.m + at, count);
      Isa::store_some(kept, table.inverse + at, count);
    }
  }

  // ---- groups of pixels, channels across lanes

  static void pixel_steps(const float *const *rows, int n, int64_t channels, const CarryPlan &plan,
                          float *steps, float *least) {
    for (int64_t c = 0; c < channels; c += W) {
      const int left = channels - c < W ? (int)(channels - c) : W;
      Ints largest{};
      Floats low{}, high{};
      for (int i = 0; i < n; i++) {
        const Floats v = values(rows[i] + c, left);
        largest = Isa::unsigned_max(largest, Isa::magnitude(v));
        low = Isa::min(v, low);
        high = Isa::max(v, high);
      }
      const Floats span =
          plan.asymmetric ? (high - low) / plan.levels : Isa::as_floats(largest) / plan.range.qmax;
      Isa::store_some(checked(Isa::at_least(span, COD_EPS), largest), steps + c, left);
      Isa::store_some(low, least + c, left);
    }
  }

  static void try_pixels(const float *const *rows, int n, int64_t channels, const float *units,
                         const CarryPlan &plan, const CarryTable &table) {
    for (int64_t c = 0; c < channels; c += W) {
      const int left = channels - c < W ? (int)(channels - c) : W;
      const Floats unit = values(units + c, left), first = values(table.m + c, left);
      const Floats low = values(table.low + c, left), high = values(table.high + c, left);
      Floats best = first, least{}, inverse = values(table.inverse + c, left), kept = inverse;
      for (int t = 0; t < plan.trials; t++) {
        const Floats m = Isa::max(first - (float)t, Isa::all(1.0f));
        const Floats step = m * unit;
        if (t) inverse = 1.0f / step;
        Floats loss{};
        for (int i = 0; i < n; i++)
          loss = loss + loss_of(values(rows[i] + c, left), inverse, low, high, step, plan);
        const Ints better = t ? (Ints)(loss < least) : Ints{} - 1;
        least = Isa::choose(better, loss, least);
        best = Isa::choose(better, m, best);
        kept = Isa::choose(better, inverse, kept);
      }
      Isa::store_some(best, table.m + c, left);
      Isa::store_some(kept, table.inverse + c, left);
    }
  }

  // ---- bytes

  // Bounds are whole numbers: it does not matter whether they are kept before or after rounding.
  COD_INLINE Ints carried(Floats x, Floats inverse, Floats low, Floats high, Floats m) {
    const Floats q = Isa::round(Isa::min(Isa::max(x * inverse, low), high));
    return __builtin_convertvector(q * m, Ints);
  }

  COD_INLINE void put(Ints q, int8_t *to, int left) {
    if (left >= W)
      Isa::store_codes(q, to);
    else
      Isa::store_some_codes(q, to, left);
  }

  // One entry for n values.
  template <int SIZE>
  COD_INLINE void carry(const float *x, int n, Floats inverse, Floats low, Floats high, Floats m,
                        int8_t *to) {
    constexpr int kPiece = Isa::kPiece;
    int i = 0;
    if constexpr (kPiece > 1)
      for (; i + kPiece * W <= (SIZE ? SIZE : n); i += kPiece * W) {
        Ints q[kPiece];
#pragma GCC unroll 4
        for (int j = 0; j < kPiece; j++)
          q[j] = carried(Isa::load(x + i + j * W), inverse, low, high, m);
        Isa::store_piece(q, to + i);
      }
#pragma GCC unroll 2
    for (; i < (SIZE ? SIZE : n); i += W) {
      const int left = SIZE ? W : n - i;
      put(carried(values(x + i, left), inverse, low, high, m), to + i, left);
    }
  }

  static void groups(const float *x, int64_t channels, int group, const CarryTable &table,
                     int8_t *to) {
    for (int64_t c = 0, g = 0; c < channels; c += group, g++) {
      const int n = channels - c < group ? (int)(channels - c) : group;
      const Floats inverse = Isa::all(table.inverse[g]), m = Isa::all(table.m[g]);
      const Floats low = Isa::all(table.low[g]), high = Isa::all(table.high[g]);
      if (n == 32)
        carry<32>(x + c, n, inverse, low, high, m, to + c);
      else
        carry<0>(x + c, n, inverse, low, high, m, to + c);
    }
  }

  static bool each(const float *x, int64_t channels, bool own, const CarryTable &table,
                   int8_t *to) {
    Ints largest{};
    Floats inverse = Isa::all(*table.inverse), m = Isa::all(*table.m);
    Floats low = Isa::all(*table.low), high = Isa::all(*table.high);
    for (int64_t c = 0; c < channels; c += W) {
      const int left = channels - c < W ? (int)(channels - c) : W;
      const Floats v = values(x + c, left);
      largest = Isa::unsigned_max(largest, Isa::magnitude(v));
      if (own) {
        inverse = Isa::load(table.inverse + c), m = Isa::load(table.m + c);
        low = Isa::load(table.low + c), high = Isa::load(table.high + c);
      }
      put(carried(v, inverse, low, high, m), to + c, left);
    }
    return !Isa::any(largest >= kInf);
  }

  // ---- layout

  static void turn(const float *x, int64_t channels, int64_t channel_stride, int64_t pixels,
                   float *to, int64_t stride) {
    int64_t c = 0;
    for (; c + W <= channels; c += W) {
      const float *rows[W];
      for (int l = 0; l < W; l++) rows[l] = x + (c + l) * channel_stride;
      int64_t p = 0;
      for (; p + 4 <= pixels; p += 4) {
        Floats v[4];
        Isa::transpose4(rows, (int)p, v);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) Isa::store(v[i], to + (p + i) * stride + c);
      }
      for (; p < pixels; p++)
        for (int l = 0; l < W; l++) to[p * stride + c + l] = rows[l][p];
    }
    for (; c < channels; c++)
      for (int64_t p = 0; p < pixels; p++) to[p * stride + c] = x[c * channel_stride + p];
  }
};

}  // namespace
}  // namespace cod
