// DSTG + DCRP for W groups at once, one group per lane. The definition that this follows step by
// step is the reference quantizer in Python.
#pragma once
#include "encode.h"
#include "guard.h"
#include "select.h"

namespace cod {
namespace {

template <class Isa>
struct Project {
  using Floats = typename Isa::Floats;
  using Ints = typename Isa::Ints;
  static constexpr int W = Isa::kWidth;
  using Doubles = typename Isa::Doubles;

  // What one look at the values tells.
  struct Summary {
    Ints largest, smallest;  // magnitudes as integers: a NaN is larger than infinity
    Floats total, squares;   // of the values, float32
  };

  static inline Summary summarize(const Floats *v, int n) {
    // four sums side by side: one addition need not wait for the one before
    Floats total[4] = {}, squares[4] = {};
    Ints largest{}, smallest = Isa::all_ints(0x7fffffff);
    const auto take = [&](Floats x, int i) {
      const Ints magnitude = Isa::magnitude(x);
      largest = Isa::unsigned_max(largest, magnitude);
      smallest = Isa::key_min(smallest, magnitude);
      total[i] = total[i] + x;
      squares[i] = Isa::fma(x, x, squares[i]);
    };
    int k = 0;
    for (; k + 4 <= n; k += 4)
      take(v[k], 0), take(v[k + 1], 1), take(v[k + 2], 2), take(v[k + 3], 3);
    for (; k < n; k++) take(v[k], 0);
    return {largest, smallest, total[0] + total[1] + (total[2] + total[3]),
            squares[0] + squares[1] + (squares[2] + squares[3])};
  }

  // Standard deviation, float64, the first element taken off.
  static __attribute__((noinline)) Floats deviation(const Floats *v, int n, const int *valid) {
    const Doubles first = Isa::wide(v[0]);
    Doubles total = Isa::all_doubles(0), squares = Isa::all_doubles(0);
    Floats count = Isa::all((float)n);
    if (valid)
      for (int l = 0; l < W; l++) count[l] = (float)valid[l];
    for (int k = 1; k < n; k++) {
      Floats x = v[k];
      if (valid)
        for (int l = 0; l < W; l++)
          if (k >= valid[l]) x[l] = v[0][l];
      const Doubles d = Isa::wide(x) - first;
      total = total + d;
      squares = squares + d * d;  // not fused: every set gives the same bits
    }
    const Doubles n_wide = Isa::wide(count);
    const Doubles variance = clamp<Isa>(squares - total * total / n_wide);
    return Isa::narrow(sqrt<Isa>(variance / n_wide) + Isa::all_doubles(COD_STD_EPS));
  }

  // Whether C1's bound certainly lies above base and floor everywhere, from float32 sums: their
  // error is below 2^-14 of the sum of squares. No digits of the deviation matter then.
  static inline bool deviation_is_large(const Summary &s, Floats count, Floats base,
                                        const Plan &plan) {
    const Floats spread = s.squares * (1 - 0x1p-13f) - s.total * s.total / count;
    const Floats limit = Isa::at_least(base, plan.floor);
    const Floats factor = Isa::all(plan.tau_factor);
    return !Isa::any(~(spread * (factor * factor) > limit * limit * count));
  }

  // C2's bound: 2 q_max times the k-th smallest magnitude that is not zero.
  static inline Floats zero_bin_bound(const Floats *v, const Summary &s, const Plan &plan) {
    const int n = plan.spec.group;
    if (plan.spec.literal)
      return Isa::as_floats(Select<Isa>::smallest(v, n, plan.zero_rank[n], nullptr, 0)) *
             plan.zero_factor;
    if (!Isa::any(s.smallest == 0))
      return Isa::as_floats(Select<Isa>::smallest(v, n, plan.zero_rank[n], nullptr, 1)) *
             plan.zero_factor;
    Ints evidence{}, ranks;
    for (int k = 0; k < n; k++) evidence -= (Ints)(v[k] != 0.0f);
    for (int l = 0; l < W; l++) ranks[l] = plan.zero_rank[evidence[l]];
    const Ints kth = Select<Isa>::smallest(v, n, plan.zero_rank[n], &ranks, 1);
    return Isa::as_floats(Isa::choose(evidence == 0, Isa::all_ints(kInf), kth)) * plan.zero_factor;
  }

  static Floats percentile_of(const Floats *v, Ints largest, const Plan &plan, const int *valid) {
    const int n = plan.spec.group, rank = plan.percentile_rank[n];
    if (!valid) {
      if (rank == n) return Isa::as_floats(largest);
      if (rank == n - 1) return Isa::as_floats(Select<Isa>::template largest<2>(v, n));
      if (rank == n - 2) return Isa::as_floats(Select<Isa>::template largest<3>(v, n));
      if (rank == n - 3) return Isa::as_floats(Select<Isa>::template largest<4>(v, n));
      return Isa::as_floats(Select<Isa>::smallest(v, n, rank, nullptr, 0));
    }
    alignas(64) Floats known[COD_MAX_GROUP];
    Ints ranks;
    for (int l = 0; l < W; l++) {
      ranks[l] = plan.percentile_rank[valid[l]];
      for (int k = 0; k < n; k++) known[k][l] = k < valid[l] ? v[k][l] : __builtin_inff();
    }
    return Isa::as_floats(Select<Isa>::smallest(known, n, rank, &ranks, 0));
  }

  static inline void bound_by(Floats bound, const Plan &plan, int code, int flag, Floats &radius,
                              Ints &active, Ints &infeasible) {
    const Ints feasible = plan.spec.literal ? Ints{} == 0 : (Ints)(bound >= plan.floor);
    const Ints tighter = (bound < radius) & feasible;
    infeasible |= ~feasible & flag;
    active = Isa::choose(tighter, Isa::all_ints(code), active);
    radius = Isa::choose(tighter, bound, radius);
  }

  // What the steps below need of a block besides its results.
  struct alignas(64) Scratch {
    float largest[kMaxLanes], base[kMaxLanes], squares[kMaxLanes];
  };

  // W groups, one per lane, and what one look at them tells.
  struct alignas(64) Loaded {
    Floats v[COD_MAX_GROUP];
    Summary s;
    Floats count;
    int valid[W];
    bool padded;  // some are short, and that counts
  };

  // chosen: which groups of the block.
  COD_INLINE void load_lanes(const GroupBlock &groups, const int *chosen, const Plan &plan,
                             Loaded &in) {
    const int n = plan.spec.group;
    const float *rows[W];
    in.padded = false;
    for (int l = 0; l < W; l++) {
      rows[l] = groups.values[chosen[l]];
      in.valid[l] = groups.valid[chosen[l]];
      in.padded |= in.valid[l] < n;
      // the groups two steps ahead: rows mostly follow each other, and elsewhere nothing is lost
      for (int k = 0; k < n; k += 16) __builtin_prefetch(rows[l] + 2 * W * n + k);
    }
    in.padded &= !plan.spec.literal;
    in.count = Isa::all((float)n);
    if (in.padded)
      for (int l = 0; l < W; l++) in.count[l] = (float)in.valid[l];
    load_transposed<Isa>(rows, n, in.v);
    in.s = summarize(in.v, n);
    if (Isa::any(in.s.largest > kInf))  // keys know no NaN: it counts as an infinity
      for (int k = 0; k < n; k++)
        in.v[k] = Isa::choose(in.v[k] == in.v[k], in.v[k], Isa::all(__builtin_inff()));
  }

  COD_INLINE Floats base_of(const Loaded &in, const Plan &plan) {
    const Floats base = Isa::as_floats(in.s.largest);
    if (!plan.spec.use_percentile) return base;
    const Floats picked = percentile_of(in.v, in.s.largest, plan, in.padded ? in.valid : nullptr);
    // an infinity stands for a NaN, except where padding is one
    const Ints whole = in.count == (float)plan.spec.group;
    return Isa::choose((Isa::as_ints(picked) == kInf) & whole, base, picked);
  }

  COD_INLINE void bound_by_deviation(const Loaded &in, Floats base, const Plan &plan,
                                     Floats &radius, Ints &active, Ints &infeasible) {
    if (!plan.bound_tau || deviation_is_large(in.s, in.count, base, plan)) return;
    const Floats sigma = deviation(in.v, plan.spec.group, in.padded ? in.valid : nullptr);
    bound_by(sigma * plan.tau_factor, plan, COD_ACTIVE_C1, COD_INFEASIBLE_C1, radius, active,
             infeasible);
  }

  // Radius (not yet guarded), active and infeasible of W groups from `at` on.
  static inline void project_lanes(const GroupBlock &groups, int at, const Plan &plan,
                                   Scratch &scratch, GroupResult &out) {
    int chosen[W];
    for (int l = 0; l < W; l++) chosen[l] = at + l < groups.lanes ? at + l : at;
    Loaded in;
    load_lanes(groups, chosen, plan, in);
    const Floats base = base_of(in, plan);
    Floats radius = base;
    Ints active{}, infeasible{};
    bound_by_deviation(in, base, plan, radius, active, infeasible);
    if (plan.bound_zero)
      bound_by(zero_bin_bound(in.v, in.s, plan), plan, COD_ACTIVE_C2, COD_INFEASIBLE_C2, radius,
               active, infeasible);
    Isa::store(in.s.largest, scratch.largest + at);
    Isa::store(base, scratch.base + at);
    Isa::store(in.s.squares, scratch.squares + at);
    Isa::store(radius, out.radius + at);
    Isa::store(active, out.active + at);
    Isa::store(infeasible, out.infeasible + at);
  }

  // Floors, steps; NaN and no flags where a value is not finite. Returns whether no lane needs special care when
  // it is encoded.
  static inline bool finish_lanes(int at, const Plan &plan, const Scratch &scratch,
                                  GroupResult &out) {
    const Floats largest = Isa::load(scratch.largest + at);
    Floats radius = Isa::at_least(Isa::load(out.radius + at), COD_EPS);
    const Ints finite = Isa::as_ints(largest) < kInf;
    radius = Isa::choose(finite, radius, Isa::all(__builtin_nanf("")));
    for (int l = 0; l < W && Isa::any(~finite); l++)
      if (!finite[l]) out.active[at + l] = COD_ACTIVE_BASE, out.infeasible[at + l] = 0;
    const Floats step = Guard<Isa>::step_for(radius, plan.qmax);
    Isa::store(radius, out.radius + at);
    Isa::store(step, out.step + at);
    // so large that 1 / step might be denormal, or too many steps for the sum with 1.5 * 2^23
    const Ints ordinary = (largest < 0x1p100f) & (largest < step * 0x1p20f);
    const Ints clipped_at_floor = (step <= COD_EPS) & (largest > radius);
    return !Isa::any(~ordinary | clipped_at_floor);
  }

  // Groups of finite values below 2^20 steps; false: Encode has to do it.
  static inline bool encode_plain(const GroupBlock &groups, int from, int to, int n, float qmax,
                                  GroupResult &out) {
    CodeRange range;
    const Floats inverse = 1.0f / Isa::load(out.step + from);
    Isa::store(inverse * (1.0f + 0x1p-22f), range.high);
    Isa::store(inverse * (1.0f - 0x1p-22f), range.low);
    Isa::store(Isa::all(kMagic - qmax), range.bottom);
    Isa::store(Isa::all(kMagic + qmax), range.top);
    return Isa::template encode_certain<true>(groups, from, to, n, range, out.sums, [&](int l) {
      return Encode<Isa>::group(groups.values[l], n, out.radius[l], out.step[l], 8,
                                groups.codes[l]);
    });
  }

  // Pass by pass over a block that fits the nearest cache: the results of one group depend on each
  // other, those of the groups do not, and the processor always has some to work on.
  static void block(const GroupBlock &groups, const Plan &plan, GroupResult &out) {
    if (groups.lanes < 1) return;
    const int n = plan.spec.group;
    Scratch scratch;
    bool plain[kMaxLanes / W];
    for (int at = 0; at < groups.lanes; at += W) project_lanes(groups, at, plan, scratch, out);
    if (plan.spec.guarded) Guard<Isa>::block(groups, plan, scratch.base, scratch.squares, out);
    for (int at = 0; at < groups.lanes; at += W)
      plain[at / W] = finish_lanes(at, plan, scratch, out);
    for (int at = 0; at < groups.lanes; at += W) {
      const int end = at + W < groups.lanes ? at + W : groups.lanes;
      if (plain[at / W] && encode_plain(groups, at, end, n, plan.qmax, out)) continue;
      for (int l = at; l < end; l++)
        out.sums[l] = Encode<Isa>::group(groups.values[l], n, out.radius[l], out.step[l],
                                         plan.spec.bits, groups.codes[l]);
    }
  }
};

}  // namespace
}  // namespace cod
