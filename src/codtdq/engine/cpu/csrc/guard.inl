// Guarded projection: between base and bound, the fixed fraction with the least squared error.

namespace {

constexpr int kFractions = 5;
constexpr float kFraction[kFractions] = {1.0f, 0.75f, 0.5f, 0.25f, 0.0f};
constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, ties to even

static inline VF step_for(VF radius, float qmax) { return at_least(radius / qmax, COD_EPS); }

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

// The definition: errors as the codes make them, summed in float64; ties to the bound.
static __attribute__((noinline)) VF least_error(const VF *v, int n, const VF *radius,
                                                const VF *step, float qmax) {
  VF best = radius[0];
  VD least = dset(__builtin_inf());
  for (int c = 0; c < kFractions; c++) {
    const VD total = squared_error(v, n, radius[c], step[c], -qmax - 1, qmax);
    const VI better = dless(total, least);
    least = dmin(total, least);
    best = choose(better, radius[c], best);
  }
  return best;
}

// The same in float32, without divisions and on magnitudes, which is enough unless two candidates
// come close: `unsure` marks the lanes where the sums differ by less than their possible error.
// A code next to a tie may be off by one; its squared error is then off by 4 q_max 2^-23 at most.
static inline VF quick_least_error(const VF *v, int n, const VF *radius, const VF *step,
                                   VF squares, float qmax, VI &unsure) {
  VF inverse[kFractions], total[kFractions];
  for (int c = 0; c < kFractions; c++) inverse[c] = 1.0f / step[c], total[c] = VF{};
  const VF magic = VF{} + kMagic, top = VF{} + (kMagic + qmax);
  for (int k = 0; k < n; k++) {
    const VF x = as_float(as_int(v[k]) & 0x7fffffff);
#pragma GCC unroll 5
    for (int c = 0; c < kFractions; c++) {
      const VF code = fmin_lanes(vfma(x, inverse[c], magic), top) - magic;
      const VF error = vfnma(code, step[c], x);
      total[c] = vfma(error, error, total[c]);
    }
  }
  VF best = radius[0], least = total[0], second = VF{} + __builtin_inff();
  for (int c = 1; c < kFractions; c++) {
    const VI better = total[c] < least;
    second = choose(better, least, choose(total[c] < second, total[c], second));
    least = choose(better, total[c], least);
    best = choose(better, radius[c], best);
  }
  const float relative = (qmax + 2) / 65536;
  const VF margin = least * relative + squares * 0x1p-27f + 1e-30f;
  unsure = ~(second - least > margin);
  return best;
}

// Groups whose bound `low` lies under their base: the radius with the least error.
static inline VF guard_lanes(const VF *v, int n, VF base, VF low, VF squares,
                             const cod::Plan &plan) {
  VF candidates[kFractions], steps[kFractions];
  for (int c = 0; c < kFractions; c++) {
    const float f = kFraction[c];
    const VF between = f == 1 ? low : f == 0 ? base : base + (low - base) * f;
    candidates[c] = at_least(between, COD_EPS);
    steps[c] = step_for(candidates[c], plan.qmax);
  }
  VI unsure;
  const VF best = quick_least_error(v, n, candidates, steps, squares, plan.qmax, unsure);
  // a step at its floor has fewer codes than the grid
  if (!vany(unsure | (low < plan.floor))) return best;
  return least_error(v, n, candidates, steps, plan.qmax);
}

// All groups of a block with a bound under their base, W at a time: they are few with most data.
static void guard(const cod::GroupBlock &block, const cod::Plan &plan, const float *base,
                  const float *squares, cod::GroupResult &out) {
  const int n = plan.spec.group;
  int chosen[cod::kMaxLanes + W], count = 0;
  for (int l = 0; l < block.lanes; l++) {
    chosen[count] = l;
    count += out.radius[l] < base[l];
  }
  for (int at = 0; at < count; at += W) {
    for (int l = count; l < at + W; l++) chosen[l] = chosen[at];
    const float *rows[W];
    VF high, low, square;
    for (int l = 0; l < W; l++) {
      const int from = chosen[at + l];
      rows[l] = block.values[from];
      high[l] = base[from], low[l] = out.radius[from], square[l] = squares[from];
    }
    alignas(64) VF v[COD_MAX_GROUP];
    load_transposed(rows, n, v);
    const VF best = guard_lanes(v, n, high, low, square, plan);
    const VI moved = best > at_least(low, COD_EPS);
    for (int l = 0; l < W && at + l < count; l++) {
      out.radius[chosen[at + l]] = best[l];
      if (moved[l]) out.active[chosen[at + l]] = COD_ACTIVE_GUARDED;
    }
  }
}

}  // namespace
