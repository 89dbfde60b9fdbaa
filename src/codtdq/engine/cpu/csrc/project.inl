// DSTG + DCRP for W groups at once, one group per lane: written once, compiled for every set.
//
// The including file defines: W, VF, VI (float and int32 vectors of W), VD (W doubles, any form),
// umax (VI, unsigned), vany (VI), vround, vfma, vfnma, fmin_lanes (VF), wide(VF) -> VD, narrow(VD)
// -> VF, dset, dadd, dsub, dmul, ddiv, dfma, dsqrt, dmin, dclamp (negative -> 0, NaN stays),
// dless(VD, VD) -> VI, the keys of select.inl, load_transposed(rows, group, v), encode_group(x, n,
// radius, step, bits, codes) -> sum of codes, and encode_plain(block, from, to, n, qmax, out) for
// groups without surprises, which may return false and leave them to encode_group.
// Follows quantizer/projection.py step by step; that file is the definition.

#include "lanes.inl"

#include "guard.inl"
#include "select.inl"

namespace {

// What one look at the values tells.
struct Summary {
  VI largest, smallest;  // magnitudes as integers: a NaN is larger than infinity
  VF total, squares;     // of the values, float32
};

static inline Summary summarize(const VF *v, int n) {
  // four sums side by side: one addition need not wait for the one before
  VF total[4] = {}, squares[4] = {};
  VI largest{}, smallest = VI{} + 0x7fffffff;
  const auto take = [&](VF x, int i) {
    const VI magnitude = as_int(x) & 0x7fffffff;
    largest = umax(largest, magnitude);
    smallest = kmin(smallest, magnitude);
    total[i] = total[i] + x;
    squares[i] = vfma(x, x, squares[i]);
  };
  int k = 0;
  for (; k + 4 <= n; k += 4) take(v[k], 0), take(v[k + 1], 1), take(v[k + 2], 2), take(v[k + 3], 3);
  for (; k < n; k++) take(v[k], 0);
  return {largest, smallest, total[0] + total[1] + (total[2] + total[3]),
          squares[0] + squares[1] + (squares[2] + squares[3])};
}

// Standard deviation, float64, the first element taken off.
static __attribute__((noinline)) VF deviation(const VF *v, int n, const int *valid) {
  const VD first = wide(v[0]);
  VD total = dset(0), squares = dset(0);
  VF count = VF{} + (float)n;
  if (valid)
    for (int l = 0; l < W; l++) count[l] = (float)valid[l];
  for (int k = 1; k < n; k++) {
    VF x = v[k];
    if (valid)
      for (int l = 0; l < W; l++)
        if (k >= valid[l]) x[l] = v[0][l];
    const VD d = dsub(wide(x), first);
    total = dadd(total, d);
    squares = dfma(d, d, squares);
  }
  const VD n_wide = wide(count);
  const VD variance = dclamp(dsub(squares, ddiv(dmul(total, total), n_wide)));
  return narrow(dadd(dsqrt(ddiv(variance, n_wide)), dset(COD_STD_EPS)));
}

// Whether C1's bound certainly lies above base and floor everywhere, from float32 sums: their error
// is below 2^-14 of the sum of squares. No digits of the deviation matter then.
static inline bool deviation_is_large(const Summary &s, VF count, VF base, const cod::Plan &plan) {
  const VF spread = s.squares * (1 - 0x1p-13f) - s.total * s.total / count;
  const VF limit = at_least(base, plan.floor);
  const VF factor = VF{} + plan.tau_factor;
  return !vany(~(spread * (factor * factor) > limit * limit * count));
}

// C2's bound: 2 q_max times the k-th smallest magnitude that is not zero.
static inline VF zero_bin_bound(const VF *v, const Summary &s, const cod::Plan &plan) {
  const int n = plan.spec.group;
  if (plan.spec.literal)
    return as_float(select(v, n, plan.zero_rank[n], nullptr, 0)) * plan.zero_factor;
  if (!vany(s.smallest == 0))
    return as_float(select(v, n, plan.zero_rank[n], nullptr, 1)) * plan.zero_factor;
  VI evidence{}, ranks;
  for (int k = 0; k < n; k++) evidence -= (VI)(v[k] != 0.0f);
  for (int l = 0; l < W; l++) ranks[l] = plan.zero_rank[evidence[l]];
  const VI kth = select(v, n, plan.zero_rank[n], &ranks, 1);
  return as_float(choose(evidence == 0, VI{} + kInf, kth)) * plan.zero_factor;
}

static VF percentile_of(const VF *v, VI largest, const cod::Plan &plan, const int *valid) {
  const int n = plan.spec.group, rank = plan.percentile_rank[n];
  if (!valid) {
    if (rank == n) return as_float(largest);
    if (rank == n - 1) return as_float(select_top<2>(v, n));
    if (rank == n - 2) return as_float(select_top<3>(v, n));
    if (rank == n - 3) return as_float(select_top<4>(v, n));
    return as_float(select(v, n, rank, nullptr, 0));
  }
  alignas(64) VF known[COD_MAX_GROUP];
  VI ranks;
  for (int l = 0; l < W; l++) {
    ranks[l] = plan.percentile_rank[valid[l]];
    for (int k = 0; k < n; k++) known[k][l] = k < valid[l] ? v[k][l] : __builtin_inff();
  }
  return as_float(select(known, n, rank, &ranks, 0));
}

static inline void bound_by(VF bound, const cod::Plan &plan, int code, int flag, VF &radius,
                            VI &active, VI &infeasible) {
  const VI feasible = plan.spec.literal ? VI{} == 0 : (VI)(bound >= plan.floor);
  const VI tighter = (bound < radius) & feasible;
  infeasible |= ~feasible & flag;
  active = choose(tighter, VI{} + code, active);
  radius = choose(tighter, bound, radius);
}

// What the steps below need of a block besides its results.
struct alignas(64) Scratch {
  float largest[cod::kMaxLanes], base[cod::kMaxLanes], squares[cod::kMaxLanes];
};

// Radius (not yet guarded), active and infeasible of W groups from `at` on.
static inline void project_lanes(const cod::GroupBlock &block, int at, const cod::Plan &plan,
                                 Scratch &scratch, cod::GroupResult &out) {
  const cod_quant_spec &spec = plan.spec;
  const int n = spec.group;
  const float *rows[W];
  int valid[W];
  bool padded = false;
  for (int l = 0; l < W; l++) {
    const int from = at + l < block.lanes ? at + l : at;
    rows[l] = block.values[from];
    valid[l] = block.valid[from];
    padded |= valid[l] < n;
    // the groups two steps ahead: rows mostly follow each other, and elsewhere nothing is lost
    for (int k = 0; k < n; k += 16) __builtin_prefetch(rows[l] + 2 * W * n + k);
  }
  padded &= !spec.literal;
  VF count = VF{} + (float)n;
  if (padded)
    for (int l = 0; l < W; l++) count[l] = (float)valid[l];
  alignas(64) VF v[COD_MAX_GROUP];
  load_transposed(rows, n, v);
  const Summary s = summarize(v, n);
  VF base = as_float(s.largest);
  if (vany(s.largest > kInf))  // keys know no NaN: it counts as an infinity
    for (int k = 0; k < n; k++) v[k] = choose(v[k] == v[k], v[k], VF{} + __builtin_inff());
  if (spec.use_percentile) {
    const VF picked = percentile_of(v, s.largest, plan, padded ? valid : nullptr);
    // an infinity stands for a NaN, except where padding is one
    base = choose((as_int(picked) == kInf) & (count == (float)n), base, picked);
  }
  VF radius = base;
  VI active{}, infeasible{};
  if (plan.bound_tau && !deviation_is_large(s, count, base, plan))
    bound_by(deviation(v, n, padded ? valid : nullptr) * plan.tau_factor, plan, COD_ACTIVE_C1,
             COD_INFEASIBLE_C1, radius, active, infeasible);
  if (plan.bound_zero)
    bound_by(zero_bin_bound(v, s, plan), plan, COD_ACTIVE_C2, COD_INFEASIBLE_C2, radius, active,
             infeasible);
  store_lanes(s.largest, scratch.largest + at);
  store_lanes(base, scratch.base + at);
  store_lanes(s.squares, scratch.squares + at);
  store_lanes(radius, out.radius + at);
  store_lanes(active, out.active + at);
  store_lanes(infeasible, out.infeasible + at);
}

// Floors, steps, NaN where a value is not finite. Returns whether no lane needs special care when
// it is encoded.
static inline bool finish_lanes(int at, const cod::Plan &plan, const Scratch &scratch,
                                cod::GroupResult &out) {
  const VF largest = load_lanes(scratch.largest + at);
  VF radius = at_least(load_lanes(out.radius + at), COD_EPS);
  radius = choose(as_int(largest) < kInf, radius, VF{} + __builtin_nanf(""));
  const VF step = step_for(radius, plan.qmax);
  store_lanes(radius, out.radius + at);
  store_lanes(step, out.step + at);
  // so large that 1 / step might be denormal, or too many steps for the sum with 1.5 * 2^23
  const VI ordinary = (largest < 0x1p100f) & (largest < step * 0x1p20f);
  const VI clipped_at_floor = (step <= COD_EPS) & (largest > radius);
  return !vany(~ordinary | clipped_at_floor);
}

constexpr int kLanes = cod::kMaxLanes;

// Pass by pass over a block that fits the nearest cache: the results of one group depend on each
// other, those of the groups do not, and the processor always has some to work on.
static void quantize_block(const cod::GroupBlock &block, const cod::Plan &plan,
                           cod::GroupResult &out) {
  const int n = plan.spec.group;
  Scratch scratch;
  bool plain[kLanes / W];
  for (int at = 0; at < block.lanes; at += W) project_lanes(block, at, plan, scratch, out);
  if (plan.spec.guarded) guard(block, plan, scratch.base, scratch.squares, out);
  for (int at = 0; at < block.lanes; at += W) plain[at / W] = finish_lanes(at, plan, scratch, out);
  for (int at = 0; at < block.lanes; at += W) {
    const int end = at + W < block.lanes ? at + W : block.lanes;
    if (plain[at / W] && encode_plain(block, at, end, n, (int)plan.qmax, out)) continue;
    for (int l = at; l < end; l++)
      out.sums[l] = encode_group(block.values[l], n, out.radius[l], out.step[l], plan.spec.bits,
                                 block.codes[l]);
  }
}

}  // namespace
