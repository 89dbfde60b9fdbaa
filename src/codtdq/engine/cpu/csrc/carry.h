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

  COD_INLINE Floats largest_lanes(const float *x, int n) {
    Ints largest{};
    for (int i = 0; i < n; i += W)
      largest = Isa::unsigned_max(largest, Isa::magnitude(values(x + i, n - i)));
    return Isa::as_floats(largest);
  }

  // W groups under their largest magnitudes.
  template <bool WHOLE>  // of 32 values each
  COD_INLINE void largest_of(const GroupBlock &block, int at, const CarryPlan &plan,
                             GroupSteps &out) {
    Floats found[1];
    reduce<Isa, kLevels<Isa>, 1>(
        [&](int l, Floats(&own)[1]) COD_ALWAYS {
          own[0] = largest_lanes(block.values[at + l], WHOLE ? 32 : block.valid[at + l]);
        },
        [](const Floats(&a)[1], const Floats(&b)[1], Floats(&own)[1])
            COD_ALWAYS { own[0] = larger_magnitude(a[0], b[0]); },
        0, found);
    const Floats step = Isa::at_least(found[0] / plan.range.qmax, COD_EPS);
    Isa::store(checked(step, Isa::as_ints(found[0])), out.step + at);
  }

  // The same with the ranges that asymmetric codes span; zero is always inside.
  static __attribute__((noinline)) void spans_of(const GroupBlock &block, int at,
                                                 const CarryPlan &plan, GroupSteps &out) {
    alignas(64) Floats each[W], least[W], greatest[W];
    for (int l = 0; l < W; l++) {
      const float *x = block.values[at + l];
      const int n = block.valid[at + l];
      Floats low{}, high{};
      for (int i = 0; i < n; i += W) {
        const Floats v = values(x + i, n - i);
        low = Isa::min(v, low);
        high = Isa::max(v, high);
      }
      each[l] = largest_lanes(x, n), least[l] = low, greatest[l] = high;
    }
    const Floats largest = Isa::across(each, larger_magnitude);
    const Floats low = Isa::across(least, Isa::min), high = Isa::across(greatest, Isa::max);
    keep_spans(low, high, Isa::as_ints(largest), plan, at, out);
  }

  COD_INLINE void keep_spans(Floats low, Floats high, Ints largest, const CarryPlan &plan, int at,
                             GroupSteps &out) {
    low = Isa::min(low, Floats{}), high = Isa::max(high, Floats{});
    const Floats step = Isa::at_least((high - low) / plan.levels, COD_EPS);
    Isa::store(checked(step, largest), out.step + at);
    Isa::store(low, out.least + at);
  }

  // Groups of 32, padded if short. Magnitudes are not looked at: a product with zero tells what is
  // not finite.
  COD_INLINE void spans_of_32(const GroupBlock &block, int at, const CarryPlan &plan,
                              GroupSteps &out) {
    Floats wrong{}, found[2];
    reduce<Isa, kLevels<Isa>, 2>(
        [&](int l, Floats(&own)[2]) COD_ALWAYS {
          const float *x = block.values[at + l];
          own[0] = own[1] = Isa::load(x);
          Floats bad = own[0] * 0.0f;
          for (int i = W; i < 32; i += W) {
            const Floats v = Isa::load(x + i);
            bad = Isa::fma(v, Floats{}, bad);
            own[0] = Isa::min(v, own[0]), own[1] = Isa::max(v, own[1]);
          }
          wrong = wrong + bad;
        },
        [](const Floats(&a)[2], const Floats(&b)[2], Floats(&own)[2])
            COD_ALWAYS { own[0] = Isa::min(a[0], b[0]), own[1] = Isa::max(a[1], b[1]); },
        0, found);
    if (__builtin_expect(Isa::any(wrong != wrong), 0)) return spans_of(block, at, plan, out);
    keep_spans(found[0], found[1], Ints{}, plan, at, out);
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
    int32_t shortest = COD_MAX_GROUP, longest = 0;
    bool any_zeros = false;
    int32_t zeros[kMaxLanes];  // of each group, where `quick`
  };

  // DCRP as Project has it; order statistics only of the groups that need one, W at a time.
  static void projected(const GroupBlock &groups, const CarryPlan &carry, GroupSteps &out) {
    const Plan &plan = carry.range;
    const bool quick = plan.spec.group == 32 && !plan.spec.use_percentile && !plan.spec.literal;
    Found found;
    for (int l = 0; l < groups.lanes; l++) {
      const int32_t valid = groups.valid[l];
      found.shortest = valid < found.shortest ? valid : found.shortest;
      found.longest = valid > found.longest ? valid : found.longest;
    }
    for (int at = 0; at < groups.lanes; at += W)
      if (quick)
        look_quickly(groups, at, plan, found);
      else
        look(groups, at, plan, found);
    for (int at = 0; at < found.count; at += W) bind(groups, plan, at, quick, found);
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

  // How many magnitudes of a group lie below a limit. half: 16 of 32, the others are filled up.
  COD_INLINE int below(const float *x, Floats limit, bool half) {
    Floats size[32 / W];
#pragma GCC unroll 8
    for (int j = 0; j < 16 / W; j++) size[j] = Isa::as_floats(Isa::magnitude(Isa::load(x + j * W)));
    if (half) {
      int found = 0;
      for (int j = 0; j < 16 / W; j++) found += Isa::count_less(size[j], limit);
      return found;
    }
#pragma GCC unroll 8
    for (int j = 16 / W; j < 32 / W; j++)
      size[j] = Isa::as_floats(Isa::magnitude(Isa::load(x + j * W)));
    return Isa::count_less_32(size, limit);
  }

  // The largest and the smallest magnitudes of groups of 32; whether C1 is far away from all of
  // them.
  COD_INLINE bool see(const GroupBlock &groups, int at, const Plan &plan, bool padded, Floats &base,
                      Ints &smallest) {
    constexpr int N = 32;
    Floats seen[2];  // the largest magnitude, squared distances inside of pairs
    reduce<Isa, kLevels<Isa>, 2>(
        [&](int l, Floats(&own)[2]) COD_ALWAYS {
          const float *x = groups.values[at + l];
          Ints most{};
          own[1] = Floats{};
          for (int i = 0; i < N / 2; i += W) {
            const Floats a = Isa::load(x + i), b = Isa::load(x + i + N / 2);
            const Ints left = Isa::magnitude(a), right = Isa::magnitude(b);
            most = Isa::unsigned_max(most, Isa::unsigned_max(left, right));
            smallest = Isa::unsigned_min(smallest, Isa::unsigned_min(left, right));
            own[1] = Isa::fma(a - b, a - b, own[1]);
          }
          own[0] = Isa::as_floats(most);
        },
        [](const Floats(&a)[2], const Floats(&b)[2], Floats(&own)[2])
            COD_ALWAYS { own[0] = larger_magnitude(a[0], b[0]), own[1] = a[1] + b[1]; },
        0, seen);
    base = seen[0];
    // the squared deviations of all values are at least those inside of pairs; what fills a group
    // up is no pair's other half
    const typename Range::Summary pairs{{}, {}, {}, seen[1] * 0.5f};
    return !plan.bound_tau ||
           (!padded && Range::deviation_is_large(pairs, Isa::all((float)N), base, plan)) ||
           deviates(groups, at, base, plan);
  }

  // The same of groups whose second half is filled up.
  COD_INLINE bool see_half(const GroupBlock &groups, int at, const Plan &plan, Floats &base) {
    Floats seen[3], count;  // the largest magnitude, the sum, squares
    reduce<Isa, kLevels<Isa>, 3>(
        [&](int l, Floats(&own)[3]) COD_ALWAYS {
          Ints most{};
          own[1] = own[2] = Floats{};
          for (int i = 0; i < 16; i += W) {
            const Floats v = Isa::load(groups.values[at + l] + i);
            most = Isa::unsigned_max(most, Isa::magnitude(v));
            own[1] = own[1] + v;
            own[2] = Isa::fma(v, v, own[2]);
          }
          own[0] = Isa::as_floats(most);
        },
        [](const Floats(&a)[3], const Floats(&b)[3], Floats(&own)[3]) COD_ALWAYS {
          own[0] = larger_magnitude(a[0], b[0]);
          own[1] = a[1] + b[1], own[2] = a[2] + b[2];
        },
        0, seen);
    base = seen[0];
    for (int l = 0; l < W; l++) count[l] = (float)groups.valid[at + l];
    const typename Range::Summary sums{{}, {}, seen[1], seen[2]};
    return !plan.bound_tau || Range::deviation_is_large(sums, count, base, plan);
  }

  // The same of groups of 32, filled up with zeros, under their largest magnitudes, where C1 is
  // certainly far away: values stay as they lie in memory.
  static inline void look_quickly(const GroupBlock &groups, int at, const Plan &plan,
                                  Found &found) {
    constexpr int N = 32;
    Ints smallest = Isa::all_ints(kMagnitude);
    Floats base;
    const bool half = found.longest <= N / 2;
    const bool apart = half ? see_half(groups, at, plan, base)
                            : see(groups, at, plan, found.shortest < N, base, smallest);
    const Floats least = Isa::all(0x1p-149f);  // only zero is less
    const int filled = half ? N / 2 : 0;       // with zeros that are not looked at
    int32_t *const zeros = found.zeros + at;
    const bool counts = half || Isa::any(smallest == 0);
    Isa::store(Ints{}, zeros);
    found.any_zeros |= counts;
    for (int l = 0; l < W && counts; l++)
      zeros[l] = filled + below(groups.values[at + l], least, half);
    if (!apart) return look(groups, at, plan, found);
    // squares: more than they are, which only makes `guard` more careful
    keep(at, Isa::as_ints(base), base, base * base * (float)N, base, Ints{}, found);
    if (!plan.bound_zero) return;
    // A hair above the largest magnitude whose bound lies under the radius: whether that is so,
    // `bind` finds out exactly.
    alignas(64) float limit[W];
    Isa::store(base * (1.0f / plan.zero_factor) * (1.0f + 0x1p-20f), limit);
    const int here = groups.lanes - at < W ? groups.lanes - at : W;
    if (!counts)
      for (int l = 0; l < here; l++) {
        found.waiting[found.count] = at + l;
        found.count += below(groups.values[at + l], Isa::all(limit[l]), false) >= plan.zero_rank[N];
      }
    for (int l = 0; l < here && counts; l++) {
      const int few = filled + below(groups.values[at + l], Isa::all(limit[l]), half) - zeros[l];
      found.waiting[found.count] = at + l;
      found.count += (few >= plan.zero_rank[N - zeros[l]]) & (zeros[l] < N);
    }
  }

  // Whether C1 is far away from groups of 32, by their sums.
  static __attribute__((noinline)) bool deviates(const GroupBlock &groups, int at, Floats base,
                                                 const Plan &plan) {
    constexpr int N = 32;
    alignas(64) Floats total[W], squares[W];
    Floats count;
    for (int l = 0; l < W; l++) count[l] = (float)groups.valid[at + l];
    for (int l = 0; l < W; l++) {
      Floats sum{}, square{};
#pragma GCC unroll 8
      for (int i = 0; i < N; i += W) {
        const Floats v = Isa::load(groups.values[at + l] + i);
        sum = sum + v;
        square = Isa::fma(v, v, square);
      }
      total[l] = sum, squares[l] = square;
    }
    const auto add = [](Floats a, Floats b) { return a + b; };
    const typename Range::Summary s{{}, {}, Isa::across(total, add), Isa::across(squares, add)};
    return Range::deviation_is_large(s, count, base, plan);
  }

  // What C2 makes of W groups of 32, filled up with zeros, which are no evidence.
  COD_INLINE Floats smallest_evidence(const float *const *rows, const int *waiting,
                                      const Plan &plan, const Found &found) {
    int32_t zeros = 0;
    for (int l = 0; l < W && found.any_zeros; l++) zeros |= found.zeros[waiting[l]];
    if (!zeros)
      return Isa::as_floats(Select<Isa>::smallest_of_32(rows, plan.zero_rank[32])) *
             plan.zero_factor;
    Ints ranks{};
    for (int l = 0; l < W; l++) ranks[l] = plan.zero_rank[32 - found.zeros[waiting[l]]];
    const Ints size = found.longest <= 16 ? Select<Isa>::template smallest_of<16>(rows, ranks)
                                          : Select<Isa>::template smallest_of<32>(rows, ranks);
    return Isa::as_floats(size) * plan.zero_factor;
  }

  // C2 of W of the waiting groups, from `at` on. quick: those of `look_quickly`.
  static __attribute__((noinline)) void bind(const GroupBlock &groups, const Plan &plan, int at,
                                             bool quick, Found &found) {
    int *waiting = found.waiting + at;
    const int count = found.count - at < W ? found.count - at : W;
    for (int l = count; l < W; l++) waiting[l] = waiting[0];
    alignas(64) float radii[W];
    alignas(64) int32_t codes[W];
    const float *rows[W];
    for (int l = 0; l < W; l++) {
      rows[l] = groups.values[waiting[l]];
      radii[l] = found.result.radius[waiting[l]], codes[l] = found.result.active[waiting[l]];
    }
    Floats radius = Isa::load(radii), bound{};
    Ints active, infeasible{};
    __builtin_memcpy(&active, codes, sizeof active);
    if (quick && plan.zero_rank[32] <= kChunk) {
      bound = smallest_evidence(rows, waiting, plan, found);
    } else {
      typename Range::Loaded in;
      Range::load_lanes(groups, waiting, plan, in);
      bound = Range::zero_bin_bound(in.v, in.s, plan);
    }
    Range::bound_by(bound, plan, COD_ACTIVE_C2, COD_INFEASIBLE_C2, radius, active, infeasible);
    Isa::store(radius, radii);
    Isa::store(active, codes);
    for (int l = 0; l < count; l++)
      found.result.radius[waiting[l]] = radii[l], found.result.active[waiting[l]] = codes[l];
  }

  static void steps(const GroupBlock &block, const CarryPlan &plan, GroupSteps &out) {
    if (block.lanes < 1) return;
    if (plan.projected) return projected(block, plan, out);
    __builtin_memset(out.bounded, 0, sizeof out.bounded);
    const bool whole = plan.range.spec.group == 32;  // padding changes no extreme: zero is in it
    for (int at = 0; at < block.lanes; at += W) {
      if (plan.asymmetric)
        whole ? spans_of_32(block, at, plan, out) : spans_of(block, at, plan, out);
      else
        whole ? largest_of<true>(block, at, plan, out) : largest_of<false>(block, at, plan, out);
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

  // Of the first two multipliers, groups of 32: how much the second one's squared errors
  // exceed those of the first, in squares of the first one's step. Sums in any order, and codes
  // next to a tie may be off by one: less than 32 * 2^-16 off. The first clips nothing, or its
  // errors are the same. smaller: the second step divided by the first.
  COD_INLINE Floats second_less_first(const GroupBlock &block, int at, const CarryTable &table,
                                      Floats inverse, Floats second, Floats smaller) {
    alignas(64) float first[W], other[W], ratio[W], low[W], high[W];
    Isa::store(inverse, first);
    Isa::store(second, other);
    Isa::store(smaller * smaller, ratio);
    Isa::store(Isa::load(table.low + at) + kMagic, low);  // as integers in the same order
    Isa::store(Isa::load(table.high + at) + kMagic, high);
    const Floats magic = Isa::all(kMagic);
    // otherwise GCC picks lanes from registers, which takes longer than loads
    asm volatile("" : : "r"(first), "r"(other), "r"(ratio), "r"(low), "r"(high) : "memory");
    Floats found[1];
    reduce<Isa, kLevels<Isa>, 1>(
        [&](int l, Floats(&own)[1]) COD_ALWAYS {
          const float *x = block.values[at + l];
          const Ints bottom = Isa::as_ints(Isa::all(low[l])), top = Isa::as_ints(Isa::all(high[l]));
          const Floats inverse0 = Isa::all(first[l]), inverse1 = Isa::all(other[l]);
          Floats sum{}, more{};
          for (int i = 0; i < 32; i += W) {
            const Floats v = Isa::load(x + i);
            const Floats y = v * inverse0, error0 = y - Isa::round(y);
            const Ints z = Isa::as_ints(Isa::fma(v, inverse1, magic));
            const Ints clipped = Isa::unsigned_max(Isa::unsigned_min(z, top), bottom);
            const Floats error1 = Isa::fma(v, inverse1, magic - Isa::as_floats(clipped));
            sum = Isa::fma(error0, error0, sum);
            more = Isa::fma(error1, error1, more);
          }
          own[0] = Isa::fma(more, Isa::all(ratio[l]), -sum);
        },
        [](const Floats(&a)[1], const Floats(&b)[1], Floats(&own)[1])
            COD_ALWAYS { own[0] = a[0] + b[0]; },
        0, found);
    return found[0];
  }

  static void try_groups(const GroupBlock &block, const float *units, const CarryPlan &plan,
                         const CarryTable &table) {
    // short groups are padded with zeros, which have no error under any step
    const bool quick = plan.range.spec.group == 32 && plan.trials == 2 && plan.zero_weight == 0.0f;
    for (int at = 0; at < block.lanes; at += W) {
      const int count = block.lanes - at < W ? block.lanes - at : W;
      const Floats unit = values(units + at, count), first = values(table.m + at, count);
      const Floats inverse = values(table.inverse + at, count);
      if (quick) {
        const Floats m = Isa::max(first - 1.0f, Isa::all(1.0f));
        const Floats other = 1.0f / (m * unit);
        const Floats more = second_less_first(block, at, table, inverse, other, m / first);
        const Ints alone = first <= 1.0f;  // there is no second one, or no group
        // larger steps: the definition's squares may be infinite
        const Ints sure =
            (Isa::as_floats(Isa::magnitude(more)) > 32 * 0x1p-15f) & (first * unit < 0x1p50f);
        if (!Isa::any(~(sure | alone))) {
          const Ints better = (more < 0.0f) & ~alone;
          Isa::store_some(Isa::choose(better, m, first), table.m + at, count);
          Isa::store_some(Isa::choose(better, other, inverse), table.inverse + at, count);
          continue;
        }
      }
      try_exactly(block, at, count, unit, first, inverse, plan, table);
    }
  }

  // The definition: of the multipliers from `first` down, the one with the least loss(step,
  // inverse), for `count` entries of a table from `at` on.
  template <typename F>
  COD_INLINE void keep_best(Floats unit, Floats first, Floats inverse, const CarryPlan &plan,
                            const CarryTable &table, int64_t at, int count, const F &loss) {
    Floats best = first, least{}, kept = inverse;
    for (int t = 0; t < plan.trials; t++) {
      const Floats m = Isa::max(first - (float)t, Isa::all(1.0f));
      const Floats step = m * unit;
      if (t) inverse = 1.0f / step;
      const Floats found = loss(step, inverse);
      const Ints better = t ? (Ints)(found < least) : Ints{} - 1;
      least = Isa::choose(better, found, least);
      best = Isa::choose(better, m, best);
      kept = Isa::choose(better, inverse, kept);
    }
    Isa::store_some(best, table.m + at, count);
    Isa::store_some(kept, table.inverse + at, count);
  }

  static __attribute__((noinline)) void try_exactly(const GroupBlock &block, int at, int count,
                                                    Floats unit, Floats first, Floats inverse,
                                                    const CarryPlan &plan,
                                                    const CarryTable &table) {
    keep_best(unit, first, inverse, plan, table, at, count, [&](Floats step, Floats over) {
      return plan.range.spec.group == 32 ? losses<32>(block, at, count, table, step, over, plan)
                                         : losses<0>(block, at, count, table, step, over, plan);
    });
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
      const Floats inverse = values(table.inverse + c, left);
      keep_best(unit, first, inverse, plan, table, c, left, [&](Floats step, Floats over) {
        Floats loss{};
        for (int i = 0; i < n; i++)
          loss = loss + loss_of(values(rows[i] + c, left), over, low, high, step, plan);
        return loss;
      });
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
  COD_INLINE void carry(const float *x, int n, Floats inverse, Floats low, Floats high, Floats m,
                        int8_t *to) {
    constexpr int kPiece = Isa::kPiece;
    int i = 0;
    if constexpr (kPiece > 1)
      for (; i + kPiece * W <= n; i += kPiece * W) {
        Ints q[kPiece];
#pragma GCC unroll 4
        for (int j = 0; j < kPiece; j++)
          q[j] = carried(Isa::load(x + i + j * W), inverse, low, high, m);
        Isa::store_piece(q, to + i);
      }
    for (; i < n; i += W) put(carried(values(x + i, n - i), inverse, low, high, m), to + i, n - i);
  }

  COD_INLINE Ints twice(Floats whole) {  // a number in both 16-bit halves of its lane
    const Ints x = __builtin_convertvector(whole, Ints);
    return (x & 0xffff) | x << 16;
  }

  // Entries of `count` groups of 32, up to W. CLIPS: values may lie beyond the limits of codes.
  template <bool CLIPS>
  COD_INLINE void carry_32(const float *x, int count, const CarryTable &table, int8_t *to) {
    if constexpr (Isa::kShorts) {
      alignas(64) int32_t low[W], m[W];
      Isa::store(twice(Isa::load(table.low)), low);
      Isa::store(twice(Isa::load(table.m)), m);
      for (int l = 0; l < count; l++) {
        const Floats inverse = Isa::all(table.inverse[l]), high = Isa::all(table.high[l]);
        Ints q[32 / W];
#pragma GCC unroll 8
        for (int j = 0; j < 32 / W; j++) {
          const Floats y = Isa::load(x + 32 * l + j * W) * inverse;
          q[j] = Isa::nearest(CLIPS ? Isa::min(y, high) : y);
        }
        auto codes = Isa::shorts(q);
        if (CLIPS) codes = Isa::larger(codes, Isa::all_shorts(low[l]));
        Isa::store_carriers(codes, Isa::all_shorts(m[l]), to + 32 * l);
      }
    }
  }

  static void groups(const float *const *rows, int n, int64_t channels, const CarryPlan &plan,
                     const CarryTable &table, int8_t *to, int64_t stride) {
    const int group = plan.range.spec.group;
    // the largest magnitude of a group has the largest code
    const bool clips = plan.projected || plan.asymmetric || plan.trials > 1;
    CarryTable own = table;
    bool together = stride == channels && channels % group == 0;  // one long row
    for (int r = 1; r < n && together; r++) together = rows[r] == rows[0] + r * channels;
    if (together) channels *= n, n = n < 1 ? n : 1;
    for (int r = 0; r < n; r++, to += stride) {
      int used = 1;  // entries
      for (int64_t c = 0; c < channels; c += used * group) {
        const float *x = rows[r] + c;
        const int64_t left = channels - c;
        used = 1;
        if (Isa::kShorts && group == 32 && left >= 32) {
          used = left < 32 * W ? (int)left / 32 : W;
          clips ? carry_32<true>(x, used, own, to + c) : carry_32<false>(x, used, own, to + c);
        } else {
          carry(x, left < group ? (int)left : group, Isa::all(*own.inverse), Isa::all(*own.low),
                Isa::all(*own.high), Isa::all(*own.m), to + c);
        }
        own = {own.inverse + used, own.low + used, own.high + used, own.m + used};
      }
    }
  }

  // Entries for W channels each, or one for all.
  struct Columns {
    Floats inverse, low, high, m;
    inline __attribute__((always_inline)) Columns(const CarryTable &t, int64_t c, bool own)
        : inverse(own ? Isa::load(t.inverse + c) : Isa::all(*t.inverse)),
          low(own ? Isa::load(t.low + c) : Isa::all(*t.low)),
          high(own ? Isa::load(t.high + c) : Isa::all(*t.high)),
          m(own ? Isa::load(t.m + c) : Isa::all(*t.m)) {}
  };

  // A few rows under the same table, filled up with zeros: what it says is loaded once for all of
  // them. A product with zero tells what is not finite.
  static bool each(const float *const *rows, int n, int64_t channels, bool own,
                   const CarryTable &table, int8_t *to, int64_t stride) {
    Floats wrong[2] = {};
    int64_t c = 0;
    if constexpr (Isa::kShorts)
      for (; c + 32 <= channels; c += 32) {
        constexpr int V = 32 / W;
        Floats inverse[V], high[V];
        Ints low[V], m[V];
#pragma GCC unroll 4
        for (int j = 0; j < V; j++) {
          const Columns columns(table, c + j * W, own);
          inverse[j] = columns.inverse, high[j] = columns.high;
          low[j] = Isa::nearest(columns.low), m[j] = Isa::nearest(columns.m);
        }
        const auto least = Isa::shorts(low), times = Isa::shorts(m);
        for (int r = 0; r < n; r++) {
          Ints q[V];
#pragma GCC unroll 4
          for (int j = 0; j < V; j++) {
            const Floats v = Isa::load(rows[r] + c + j * W);
            wrong[j % 2] = Isa::fma(v, Floats{}, wrong[j % 2]);
            q[j] = Isa::nearest(Isa::min(v * inverse[j], high[j]));
          }
          Isa::store_carriers(Isa::larger(Isa::shorts(q), least), times, to + r * stride + c);
        }
      }
    for (; c < channels; c += W) {
      const int left = channels - c < W ? (int)(channels - c) : W;
      const Columns columns(table, c, own);
      Ints exists;
      for (int l = 0; l < W; l++) exists[l] = l < left ? -1 : 0;
      for (int r = 0; r < n; r++) {
        const Floats v = values(rows[r] + c, left);
        wrong[0] = Isa::fma(v, Floats{}, wrong[0]);
        const Ints q = carried(v, columns.inverse, columns.low, columns.high, columns.m) & exists;
        put(q, to + r * stride + c, stride - c < W ? (int)(stride - c) : W);
      }
    }
    for (; c < stride; c += W)
      for (int r = 0; r < n; r++)
        put(Ints{}, to + r * stride + c, stride - c < W ? (int)(stride - c) : W);
    wrong[0] = wrong[0] + wrong[1];
    return !Isa::any(wrong[0] != wrong[0]);
  }

  // n values under one entry: each the sum of two bytes; whether all are finite.
  static bool halves(const float *x, int64_t n, const CarryTable &table, int8_t *first,
                     int8_t *second) {
    const Columns one(table, 0, false);
    Floats wrong{};
    for (int64_t i = 0; i < n; i += W) {
      const int left = n - i < W ? (int)(n - i) : W;
      const Floats v = values(x + i, left);
      wrong = Isa::fma(v, Floats{}, wrong);
      const Ints whole = carried(v, one.inverse, one.low, one.high, Isa::all(1.0f));
      put(whole >> 1, first + i, left);
      put(whole - (whole >> 1), second + i, left);
    }
    return !Isa::any(wrong != wrong);
  }

  // Maps of up to 8 channels that lie one after the other, as those of an image: rows of 8 bytes
  // for n pixels, as `each` makes them, or as `halves`; whether all are finite.
  static bool planes(const float *x, int64_t channels, int64_t channel_stride, int64_t n, bool own,
                     bool halved, const CarryTable &t, int8_t *to) {
    Floats wrong{};
    for (int64_t i = 0; i < n; i += W) {
      const int left = n - i < W ? (int)(n - i) : W;
      Ints words[2] = {};
      const auto add = [&](int64_t at, Ints q) COD_ALWAYS {
        const Ints byte = (q & 0xff) << (int)(8 * (at % 4));
        at < 4 ? words[0] |= byte : words[1] |= byte;
      };
      for (int64_t c = 0; c < channels; c++) {
        const int64_t k = own ? c : 0;
        const Floats v = values(x + c * channel_stride + i, left);
        wrong = Isa::fma(v, Floats{}, wrong);
        const Ints q = carried(v, Isa::all(t.inverse[k]), Isa::all(t.low[k]), Isa::all(t.high[k]),
                               Isa::all(halved ? 1.0f : t.m[k]));
        add(c, halved ? q >> 1 : q);
        if (halved) add(channels + c, q - (q >> 1));
      }
      if (left == W) {
        Isa::store_pairs(words[0], words[1], to + 8 * i);
      } else {
        int8_t some[8 * W];
        Isa::store_pairs(words[0], words[1], some);
        __builtin_memcpy(to + 8 * i, some, (size_t)(8 * left));
      }
    }
    return !Isa::any(wrong != wrong);
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
