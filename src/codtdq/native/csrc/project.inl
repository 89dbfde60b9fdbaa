// DSTG + DCRP for W groups at once, one group per lane: written once, compiled for every set.
//
// The including file defines: W, VF, VI (float and int32 vectors of W), VD (W doubles, any form),
// vmin, vmax (VI), vround (VF), wide(VF) -> VD, narrow(VD) -> VF, dset, dadd, dsub, dmul, ddiv,
// dfma, dsqrt, dmin, dclamp (negative -> 0, NaN stays), dless(VD, VD) -> VI, load_transposed(block,
// group, v) and encode_group(x, n, radius, step, bits, codes) -> sum of codes.
// Follows quantizer/projection.py step by step; that file is the definition.

#include <array>
#include <utility>

namespace {

constexpr int kInf = 0x7f800000;

static inline void order(VI &a, VI &b) {
  VI low = vmin(a, b);
  b = vmax(a, b);
  a = low;
}

// Batcher's odd-even merge sort as a list of comparisons, known to the compiler: with constant
// indices the array lives in registers, and comparisons that no result needs fall away.
template <int N>
struct Network {
  static constexpr int count() {
    int n = 0;
    for (int p = 1; p < N; p *= 2)
      for (int k = p; k >= 1; k /= 2)
        for (int j = k % p; j + k < N; j += 2 * k)
          for (int i = 0; i < k && i + j + k < N; i++)
            if ((i + j) / (2 * p) == (i + j + k) / (2 * p)) n++;
    return n;
  }
  static constexpr auto pairs() {
    std::array<std::pair<int, int>, count()> list{};
    int n = 0;
    for (int p = 1; p < N; p *= 2)
      for (int k = p; k >= 1; k /= 2)
        for (int j = k % p; j + k < N; j += 2 * k)
          for (int i = 0; i < k && i + j + k < N; i++)
            if ((i + j) / (2 * p) == (i + j + k) / (2 * p)) {
              list[n].first = i + j;
              list[n++].second = i + j + k;
            }
    return list;
  }
  static constexpr auto list = pairs();
};

template <int N, size_t... I>
static inline __attribute__((always_inline)) void compare_all(VI *v, std::index_sequence<I...>) {
  (order(v[Network<N>::list[I].first], v[Network<N>::list[I].second]), ...);
}

// The smallest R (1-based rank) of N magnitudes, all lanes at once, and the smallest of all.
template <int N, int R>
__attribute__((noinline)) static void select_lanes(const VF *values, VI &kth, VI &smallest) {
  VI v[N];
#pragma GCC unroll 64
  for (int i = 0; i < N; i++) __builtin_memcpy(&v[i], &values[i], sizeof(VI)), v[i] &= 0x7fffffff;
  compare_all<N>(v, std::make_index_sequence<Network<N>::count()>());
  kth = v[R - 1];
  smallest = v[0];
}

template <int N>
__attribute__((noinline)) static void sort_lanes(VI *keys) {
  if constexpr (N <= 32) {
    VI v[N];
#pragma GCC unroll 32
    for (int i = 0; i < N; i++) v[i] = keys[i];
    compare_all<N>(v, std::make_index_sequence<Network<N>::count()>());
#pragma GCC unroll 32
    for (int i = 0; i < N; i++) keys[i] = v[i];
  } else {
    for (const auto &pair : Network<N>::list) order(keys[pair.first], keys[pair.second]);
  }
}

static void sort_group(VI *v, int n) {
  const int size = n <= 16 ? 16 : n <= 32 ? 32 : n <= 64 ? 64 : 128;
  for (int i = n; i < size; i++) v[i] = VI{} + 0x7fffffff;
  if (size == 16) sort_lanes<16>(v);
  else if (size == 32) sort_lanes<32>(v);
  else if (size == 64) sort_lanes<64>(v);
  else sort_lanes<128>(v);
}

static inline VF as_float(VI x) {
  VF y;
  __builtin_memcpy(&y, &x, sizeof y);
  return y;
}

static inline VI as_int(VF x) {
  VI y;
  __builtin_memcpy(&y, &x, sizeof y);
  return y;
}

static inline VF choose(VI mask, VF a, VF b) { return mask ? a : b; }
static inline VI choose(VI mask, VI a, VI b) { return mask ? a : b; }

static inline bool any(VI mask) {
  alignas(64) int32_t lanes[W];
  __builtin_memcpy(lanes, &mask, sizeof lanes);
  int32_t all = 0;
  for (int l = 0; l < W; l++) all |= lanes[l];
  return all != 0;
}

static inline VF deviation_from(VD total, VD squares, VD count) {
  const VD variance = dclamp(dsub(squares, ddiv(dmul(total, total), count)));
  return narrow(dadd(dsqrt(ddiv(variance, count)), dset(COD_STD_EPS)));
}

// Standard deviation, float64, the first element taken off.
static inline VF deviation(const VF *v, int n) {
  const VD first = wide(v[0]);
  VD total = dset(0), squares = dset(0);
  for (int k = 1; k < n; k++) {
    const VD d = dsub(wide(v[k]), first);
    total = dadd(total, d);
    squares = dfma(d, d, squares);
  }
  return deviation_from(total, squares, dset(n));
}

static VF deviation_padded(const VF *v, int n, const int *valid) {
  VD total = dset(0), squares = dset(0);
  VF count;
  for (int l = 0; l < W; l++) count[l] = (float)valid[l];
  const VD first = wide(v[0]);
  for (int k = 1; k < n; k++) {
    VF x = v[k];
    for (int l = 0; l < W; l++)
      if (k >= valid[l]) x[l] = v[0][l];
    const VD d = dsub(wide(x), first);
    total = dadd(total, d);
    squares = dfma(d, d, squares);
  }
  return deviation_from(total, squares, wide(count));
}

static inline VF step_for(VF radius, float qmax) {
  const VF step = radius / qmax;
  return choose(step < COD_EPS, VF{} + COD_EPS, step);
}

static VD squared_error(const VF *v, int n, VF radius, VF step, float low, float high) {
  VD total = dset(0);
  for (int k = 0; k < n; k++) {
    const VF x = v[k];
    VF y = choose(x < -radius, -radius, choose(x > radius, radius, x)) / step;
    y = vround(y);
    y = choose(y < low, VF{} + low, choose(y > high, VF{} + high, y));
    const VD error = wide(x - y * step);
    total = dfma(error, error, total);
  }
  return total;
}

// Between base and bound, the fixed fraction with the least squared error; ties to the bound.
static void guard(const VF *v, int n, VF base, float qmax, VF &radius, VI &active) {
  const VI tighter = radius < base;
  if (!any(tighter)) return;
  const VF low = radius;
  VF best = radius;
  VD least = dset(__builtin_inf());
  static const float fractions[] = {1.0f, 0.75f, 0.5f, 0.25f, 0.0f};
  for (float fraction : fractions) {
    VF c = fraction == 1 ? low : fraction == 0 ? base : base + (low - base) * fraction;
    c = choose(c < COD_EPS, VF{} + COD_EPS, c);
    const VD total = squared_error(v, n, c, step_for(c, qmax), -qmax - 1, qmax);
    const VI better = dless(total, least);
    least = dmin(total, least);
    best = choose(better, c, best);
  }
  const VI moved = (best > choose(low < COD_EPS, VF{} + COD_EPS, low)) & tighter;
  active = choose(moved, VI{} + (int)COD_ACTIVE_GUARDED, active);
  radius = choose(tighter, best, radius);
}

// C2's bound: 2 q_max times the k-th smallest magnitude that is not zero.
static VF zero_bin_bound(const VF *v, int n, const cod::Plan &plan) {
  VI kth, smallest;
  bool selected = true;
  if (n == 32 && plan.zero_rank[32] == 7) select_lanes<32, 7>(v, kth, smallest);
  else if (n == 16 && plan.zero_rank[16] == 4) select_lanes<16, 4>(v, kth, smallest);
  else selected = false;
  alignas(64) VI keys[COD_MAX_GROUP];
  if (!selected || (!plan.spec.literal && any(smallest == 0))) {
    for (int k = 0; k < n; k++) keys[k] = as_int(v[k]) & 0x7fffffff;
    if (plan.spec.literal) {
      sort_group(keys, n);
      kth = keys[plan.zero_rank[n] - 1];
    } else {
      VI zeros{};
      for (int k = 0; k < n; k++) zeros -= (VI)(keys[k] == 0);
      sort_group(keys, n);
      for (int l = 0; l < W; l++) {
        const int evidence = n - zeros[l];
        kth[l] = evidence ? keys[zeros[l] + plan.zero_rank[evidence] - 1][l] : kInf;
      }
    }
  }
  return as_float(kth) * plan.zero_factor;
}

static void project_block(const cod::GroupBlock &block, const cod::Plan &plan, const VF *v,
                          VF &radius, VF &step, VI &active, VI &infeasible) {
  const cod_quant_spec &spec = plan.spec;
  const int n = spec.group;
  int valid[W];
  bool padded = false;
  for (int l = 0; l < W; l++) {
    valid[l] = l < block.lanes ? block.valid[l] : n;
    padded |= valid[l] < n;
  }
  padded &= !spec.literal;
  VI largest{};
  for (int k = 0; k < n; k++) largest = vmax(largest, as_int(v[k]) & 0x7fffffff);
  VF base = as_float(largest);
  if (spec.use_percentile) {
    alignas(64) VI keys[COD_MAX_GROUP];
    for (int k = 0; k < n; k++) {
      keys[k] = as_int(v[k]) & 0x7fffffff;
      if (padded)
        for (int l = 0; l < W; l++)
          if (k >= valid[l]) keys[k][l] = kInf;
    }
    sort_group(keys, n);
    VI picked;
    for (int l = 0; l < W; l++) picked[l] = keys[plan.percentile_rank[padded ? valid[l] : n] - 1][l];
    base = as_float(picked);
  }
  radius = base;
  active = infeasible = VI{};
  const VI always = VI{} == 0;
  if (plan.bound_tau) {
    const VF sigma = padded ? deviation_padded(v, n, valid) : deviation(v, n);
    const VF bound = sigma * plan.tau_factor;
    const VI feasible = spec.literal ? always : (VI)(bound >= plan.floor);
    const VI tighter = (bound < radius) & feasible;
    infeasible |= ~feasible & (int)COD_INFEASIBLE_C1;
    active = choose(tighter, VI{} + (int)COD_ACTIVE_C1, active);
    radius = choose(tighter, bound, radius);
  }
  if (plan.bound_zero) {
    const VF bound = zero_bin_bound(v, n, plan);
    const VI feasible = spec.literal ? always : (VI)(bound >= plan.floor);
    const VI tighter = (bound < radius) & feasible;
    infeasible |= ~feasible & (int)COD_INFEASIBLE_C2;
    active = choose(tighter, VI{} + (int)COD_ACTIVE_C2, active);
    radius = choose(tighter, bound, radius);
  }
  if (spec.guarded) guard(v, n, base, plan.qmax, radius, active);
  radius = choose(radius < COD_EPS, VF{} + COD_EPS, radius);
  radius = choose(largest < kInf, radius, VF{} + __builtin_nanf(""));
  step = step_for(radius, plan.qmax);
}

static void quantize_block(const cod::GroupBlock &block, const cod::Plan &plan,
                           cod::GroupResult &out) {
  alignas(64) VF v[COD_MAX_GROUP];
  load_transposed(block, plan.spec.group, v);
  VF radius, step;
  VI active, infeasible;
  project_block(block, plan, v, radius, step, active, infeasible);
  __builtin_memcpy(out.radius, &radius, sizeof radius);
  __builtin_memcpy(out.step, &step, sizeof step);
  __builtin_memcpy(out.active, &active, sizeof active);
  __builtin_memcpy(out.infeasible, &infeasible, sizeof infeasible);
  for (int l = 0; l < block.lanes; l++)
    out.sums[l] = encode_group(block.values[l], plan.spec.group, out.radius[l], out.step[l],
                               plan.spec.bits, block.codes[l]);
}

}  // namespace
